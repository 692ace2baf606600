"""`attend`: numbers that can be worked out on paper, and the fused kernel held to the readable definition.

Two probes: values that are the identity make the output the weights; zero queries make the visible weights equal.
"""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.errors import ConfigError, InputError

BACKENDS = pytest.mark.parametrize("backend", ["eager", "sdpa"])
INF = float("inf")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def zeros(t: int, *, b: int = 1, h: int = 1, d: int = 1) -> Tensor:
    return torch.zeros(b, h, t, d, dtype=torch.float64)


def values(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).reshape(1, 1, -1, 1)


def identity(s: int) -> Tensor:
    return torch.eye(s, dtype=torch.float64).reshape(1, 1, s, s)


def near(actual: Tensor, *expected: Any) -> None:
    """Every number of the one head, to the digits that are written here."""
    torch.testing.assert_close(
        actual.flatten(), torch.tensor(expected, dtype=actual.dtype).flatten(), rtol=0, atol=5e-5
    )


# Causality


@BACKENDS
def test_fewer_queries_than_keys_are_the_newest(backend: str) -> None:
    seen = ops.attend(zeros(2), zeros(5), identity(5), causal=True, backend=backend)
    near(seen, [0.25, 0.25, 0.25, 0.25, 0], [0.2] * 5)  # anchored top-left: 1 0 0 0 0 and .5 .5 0 0 0


@BACKENDS
def test_queries_older_than_every_key_see_nothing(backend: str) -> None:
    seen = ops.attend(zeros(5), zeros(2), identity(2), causal=True, backend=backend)
    near(seen, [0, 0], [0, 0], [0, 0], [1, 0], [0.5, 0.5])


@BACKENDS
def test_a_lone_query_sees_every_key(backend: str) -> None:
    assert ops.attend(zeros(1), zeros(8), values(*range(8)), causal=True, backend=backend).item() == 3.5


@BACKENDS
def test_without_causality_every_query_sees_every_key(backend: str) -> None:
    near(ops.attend(zeros(2), zeros(3), values(1, 2, 6), backend=backend), 3, 3)


# Masks


@BACKENDS
def test_true_means_may_attend(backend: str) -> None:
    mask = torch.tensor([[True, True, True, False]])
    near(ops.attend(zeros(1), zeros(4), values(1, 2, 3, 100), mask=mask, backend=backend), 2)  # inverted: 100


def test_a_floating_mask_of_ones_and_zeros_is_added_and_blocks_nothing() -> None:
    ones = torch.ones(8, 8).tril()
    seen = ops.attend(zeros(8), zeros(8), identity(8), mask=ones)
    near(seen[0, 0, 0], [0.2797, *[0.1029] * 7])


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
def test_a_mask_of_integers_is_refused_with_the_types_that_are_taken(backend: str, dtype: torch.dtype) -> None:
    mask = torch.ones(2, 2, dtype=dtype)
    with pytest.raises(InputError, match=rf"mask is {dtype}; it must be torch.bool.*or a floating type.*mask.bool\(\)"):
        ops.attend(zeros(2), zeros(2), zeros(2), mask=mask, backend=backend)


@BACKENDS
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_padding_follows_its_sample_in_every_head(backend: str, heads: int) -> None:
    key_mask = torch.tensor([[True, True, True], [True, False, False]])
    v = values(1, 2, 3).expand(2, heads, 3, 1)
    seen = ops.attend(zeros(1, b=2, h=heads), zeros(3, b=2, h=heads), v, key_mask=key_mask, backend=backend)
    near(seen, [2.0] * heads, [1.0] * heads)  # tiled, the heads would take turns


@BACKENDS
def test_a_mask_per_head_follows_its_head_in_every_sample(backend: str) -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])[None, :, None]
    v = values(1, 2, 3).expand(3, 2, 3, 1)
    seen = ops.attend(zeros(1, b=3, h=2), zeros(3, b=3, h=2), v, mask=mask, backend=backend)
    near(seen, [2, 1] * 3)


@BACKENDS
def test_mask_padding_and_causality_meet(backend: str) -> None:
    mask = torch.tensor([[True, True, True], [True, False, True], [True, True, True]])
    key_mask = torch.tensor([[False, True, True]])
    seen = ops.attend(zeros(3), zeros(3), identity(3), mask=mask, key_mask=key_mask, causal=True, backend=backend)
    near(seen, [0, 0, 0], [0, 0, 0], [0, 0.5, 0.5])


def test_a_floating_mask_meets_padding_and_causality_too() -> None:
    key_mask = torch.tensor([[False, True, True, True]])
    mask = torch.zeros(3, 4)
    mask[2, 1] = -INF
    mask[2, 3] = math.log(3)
    seen = ops.attend(zeros(3), zeros(4), identity(4), mask=mask, key_mask=key_mask, causal=True)
    near(seen, [0, 1, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.25, 0.75])


def test_a_floating_mask_is_added_after_the_scale() -> None:
    mask = torch.tensor([[math.log(3.0), 0.0]])
    near(ops.attend(zeros(1), zeros(2), identity(2), mask=mask, scale=7.0), [0.75, 0.25])


@pytest.mark.parametrize("shape", [(3, 5), (1, 1, 3, 5), (2, 1, 3, 5), (1, 4, 1, 5), (2, 4, 3, 5)], ids=str)
def test_a_floating_mask_gets_its_gradient_in_its_own_shape(shape: tuple[int, ...]) -> None:
    q, k, v, mask = normal(2, 4, 3, 6), normal(2, 2, 5, 6, seed=1), normal(2, 2, 5, 7, seed=2), normal(*shape, seed=3)

    def mixed(mask: Tensor) -> Tensor:
        return ops.attend(q, k, v, mask=mask, causal=True)

    assert torch.autograd.gradcheck(mixed, mask.requires_grad_())


# Rows that see nothing


@BACKENDS
def test_a_row_with_nothing_to_see_is_zero(backend: str) -> None:
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    near(ops.attend(zeros(3), zeros(4), values(0, 1, 2, 3), mask=mask, backend=backend), 1.5, 0, 1.5)


@BACKENDS
def test_a_row_blinded_by_two_masks_together_is_zero(backend: str) -> None:
    mask, key_mask = torch.tensor([[True, False], [True, True]]), torch.tensor([[False, True]])
    near(ops.attend(zeros(2), zeros(2), values(3, 5), mask=mask, key_mask=key_mask, backend=backend), 0, 5)


def test_a_floating_row_of_minus_infinity_is_zero_with_zero_weights_and_gradients() -> None:
    mask = torch.tensor([[0.0, 0.0], [-INF, -INF]], dtype=torch.float64, requires_grad=True)
    q = normal(1, 1, 2, 3).requires_grad_()
    mixed, weights = ops.attend(q, normal(1, 1, 2, 3, seed=1), normal(1, 1, 2, 3), mask=mask, need_weights=True)
    torch.autograd.backward(mixed.square().sum())
    assert not mixed[0, 0, 1].any()
    assert weights[0, 0, 1].tolist() == [0, 0]
    assert q.grad is not None
    assert mask.grad is not None
    assert mask.grad.isfinite().all()
    assert not q.grad[0, 0, 1].any()
    assert not mask.grad[1].any()
    assert q.grad[0, 0, 0].any()


def test_a_row_with_nothing_to_see_makes_no_nan_on_the_way_back_either() -> None:
    q = normal(1, 1, 2, 3).requires_grad_()
    mask = torch.tensor([[True, True], [False, False]])
    with torch.autograd.set_detect_anomaly(True):
        torch.autograd.backward(ops.attend(q, q, q, mask=mask, backend="eager").sum())
    assert q.grad is not None
    assert q.grad.isfinite().all()


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_key_blocked_twice_with_big_logits_is_as_one_blocked_once(backend: str, dtype: torch.dtype) -> None:
    """Two fillers of the type's minimum add up to -inf, and -1e9 does not fit float16."""
    q, k = torch.full((1, 1, 3, 4), -5.0, dtype=dtype), torch.full((1, 1, 3, 4), 1.0, dtype=dtype)
    key_mask = torch.tensor([[True, True, False]])
    seen = ops.attend(q, k, identity(3).to(dtype), key_mask=key_mask, causal=True, scale=1.0, backend=backend)
    assert seen[0, 0].tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0.5, 0.5, 0]]


@BACKENDS
def test_a_blocked_key_that_would_win_by_far_has_no_weight(backend: str) -> None:
    seen = ops.attend(
        values(1), values(0, 200, 1), identity(3), mask=torch.tensor([[True, False, True]]), scale=1.0, backend=backend
    )
    near(seen, [1 / (1 + math.e), 0, math.e / (1 + math.e)])
    assert seen[0, 0, 0, 1] == 0


NOT_THE_SECOND: dict[str, dict[str, Any]] = {
    "padding": {"key_mask": torch.tensor([[True, False, True, True]])},
    "mask": {"mask": torch.tensor([[True, False, True, True], [True, False, False, True]])},
    "documents": {"document": torch.tensor([[0, 1, 0, 0]])},
    "rule": {"mask": ops.Rule("not the second", lambda b, q, k: k != 1)},
}


@pytest.mark.parametrize("backend", ["eager", "sdpa", "blocks"])
@pytest.mark.parametrize("asked", NOT_THE_SECOND.values(), ids=NOT_THE_SECOND.keys())
@pytest.mark.parametrize("poison", [INF, float("nan"), torch.finfo(torch.float64).max])
def test_what_no_query_sees_reaches_neither_output_nor_gradient(
    backend: str, asked: dict[str, Any], poison: float
) -> None:
    k, v = normal(1, 1, 4, 3), normal(1, 1, 4, 3, seed=1)
    expected = ops.attend(normal(1, 1, 2, 3, seed=2), k, v, **asked, backend=backend)
    k[:, :, 1], v[:, :, 1] = poison, -poison
    q = normal(1, 1, 2, 3, seed=2).requires_grad_()
    mixed = ops.attend(q, k.requires_grad_(), v.requires_grad_(), **asked, backend=backend)
    torch.autograd.backward(mixed.sum())
    assert torch.equal(mixed, expected)
    for leaf in (q, k, v):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
    assert k.grad is not None
    assert not k.grad[:, :, 1].any()


# Scale and softmax


def one_sided() -> tuple[Tensor, Tensor, Tensor]:
    """d = 16; the logits are scale * 4 ln 3 and 0, so a scale of 1/4 gives weights of 3 : 1."""
    q, k = torch.zeros(1, 1, 1, 16, dtype=torch.float64), torch.zeros(1, 1, 2, 16, dtype=torch.float64)
    q[..., 0], k[0, 0, 0, 0] = 1.0, 4 * math.log(3)
    return q, k, identity(2)


@BACKENDS
@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (None, [0.75, 0.25]),  # one over the root of the head width; twice would be .568, none .988
        (1.0, [0.9878, 0.0122]),
        (0.125, [0.6340, 0.3660]),
        (0.0, [0.5, 0.5]),
        (0, [0.5, 0.5]),
        (-0.25, [0.25, 0.75]),
    ],
)
def test_the_scale_is_the_one_given_or_one_over_the_root_of_the_head_width(
    backend: str, scale: float | None, expected: list[float]
) -> None:
    near(ops.attend(*one_sided(), scale=scale, backend=backend), expected)


@BACKENDS
@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_scale_of_zero_or_less_does_not_lift_the_triangle(backend: str, scale: float) -> None:
    q = normal(1, 2, 4, 4)  # as wide as the values: torch's kernel for other widths masks last
    seen = ops.attend(q, q, identity(4).expand(1, 2, 4, 4), causal=True, scale=scale, backend=backend)
    assert not seen.triu(1).any()
    torch.testing.assert_close(seen.sum(-1), torch.ones(1, 2, 4, dtype=torch.float64))


def test_the_width_of_the_values_does_not_enter_the_scale() -> None:
    q, k, _ = one_sided()
    near(ops.attend(q, k, torch.cat([identity(2), torch.zeros(1, 1, 2, 7)], dim=-1)), [0.75, 0.25, *[0.0] * 7])


def test_weights_sum_to_one_over_the_keys() -> None:
    _, weights = ops.attend(normal(2, 3, 3, 4), normal(2, 3, 5, 4, seed=1), normal(2, 3, 5, 4), need_weights=True)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 3, dtype=torch.float64))
    assert (weights.sum(dim=-2) - 3 / 5).abs().max() > 0.1  # and not over the queries


@BACKENDS
def test_values_that_are_all_one_come_out_as_one(backend: str) -> None:
    ones = torch.ones(2, 3, 5, 1, dtype=torch.float64)
    mixed = ops.attend(normal(2, 3, 3, 4), normal(2, 3, 5, 4, seed=1), ones, backend=backend)
    torch.testing.assert_close(mixed, torch.ones_like(mixed))


@BACKENDS
def test_logits_far_beyond_the_exponential_stay_finite(backend: str) -> None:
    seen = ops.attend(values(1e4), values(1e4, -1e4, 1e4), identity(3), backend=backend)
    near(seen, [0.5, 0, 0.5])


def test_the_softmax_of_a_half_type_is_taken_in_float32() -> None:
    """Logits of 256 and 257 are one number in bfloat16: taken there, the weights would be equal."""
    q = torch.tensor([16.0, 1.0], dtype=torch.bfloat16).reshape(1, 1, 1, 2)
    k = torch.tensor([[16.0, 0.0], [16.0, 1.0]], dtype=torch.bfloat16).reshape(1, 1, 2, 2)
    _, weights = ops.attend(q, k, k, scale=1.0, need_weights=True)
    near(weights.float(), [0.2695, 0.7305])  # 1/(1 + e) = 0.26894 and 0.73106, in steps of 2^-10 and 2^-8


# Heads


@BACKENDS
def test_query_heads_in_a_row_read_one_key_value_head(backend: str) -> None:
    v = torch.tensor([10.0, 20.0], dtype=torch.float64).reshape(1, 2, 1, 1).expand(1, 2, 3, 1)
    near(ops.attend(zeros(1, h=4), zeros(3, h=2), v, backend=backend), [10, 10, 20, 20])  # tiled: 10 20 10 20


@BACKENDS
def test_grouped_heads_are_as_repeated_ones(backend: str) -> None:
    q, k, v = normal(2, 6, 3, 4), normal(2, 2, 5, 4, seed=1), normal(2, 2, 5, 7, seed=2)
    grouped = ops.attend(q, k, v, causal=True, backend=backend)
    whole = ops.attend(q, k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1), causal=True, backend=backend)
    torch.testing.assert_close(grouped, whole)


# The definition, once more in loops


def by_loops(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, bias: Tensor, scale: float) -> Tensor:
    """One number at a time, with no tensor operation that could share a mistake. All (b, h, ...) tensors are full."""
    b, h, t, d = q.shape
    g, s, e = v.shape[1:]
    out = torch.zeros(b, h, t, e, dtype=torch.float64)
    for n in range(b):
        for i in range(h):
            j = i // (h // g)
            for row in range(t):
                exps = {}
                for key in range(s):
                    if visible[n, i, row, key]:
                        dot = sum(float(q[n, i, row, c]) * float(k[n, j, key, c]) for c in range(d))
                        exps[key] = math.exp(scale * dot + float(bias[n, i, row, key]))
                for c in range(e):
                    top = sum(weight * float(v[n, j, key, c]) for key, weight in exps.items())
                    out[n, i, row, c] = top / sum(exps.values()) if exps else 0.0
    return out


def test_attention_is_what_the_loops_say() -> None:
    b, h, g, t, s, d, e = 2, 4, 2, 3, 5, 6, 7
    q, k, v = normal(b, h, t, d), normal(b, g, s, d, seed=1), normal(b, g, s, e, seed=2)
    key_mask = torch.tensor([[True] * 5, [False, True, False, True, True]])
    bias = normal(1, h, t, s, seed=3)
    bias[0, 1, 2, 1] = -INF
    triangle = torch.tensor([[True, True, True, False, False], [True, True, True, True, False], [True] * 5])
    visible = triangle & key_mask[:, None, None] & (bias > -INF)
    expected = by_loops(q, k, v, visible, bias.expand(b, h, t, s), 0.3)
    mixed = ops.attend(q, k, v, mask=bias, key_mask=key_mask, causal=True, scale=0.3)
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-13)


# Dropout


def test_the_weights_returned_are_those_before_dropout() -> None:
    q = normal(1, 2, 5, 4)
    torch.manual_seed(0)
    mixed, weights = ops.attend(q, q, q, dropout=0.5, need_weights=True)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 2, 5, dtype=torch.float64))
    assert not torch.allclose(mixed, weights @ q)  # while the output was made with dropped ones


@BACKENDS
def test_dropped_weights_are_zero_and_the_others_made_up_for(backend: str) -> None:
    torch.manual_seed(0)
    seen = ops.attend(zeros(50), zeros(4), identity(4), dropout=0.5, backend=backend)
    assert sorted(set(seen.flatten().tolist())) == [0.0, 0.5]  # a quarter, dropped or doubled


@BACKENDS
def test_no_dropout_draws_no_random_number(backend: str) -> None:
    before = torch.get_rng_state()
    ops.attend(zeros(2), zeros(2), zeros(2), dropout=0.0, backend=backend)
    assert torch.equal(torch.get_rng_state(), before)


@BACKENDS
@pytest.mark.parametrize("dropout", [-0.5, 1.0, 1.5])
def test_a_dropout_that_is_no_share_is_refused(backend: str, dropout: float) -> None:
    """torch's fused kernel takes a negative one without a word."""
    with pytest.raises(ConfigError, match=rf"dropout \({dropout}\).* at least 0 and below 1"):
        ops.attend(zeros(2), zeros(2), zeros(2), dropout=dropout, backend=backend)


# Gradients


@pytest.mark.parametrize("t", [3, 5])
def test_the_definition_can_be_differentiated_twice(t: int) -> None:
    q, k, v = normal(1, 2, t, 2), normal(1, 1, 4, 2, seed=1), normal(1, 1, 4, 3, seed=2)
    mask = normal(t, 4, seed=3)
    mask[1, 0] = -INF

    def mixed(*inputs: Tensor) -> Tensor:
        return ops.attend(*inputs, mask=mask, causal=True, backend="eager")

    leaves = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(mixed, leaves)
    assert torch.autograd.gradgradcheck(mixed, leaves)


def test_the_returned_weights_can_be_differentiated() -> None:
    q, k = normal(1, 2, 3, 2).requires_grad_(), normal(1, 1, 4, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: ops.attend(q, k, k, causal=True, need_weights=True)[1], (q, k))


@pytest.mark.parametrize(
    ("word", "offer"), [("causall", "'causal'"), ("softcaps", "'softcap'"), ("q_offsets", "'q_offset'")]
)
def test_a_word_that_attend_does_not_know_is_answered_with_the_nearest(word: str, offer: str) -> None:
    q, asked = torch.zeros(1, 1, 2, 4), cast(Any, {word: 1})
    with pytest.raises(TypeError, match=rf"attend\(\) takes no '{word}'; did you mean {offer}\?"):
        ops.attend(q, q, q, **asked)
