"""`explain` says what really runs: told backends are held to the operators that torch's profiler saw."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from attnzoo import ops
from attnzoo.errors import ConfigError, Unsupported
from attnzoo.ops.sdpa import CPU_TAKES_GROUPS

T, H, G, D = 1024, 4, 2, 8
IDS = torch.tensor([[0] * 300 + [1] * 724])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qkv(t: int = T, *, learn: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (1, H, t, D), (1, G, T, D), (1, G, T, D)
    q, k, v = (normal(*shape, seed=seed).requires_grad_(learn) for seed, shape in enumerate(shapes))
    return q, k, v


def operators(call: Any) -> dict[str, int]:
    """How often each operator ran."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    return {event.key: event.count for event in seen.key_averages()}


FUSED, SOFTMAX = "aten::scaled_dot_product_attention", "aten::_softmax"
# what is asked -> the backend, and how often the fused kernel and a softmax of its own run
RUNS: dict[str, tuple[dict[str, Any], str, int, bool]] = {
    "plain": ({}, "sdpa", 1, False),
    "causal": ({"causal": True}, "sdpa", 1, False),
    "sinks": ({"causal": True, "sinks": torch.zeros(H)}, "sdpa", 1, False),
    "window": (
        {"causal": True, "window": 16},
        "banded",
        3,
        False,
    ),  # the first queries and the last ones apart, and all blocks at once
    "documents": ({"causal": True, "document": IDS}, "banded", 2, False),  # one call for each
    "softcap": ({"causal": True, "softcap": 5.0}, "blocks", 0, True),
    "bias": ({"causal": True, "bias": ops.Alibi(H)}, "blocks", 0, True),
    "weights": ({"causal": True, "need_weights": True}, "eager", 0, True),
    "by name": ({"causal": True, "backend": "blocks"}, "blocks", 0, True),
}


@pytest.mark.parametrize(("asked", "backend", "fused", "softmax"), RUNS.values(), ids=RUNS.keys())
def test_the_backend_told_is_the_one_that_runs(asked: dict[str, Any], backend: str, fused: int, softmax: bool) -> None:
    with torch.no_grad():
        assert ops.explain(*qkv(), **asked).backend == backend
        ran = operators(lambda: ops.attend(*qkv(), **asked))
    assert ran.get(FUSED, 0) == fused
    assert (SOFTMAX in ran) is softmax


def test_every_other_backend_has_its_reason() -> None:
    told = ops.explain(*qkv(learn=True), causal=True, window=16, softcap=5.0)
    assert told.backend == "blocks"
    assert told.others.keys() == {"eager", "sdpa", "banded", "flex"}
    assert told.others["sdpa"] == "knows no softcap"
    assert "knows no softcap" in told.others["banded"]
    assert told.others["flex"] == "has no backward pass on cpu"
    assert "(t, s)" in told.others["eager"]


def test_what_is_told_of_flex_without_a_gradient() -> None:
    with torch.no_grad():
        reason = ops.explain(*qkv(), causal=True).others["flex"]
    assert "compiles" in reason or "compiler" in reason


@pytest.mark.parametrize(
    ("asked", "visible"),
    [
        ({}, (T, T, T)),
        ({"causal": True}, (1, (T + 1) / 2, T)),
        ({"causal": True, "window": 16}, (1, (16 * T - 15 * 16 / 2) / T, 16)),
        ({"window": 2}, (2, (3 * T - 2) / T, 3)),
        ({"document": IDS}, (300, (300**2 + 724**2) / T, 724)),
        ({"key_mask": torch.arange(T)[None] >= T}, (0, 0, 0)),
    ],
    ids=["all", "causal", "window", "both sides", "documents", "padding alone"],
)
def test_the_keys_that_a_query_sees_are_counted(asked: dict[str, Any], visible: tuple[int, float, int]) -> None:
    assert ops.explain(*qkv(), **asked).visible == pytest.approx(visible)


def test_a_lone_query_on_a_cache_sees_all_of_it() -> None:
    told = ops.explain(*qkv(1), causal=True)
    assert told.visible == (T, T, T)
    assert told.flops == 4 * H * T * D  # q kᵀ and the weighted sum, two operations each
    assert told.flops_grow is None  # one query cannot be halved
    assert ops.explain(*qkv(1, learn=True), causal=True, backend="eager").kept_grow is None


def test_work_and_memory_grow_as_the_backend_promises() -> None:
    def grown(**asked: Any) -> tuple[float, float]:
        told = ops.explain(*qkv(learn=True), causal=True, **asked)
        assert told.flops_grow is not None
        assert told.kept_grow is not None
        return told.flops_grow, told.kept_grow

    assert grown() == pytest.approx((4, 2), rel=0.01)
    work, memory = grown(backend="eager")
    assert work == pytest.approx(4)
    assert memory > 3.5
    work, memory = grown(window=16)
    assert 1.9 < work < 2.1
    assert 1.9 < memory < 2.1
    work, memory = grown(softcap=5.0)
    assert work > 3
    assert memory == pytest.approx(2, rel=0.01)


def test_queries_and_keys_double_together() -> None:
    for t in (2, T // 2):
        told = ops.explain(*qkv(t, learn=True), backend="sdpa")
        assert told.flops_grow == pytest.approx(4)
        assert told.kept_grow == pytest.approx(2)


def test_without_queries_nothing_is_seen() -> None:
    assert ops.explain(*qkv(0)).visible == (0, 0, 0)


@pytest.mark.parametrize("which", range(3), ids="qkv")
def test_channels_that_lie_apart_in_memory_cost_no_pairs(which: int) -> None:
    inputs = list(qkv(1024))
    inputs[which] = inputs[which].mT.contiguous().mT
    told = ops.explain(*(x.requires_grad_() for x in inputs), causal=True)
    assert told.kept_grow is not None
    assert told.kept_grow < 2.1


@pytest.mark.parametrize("width", [D // 2, D * 2])
def test_values_of_another_width_cost_no_pairs(width: int) -> None:
    q, k, _ = qkv(learn=True)
    told = ops.explain(q, k, normal(1, G, T, width, seed=2).requires_grad_(), causal=True)
    assert told.kept_grow is not None
    assert told.kept_grow < 2.1


def test_nothing_is_kept_where_no_gradient_flows() -> None:
    assert ops.explain(*qkv(), causal=True).kept == 0
    with torch.no_grad():
        assert ops.explain(*qkv(learn=True), causal=True).kept == 0
    kept = ops.explain(*qkv(learn=True), causal=True).kept
    g = G if CPU_TAKES_GROUPS else H
    # q, k, v and the output, and a number for each row of the softmax
    assert kept == 4 * (2 * H * T * D + 2 * g * T * D + H * T)


def test_the_scale_is_the_one_that_is_used() -> None:
    assert ops.explain(*qkv()).scale == D**-0.5
    assert ops.explain(*qkv(), scale=0.3).scale == 0.3


def test_a_named_backend_that_cannot_is_refused_as_in_the_call() -> None:
    with pytest.raises(Unsupported, match="backend='banded' needs a window, or documents; use backend='auto'"):
        ops.explain(*qkv(), backend="banded")
    with pytest.raises(ConfigError, match="unknown backend 'flash'"):
        ops.explain(*qkv(), backend="flash")


def test_what_was_told_stays_as_it_was() -> None:
    with pytest.raises(FrozenInstanceError):
        ops.explain(*qkv()).backend = "eager"  # type: ignore[misc]


def test_it_reads_as_a_table() -> None:
    text = str(ops.explain(*qkv(learn=True), causal=True, window=16))
    assert text.splitlines()[0].split() == ["backend", "banded"]
    assert "1 to 16 keys a query, 15.9 in the mean" in text
    assert "times when the tokens double" in text


class Plain(ops.AttentionLayer):
    """x alone, as queries, keys and values."""

    variant = "plain"

    def __init__(self) -> None:
        super().__init__(d_model=8, heads=2)
        self.out = torch.nn.Linear(8, 8)

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads = ops.split_heads(x, 2)
        return heads, heads, heads


class Own(Plain):
    """It attends in its own way."""

    variant = "own"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **asked: Any) -> Any:
        return super().attend(q, k, v, **asked)


def test_a_layer_explains_its_call() -> None:
    told = Plain().explain(normal(1, 12, 8), past=11)
    assert told.backend == "sdpa"
    assert told.visible == (12, 12, 12)
    assert told.scale == 0.5
    assert Plain().explain(normal(1, 12, 8)).visible == (1, 6.5, 12)


def test_a_layer_that_attends_in_its_own_way_says_so() -> None:
    with pytest.raises(Unsupported, match="own: cannot be explained, for it attends in its own way"):
        Own().explain(normal(1, 12, 8))
