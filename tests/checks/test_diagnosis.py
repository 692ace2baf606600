"""The diagnosis names the fault, also in a layer that has more than the specimen it was planted in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attnzoo
from attnzoo import oracle
from attnzoo.checks.engine.lab import Case, Lab
from attnzoo.checks.exam.diagnosis import compare, features
from attnzoo.checks.exam.faults import FAULTS, SOUND
from attnzoo.checks.exam.faults.heads import HeadsTiled
from attnzoo.checks.exam.faults.kinds import (
    CappedSpecimen,
    RotarySpecimen,
    SunkSpecimen,
    WindowSpecimen,
    as_oracle,
)
from attnzoo.checks.exam.faults.places import NoOffset
from attnzoo.checks.exam.faults.scores import SoftmaxEpsilon
from attnzoo.checks.exam.faults.specimen import Specimen
from attnzoo.checks.exam.questions import QUESTIONS, Witness
from attnzoo.checks.exam.selftest import redrawn
from attnzoo.errors import ConfigError, Unsupported

CPU = torch.device("cpu")
HEADS = {"d_model": 24, "heads": 6, "kv_heads": 3, "head_dim": 10}


@pytest.mark.parametrize(
    "id",
    [
        "ring.two_short",
        "backend.padding_forgotten",
        "softcap.after_mask",
        "alibi.naive_slopes",
        "sinks.gradient_cut",
        "document.leaks_at_border",
        "cost.recomputes_all",
        "cost.all_pairs",
    ],
)
def test_a_fault_is_named_under_another_seed(id: str) -> None:
    (fault,) = (fault for fault in FAULTS if fault.id == id)
    found = compare(fault.variant, CPU, seed=77)
    assert (found.fault, found.residual) == (id, 0)
    assert found.truth == fault.truth


class TiledBelowCap(HeadsTiled, CappedSpecimen, RotarySpecimen):
    """A fault of plain heads, in a layer with a softcap and rotary positions."""


class EpsilonInWindow(SoftmaxEpsilon, WindowSpecimen):
    """Another in a layer with a window."""


@pytest.mark.parametrize(
    ("build", "traits", "more", "id"),
    [
        (TiledBelowCap, attnzoo.Traits(cache="kv", positions="relative", plain=False), {"softcap": 3.0}, "heads.tiled"),
        (EpsilonInWindow, attnzoo.Traits(cache="ring", sees="some"), {"window": 4}, "softmax.epsilon"),
    ],
)
def test_a_plain_fault_is_named_in_a_layer_that_has_more(
    build: type[Specimen], traits: attnzoo.Traits, more: dict[str, float], id: str
) -> None:
    suspect = attnzoo.Variant(
        name="suspect", build=build, summary="A suspect.", traits=traits, oracle=as_oracle, cases=[{**HEADS, **more}]
    )
    assert compare(suspect, CPU, seed=3).fault == id


class Choosing(RotarySpecimen):
    """Rotary positions, and a window, a softcap and sinks where they are asked for; its cache grows all the same."""

    def __init__(
        self, *args: Any, window: int | None = None, softcap: float | None = None, sinks: bool = False, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        for word, value in {"window": window, "softcap": softcap}.items():
            if value is not None and value <= 0:
                raise ConfigError(f"{word} ({value}) must be above 0")
        self.window, self.softcap = window, softcap
        if sinks:
            self.sinks = nn.Parameter(torch.zeros(self.heads))

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        assert self.window is not None
        return (i - j).abs() < self.window

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        visible, s = super().visible(q, k, mask, key_mask), k.shape[2]
        i, j = torch.arange(s - q.shape[2], s)[:, None], torch.arange(s)
        return visible if self.window is None else visible & self.near(i, j)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        logits = super().logits(q, k)
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        if not hasattr(self, "sinks"):
            return super().softmax(logits, visible)
        column = self.sinks[:, None, None].to(logits.dtype).expand(*logits.shape[:-1], 1)
        return torch.cat([logits.masked_fill(~visible, -torch.inf), column], dim=-1).softmax(-1)[..., :-1]


class ChoosingNoOffset(NoOffset, Choosing):
    """With a cache, it places new tokens from 0 on."""


class ChoosingOneMore(Choosing):
    """Its window is one key too long."""

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        assert self.window is not None
        return (i - j).abs() <= self.window


class ChoosingSingle(Choosing):
    """It makes its angles in float32, as Llama does."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        turn = positions.float()[..., None] * 10000.0 ** (-torch.arange(half) / half)
        turn = (turn if positions.dim() == 1 else turn[:, None]).to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        cos, sin = turn.cos(), turn.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def choosing_oracle(layer: Choosing) -> oracle.Layer:
    return oracle.Layer(
        oracle.raw(layer),
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        causal=layer.causal,
        scale=layer.asked_scale,
        rope=layer.rope,
        window=layer.window,
        softcap=layer.softcap,
    )


def choosing(build: type[Choosing], **more: Any) -> attnzoo.Variant:
    traits = attnzoo.Traits(cache="kv", positions="relative", plain=False, sees="some")
    return attnzoo.Variant(
        name="choosing",
        build=build,
        summary="Options that default to none.",
        traits=traits,
        oracle=choosing_oracle,
        cases=[{**HEADS, **more}, {**HEADS, "window": 3}],
    )


@pytest.mark.parametrize("more", [{}, {"window": 4}, {"softcap": 3.0}, {"sinks": True, "window": 5}])
def test_a_sound_layer_answers_as_the_specimen_does_whatever_its_default_case_leaves_out(more: dict[str, Any]) -> None:
    found = compare(choosing(Choosing, **more), CPU, seed=3)
    assert (found.residual, found.reason) == (0, "what it is asked it answers as a sound layer does")


@pytest.mark.parametrize(("build", "id"), [(ChoosingNoOffset, "rope.no_offset"), (ChoosingOneMore, "window.one_more")])
def test_a_fault_is_named_in_a_layer_whose_default_case_leaves_options_out(build: type[Choosing], id: str) -> None:
    found = compare(choosing(build), CPU, seed=3)
    assert (found.fault, found.residual) == (id, 0)


@pytest.mark.parametrize(("build", "alike"), [(Choosing, "yes"), (ChoosingSingle, "no")])
def test_angles_of_single_precision_are_told_by_far_positions(build: type[Choosing], alike: str) -> None:
    lab = Lab(choosing(build), Case("default", HEADS, 2, 7), CPU)
    assert QUESTIONS["distance_alone"](Witness(lab, lambda dtype, redrawn: lab.layer(dtype))) == alike


class Reversed(Choosing):
    """What no fault does: heads, keys and the width of the output come in the opposite order."""

    def merge(self, mixed: Tensor) -> Tensor:
        return super().merge(mixed.flip(1).flip(-1)).flip(-1)


def test_where_no_fault_is_near_the_mean_is_over_all_answers() -> None:
    """Among them are those about seeds, hooks and refusals, which it gives as any layer does."""
    found = compare(choosing(Reversed), CPU, seed=3)
    assert found.fault == ""
    assert 0.25 < found.residual < 0.75
    assert found.reason == f"the nearest found, {found.runner_up}, is off by {found.residual:.3f} in the mean"


class Modest(nn.Module):
    """A causal layer by another hand that takes tokens and nothing else; its key-value heads are shared wrongly."""

    def __init__(self, *, d_model: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, d_model // heads
        self.q, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(d_model, kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x: Tensor, context: Tensor | None = None, **asked: object) -> Tensor:
        if context is not None or any(value is not None and value is not False for value in asked.values()):
            raise Unsupported("this layer takes x and nothing else")
        q, k, v = (project(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2) for project in (self.q, self.k, self.v))
        k, v = (part.repeat(1, self.heads // self.kv_heads, 1, 1) for part in (k, v))
        mixed: Tensor = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return mixed


def modest_oracle(layer: Modest) -> oracle.Layer:
    params = {name: weight.detach().double().cpu().numpy() for name, weight in layer.named_parameters()}
    return oracle.Layer(params, heads=layer.heads, kv_heads=layer.kv_heads, head_dim=layer.head_dim)


def test_a_layer_that_claims_little_is_asked_for_no_more_and_its_fault_is_named() -> None:
    modest = attnzoo.Variant(
        name="modest",
        build=Modest,
        summary="Tokens and nothing else.",
        traits=attnzoo.Traits(causal="always", mask=False, key_mask=False, weights=False),
        oracle=modest_oracle,
        cases=[{"d_model": 24, "heads": 4, "kv_heads": 2}],
    )
    assert compare(modest, CPU, seed=3).fault == "heads.tiled"
    asked = [question for question in QUESTIONS.values() if question.applies(modest)]
    assert not {"mask", "padded_left", "steps", "context", "documents", "weights", "kernels", "matrix"} & {
        question.name for question in asked
    }


def test_a_layer_that_breaks_when_its_claims_are_looked_at_is_asked() -> None:
    liar = attnzoo.Variant(
        name="liar",
        build=Modest,
        summary="Claims a cache and has none.",
        traits=attnzoo.Traits(cache="kv"),
        cases=[{"d_model": 24, "heads": 4, "kv_heads": 2}],
    )
    assert QUESTIONS["grown"].applies(liar)


def test_a_layer_has_the_features_of_its_definition() -> None:
    sunk = next(variant for variant in SOUND if variant.name == "sound_sunk")
    definition = as_oracle(sunk.build(**sunk.cases[0]))  # type: ignore[arg-type]
    assert features(sunk, definition) == [SunkSpecimen]
    packed = replace(sunk, traits=replace(sunk.traits, document=True))
    assert [feature.__name__ for feature in features(packed, definition)] == ["SunkSpecimen", "PackedSpecimen"]


def test_a_redrawn_fault_has_other_sizes_and_options_in_every_case_and_builds() -> None:
    for variant in SOUND:
        again = redrawn(variant)
        for case, other in zip(variant.cases, again.cases, strict=True):
            assert case.keys() == other.keys()
            same = {word for word in case if case[word] == other[word]}
            assert same <= {"bias", "layout"}, f"{variant.name}: {same} are as they were"
            again.build(**other)


def test_the_questions_have_names_of_their_own_and_the_costly_ones_come_last() -> None:
    assert len(QUESTIONS) > 120
    assert list(QUESTIONS)[:3] == ["plain", "gradient", "weights"]
    assert list(QUESTIONS)[-2:] == ["memory", "work"]
