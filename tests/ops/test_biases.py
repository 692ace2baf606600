"""Biases: the slopes of ALiBi on paper, and what they add."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch

from attnzoo import ops
from attnzoo.errors import ConfigError, InputError

SLOPES = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    4: [2**-2, 2**-4, 2**-6, 2**-8],
    8: [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8],
    16: [2 ** (-n / 2) for n in range(1, 17)],
    # No power of two: the slopes of the next lower one, then every other slope of twice that.
    3: [2**-4, 2**-8, 2**-2],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    12: [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
}


@pytest.mark.parametrize("heads", SLOPES)
def test_the_slopes_are_those_of_the_paper_and_of_its_code(heads: int) -> None:
    assert ops.alibi_slopes(heads) == pytest.approx(SLOPES[heads], rel=1e-15)


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 32, 64])
def test_a_power_of_two_gives_the_powers_of_its_first_slope(heads: int) -> None:
    slopes = ops.alibi_slopes(heads)
    assert slopes == pytest.approx([2 ** (-8 * i / heads) for i in range(1, heads + 1)], rel=1e-15)


@pytest.mark.parametrize("heads", [3, 5, 6, 7, 9, 12, 15, 20, 40, 112])
def test_every_head_has_a_slope_of_its_own(heads: int) -> None:
    slopes = ops.alibi_slopes(heads)
    assert len(slopes) == len(set(slopes)) == heads
    assert all(0 < slope < 1 for slope in slopes)


@pytest.mark.parametrize("heads", [0, -2])
def test_no_head_has_no_slope(heads: int) -> None:
    with pytest.raises(ConfigError, match=rf"heads must be a whole number above 0; got {heads}"):
        ops.alibi_slopes(heads)


def test_the_bias_falls_with_the_distance_on_both_sides() -> None:
    head, query, key = torch.arange(2)[:, None, None], torch.tensor([[1], [3]]), torch.arange(4)
    added = ops.Alibi(2)(head, query, key, torch.float64)
    distance = torch.tensor([[1, 0, 1, 2], [3, 2, 1, 0]]).double()
    torch.testing.assert_close(added, torch.stack([-distance / 16, -distance / 256]), rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_bias_is_made_in_the_type_that_is_asked_for(dtype: torch.dtype) -> None:
    added = ops.Alibi(3)(torch.arange(3), torch.tensor(0), torch.tensor(5), dtype)
    assert added.dtype is dtype
    assert added.tolist() == pytest.approx([-5 / 16, -5 / 256, -5 / 4], rel=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 40])
def test_each_head_is_biased_by_its_own_slope(heads: int) -> None:
    added = ops.Alibi(heads)(torch.arange(heads), torch.tensor(7), torch.tensor(6), torch.float64)
    assert (-added).tolist() == pytest.approx(ops.alibi_slopes(heads), rel=1e-15)


@pytest.mark.parametrize("heads", [2, 8])
def test_the_slopes_of_another_number_of_heads_are_refused(heads: int) -> None:
    q = torch.zeros(1, 4, 3, 2)
    with pytest.raises(
        InputError, match=rf"bias has the slopes of {heads} heads, Alibi\(heads={heads}\); q has 4 heads"
    ):
        ops.attend(q, q, q, bias=ops.Alibi(heads))


def test_two_biases_for_as_many_heads_are_equal_and_cannot_be_changed() -> None:
    assert ops.Alibi(3) == ops.Alibi(3) != ops.Alibi(4)
    assert len({ops.Alibi(3), ops.Alibi(3)}) == 1
    with pytest.raises(FrozenInstanceError):
        ops.Alibi(3).heads = 4  # type: ignore[misc]
