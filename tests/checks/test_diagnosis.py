"""The diagnosis names the fault, also in a layer that has more than the specimen it was planted in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import attnzoo
from attnzoo.checks.diagnosis import diagnose, features
from attnzoo.checks.faults import FAULTS, SOUND
from attnzoo.checks.faults.heads import HeadsTiled
from attnzoo.checks.faults.kinds import (
    CappedSpecimen,
    RotarySpecimen,
    SunkSpecimen,
    WindowSpecimen,
    as_oracle,
)
from attnzoo.checks.faults.scores import SoftmaxEpsilon
from attnzoo.checks.faults.specimen import Specimen
from attnzoo.checks.questions import QUESTIONS

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
    ],
)
def test_a_fault_is_named_under_another_seed(id: str) -> None:
    (fault,) = (fault for fault in FAULTS if fault.id == id)
    found = diagnose(fault.variant, CPU, seed=77)
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
    assert diagnose(suspect, CPU, seed=3).fault == id


def test_a_layer_has_the_features_of_its_definition() -> None:
    sunk = next(variant for variant in SOUND if variant.name == "sound_sunk")
    definition = as_oracle(sunk.build(**sunk.cases[0]))  # type: ignore[arg-type]
    assert features(sunk, definition) == [SunkSpecimen]
    packed = replace(sunk, traits=replace(sunk.traits, document=True))
    assert [feature.__name__ for feature in features(packed, definition)] == ["SunkSpecimen", "PackedSpecimen"]


def test_the_questions_have_names_of_their_own_and_the_costly_ones_come_last() -> None:
    assert len(QUESTIONS) > 120
    assert list(QUESTIONS)[:3] == ["plain", "gradient", "weights"]
    assert list(QUESTIONS)[-2:] == ["memory", "work"]
