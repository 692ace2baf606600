"""The definition of attention by numbers: the order of its steps, sinks, windows, biases and blind rows.

Values that are the identity make the output the weights; one channel makes the logits what q and k say.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.checks.engine.tolerance import budget, error
from attnzoo.errors import ConfigError, InputError
from attnzoo.ops.eager import softmax

INF = float("inf")
E1 = math.e


def logits(*numbers: float) -> tuple[Tensor, Tensor, Tensor]:
    """One query whose unscaled logits are these, over values that are the identity."""
    k = torch.tensor(numbers, dtype=torch.float64).reshape(1, 1, -1, 1)
    s = len(numbers)
    return torch.ones(1, 1, 1, 1, dtype=torch.float64), k, torch.eye(s, dtype=torch.float64).reshape(1, 1, s, s)


def even(t: int, s: int, h: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Queries to which every key is the same."""
    q, k = torch.zeros(1, h, t, 1, dtype=torch.float64), torch.zeros(1, h, s, 1, dtype=torch.float64)
    return q, k, torch.eye(s, dtype=torch.float64).expand(1, h, s, s)


def weights(asked: tuple[Tensor, Tensor, Tensor], **terms: Any) -> Tensor:
    """(h, t, s)"""
    mixed: Tensor = ops.attend(*asked, backend="eager", **terms)
    return mixed[0]


def near(actual: Tensor, *expected: Any) -> None:
    torch.testing.assert_close(
        actual.flatten(), torch.tensor(expected, dtype=torch.float64).flatten(), rtol=0, atol=1e-12
    )


def shares(*scores: float) -> list[float]:
    """The softmax, on paper."""
    exps = [math.exp(score) for score in scores]
    return [x / sum(exps) for x in exps]


# The order of the steps


def test_scale_cap_bias_mask_softmax_in_this_order() -> None:
    """Logits 6 and 2, halved to 3 and 1, capped at 2, and ln 5 more for the second."""
    bias = torch.tensor([[0.0, math.log(5), 7.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False]])
    seen = weights(logits(6, 2, 50), scale=0.5, softcap=2.0, bias=bias, mask=mask)
    near(seen, [*shares(2 * math.tanh(1.5), 2 * math.tanh(0.5) + math.log(5)), 0])


def test_the_cap_comes_after_the_scale() -> None:
    near(weights(logits(0, 8), scale=0.25, softcap=1.0), shares(0, math.tanh(2)))
    near(weights(logits(0, 8), scale=0.25, softcap=1e9), shares(0, 2))


def test_a_bias_is_neither_scaled_nor_capped() -> None:
    near(weights(logits(0, 0), scale=9.0, softcap=1.0, bias=torch.tensor([[0.0, 3.0]]).double()), shares(0, 3))


def test_a_floating_mask_comes_after_the_cap_so_that_what_it_blocks_stays_blocked() -> None:
    """Capped after the mask, -inf would be -c, and the key be seen."""
    mask = torch.tensor([[0.0, -INF, 3.0]], dtype=torch.float64)
    near(weights(logits(1, 1, 1), softcap=2.0, mask=mask), [1 / (1 + E1**3), 0, E1**3 / (1 + E1**3)])


def test_bias_and_floating_mask_are_added_both() -> None:
    bias, mask = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 3.0]]).double()
    near(weights(logits(0, 0), bias=bias, mask=mask), shares(1, 3))


def test_a_cap_bounds_the_logits_on_both_sides() -> None:
    near(weights(logits(1e6, 0, -1e6), softcap=2.0), shares(2, 0, -2))


# Sinks: one more logit, whose weight is dropped


@pytest.mark.parametrize("sink", [-2.0, 0.0, 1.5])
def test_a_sink_takes_its_share_of_a_lone_key(sink: float) -> None:
    near(weights(logits(0), sinks=torch.tensor([sink]).double()), [1 / (1 + math.exp(sink))])


def test_a_sink_is_neither_scaled_nor_capped_nor_biased() -> None:
    bias = torch.tensor([[1.0, 0.0]]).double()
    seen = weights(logits(8, 4), scale=0.25, softcap=1.0, bias=bias, sinks=torch.tensor([5.0]).double())
    near(seen, shares(math.tanh(2) + 1, math.tanh(1), 5)[:2])


def test_each_head_has_a_sink_of_its_own() -> None:
    seen = weights(even(2, 2, h=3), sinks=torch.tensor([0.0, math.log(2), math.log(6)], dtype=torch.float64))
    near(seen, [1 / 3] * 4, [1 / 4] * 4, [1 / 8] * 4)


def test_weights_and_sink_are_one_together() -> None:
    _, seen = ops.attend(*logits(1, 2, 3), sinks=torch.tensor([4.0]).double(), need_weights=True)
    assert float(seen.sum()) == pytest.approx(1 - shares(1, 2, 3, 4)[3], abs=1e-14)


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa", "blocks"])
@pytest.mark.parametrize("sinks", [None, 0.0, 3.0, -INF])
def test_a_row_that_sees_nothing_is_zero_with_a_sink_and_without(backend: str, sinks: float | None) -> None:
    """With a sink of -inf, which is none, the row was once NaN."""
    q = torch.randn(1, 1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mask = torch.tensor([[True, True], [False, False], [False, True]])
    sink = None if sinks is None else torch.tensor([sinks]).double().requires_grad_()
    k = torch.ones(1, 1, 2, 4, dtype=torch.float64)
    mixed = ops.attend(q, k, k, mask=mask, sinks=sink, backend=backend)
    torch.autograd.backward(mixed.sum())
    assert not mixed[0, 0, 1].any()
    assert mixed[0, 0, 0].all()
    assert q.grad is not None
    assert q.grad.isfinite().all()
    assert not q.grad[0, 0, 1].any()
    assert sink is None or sink.grad is None or sink.grad.isfinite().all()


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa", "banded", "blocks"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sink", [-1e4, -INF])
def test_a_sink_far_below_every_logit_is_no_sink(backend: str, dtype: torch.dtype, sink: float) -> None:
    """Divided by a small scale, -10000 does not fit float16, and an infinite channel was once NaN."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 200, 4, dtype=torch.float64, generator=generator).to(dtype) for _ in range(2))
    asked: list[dict[str, Any]] = [{"window": 3, "causal": True}, {"window": 3}]
    for terms in asked:
        with_sinks = ops.attend(q, k, k, scale=0.01, sinks=torch.full((2,), sink), backend=backend, **terms)
        without = ops.attend(q.double(), k.double(), k.double(), scale=0.01, **terms)
        assert error(with_sinks, without)[0] <= budget(dtype)


@pytest.mark.parametrize("sinks", [torch.zeros(2), torch.zeros(3, 1), torch.zeros(()), torch.zeros(3, device="meta")])
def test_sinks_that_are_not_one_a_head_are_refused(sinks: Tensor) -> None:
    words = (
        rf"sinks are \({', '.join(map(str, sinks.shape))},?\) on {sinks.device}; they must be \(h,\) = \(3,\) on cpu"
    )
    with pytest.raises(InputError, match=words):
        ops.attend(*even(2, 2, h=3), sinks=sinks)


# Windows, by hand


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa", "banded", "blocks"])
def test_a_causal_window_of_three_is_the_newest_three_keys(backend: str) -> None:
    seen = ops.attend(*even(5, 5), causal=True, window=3, backend=backend)
    third, half = [1 / 3] * 3, [1 / 2] * 2
    near(seen, [1, 0, 0, 0, 0], [*half, 0, 0, 0], [*third, 0, 0], [0, *third, 0], [0, 0, *third])


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa", "banded", "blocks"])
def test_a_window_without_causality_has_two_sides(backend: str) -> None:
    seen = ops.attend(*even(4, 4), window=2, backend=backend)
    third, half = [1 / 3] * 3, [1 / 2] * 2
    near(seen, [*half, 0, 0], [*third, 0], [0, *third], [0, 0, *half])


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa", "banded", "blocks"])
def test_a_window_is_counted_from_the_newest_keys_where_queries_are_few(backend: str) -> None:
    seen = ops.attend(*even(2, 5), causal=True, window=2, backend=backend)
    near(seen, [0, 0, 0.5, 0.5, 0], [0, 0, 0, 0.5, 0.5])


@pytest.mark.parametrize("backend", ["eager", "sdpa", "blocks"])
def test_a_rule_may_stand_for_the_mask(backend: str) -> None:
    seen = ops.attend(*even(3, 3), mask=ops.prefix(2), causal=True, backend=backend)
    near(seen, [1, 0, 0], [0.5, 0.5, 0], [0.5, 0.5, 0])


# Linear biases, by hand


@pytest.mark.parametrize("backend", ["eager", "blocks"])
def test_alibi_takes_its_slope_off_for_each_token_in_between(backend: str) -> None:
    """Two heads have the slopes 1/16 and 1/256."""
    seen = ops.attend(*even(2, 3, h=2), causal=True, bias=ops.Alibi(2), backend=backend)
    for head, slope in enumerate([1 / 16, 1 / 256]):
        near(seen[0, head], [*shares(-slope, 0), 0], shares(-2 * slope, -slope, 0))


def test_alibi_without_causality_has_two_sides() -> None:
    near(weights(even(3, 3), bias=ops.Alibi(1))[0, 1], shares(-1 / 256, 0, -1 / 256))  # one head: 2^-8


# Refusals


@pytest.mark.parametrize("softcap", [0, 0.0, -1.0, float("nan"), INF])
def test_a_softcap_that_leaves_no_logit_is_refused(softcap: float) -> None:
    """One of infinity was once taken, and infinity times 0 is NaN."""
    words = rf"softcap \({softcap}\) bounds the logits: it must be above 0 and finite, and None stands for no cap"
    with pytest.raises(ConfigError, match=words):
        ops.attend(*even(1, 1), softcap=softcap)


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_a_window_without_a_key_is_refused(n: Any) -> None:
    with pytest.raises(ConfigError, match=rf"window \({n}\) counts tokens, the query's own included"):
        ops.attend(*even(1, 1), window=n)


BAD_BIAS: dict[str, tuple[Tensor, str]] = {
    "integers": (torch.zeros(2, 5, dtype=torch.int64), r"bias is torch.int64; it must be torch.float64"),
    "another type": (torch.zeros(2, 5), r"bias is torch.float32; it must be torch.float64 or torch.float64"),
    "one axis": (
        torch.zeros(5).double(),
        r"bias is \(5,\), which does not broadcast to \(b, h, t, s\) = \(1, 3, 2, 5\)",
    ),
    "five axes": (torch.zeros(1, 1, 3, 2, 5).double(), r"bias is \(1, 1, 3, 2, 5\), which does not broadcast"),
    "other heads": (torch.zeros(2, 2, 5).double(), r"bias is \(2, 2, 5\), which does not broadcast"),
    "other keys": (torch.zeros(2, 4).double(), r"bias is \(2, 4\), which does not broadcast"),
    "elsewhere": (torch.zeros(2, 5, device="meta").double(), r"bias is on meta, the layer's input is on cpu"),
}


@pytest.mark.parametrize(("bias", "words"), BAD_BIAS.values(), ids=BAD_BIAS.keys())
def test_a_bias_that_does_not_fit_is_refused(bias: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ops.attend(*even(2, 5, h=3), bias=bias)


@pytest.mark.parametrize("backend", ["eager", "blocks"])
@pytest.mark.parametrize("shape", [(2, 5), (1, 5), (2, 1), (3, 2, 5), (3, 1, 5), (1, 3, 2, 5), (1, 1, 1, 1)], ids=str)
def test_a_bias_may_broadcast(backend: str, shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    seen = ops.attend(*even(2, 5, h=3), bias=bias, backend=backend)
    torch.testing.assert_close(seen[0], bias.expand(1, 3, 2, 5)[0].softmax(dim=-1), rtol=0, atol=1e-14)


BAD_IDS: dict[str, tuple[Tensor, str]] = {
    "floating": (torch.zeros(1, 5), r"document is torch.float32; it must hold integers, one id for the tokens of one"),
    "boolean": (torch.zeros(1, 5) > 0, r"document is torch.bool; it must hold integers"),
    "complex": (torch.zeros(1, 5, dtype=torch.complex64), r"document is torch.complex64"),
    "another size": (torch.zeros(1, 4).long(), r"document is \(1, 4\); it must be \(b, t\) = \(1, 5\), an id for each"),
    "another batch": (torch.zeros(2, 5).long(), r"document is \(2, 5\); it must be \(b, t\) = \(1, 5\)"),
    "elsewhere": (torch.zeros(1, 5, device="meta").long(), r"document is on meta, the layer's input is on cpu"),
}


@pytest.mark.parametrize(("ids", "words"), BAD_IDS.values(), ids=BAD_IDS.keys())
def test_documents_that_do_not_fit_are_refused(ids: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ops.attend(*even(5, 5, h=3), document=ids)


# Softmax


def test_without_masks_and_sinks_it_is_torch_s_softmax() -> None:
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    assert torch.equal(softmax(x, None, None), x.softmax(dim=-1))


def test_a_blind_row_makes_no_nan_and_takes_no_gradient() -> None:
    x = torch.zeros(1, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    visible = torch.tensor([[True, False], [False, False]])
    shared = softmax(x, visible, None)
    assert shared[0, 0].tolist() == [[1, 0], [0, 0]]
    (gradient,) = torch.autograd.grad(shared.sum(), x)
    assert not gradient.any()  # exactly: a NaN would show
