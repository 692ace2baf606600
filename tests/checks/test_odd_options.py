"""A sound layer is not accused for the odd options of its own cases: a law looks where it can speak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnzoo
from attnzoo.checks import LAWS
from attnzoo.checks.engine import tolerance
from attnzoo.checks.engine.runner import Run
from attnzoo.checks.exam.faults import SOUND
from attnzoo.checks.exam.faults.specimen import Specimen

# Laws that odd options once made red, and their neighbours.
TRIED = [
    "build.options_matter", "position.*", "window.by_index", "truth.scale", "claims.causal", "mode.*", "cache.reorder",
    "graph.*", "backend.agrees",
]  # fmt: skip

ODD: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.4},
    "flat": {"scale": 0.0},
    "flat, both ways": {"scale": 0.0, "causal": False},
    "scale below zero": {"scale": -0.7},
    "window of one": {"window": 1},
    "one head": {"heads": 1, "kv_heads": 1},
    "two channels": {"head_dim": 2},
}


def with_options(name: str, **more: Any) -> attnzoo.Variant:
    (sound,) = (variant for variant in SOUND if variant.name == name)
    return replace(sound, cases=[{**sound.cases[0], **more}])


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["sound_plain", "sound_rotary", "sound_rotary_window"])
def test_a_sound_layer_with_odd_options_is_not_accused(name: str, odd: str) -> None:
    if "window" in ODD[odd] and "window" not in name:
        return
    report = attnzoo.check(with_options(name, **ODD[odd]), only=TRIED, case="options-0")
    assert set(report.counts) <= {"passed", "not-applicable"}, str(report)


class InChunks(Specimen):
    """Sees the tokens of its own chunk of five only."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__(d_model, heads, heads)

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        t, s = q.shape[2], k.shape[2]
        i, j = torch.arange(s - t, s)[:, None], torch.arange(s)
        return (j <= i) & (i // 5 == j // 5)


def test_reordering_is_tried_at_a_length_at_which_it_can_show() -> None:
    traits = attnzoo.Traits(cache="kv", causal="always", sees="some")
    chunked = attnzoo.Variant(
        name="ours", build=InChunks, summary="A stand-in.", traits=traits, cases=[dict(d_model=24, heads=4)]
    )
    for t in (6, 7, 11):
        report = attnzoo.check(chunked, only=["cache.reorder"], case=f"options-0,t={t}")
        assert report.passed, str(report)


def test_a_class_made_in_a_function_is_held_to_deepcopy_and_one_that_refuses_to_be_pickled_is_told_so() -> None:
    class Local(Specimen):
        pass

    plain = with_options("sound_plain")
    assert attnzoo.check(replace(plain, build=Local), only=["state.copies"]).passed
    copies = Run(replace(plain, build=Unpicklable), LAWS, explain=False).result("state.copies")
    assert copies.outcome == "failed"
    assert "a layer can be pickled; instead TypeError: keep me here" in copies.message


class Unpicklable(Specimen):
    def __deepcopy__(self, memo: Any) -> nn.Module:
        copied = type(self)(self.d_model, self.heads, self.kv_heads, head_dim=self.head_dim).to(self.out.weight.dtype)
        copied.load_state_dict(self.state_dict())
        return copied.eval()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("keep me here")


def test_a_gradient_that_sums_much_may_err_by_the_root_of_it() -> None:
    assert (
        tolerance.summed(torch.float32, 0.5) == tolerance.summed(torch.float32, 1) == tolerance.rounding(torch.float32)
    )
    assert tolerance.summed(torch.float32, 100) == 10 * tolerance.rounding(torch.float32)
    assert tolerance.budget(torch.float64, tolerance.summed(torch.float64, 400)) == 1e-12
