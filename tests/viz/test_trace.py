"""A trace tells what a real call made, and proves it."""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnzoo
from attnzoo import viz
from attnzoo.errors import InputError, Unsupported

CASES = [(name, case) for name in attnzoo.variants() for case in attnzoo.describe(name).cases]


class Capped(nn.Module):
    """One head, its logits capped; `scale` is what it claims, `leak` makes it no matrix at all."""

    def __init__(self, *, cap: float = 1.0, scale: float | None = None, leak: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 15), nn.Linear(5, 6)
        self.cap, self.scale, self.leak = cap, scale, leak

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, ...]:
        return self.qkv(x)[:, None].chunk(3, dim=-1)  # type: ignore[no-any-return]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        logits = self.cap * (q @ k.mT / 5**0.5 / self.cap).tanh()
        mixed = logits.softmax(dim=-1) @ v
        return mixed.tanh() if self.leak else mixed

    def merge(self, mixed: Tensor) -> Tensor:
        y: Tensor = self.out(mixed[:, 0])
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.merge(self.attend(*self.project(x)))


def multi_head(**options: Any) -> tuple[Any, Tensor]:
    """A layer whose sizes all differ, and its input: b=2, t=7, h=3, d=5, c=11."""
    torch.manual_seed(0)
    return attnzoo.build("mha", d_model=11, heads=3, head_dim=5, **options), torch.randn(2, 7, 11)


def step(trace: viz.Trace, start: str) -> viz.Step:
    """The one step whose name starts so."""
    (found,) = [step for step in trace.steps if step.name.startswith(start)]
    return found


@pytest.mark.parametrize(("name", "case"), CASES)
def test_every_symbol_means_its_real_size(name: str, case: dict[str, Any]) -> None:
    """Each axis, taken as a formula of the sizes, gives the shape of the tensor that was there."""
    layer = attnzoo.build(name, **case)
    trace = viz.trace(layer, torch.randn(2, 7, case["d_model"]))
    assert trace.proven
    for one in trace.steps:
        axes = one.axes.replace("2g", "2*g").replace("h d", "h*d").replace("g d", "g*d").replace(") d", ")*d").split()
        assert tuple(eval(axis, {}, dict(trace.sizes)) for axis in axes) == one.shape, one.name


def test_the_numbers_are_those_of_the_real_stages() -> None:
    layer, x = multi_head()
    trace = viz.trace(layer, x)
    with torch.no_grad():
        q, k, v = layer.project(x)
        mixed, weights = layer.attend(q, k, v), layer.attend(q, k, v, need_weights=True)[1]
        real = {"q": q, "k": k, "v": v, "softmax: weights": weights, "weights · v": mixed, "y": layer(x)}
    for name, tensor in real.items():
        (found,) = [one for one in trace.steps if one.name == name]
        assert found.shape == tuple(tensor.shape)
        assert found.strides == (None if tensor.is_contiguous() else tensor.stride())
        assert found.mean == pytest.approx(float(tensor[tensor != 0].mean()), abs=1e-6)
        assert found.spread == pytest.approx(float(tensor[tensor != 0].std(correction=0)), abs=1e-6)


def test_the_scale_shrinks_the_spread_and_the_mask_hides_the_future() -> None:
    layer, x = multi_head()
    trace = viz.trace(layer, x)
    scores, scaled, masked = (step(trace, name) for name in ("scores", "scaled", "masked"))
    assert scores.spread is not None
    assert scaled.spread == pytest.approx(scores.spread / 5**0.5)
    q, k, _ = (stage.detach() for stage in layer.project(x))
    seen = (q @ k.mT / 5**0.5)[torch.ones(2, 3, 7, 7).tril().bool()]
    assert masked.spread == pytest.approx(float(seen.std(correction=0)), abs=1e-6)
    assert masked.name == "masked, 43% hidden"  # 21 of 49


def test_costs_are_those_worked_out_by_hand() -> None:
    trace = viz.trace(*multi_head(bias=True))
    b, t, h, d, c = 2, 7, 3, 5, 11
    assert step(trace, "qkv").flops == 2 * b * t * c * 3 * h * d
    assert step(trace, "qkv").parameters == (c + 1) * 3 * h * d
    assert step(trace, "scores").flops == step(trace, "weights ·").flops == 2 * b * h * t * t * d
    assert step(trace, "softmax").flops == 3 * b * h * t * t
    assert sum(one.parameters for one in trace.steps) == trace.parameters


def test_a_module_called_twice_is_counted_once_and_costs_twice() -> None:
    layer = attnzoo.build("mha", d_model=11, heads=3, head_dim=5, causal=False)
    trace = viz.trace(layer, torch.randn(2, 7, 11), torch.randn(2, 4, 11))
    first, second = (one for one in trace.steps if one.name.startswith("qkv"))
    assert (first.axes, second.axes) == ("b t ((h+2g) d)", "b s ((h+2g) d)")
    assert (first.shape[1], second.shape[1], trace.sizes["s"]) == (7, 4, 4)
    assert first.parameters
    assert not second.parameters
    assert second.flops == first.flops * 4 // 7


def test_each_line_is_the_one_that_ran() -> None:
    layer, x = multi_head()
    path, line = step(viz.trace(layer, x), "qkv").where.split(":")
    source = Path(inspect.getsourcefile(type(layer).project) or "")
    assert source.as_posix().endswith(path)
    assert "self.qkv" in source.read_text(encoding="utf-8").splitlines()[int(line) - 1]


def test_the_call_is_watched_not_told() -> None:
    """A stage that is replaced on the instance is what the trace shows."""
    layer, x = multi_head()
    before = step(viz.trace(layer, x), "scores").spread
    project = layer.project
    layer.project = lambda *given, **named: (2 * (stages := project(*given, **named))[0], *stages[1:])
    after = viz.trace(layer, x)
    assert after.proven
    assert step(after, "scores").spread == pytest.approx(2 * (before or 0))
    assert "project" in vars(layer)  # still in its place


@pytest.mark.parametrize("asked", ["mask", "added", "key_mask", "blind"])
def test_masks_are_part_of_the_way(asked: str) -> None:
    layer, x = multi_head()
    mask = torch.rand(7, 7) < 0.6
    given: dict[str, Any] = {
        "mask": {"mask": mask},
        "added": {"mask": torch.randn(7, 7).masked_fill(~mask, float("-inf"))},
        "key_mask": {"key_mask": torch.arange(7).expand(2, 7) < torch.tensor([[5], [7]])},
        "blind": {"key_mask": torch.arange(7).expand(2, 7) > 3},
    }[asked]
    trace = viz.trace(layer, x, **given)
    assert trace.proven
    assert step(trace, "softmax").mean is not None


def test_a_formula_that_is_not_plain_is_not_drawn_as_if_it_were() -> None:
    torch.manual_seed(0)
    trace = viz.trace(Capped(), 3 * torch.randn(2, 7, 6))
    assert trace.proven
    assert trace.note.startswith("Not softmax(scale · q kᵀ) v")
    assert not [one for one in trace.steps if one.name.startswith("scores")]
    assert step(trace, "matrix M").shape == (2, 1, 7, 7)


def test_a_wrong_scale_is_found_out() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 7, 6)
    assert step(viz.trace(Capped(cap=1e5), x), "scores")
    assert viz.trace(Capped(cap=1e5, scale=1.0), x).note.startswith("Not softmax")


def test_what_is_no_matrix_says_so() -> None:
    torch.manual_seed(0)
    trace = viz.trace(Capped(leak=True), 3 * torch.randn(2, 7, 6))
    assert not trace.proven
    assert "NOT what happens here" in trace.note


def test_a_layer_without_stages_is_refused() -> None:
    with pytest.raises(Unsupported, match="Linear shows no stages: it has no project or attend or merge"):
        viz.trace(nn.Linear(4, 4), torch.randn(1, 2, 4))
    with pytest.raises(InputError, match="got str"):
        viz.trace("mha", torch.randn(1, 2, 4))  # type: ignore[arg-type]


def test_a_forward_pass_around_the_stages_is_refused() -> None:
    class Detour(Capped):
        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(Unsupported, match="Detour does not go through its project and attend and merge"):
        viz.trace(Detour(), torch.randn(2, 7, 6))


def test_the_layer_is_left_as_it_was() -> None:
    layer, x = multi_head(dropout=0.5)
    layer.out.eval()
    state, held = torch.get_rng_state(), {path: set(vars(module)) for path, module in layer.named_modules()}
    assert viz.trace(layer, x).proven  # dropout sleeps
    assert torch.equal(torch.get_rng_state(), state)
    assert layer.training
    assert not layer.out.training
    assert {path: set(vars(module)) for path, module in layer.named_modules()} == held


def test_it_reads_well_and_is_plain_data() -> None:
    trace = viz.trace(*multi_head(), name="mha")
    text = str(trace)
    assert text.startswith("mha: b=2, t=7, s=7, h=3, g=3, d=5, c=11")
    assert "b t ((h+2g) d)" in text
    assert "Proven" in text
    assert json.loads(json.dumps(trace.to_dict()))["steps"][0]["shape"] == [2, 7, 11]


def test_no_tokens_are_no_trouble() -> None:
    trace = viz.trace(multi_head()[0], torch.randn(2, 0, 11))
    assert trace.proven
    assert step(trace, "scores").mean is None


def test_the_spread_of_logits_grows_as_the_root_of_the_width() -> None:
    lesson = viz.scale_lesson((4, 64, 1024))
    for row in lesson.rows:
        assert row.bare_spread == pytest.approx(math.sqrt(row.d), rel=0.05)
        assert row.scaled_spread == pytest.approx(1, rel=0.05)
    bare, scaled = ([getattr(row, top) for row in lesson.rows] for top in ("bare_top", "scaled_top"))
    assert bare == sorted(bare)
    assert bare[-1] > 0.9
    assert max(scaled) < 0.3
    assert "√d" in str(lesson)
    json.dumps(lesson.to_dict())
