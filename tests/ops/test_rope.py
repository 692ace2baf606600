"""Rotary positions: literal angles, both layouts, and the types in which they are made."""

from __future__ import annotations

import copy
import math
import pickle
import re

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.errors import ConfigError
from attnzoo.ops import rope
from attnzoo.ops.rope import PIECE, Layout

LAYOUTS = pytest.mark.parametrize("layout", ["half", "interleaved"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
COS, SIN = math.cos(1.0), math.sin(1.0)  # 0.5403, 0.8415


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(d: int, channel: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """One token of one head: 1 in one channel. (1, 1, 1, d)"""
    return torch.eye(d, dtype=dtype)[channel].reshape(1, 1, 1, d)


def at(position: int) -> Tensor:
    return torch.tensor([position])


@pytest.mark.parametrize(
    ("layout", "channel", "expected"),
    [
        ("half", 0, [COS, 0, SIN, 0]),
        ("half", 2, [-SIN, 0, COS, 0]),
        ("interleaved", 0, [COS, SIN, 0, 0]),
        ("interleaved", 1, [-SIN, COS, 0, 0]),
        ("half", 1, [0, math.cos(0.01), 0, math.sin(0.01)]),
        ("interleaved", 2, [0, 0, math.cos(0.01), math.sin(0.01)]),
    ],
)
def test_a_pair_turns_by_its_angle_in_the_plane_of_its_layout(
    layout: Layout, channel: int, expected: list[float]
) -> None:
    turned = ops.rotate(unit(4, channel), at(1), layout=layout)
    torch.testing.assert_close(turned.flatten(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)


@LAYOUTS
def test_position_zero_turns_nothing(layout: Layout) -> None:
    x = normal(2, 3, 1, 6)
    assert torch.equal(ops.rotate(x, at(0), layout=layout), x)


@pytest.mark.parametrize("theta", [1e4, 5e5, 7.0])
def test_the_second_pair_turns_by_a_root_of_theta(theta: float) -> None:
    turned = ops.rotate(unit(4, 1), at(1), theta=theta).flatten()
    assert math.atan2(turned[3], turned[1]) == pytest.approx(theta**-0.5, abs=1e-15)


@LAYOUTS
def test_only_the_distance_of_two_tokens_shows_in_their_product(layout: Layout) -> None:
    q, k = normal(1, 1, 1, 6), normal(1, 1, 1, 6, seed=1)

    def product(i: int, j: int) -> float:
        return float((ops.rotate(q, at(i), layout=layout) * ops.rotate(k, at(j), layout=layout)).sum())

    assert product(5, 2) == pytest.approx(product(1003, 1000), abs=1e-12)
    assert abs(product(5, 2) - product(2, 5)) > 1e-2  # the sign of the distance shows


@LAYOUTS
def test_turning_keeps_the_length(layout: Layout) -> None:
    x = normal(2, 3, 5, 6)
    torch.testing.assert_close(ops.rotate(x, torch.arange(5) * 37, layout=layout).norm(dim=-1), x.norm(dim=-1))


def test_a_permutation_of_the_channels_turns_one_layout_into_the_other() -> None:
    x, places = normal(2, 3, 5, 6), torch.tensor([0, 3, 8, 256, 1001])
    pairs = torch.tensor([0, 3, 1, 4, 2, 5])  # channel i beside channel i + 3
    half = ops.rotate(x, places)
    assert torch.equal(half[..., pairs], ops.rotate(x[..., pairs], places, layout="interleaved"))
    assert not torch.equal(half, ops.rotate(x, places, layout="interleaved"))


def test_the_gradient_is_the_turn_back() -> None:
    x, g, places = normal(1, 2, 5, 6).requires_grad_(), normal(1, 2, 5, 6, seed=1), torch.arange(5)
    (dx,) = torch.autograd.grad(ops.rotate(x, places), x, g)
    torch.testing.assert_close(dx, ops.rotate(g, -places), rtol=0, atol=1e-15)


def test_each_sample_may_have_its_own_positions() -> None:
    x = normal(2, 3, 4, 6)
    places = torch.tensor([[0, 1, 2, 3], [7, 5, 11, 2]])
    turned = ops.rotate(x, places)
    assert torch.equal(turned[:1], ops.rotate(x[:1], places[0]))
    assert torch.equal(turned[1:], ops.rotate(x[1:], places[1]))


@LAYOUTS
@DTYPES
@pytest.mark.parametrize("t", [PIECE, PIECE + 1, 3 * PIECE])
@pytest.mark.parametrize("samples", [False, True], ids=["positions alike", "positions per sample"])
def test_many_tokens_turn_in_pieces_as_they_do_at_once(
    layout: Layout, dtype: torch.dtype, t: int, samples: bool
) -> None:
    x = normal(2, 3, t, 8).to(dtype)
    positions = torch.arange(2 * t).reshape(2, t) if samples else torch.arange(t)
    at_once = ops.rotate(x, positions, layout=layout)
    with torch.no_grad():
        in_pieces = ops.rotate(x, positions, layout=layout)
    assert torch.equal(in_pieces, at_once)
    assert in_pieces.stride() == at_once.stride()


def test_pieces_are_taken_without_gradients_only(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def spy(x: Tensor, *_: object) -> Tensor:
        taken.append(x.shape[1])
        return x

    monkeypatch.setattr(rope, "_turn_in_pieces", spy)
    many, few = normal(1, 1, PIECE + 1, 4), normal(1, 1, PIECE, 4)
    ops.rotate(many, torch.arange(PIECE + 1))
    with torch.no_grad():
        ops.rotate(many, torch.arange(PIECE + 1))
        ops.rotate(few, torch.arange(PIECE))
    assert taken == [PIECE + 1]


@LAYOUTS
def test_a_strided_input_is_read_by_its_values(layout: Layout) -> None:
    x = normal(2, 5, 3, 12)[..., ::2].transpose(1, 2)
    assert torch.equal(
        ops.rotate(x, torch.arange(5), layout=layout), ops.rotate(x.contiguous(), torch.arange(5), layout=layout)
    )


def test_the_input_is_not_changed() -> None:
    x = normal(1, 1, 3, 4)
    before = x.clone()
    ops.rotate(x, torch.arange(3))
    assert torch.equal(x, before)


@DTYPES
@LAYOUTS
def test_the_type_goes_out_as_it_came_in(dtype: torch.dtype, layout: Layout) -> None:
    assert ops.rotate(unit(4, 0, dtype), at(3), layout=layout).dtype is dtype


@pytest.mark.parametrize(
    ("dtype", "position"),
    [(torch.bfloat16, 256), (torch.bfloat16, 257), (torch.float16, 2048), (torch.float16, 2049)],
    ids=str,
)
def test_a_half_type_does_not_round_the_position(dtype: torch.dtype, position: int) -> None:
    """bfloat16 holds no 257 and float16 no 2049: an angle made in the layer's type falls on the neighbour's."""
    turned = ops.rotate(unit(2, 0, dtype), at(position)).flatten()
    exact = torch.tensor([math.cos(position), math.sin(position)], dtype=torch.float64)
    torch.testing.assert_close(turned, exact.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("position", [100_003, 1_000_003, 2**24 + 1])  # the last is none of float32's numbers
def test_a_far_position_is_exact_to_float32(position: int) -> None:
    """The slow pairs are where an angle made in float32 is off by a hundredth."""
    d = 8
    turned = ops.rotate(torch.ones(1, 1, 1, d), at(position)).flatten()
    for i in range(d // 2):
        angle = position * 10000.0 ** (-2 * i / d)
        assert float(turned[i]) == pytest.approx(math.cos(angle) - math.sin(angle), abs=5e-7), f"pair {i}"


def test_autocast_changes_nothing() -> None:
    x = normal(1, 2, 3, 4).float()
    expected = ops.rotate(x, torch.arange(3) + 257)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        turned = ops.rotate(x, torch.arange(3) + 257)
    assert torch.equal(turned, expected)


@LAYOUTS
def test_a_partial_rotation_turns_the_first_channels_and_passes_the_rest(layout: Layout) -> None:
    x, places = normal(2, 3, 5, 7), torch.arange(5)
    turned = ops.Rotary(7, rotary_dim=4, layout=layout, theta=100.0)(x, places)
    assert torch.equal(turned[..., :4], ops.rotate(x[..., :4], places, layout=layout, theta=100.0))
    assert torch.equal(turned[..., 4:], x[..., 4:])


def test_a_whole_rotation_is_the_plain_one() -> None:
    x, places = normal(2, 3, 5, 6), torch.arange(5)
    assert torch.equal(ops.Rotary(6)(x, places), ops.rotate(x, places))


def test_a_rotary_holds_no_tensor_and_survives_copying() -> None:
    rotary = ops.Rotary(6, theta=500.0, layout="interleaved", rotary_dim=4)
    x, places = normal(1, 2, 5, 6), torch.arange(5)
    turned = rotary(x, places)
    assert not any(isinstance(value, Tensor) for value in vars(rotary).values())
    assert torch.equal(copy.deepcopy(rotary)(x, places), turned)
    assert torch.equal(pickle.loads(pickle.dumps(rotary))(x, places), turned)


def test_a_rotary_tells_its_settings() -> None:
    assert repr(ops.Rotary(8, theta=500.0, layout="interleaved", rotary_dim=4)) == (
        "Rotary(theta=500, layout='interleaved', rotary_dim=4)"
    )


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "words"),
    [
        (7, None, r"rotary_dim \(7\) must be even, above 0 and at most head_dim \(7\); try rotary_dim=6"),
        (8, 5, r"rotary_dim \(5\) must be even, above 0 and at most head_dim \(8\); try rotary_dim=4"),
        (8, 10, r"rotary_dim \(10\) must be even, above 0 and at most head_dim \(8\); try rotary_dim=8"),
        (8, 0, r"rotary_dim \(0\) must be even.*try rotary_dim=2"),
        (8, -2, r"rotary_dim \(-2\) must be even.*try rotary_dim=2"),
        (8, 4.0, r"rotary_dim \(4.0\) must be even"),
    ],
)
def test_a_rotary_dim_that_cannot_be_paired_is_refused_with_one_that_can(
    head_dim: int, rotary_dim: int | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        ops.Rotary(head_dim, rotary_dim=rotary_dim)
    offered = re.search(r"try rotary_dim=(\d+)", str(refusal.value))
    assert offered
    assert ops.Rotary(head_dim, rotary_dim=int(offered[1])).rotary_dim == int(offered[1])


def test_a_head_of_one_channel_has_no_pair_and_is_offered_no_way_that_fails() -> None:
    with pytest.raises(ConfigError, match=r"head_dim \(1\).*head_dim of 2 or more") as refusal:
        ops.Rotary(1)
    assert "try rotary_dim" not in str(refusal.value)


def test_an_unknown_layout_is_refused_with_the_two_there_are() -> None:
    with pytest.raises(ConfigError, match="unknown layout 'neox'; it takes 'half' or 'interleaved'"):
        ops.Rotary(8, layout="neox")  # type: ignore[arg-type]


def test_an_unknown_layout_is_refused_by_the_bare_function_too() -> None:
    with pytest.raises(ConfigError, match="unknown layout 'neox'; it takes 'half' or 'interleaved'"):
        ops.rotate(unit(4, 0), at(1), layout="neox")  # type: ignore[arg-type]


@pytest.mark.parametrize("theta", [0.0, -1.0, float("nan"), float("inf")])
def test_a_theta_that_is_not_above_zero_and_finite_is_refused(theta: float) -> None:
    with pytest.raises(ConfigError, match=rf"theta \({theta}\) must be above 0"):
        ops.Rotary(8, theta=theta)


def test_a_theta_below_one_is_a_theta() -> None:
    turned = ops.Rotary(4, theta=0.25)(unit(4, 1), at(1))  # pair 1 turns by 0.25 ** (-2 / 4) = 2
    torch.testing.assert_close(turned.flatten()[1], torch.tensor(math.cos(2.0), dtype=torch.float64))


# Default positions, and turns held to complex numbers


def by_complex_numbers(x: Tensor, positions: Tensor, theta: float, layout: Layout) -> Tensor:
    """A pair of channels as one complex number, times e^(i p theta^(-2 n / d)), in float64."""
    d = x.shape[-1]
    split = (2, d // 2) if layout == "half" else (d // 2, 2)
    pairs = x.double().reshape(*x.shape[:-1], *split)
    pairs = pairs.mT if layout == "half" else pairs
    angle = positions.double()[..., None] * theta ** (-torch.arange(0, d, 2).double() / d)
    turn = torch.polar(torch.ones_like(angle), angle)
    turned = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * (turn[:, None] if turn.dim() == 3 else turn)
    )
    return turned.mT.flatten(-2) if layout == "half" else turned.flatten(-2)


@LAYOUTS
@pytest.mark.parametrize("theta", [10000.0, 500.0])
@pytest.mark.parametrize("first", [0, 1000, 1_000_000])
@pytest.mark.parametrize("per_sample", [False, True])
def test_a_turn_is_a_product_of_complex_numbers_however_far_out(
    layout: Layout, theta: float, first: int, per_sample: bool
) -> None:
    x = normal(2, 3, 5, 8)
    positions = first + torch.tensor([[0, 1, 5, 7, 2], [3, 3, 0, 9, 1]])[slice(None) if per_sample else 0]
    exact = by_complex_numbers(x, positions, theta, layout)
    torch.testing.assert_close(ops.rotate(x, positions, theta=theta, layout=layout), exact, rtol=0, atol=1e-14)
    rounded = ops.rotate(x.float(), positions, theta=theta, layout=layout)
    torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=1e-6)


@LAYOUTS
@pytest.mark.parametrize("rotary_dim", [None, 4])
@pytest.mark.parametrize("offset", [0, 3, 1000])
def test_positions_that_are_not_given_are_counted_on_from_the_offset(
    layout: Layout, rotary_dim: int | None, offset: int
) -> None:
    rotary, x = ops.Rotary(8, layout=layout, rotary_dim=rotary_dim), normal(2, 3, 5, 8)
    torch.testing.assert_close(
        rotary(x, offset=offset), rotary(x, torch.arange(offset, offset + 5)), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(rotary(x), rotary(x, torch.arange(5)), rtol=0, atol=1e-14)
    assert offset == 0 or (rotary(x, offset=offset) - rotary(x)).abs().max() > 0.1


def test_positions_that_are_given_stand_for_themselves_whatever_the_offset() -> None:
    rotary, x = ops.Rotary(8), normal(2, 3, 5, 8)
    assert torch.equal(rotary(x, torch.arange(5), offset=7), rotary(x, torch.arange(5)))


@LAYOUTS
def test_the_gradient_of_a_turn_is_checked_by_differences(layout: Layout) -> None:
    x = normal(1, 2, 3, 6).requires_grad_()
    rotary = ops.Rotary(6, layout=layout, rotary_dim=4)
    assert torch.autograd.gradcheck(lambda x: rotary(x, offset=5), x)


@LAYOUTS
@pytest.mark.parametrize("first", [0, 7, 100_000, 123_456_789])
@pytest.mark.parametrize("t", [0, 1, 2, 3, 4, 5, 16, 17, 100, 257])
def test_counted_positions_turn_as_the_same_positions_given(first: int, t: int, layout: Layout) -> None:
    """One token, and tokens in a row, are turned in ways of their own."""
    rotary, x = ops.Rotary(8, theta=500.0, layout=layout, rotary_dim=6), normal(2, 3, t, 8)
    counted, given = rotary(x, offset=first), rotary(x, torch.arange(first, first + t))
    torch.testing.assert_close(counted, given, rtol=0, atol=1e-14 + 4e-16 * first)


@LAYOUTS
@DTYPES
def test_a_lone_token_turns_in_its_own_type(layout: Layout, dtype: torch.dtype) -> None:
    rotary, x = ops.Rotary(6, layout=layout), normal(2, 3, 1, 6).to(dtype)
    turned = rotary(x, offset=300)
    assert turned.dtype is dtype
    assert turned.shape == x.shape
    torch.testing.assert_close(turned, rotary(x, at(300)), rtol=torch.finfo(dtype).eps, atol=1e-7)


@LAYOUTS
def test_the_gradient_of_a_lone_token_is_checked_by_differences(layout: Layout) -> None:
    x = normal(2, 2, 1, 6).requires_grad_()
    rotary = ops.Rotary(6, layout=layout, rotary_dim=4)
    assert torch.autograd.gradcheck(lambda x: rotary(x, offset=5), x)


@pytest.mark.parametrize("t", [1, 5])
def test_a_turn_is_made_on_the_device_of_its_tokens(t: int) -> None:
    """The meta device computes nothing, and mixes with no other."""
    turned = ops.Rotary(8)(torch.empty(2, 3, t, 8, device="meta"), offset=3)
    assert turned.device.type == "meta"
    assert turned.shape == (2, 3, t, 8)


@pytest.mark.parametrize("given", [False, True], ids=["counted", "given"])
@pytest.mark.parametrize("t", [1, 5])
def test_a_compiled_turn_is_the_same_turn(t: int, given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for angles of positions, since the compiler knows neither complex numbers nor the kept rows."""
    rotary, x = ops.Rotary(8, rotary_dim=6), normal(2, 3, t, 8)
    asked = {"positions": torch.arange(t) * 3 + 2} if given else {"offset": 4}
    due = rotary(x, **asked)
    monkeypatch.setattr(rope, "_turn_one", None)
    monkeypatch.setattr(rope, "_table_from", None)
    torch._dynamo.reset()
    turned = torch.compile(rotary, backend="eager", fullgraph=True)(x, **asked)
    torch.testing.assert_close(turned, due, rtol=0, atol=1e-14)
