"""The options of `build`: what other libraries call them, and what to answer to a wrong word or value, or none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from types import NoneType
from typing import Any

from attnzoo.errors import ConfigError, did_you_mean
from attnzoo.variant import Variant

# Our word -> the words of torch, transformers, timm, x-transformers, nanoGPT, Megatron and flash-attention for it.
SPELLINGS = {
    "d_model": "embed_dim hidden_size hidden_dim model_dim emb_dim n_embd dim d channels",
    "heads": "num_heads n_head n_heads num_attention_heads nhead nheads head_count",
    "kv_heads": "num_kv_heads n_kv_heads n_kv_head num_key_value_heads num_heads_kv num_query_groups n_query_groups",
    "head_dim": "head_size dim_head d_head d_k d_kv kv_channels",
    "v_head_dim": "vdim d_v v_head_size dim_value_head",
    "bias": "attention_bias use_bias qkv_bias add_bias",
    "causal": "is_causal causal_mask",
    "window": "sliding_window window_size local_window attention_window",
    "scale": "softmax_scale scaling sm_scale attn_scale qk_scale",
    "softcap": "attn_logit_softcapping attn_logit_softcap logit_cap logits_soft_cap attn_softcap",
    "rope": "rotary use_rope rotary_emb rotary_embedding",
    "qk_norm": "qk_layernorm use_qk_norm normalize_qk",
    "sinks": "attention_sinks attn_sinks use_sinks",
    "dropout": "dropout_p attn_dropout attn_drop attention_dropout attn_pdrop dropout_rate",
    "max_seq_len": "max_position_embeddings max_len max_length max_seq_length block_size context_length n_ctx",
    "backend": "attn_implementation implementation kernel",
    "theta": "rope_theta rope_base rotary_emb_base base",
    "layout": "rope_layout rotary_layout",
}
OURS = {foreign: ours for ours, words in SPELLINGS.items() for foreign in words.split()}

# The plain types that an option may be annotated with: what answers to them, and what they are called.
PLAIN: dict[str, tuple[type, str]] = {
    "bool": (bool, "True or False"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "str": (str, "a word"),
    "None": (NoneType, "None"),
}


def check_options(variant: Variant, given: Mapping[str, Any], takers: Callable[[str], list[str]]) -> None:
    """Hold the given option words against those that the variant takes; `takers` knows which variants take a word.

    Raises `ConfigError` for words it does not take, with the right ones, for required options left out, and for values
    that are not of the plain type an option is annotated with: `causal="false"` would be true.
    """
    takes = variant.options
    if takes is None:
        return
    wrong = [word_complaint(word, takes, takers) for word in given if word not in takes]
    if wrong:
        raise ConfigError(f"{variant.name}: {' '.join(wrong)} It takes {', '.join(takes) or 'no options'}.")
    missing = [name for name, option in takes.items() if option.default is option.empty and name not in given]
    if missing:
        example = "".join(f", {option}={value!r}" for option, value in variant.cases[0].items())
        raise ConfigError(
            f"{variant.name}: it needs {' and '.join(missing)}; for example attnzoo.build({variant.name!r}{example})"
        )
    if unfit := [complaint for word, value in given.items() if (complaint := value_complaint(takes[word], value))]:
        raise ConfigError(f"{variant.name}: {' '.join(unfit)}")


def word_complaint(word: str, takes: Mapping[str, inspect.Parameter], takers: Callable[[str], list[str]]) -> str:
    """A sentence on an option word that is not among those a variant takes."""
    ours = OURS.get(word, word)
    if ours in takes:
        return f"{word!r} is called {ours!r} here."
    called = "" if ours == word else f"{word!r} is called {ours!r} here; "
    if others := takers(ours):
        return f"{called}it does not take {ours!r}; {', '.join(others)} {'does' if len(others) == 1 else 'do'}."
    if ours in SPELLINGS:
        return f"{called}it does not take {ours!r}, and no other installed variant does."
    return f"unknown option {word!r}{did_you_mean(word.lower(), takes) or '.'}"


def value_complaint(option: inspect.Parameter, value: Any) -> str:
    """A sentence on a value of another type than the option is annotated with; "" where that is not plain to see."""
    note = option.annotation
    names = (note if isinstance(note, str) else inspect.formatannotation(note)).split(" | ")
    if not PLAIN.keys() >= set(names) or value is option.default:
        return ""
    fits = "bool" in names if isinstance(value, bool) else isinstance(value, tuple(PLAIN[name][0] for name in names))
    return "" if fits else f"{option.name} is {value!r}; it takes {' or '.join(PLAIN[name][1] for name in names)}."
