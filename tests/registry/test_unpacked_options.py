"""A factory that takes `**options: Unpack[Options]` is one of named options, whose defaults its bases tell."""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest
from torch import nn
from typing_extensions import Required, TypedDict, Unpack

import attnzoo
from attnzoo.errors import ConfigError
from attnzoo.registry import Registry
from attnzoo.signature import options_of

if TYPE_CHECKING:
    from collections import OrderedDict


class Options(TypedDict, total=False):
    size: int | None
    causal: bool


class Needy(Options, total=False):
    window: Required[int]


class Base(nn.Module):
    def __init__(self, d_model: int, *, size: int | None = None, causal: bool = True) -> None:
        super().__init__()
        self.given = size, causal


class Own(Base):
    def __init__(self, d_model: int, heads: int = 2, **options: Unpack[Options]) -> None:
        super().__init__(d_model, **options)


class Windowed(Own):
    def __init__(self, d_model: int, **options: Unpack[Needy]) -> None:
        self.window = options.pop("window")  # type: ignore[misc]
        super().__init__(d_model, **options)  # type: ignore[misc]


def of_heads(d_model: int, **options: Unpack[Options]) -> Own:
    return Own(d_model, 3, **options)


class Factory:
    def __call__(self, d_model: int, **options: Unpack[Options]) -> Own:
        return Own(d_model, **options)


def told(build: Any) -> dict[str, Any] | None:
    options = options_of(build)
    return None if options is None else {word: option.default for word, option in options.items()}


REQUIRED = inspect.Parameter.empty


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (Own, {"d_model": REQUIRED, "heads": 2, "size": None, "causal": True}),
        (Windowed, {"d_model": REQUIRED, "size": None, "causal": True, "window": REQUIRED}),
        (of_heads, {"d_model": REQUIRED, "size": None, "causal": True}),
        (Factory(), {"d_model": REQUIRED, "size": None, "causal": True}),
        (functools.partial(of_heads, size=7), {"d_model": REQUIRED, "size": 7, "causal": True}),
    ],
)
def test_the_words_and_their_defaults_are_told(build: Any, expected: dict[str, Any]) -> None:
    assert told(build) == expected


def any_keyword(**options: Any) -> nn.Module:
    return nn.Identity()


def bare(**options) -> nn.Module:  # type: ignore[no-untyped-def]
    return nn.Identity()


def no_default(**options: Unpack[Options]) -> nn.Module:
    return nn.Identity()


def for_types_alone(**options: OrderedDict[str, int]) -> Own:
    return Own(8)


@pytest.mark.parametrize("build", [any_keyword, bare, no_default, for_types_alone])
def test_a_factory_that_does_not_say_what_it_takes_takes_any_keyword(build: Any) -> None:
    assert told(build) is None


def zoo() -> Registry:
    return Registry([attnzoo.Variant(name="own", build=Own, summary="", cases=[{"d_model": 8, "size": 4}])])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"casual": True}, "unknown option 'casual'; did you mean 'causal'? It takes d_model, heads, size, causal."),
        ({"is_causal": True}, "'is_causal' is called 'causal' here."),
        ({"causal": "false"}, "causal is 'false'; it takes True or False."),
        ({"size": "3"}, "size is '3'; it takes a whole number or None."),
    ],
)
def test_a_wrong_word_or_value_is_answered_as_ever(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        zoo().build("own", d_model=8, **options)


def test_the_options_reach_the_base() -> None:
    layer = zoo().build("own", d_model=8, size=5, causal=False)
    assert isinstance(layer, Own)
    assert layer.given == (5, False)


def test_a_case_of_a_word_that_is_not_taken_is_refused() -> None:
    with pytest.raises(ConfigError, match="a case uses the option 'sise', which build does not take; did you mean"):
        attnzoo.Variant(name="own", build=Own, summary="", cases=[{"d_model": 8, "sise": 4}])
