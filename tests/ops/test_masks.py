"""Masks: who may see whom, written out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.errors import InputError
from attnzoo.ops.masks import check_key_mask, check_mask, wide_type
from attnzoo.ops.terms import Terms

CPU = torch.device("cpu")
INF = float("inf")


def sees(*rows: str) -> Tensor:
    """A picture of a mask: x where a query sees a key."""
    return torch.tensor([[mark == "x" for mark in row] for row in rows])


def seen(
    t: int, s: int, *, mask: Tensor | None = None, key_mask: Tensor | None = None, causal: bool = False
) -> Tensor | None:
    rule = ops.causal() if causal else None
    return Terms(scale=1.0, mask=mask, key_mask=key_mask, rule=rule, first_query=s - t).visible(t, s, CPU)


@pytest.mark.parametrize(
    "picture",
    [
        ["x..", "xx.", "xxx"],
        ["xxxx.", "xxxxx"],  # the two newest of five
        ["..", "..", "..", "x.", "xx"],  # five tokens of which two are keys: the first three see nothing
        ["xxxxxxxx"],
        ["x"],
    ],
    ids=lambda picture: f"{len(picture)} queries, {len(picture[0])} keys",
)
def test_the_triangle_sits_at_the_bottom_right(picture: list[str]) -> None:
    expected = sees(*picture)
    assert torch.equal(ops.causal().mask(*expected.shape), expected)


@pytest.mark.parametrize(("t", "s"), [(0, 0), (0, 3), (3, 0)])
def test_no_queries_or_no_keys_make_an_empty_triangle(t: int, s: int) -> None:
    assert ops.causal().mask(t, s).shape == (t, s)


def test_the_triangle_is_made_on_the_device_that_is_asked_for() -> None:
    assert ops.causal().mask(2, 3, device="meta").is_meta


def test_without_a_rule_there_is_no_mask() -> None:
    assert seen(3, 5) is None


def test_a_lone_query_is_the_newest_token_and_needs_no_triangle() -> None:
    assert seen(1, 8, causal=True) is None


def test_two_queries_need_their_triangle() -> None:
    visible = seen(2, 4, causal=True)
    assert visible is not None
    assert torch.equal(visible, sees("xxx.", "xxxx"))


def test_mask_key_mask_and_triangle_meet() -> None:
    mask = sees("xxxx", "x.xx", "xxxx")
    key_mask = torch.tensor([[True] * 4, [False, True, True, True]])
    visible = seen(3, 4, mask=mask, key_mask=key_mask, causal=True)
    assert visible is not None
    assert torch.equal(visible[0, 0], sees("xx..", "x.x.", "xxxx"))
    assert torch.equal(visible[1, 0], sees(".x..", "..x.", ".xxx"))


def test_causality_and_a_band_of_three_leave_fifteen_pairs() -> None:
    band = torch.ones(6, 6, dtype=torch.bool).triu(-2)
    visible = seen(6, 6, mask=band, causal=True)
    assert visible is not None
    assert int(visible.sum()) == 15  # joined the other way round, all 36
    assert visible.sum(dim=1).tolist() == [1, 2, 3, 3, 3, 3]


def test_of_a_floating_mask_only_minus_infinity_blocks() -> None:
    lowest = torch.finfo(torch.float32).min
    visible = seen(1, 5, mask=torch.tensor([[0.0, 1.0, lowest, -1e9, -INF]]))
    assert visible is not None
    assert visible.tolist() == [[True, True, True, True, False]]


def test_a_key_mask_belongs_to_its_sample_in_every_head_and_query() -> None:
    key_mask = torch.tensor([[True, True], [True, False]])
    visible = seen(3, 2, key_mask=key_mask)
    assert visible is not None
    assert torch.equal(visible.expand(2, 4, 3, 2)[1, 3], sees("x.", "x.", "x."))


def test_rules_are_joined_without_changing_the_masks_given() -> None:
    mask, key_mask = torch.ones(3, 3, dtype=torch.bool), torch.tensor([[True, False, True]])
    seen(3, 3, mask=mask, key_mask=key_mask, causal=True)
    assert mask.all()
    assert key_mask.tolist() == [[True, False, True]]


def test_a_key_that_no_query_sees_is_zeroed_whatever_it_holds() -> None:
    x = torch.tensor([1.0, INF, float("nan"), 2.0]).reshape(1, 1, 4, 1)
    assert ops.hide(x, sees("x..x", "...x")).flatten().tolist() == [1, 0, 0, 2]


def test_a_key_that_one_query_of_one_head_sees_stays() -> None:
    visible = torch.zeros(1, 2, 3, 4, dtype=torch.bool)
    visible[0, 1, 2, 3] = True
    assert ops.hide(torch.ones(1, 2, 4, 1), visible)[0, :, :, 0].tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]


def test_a_key_is_hidden_in_the_sample_that_does_not_see_it_only() -> None:
    visible = torch.tensor([[True, True, False], [False, True, True]])[:, None, None, :]
    assert ops.hide(torch.ones(2, 1, 3, 1), visible)[:, 0, :, 0].tolist() == [[1, 1, 0], [0, 1, 1]]


def test_a_hidden_key_gets_a_gradient_of_exactly_zero() -> None:
    x = torch.tensor([1.0, INF, 3.0]).reshape(1, 1, 3, 1).requires_grad_()
    torch.autograd.backward(ops.hide(x, sees("x.x")).square().sum())
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [2, 0, 6]


def test_hiding_does_not_change_its_input() -> None:
    x = torch.ones(1, 1, 2, 1)
    ops.hide(x, sees("x."))
    assert x.flatten().tolist() == [1, 1]


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_the_wide_type_is_float32_or_wider(dtype: torch.dtype, wide: torch.dtype) -> None:
    assert wide_type(dtype) is wide


def held(mask: Tensor, like: torch.dtype = torch.float32) -> None:
    """b, h, t, s = 2, 3, 5, 7."""
    check_mask(mask, b=2, h=3, t=5, s=7, like=torch.zeros(1, dtype=like))


@pytest.mark.parametrize(
    "shape", [(5, 7), (2, 3, 5, 7), (1, 1, 5, 7), (2, 1, 1, 7), (1, 3, 5, 1), (1, 1, 1, 1)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16], ids=str)
def test_a_mask_of_two_axes_or_of_four_that_broadcast_is_taken(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    mask = torch.ones(shape, dtype=dtype)
    held(mask)
    q, kv = torch.zeros(2, 3, 5, 4), torch.ones(2, 3, 7, 4)
    assert torch.equal(ops.attend(q, kv, kv, mask=mask, backend="eager"), torch.ones(2, 3, 5, 4))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(5, 7, dtype=torch.int64), r"torch.int64; it must be torch.bool \(True = may attend\).*mask.bool()"),
        (torch.ones(5, 7, dtype=torch.uint8), r"torch.uint8; it must be torch.bool"),
        (torch.ones(5, 7, dtype=torch.complex64), r"torch.complex64; it must be torch.bool"),
        (torch.ones(5, 7, dtype=torch.float64), r"torch.float64;.* floating type that fits into torch.float32"),
        (torch.ones(2, 5, 7) > 0, r"3 axes, \(2, 5, 7\).*mask\[:, None\] for one per sample, mask\[None\] for one per"),
        (torch.ones(7) > 0, r"mask has 1 axes, \(7,\); it takes 2, \(t, s\), or 4, \(b, h, t, s\)"),
        (torch.ones(1, 2, 3, 5, 7) > 0, r"mask has 5 axes"),
        (torch.ones(7, 5) > 0, r"mask is \(7, 5\); with 2 axes it must be \(t, s\) = \(5, 7\)"),
        (torch.ones(1, 7) > 0, r"mask is \(1, 7\); with 2 axes it must be \(t, s\) = \(5, 7\)"),
        (torch.ones(3, 2, 5, 7) > 0, r"\(3, 2, 5, 7\), which does not broadcast to \(b, h, t, s\) = \(2, 3, 5, 7\)"),
        (torch.ones(2, 3, 5, 6) > 0, r"\(2, 3, 5, 6\), which does not broadcast to \(b, h, t, s\) = \(2, 3, 5, 7\)"),
        (torch.ones(5, 7, device="meta") > 0, r"mask is on meta, the layer's input is on cpu; try mask.to\(x.device\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mask_that_does_not_fit_is_refused_with_what_would(mask: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        held(mask)


def test_the_two_ways_out_of_three_axes_fit() -> None:
    per_sample, per_head = torch.ones(2, 5, 7) > 0, torch.ones(3, 5, 7) > 0
    held(per_sample[:, None])
    held(per_head[None])
    with pytest.raises(InputError, match="does not broadcast"):
        held(per_head[:, None])


def test_a_float64_mask_fits_a_float64_layer() -> None:
    held(torch.ones(5, 7, dtype=torch.float64), like=torch.float64)
    with pytest.raises(InputError, match=r"fits into torch.float32"):
        held(torch.ones(5, 7, dtype=torch.float64), like=torch.bfloat16)


@pytest.mark.parametrize(
    ("key_mask", "words"),
    [
        (torch.ones(2, 7, dtype=torch.int64), r"torch.int64; it must be torch.bool, True where the token is real; try"),
        (torch.ones(2, 7), r"key_mask is torch.float32; it must be torch.bool"),
        (torch.ones(2, 5) > 0, r"key_mask is \(2, 5\); it must be \(b, s\) = \(2, 7\), cached tokens counted"),
        (torch.ones(1, 7) > 0, r"key_mask is \(1, 7\); it must be \(b, s\) = \(2, 7\)"),
        (torch.ones(2, 7, device="meta") > 0, r"key_mask is on meta, the layer's input is on cpu"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_key_mask_that_does_not_fit_is_refused_with_what_would(key_mask: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_key_mask(key_mask, b=2, s=7, like=torch.zeros(1))
