"""What `build` answers to option words, and to factories that fail."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import nn

import attnzoo
from attnzoo.errors import ConfigError, Unsupported
from attnzoo.options import OURS, SPELLINGS
from attnzoo.registry import Registry

MakeVariant = Callable[..., attnzoo.Variant]


def grouped(d_model: int, heads: int, kv_heads: int = 1) -> nn.Module:
    return nn.Identity()


@pytest.fixture
def registry(make_variant: MakeVariant) -> Registry:
    return Registry([make_variant("tiny"), make_variant("grouped", grouped)])


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        ("num_heads", "heads"),
        ("n_head", "heads"),
        ("num_attention_heads", "heads"),
        ("nhead", "heads"),
        ("embed_dim", "d_model"),
        ("hidden_size", "d_model"),
        ("n_embd", "d_model"),
        ("d", "d_model"),
        ("is_causal", "causal"),
        ("attn_pdrop", "dropout"),
        ("dropout_p", "dropout"),
    ],
)
def test_a_foreign_spelling_is_answered_with_ours(registry: Registry, foreign: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=f"^tiny: '{foreign}' is called '{ours}' here\\. It takes d_model, heads, "):
        registry.build("tiny", d_model=24, heads=4, **{foreign: 3})


def test_each_foreign_spelling_means_one_thing() -> None:
    words = [word for spellings in SPELLINGS.values() for word in spellings.split()]
    assert len(words) == len(OURS)
    assert not OURS.keys() & SPELLINGS.keys()


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("kv_heads", "it does not take 'kv_heads'; grouped does."),
        (
            "num_key_value_heads",
            "'num_key_value_heads' is called 'kv_heads' here; it does not take 'kv_heads'; grouped does.",
        ),
        ("window", "it does not take 'window', and no other installed variant does."),
        ("HEADS", "unknown option 'HEADS'; did you mean 'heads'?"),
        ("zebra", "unknown option 'zebra'."),
    ],
)
def test_another_wrong_word_is_answered(registry: Registry, word: str, answer: str) -> None:
    answer = f"tiny: {answer} It takes d_model, heads, causal, dropout."
    with pytest.raises(ConfigError, match=f"^{re.escape(answer)}$"):
        registry.build("tiny", d_model=24, heads=4, **{word: 2})


def test_several_wrong_words_are_answered_at_once(registry: Registry) -> None:
    with pytest.raises(
        ConfigError, match=r"'embed_dim' is called 'd_model' here\. 'num_heads' is called 'heads' here\."
    ):
        registry.build("tiny", embed_dim=24, num_heads=4)


def spelled_out(
    d_model: int,
    causal: bool = True,
    scale: float | None = None,
    layout: str = "half",
    window: int = None,  # type: ignore[assignment]  # noqa: RUF013
    free: object = (),
) -> nn.Module:
    return nn.Identity()


@pytest.mark.parametrize(
    ("word", "value", "answer"),
    [
        ("causal", "false", "causal is 'false'; it takes True or False."),
        ("causal", 0, "causal is 0; it takes True or False."),
        ("scale", "0.5", "scale is '0.5'; it takes a number or None."),
        ("scale", True, "scale is True; it takes a number or None."),
        ("d_model", 24.0, "d_model is 24.0; it takes a whole number."),
        ("d_model", None, "d_model is None; it takes a whole number."),
        ("layout", 2, "layout is 2; it takes a word."),
    ],
)
def test_a_value_of_another_type_is_refused(make_variant: MakeVariant, word: str, value: Any, answer: str) -> None:
    registry = Registry([make_variant("tiny", spelled_out, cases=[{"d_model": 24}])])
    with pytest.raises(ConfigError, match=f"^tiny: {re.escape(answer)}$"):
        registry.build("tiny", **{"d_model": 24, word: value})


@pytest.mark.parametrize("by", ["words", "types"])
@pytest.mark.parametrize(
    ("word", "value"),
    [("scale", 1), ("scale", np.float32(0.5)), ("d_model", np.int64(24)), ("window", None), ("free", slice(2))],
    ids=str,
)
def test_a_value_that_fits_or_whose_type_is_not_told_is_taken(
    make_variant: MakeVariant, by: str, word: str, value: Any
) -> None:
    def build(**options: Any) -> nn.Module:
        return spelled_out(**options)

    build.__signature__ = inspect.signature(spelled_out, eval_str=by == "types")  # type: ignore[attr-defined]
    registry = Registry([make_variant("tiny", build, cases=[{"d_model": 24}])])
    assert isinstance(registry.build("tiny", **{"d_model": 24, word: value}), nn.Identity)


def test_several_values_of_other_types_are_refused_at_once(registry: Registry) -> None:
    with pytest.raises(
        ConfigError, match=r"^tiny: heads is 'four'; it takes a whole number\. causal is 'no'; it takes"
    ):
        registry.build("tiny", d_model=24, heads="four", causal="no")


def test_missing_options_are_named_with_an_example(registry: Registry) -> None:
    answer = "tiny: it needs d_model and heads; for example attnzoo.build('tiny', d_model=24, heads=4)"
    with pytest.raises(ConfigError, match=re.escape(answer)):
        registry.build("tiny", causal=False)


def test_a_factory_of_any_keyword_is_not_second_guessed(make_variant: MakeVariant) -> None:
    def anything(**options: Any) -> nn.Module:
        layer = nn.Identity()
        layer.options = options  # type: ignore[assignment]
        return layer

    layer: Any = Registry([make_variant("free", anything)]).build("free", num_heads=3)
    assert layer.options == {"num_heads": 3}


def test_options_reach_the_factory(registry: Registry) -> None:
    layer: Any = registry.build("tiny", d_model=24, heads=4, causal=False)
    assert (layer.d_model, layer.heads, layer.causal, layer.dropout) == (24, 4, False, 0.0)


@pytest.mark.parametrize("kind", [ConfigError, Unsupported])
@pytest.mark.parametrize("words", ["heads (6) must be a multiple of kv_heads (4)", "tiny: heads (6) must be less"])
def test_an_error_of_ours_keeps_its_kind_and_gets_the_name_once(
    make_variant: MakeVariant, kind: type[Exception], words: str
) -> None:
    def refuse(d_model: int, heads: int) -> nn.Module:
        raise kind(words)

    with pytest.raises(kind, match=f"^tiny: {re.escape(words.removeprefix('tiny: '))}$"):
        Registry([make_variant("tiny", refuse)]).build("tiny", d_model=24, heads=6)


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit("no")])
def test_any_other_error_of_a_factory_names_its_origin(make_variant: MakeVariant, error: BaseException) -> None:
    def fail(d_model: int, heads: int) -> nn.Module:
        raise error

    answer = f"given/tiny: its factory raised {type(error).__name__}: no (test_options.py, line "
    with pytest.raises(ConfigError, match=f"^{re.escape(answer)}") as caught:
        Registry([make_variant("tiny", fail)]).build("tiny", d_model=24, heads=4)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(("made", "called"), [(None, "None"), ({}, "a dict"), (nn.Identity, "a type")])
def test_a_factory_returns_a_module(make_variant: MakeVariant, made: Any, called: str) -> None:
    registry = Registry([make_variant("tiny", lambda d_model, heads: made)])
    with pytest.raises(ConfigError, match=f"given/tiny: .* must return a torch.nn.Module; it returned {called}$"):
        registry.build("tiny", d_model=24, heads=4)
