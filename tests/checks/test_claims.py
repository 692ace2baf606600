"""Traits that lie: what is claimed and not so, and what is not claimed and so all the same, is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor, nn

import attnzoo
from attnzoo.checks import LAWS
from attnzoo.checks.engine.runner import Run
from attnzoo.checks.exam.faults.kinds import RotarySpecimen
from attnzoo.checks.exam.faults.specimen import Specimen
from attnzoo.errors import Unsupported


class Small(Specimen):
    """The sound specimen with few options."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True) -> None:
        super().__init__(d_model, heads, heads // 2, causal=causal)


class SmallRotary(RotarySpecimen):
    """With rotary positions."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True) -> None:
        super().__init__(d_model, heads, heads // 2, causal=causal)


class AlwaysCausal(Small):
    """causal=False is not heard."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True) -> None:
        super().__init__(d_model, heads)


class Deaf(Small):
    """Takes positions, and does nothing with them."""

    places = "rotary"


class Refusing(Small):
    """Honours nothing that can be asked for in a call."""

    def forward(self, x: Tensor, context: Tensor | None = None, **asked: Any) -> Any:
        for word, value in {"context": context, **asked}.items():
            if value is not None and value is not False:
                raise Unsupported(f"{word} is not taken here")
        return super().forward(x)


class Documented(Small):
    """Takes documents, and does nothing with them."""

    def forward(self, x: Tensor, *args: Any, document: Tensor | None = None, **asked: Any) -> Any:
        return super().forward(x, *args, **asked)


class NoCache(Small):
    """Takes a cache, but has none to give."""

    @property
    def new_cache(self) -> Any:
        raise AttributeError("new_cache")


class Sunk(Small):
    """Some of each row's weight goes nowhere."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return 0.75 * super().softmax(logits, visible)


class Subtracting(Small):
    """Some weights are below zero."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return 2 * super().softmax(logits, visible) - super().softmax(-logits, visible)


class Windowed(Small):
    """Sees the newest 3 tokens."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        return super().causal_rule(q, k).triu(k.shape[2] - q.shape[2] - 2)


class Capped(Small):
    """Logits bend towards 2."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return 2 * (super().logits(q, k) / 2).tanh()


TRUE = attnzoo.Traits(cache="kv", cross=True)
RELATIVE = attnzoo.Traits(cache="kv", positions="relative")


def accused(build: Callable[..., nn.Module], claims: attnzoo.Traits, *only: str) -> dict[str, str]:
    """The laws among these that find the layer to be other than it claims, and what they say."""
    variant = attnzoo.Variant(
        name="liar", build=build, summary="A liar.", traits=claims, cases=[dict(d_model=24, heads=4)]
    )
    run = Run(variant, LAWS, explain=False)
    report = run.report(only)
    assert report.results[0].outcome == "passed"
    told = {one.law: one.message for one in report.results if one.outcome in ("failed", "error")}
    assert report.passed is (not told)
    return told


@pytest.mark.parametrize(("build", "claims"), [(Small, TRUE), (SmallRotary, RELATIVE)])
def test_honest_layers_are_not_accused(build: Callable[..., nn.Module], claims: attnzoo.Traits) -> None:
    assert accused(build, claims, "claims.*", "position.*", "rows.*", "causality.*", "truth.sdpa", "cache.*") == {}


OVERCLAIMED = {
    "context": (Refusing, TRUE, "causality.cross_sees_all", "context is not taken here"),
    "context in rotary": (SmallRotary, replace(RELATIVE, cross=True), "claims.cross_cache", "context"),
    "mask": (Refusing, TRUE, "claims.claimed", "mask is not taken here"),
    "key_mask": (Refusing, replace(TRUE, mask=False), "claims.claimed", "key_mask is not taken here"),
    "need_weights": (
        Refusing,
        replace(TRUE, mask=False, key_mask=False),
        "claims.claimed",
        "need_weights is not taken here",
    ),
    "cache": (NoCache, TRUE, "claims.claimed", "new_cache"),
    "cache, refused": (
        Refusing,
        replace(TRUE, mask=False, key_mask=False, weights=False),
        "claims.claimed",
        "cache is not taken here",
    ),
    "relative": (Deaf, RELATIVE, "position.shift", "double distances: must differ"),
    "absolute": (
        Deaf,
        replace(RELATIVE, positions="absolute"),
        "position.matters",
        "one position further: must differ",
    ),
    "relative, not absolute": (
        SmallRotary,
        replace(RELATIVE, positions="absolute"),
        "position.matters",
        "one position further: must differ",
    ),
    "causal": (AlwaysCausal, TRUE, "claims.causal", "causal=True and False: must differ"),
    "rows of one": (Sunk, replace(TRUE, plain=False), "rows.sums", "due to be 1"),
    "rows of at most one": (Subtracting, replace(TRUE, rows="at_most_one"), "rows.sums", "no weight is negative"),
    "sees all": (Windowed, TRUE, "causality.dependencies", "which outputs"),
    "plain": (Capped, TRUE, "truth.sdpa", "the weighted sum"),
    "index": (Deaf, replace(RELATIVE, positions="index"), "position.order", "reversed: must differ"),
    "document": (Documented, replace(TRUE, document=True), "document.apart", "documents in one row, and each alone"),
    "memory": (Small, replace(TRUE, memory="linear"), "cost.memory", "all that is kept for the backward pass grows"),
    "work": (Small, replace(TRUE, work="linear"), "cost.work", "512 tokens take"),
}


@pytest.mark.parametrize(("build", "claims", "id", "words"), OVERCLAIMED.values(), ids=OVERCLAIMED.keys())
def test_what_is_claimed_and_not_so_is_told(
    build: Callable[..., nn.Module], claims: attnzoo.Traits, id: str, words: str
) -> None:
    assert words in accused(build, claims, id)[id]


UNDERCLAIMED = {
    "mask": (Small, replace(TRUE, mask=False), "mask, not claimed: must raise Unsupported, but was accepted"),
    "key_mask": (Small, replace(TRUE, key_mask=False), "key_mask, not claimed: must raise Unsupported, but was"),
    "need_weights": (Small, replace(TRUE, weights=False), "need_weights, not claimed: must raise Unsupported, but was"),
    "cache": (Small, replace(TRUE, cache="none"), "cache, not claimed: must raise Unsupported"),
    "context": (Small, replace(TRUE, cross=False), "context, not claimed: must raise Unsupported, but was accepted"),
    "positions": (Deaf, replace(RELATIVE, positions="none"), "positions, not claimed: must raise Unsupported, but was"),
    "positions, by index": (
        Deaf,
        replace(RELATIVE, positions="index"),
        "positions, not claimed: must raise Unsupported, but was",
    ),
    "document": (Documented, TRUE, "document, not claimed: must raise Unsupported or TypeError, but was accepted"),
}


@pytest.mark.parametrize(("build", "claims", "words"), UNDERCLAIMED.values(), ids=UNDERCLAIMED.keys())
def test_what_is_not_claimed_and_taken_all_the_same_is_told(
    build: Callable[..., nn.Module], claims: attnzoo.Traits, words: str
) -> None:
    assert words in accused(build, claims, "claims.unclaimed")["claims.unclaimed"]


def test_a_refusal_that_does_not_name_the_argument_is_told() -> None:
    class Curt(Small):
        def refuse(self, *given: Any) -> None:
            if given[1] is not None:
                raise Unsupported("no")

    told = accused(Curt, TRUE, "claims.unclaimed")["claims.unclaimed"]
    assert "the error must name positions; it says: no" in told


@pytest.mark.parametrize("causal", ["always", "never"])
def test_an_option_for_causality_that_is_not_claimed_is_told(causal: Any) -> None:
    claims = replace(TRUE, causal=causal, cache="none" if causal == "never" else "kv")
    told = accused(Small, claims, "claims.causal")["claims.causal"]
    assert f"{causal} causal takes no option causal" in told
