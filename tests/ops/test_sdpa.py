"""What torch's kernel is handed: a sink as one more key, a flag for the triangle, groups as heads with more queries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from attnzoo import ops
from attnzoo.ops import sdpa
from attnzoo.ops.terms import Terms


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def identity(s: int, h: int = 1, b: int = 1) -> Tensor:
    return torch.eye(s, dtype=torch.float64).expand(b, h, s, s)


Call = tuple[dict[str, tuple[int, ...]], dict[str, Any]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Call]]:
    """Each call of torch's kernel: the shapes it got, and its options."""
    seen: list[Call] = []
    kernel = F.scaled_dot_product_attention

    def spy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        seen.append(({"q": tuple(q.shape), "k": tuple(k.shape), "v": tuple(v.shape)}, options))
        return kernel(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    yield seen
    assert seen, "torch's kernel was not called"


# A sink as one more key


@pytest.mark.parametrize("scale", [None, 0.7, 0.0, -0.7])
@pytest.mark.parametrize(
    "sight",
    [
        {},
        {"causal": True},
        {"window": 2},
        {"mask": torch.tensor([[True, False, True]] * 3)},
        {"mask": torch.tensor([[[[True], [False], [True]]]])},
    ],
)
def test_with_a_sink_the_weights_are_those_of_the_definition(sight: dict[str, Any], scale: float | None) -> None:
    q, k, sinks = normal(2, 4, 3, 5), normal(2, 2, 3, 5, seed=1), normal(4, seed=2)
    asked = dict(sinks=sinks, scale=scale, **sight)
    _, weights = ops.attend(q, k, identity(3, 2, 2), need_weights=True, **asked)
    seen = ops.attend(q, k, identity(3, 2, 2), backend="sdpa", **asked)
    torch.testing.assert_close(seen, weights, rtol=0, atol=1e-14)
    assert (weights.sum(dim=-1) < 1).all()


@pytest.mark.parametrize(
    ("d", "e", "n"), [(1, 1, 8), (7, 3, 8), (7, 8, 8), (8, 8, 16), (8, 3, 16), (15, 16, 16), (16, 16, 24), (3, 20, 24)]
)
def test_the_channels_are_filled_up_to_a_multiple_of_eight(d: int, e: int, n: int) -> None:
    q, k, v, scale = sdpa.with_sink(normal(2, 4, 3, d), normal(2, 2, 5, d), normal(2, 2, 5, e), normal(4), 0.5)
    assert (q.shape, k.shape, v.shape, scale) == ((2, 4, 3, n), (2, 2, 6, n), (2, 2, 6, n), 0.5)


def test_the_sink_stands_first_and_all_that_is_added_is_zero_but_its_logit() -> None:
    given = normal(1, 2, 3, 5), normal(1, 1, 4, 5, seed=1), normal(1, 1, 4, 6, seed=2)
    sinks = torch.tensor([3.0, -1.0]).double()
    q, k, v, scale = sdpa.with_sink(*given, sinks, 0.25)
    assert torch.equal(q[..., :5], given[0])
    assert torch.equal(k[:, :, 1:, :5], given[1])
    assert torch.equal(v[:, :, 1:, :6], given[2])
    assert q[0, :, :, 5].tolist() == [[12.0] * 3, [-4.0] * 3]  # the sink over the scale
    assert k[0, 0, 0].tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
    assert not v[:, :, 0].any()
    assert not q[..., 6:].any()
    assert not k[:, :, 1:, 5:].any()
    assert not v[..., 6:].any()
    logits = scale * q @ k.mT
    torch.testing.assert_close(logits[..., 1:], 0.25 * given[0] @ given[1].mT, rtol=0, atol=1e-15)
    assert logits[0, :, 0, 0].tolist() == [3, -1]


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_where_a_scale_cannot_divide_the_sink_the_queries_take_its_sign_or_nothing(scale: float) -> None:
    q, k, _, scaled = sdpa.with_sink(normal(1, 1, 2, 5), normal(1, 1, 3, 5), normal(1, 1, 3, 5), normal(1), scale)
    assert scaled > 0
    logits = scaled * q @ k.mT
    torch.testing.assert_close(logits[..., 1:], scale * normal(1, 1, 2, 5) @ normal(1, 1, 3, 5).mT)
    torch.testing.assert_close(logits[0, 0, :, 0], normal(1).expand(2))


def test_a_sink_beside_the_triangle_keeps_torch_s_flag(calls: list[Call]) -> None:
    """A first query is put in line with the sink, so that the others still end at their own key."""
    q = normal(1, 2, 6, 4)
    seen = ops.attend(q, q, identity(6, 2), causal=True, sinks=normal(2), backend="sdpa")
    ((shapes, options),) = calls
    assert options["is_causal"] is True
    assert options["attn_mask"] is None
    assert shapes == {"q": (1, 2, 7, 8), "k": (1, 2, 7, 8), "v": (1, 2, 7, 8)}
    assert seen.shape == (1, 2, 6, 6)
    assert not seen.triu(1).any()


def test_a_sink_of_half_a_layer_is_learned_in_its_own_type() -> None:
    sinks = torch.zeros(2, requires_grad=True)
    q = normal(1, 2, 6, 4).bfloat16()
    (gradient,) = torch.autograd.grad(ops.attend(q, q, q, sinks=sinks, backend="sdpa").sum(), sinks)
    assert gradient.dtype is torch.float32


# What is handed to the kernel


def test_a_kernel_that_takes_no_groups_is_handed_every_head(monkeypatch: pytest.MonkeyPatch, calls: list[Call]) -> None:
    """torch 2.6 makes a matrix of t by s of groups on the CPU, and keeps it for the backward pass."""
    q, k = normal(1, 4, 6, 8), normal(1, 2, 6, 8, seed=1)
    due = ops.attend(q, k, k, causal=True, backend="eager")
    monkeypatch.setattr(sdpa, "CPU_TAKES_GROUPS", False)
    seen = ops.attend(q, k, k, causal=True, backend="sdpa")
    torch.testing.assert_close(seen, due, rtol=0, atol=1e-14)
    ((shapes, options),) = calls
    assert options["enable_gqa"] is False
    assert shapes["k"] == shapes["v"] == (1, 4, 6, 8)


def test_whether_the_kernel_takes_groups_is_what_it_leaves_for_the_backward_pass() -> None:
    q, k = normal(1, 4, 6, 8).requires_grad_(), normal(1, 2, 6, 8)
    grouped = F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
    assert ("Flash" in str(grouped.grad_fn)) is sdpa.CPU_TAKES_GROUPS


@pytest.mark.parametrize(
    ("dtype", "masked", "takes"),
    [
        (torch.bfloat16, False, True),
        (torch.float16, False, True),
        (torch.float32, False, False),
        (torch.bfloat16, True, False),
        (torch.float32, True, False),
    ],
    ids=str,
)
def test_a_gpu_takes_groups_in_half_types_and_without_a_mask(dtype: torch.dtype, masked: bool, takes: bool) -> None:
    with FakeTensorMode():
        q = torch.empty(1, 4, 6, 8, dtype=dtype, device="cuda")
        visible = torch.empty(6, 6, dtype=torch.bool, device="cuda") if masked else None
    assert sdpa._takes_groups(q, visible) is takes


def test_heads_that_lie_token_by_token_go_in_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Mock(wraps=F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    given = [normal(1, 6, 2, 8, seed=seed).transpose(1, 2) for seed in range(3)]
    ops.attend(*given, causal=True, backend="sdpa")
    assert [x.data_ptr() for x in kernel.call_args.args] == [x.data_ptr() for x in given]


@pytest.mark.parametrize(
    "asked",
    [{"causal": True}, {"causal": True, "window": 6}, {"causal": True, "window": 100}, {"mask": ops.causal()}],
    ids=str,
)
def test_the_plain_triangle_goes_by_torch_s_flag_and_needs_no_mask(calls: list[Call], asked: dict[str, Any]) -> None:
    q = normal(1, 2, 6, 4)
    ops.attend(q, q, q, backend="sdpa", **asked)
    assert [(options["is_causal"], options["attn_mask"]) for _, options in calls] == [(True, None)]


@pytest.mark.parametrize(
    "asked",
    [
        {"causal": True, "window": 5},
        {"window": 5},
        {"causal": True, "key_mask": torch.ones(1, 6) > 0},
        {"causal": True, "document": torch.zeros(1, 6).long()},
        {"causal": True, "mask": ops.chunk(100)},
    ],
    ids=str,
)
def test_anything_else_goes_by_a_mask(calls: list[Call], asked: dict[str, Any]) -> None:
    q = normal(1, 2, 6, 4)
    ops.attend(q, q, q, backend="sdpa", **asked)
    ((_, options),) = calls
    assert options["is_causal"] is False
    assert options["attn_mask"] is not None


def test_keys_beyond_the_reach_of_all_queries_are_not_read(calls: list[Call]) -> None:
    q, k = normal(1, 2, 3, 4), normal(1, 2, 90, 4)
    ops.attend(q, k, k, causal=True, window=5, backend="sdpa")
    ((shapes, options),) = calls
    assert shapes["k"] == (1, 2, 7, 4)  # tokens 83 to 89: the first of the three queries sees back to 83
    assert options["attn_mask"].shape[-2:] == (3, 7)


def test_a_lone_query_needs_no_mask_but_for_its_padding(calls: list[Call]) -> None:
    q, k = normal(1, 2, 1, 4), normal(1, 2, 90, 4)
    ops.attend(q, k, k, causal=True, window=5, backend="sdpa")
    ops.attend(q, k, k, causal=True, key_mask=torch.ones(1, 90) > 0, backend="sdpa")
    assert calls[0][0]["k"] == (1, 2, 5, 4)
    assert calls[0][1]["attn_mask"] is None
    assert calls[1][1]["attn_mask"].shape == (1, 1, 1, 90)


@pytest.mark.parametrize(
    ("asked", "one_head"),
    [
        ({}, True),
        ({"key_mask": torch.ones(2, 5) > 0}, True),
        ({"causal": True}, False),  # each query sees keys of its own
        ({"mask": torch.ones(2, 4, 1, 5) > 0}, False),  # and here each head
        ({"mask": torch.ones(5, 5) > 0}, False),
    ],
    ids=["all", "padding", "causal", "mask per head", "mask per query"],
)
def test_where_all_queries_see_the_same_keys_a_group_is_one_head_with_more_queries(
    monkeypatch: pytest.MonkeyPatch, calls: list[Call], asked: dict[str, Any], one_head: bool
) -> None:
    monkeypatch.setattr(sdpa, "CPU_TAKES_GROUPS", True)  # whichever kernel this is
    q, k = normal(2, 4, 5, 6), normal(2, 2, 5, 6, seed=1)
    seen = ops.attend(q, k, k, backend="sdpa", **asked)
    ((shapes, options),) = calls
    assert shapes["q"] == ((2, 2, 10, 6) if one_head else (2, 4, 5, 6))
    assert shapes["k"] == (2, 2, 5, 6)
    assert options.get("enable_gqa", False) is not one_head
    torch.testing.assert_close(seen, ops.attend(q, k, k, backend="eager", **asked), rtol=0, atol=1e-14)


def test_without_groups_torch_is_not_asked_for_any(calls: list[Call]) -> None:
    q = normal(2, 4, 5, 6)
    ops.attend(q, q, q, backend="sdpa")
    ((shapes, options),) = calls
    assert shapes["q"] == (2, 4, 5, 6)
    assert options["enable_gqa"] is False


@pytest.mark.parametrize(("scale", "handed"), [(0.3, 0.3), (-0.3, 0.3), (0.0, 1.0)])
def test_torch_is_handed_no_scale_of_zero_or_less(calls: list[Call], scale: float, handed: float) -> None:
    q = normal(1, 2, 5, 6)
    ops.attend(q, q, q, scale=scale, causal=True, backend="sdpa")
    assert [options["scale"] for _, options in calls] == [handed]


def test_dropout_is_handed_on(calls: list[Call]) -> None:
    q = normal(1, 4, 5, 6)
    for asked in ({}, {"causal": True}, {"causal": True, "sinks": normal(4)}):
        ops.attend(q, q[:, :2], q[:, :2], dropout=0.25, backend="sdpa", **asked)
    assert [options["dropout_p"] for _, options in calls] == [0.25] * 3


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"softcap": 1.0}, "knows no softcap"),
        ({"bias": ops.Alibi(1)}, "adds a bias only as a tensor of t by s, and not in the wide type"),
        ({"bias": torch.zeros(2, 2)}, "adds a bias only as a tensor of t by s"),
        ({"mask": torch.zeros(2, 2)}, "does not add a floating mask in the wide type, nor give it a gradient"),
        ({"mask": torch.zeros(2, 2) > 0, "sinks": torch.zeros(1), "rule": ops.causal()}, None),
        ({"document": torch.zeros(1, 2).long(), "key_mask": torch.zeros(1, 2) > 0, "dropout": 0.5}, None),
    ],
)
def test_the_kernel_says_what_it_cannot(terms: dict[str, Any], words: str | None) -> None:
    reason = sdpa.why_not(Terms(scale=1.0, **terms))
    assert reason is None if words is None else reason is not None and reason.startswith(words)


# Dropout, by its statistics


@pytest.mark.parametrize("backend", ["eager", "sdpa", "banded", "blocks"])
@pytest.mark.parametrize("sinks", [False, True])
def test_dropout_keeps_the_mean_and_drops_its_share(backend: str, sinks: bool) -> None:
    """Equal weights of 1/9, or of 1/10 beside a sink of the same logit: dropped, or made up for."""
    torch.manual_seed(0)
    t, window, p = 400, 5, 0.25
    q = torch.zeros(1, 1, t, 4, dtype=torch.float64)
    sink = torch.zeros(1).double() if sinks else None
    seen = ops.attend(q, q, identity(t), window=window, sinks=sink, dropout=p, backend=backend)[0, 0, 4:-4]
    weight = 1 / 10 if sinks else 1 / 9
    kept = seen[seen > 0]
    torch.testing.assert_close(kept, torch.full_like(kept, weight / (1 - p)), rtol=1e-12, atol=0)
    n = 9 * len(seen)
    assert abs(len(kept) / n - (1 - p)) < 5 * math.sqrt(p * (1 - p) / n)  # five standard deviations


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_a_scale_below_zero_costs_a_half_type_no_digits(dtype: torch.dtype, causal: bool) -> None:
    """It was multiplied into the queries, which rounded them once more."""
    q, k, v = (normal(2, 4, 9, 6, seed=seed).to(dtype) for seed in range(3))
    asked: dict[str, Any] = dict(causal=causal, sinks=normal(4).to(dtype), backend="sdpa")
    seen = ops.attend(q, k, v, scale=-0.7, **asked)
    assert torch.equal(seen, ops.attend(-q, k, v, scale=0.7, **asked))
