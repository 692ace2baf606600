"""How far a result may lie from the truth."""

from __future__ import annotations

import math

import pytest
import torch

from attnzoo.checks.engine import tolerance


def test_the_floor_is_what_a_sound_layer_may_err_by() -> None:
    assert tolerance.budget(torch.float64) == 1e-12
    assert tolerance.budget(torch.float32) == 1e-6
    assert tolerance.budget(torch.bfloat16) == 2**-7
    assert tolerance.budget(torch.float16) == 2**-10


@pytest.mark.parametrize("dtype", tolerance.FLOOR)
def test_a_plain_computation_that_errs_buys_twice_its_error_up_to_fifty_floors(dtype: torch.dtype) -> None:
    floor = tolerance.budget(dtype)
    assert tolerance.budget(dtype, plain=floor / 4) == floor
    assert tolerance.budget(dtype, plain=3 * floor) == 6 * floor
    assert tolerance.budget(dtype, plain=1e9) == tolerance.budget(dtype, plain=math.inf) == 50 * floor


def test_the_floor_of_float64_is_below_a_float32_step() -> None:
    assert 2.0**-53 * 100 < tolerance.budget(torch.float64) < 2.0**-24 / 1000


def test_orders_of_summing_may_differ_by_some_roundings() -> None:
    assert tolerance.rounding(torch.float32) == 64 * 2.0**-23
    assert tolerance.rounding(torch.float64, tolerance.ROUNDINGS_OF_INPUT) == 16 * 2.0**-52


def test_the_error_is_the_worst_difference_and_where_it_is() -> None:
    actual = torch.tensor([[0.5, 0.25], [0.0, -0.75]])
    assert tolerance.error(actual, torch.tensor([[0.5, 0.0], [0.0, -0.25]])) == (0.5, (1, 1))


def test_the_error_is_relative_to_the_scale_of_what_was_expected_but_never_to_less_than_one() -> None:
    assert tolerance.error(torch.tensor([8.0, 1.0]), torch.tensor([8.0, 3.0])) == (0.25, (1,))
    assert tolerance.error(torch.tensor([2**-9]), torch.tensor([0.0])) == (2**-9, (0,))


def test_a_difference_that_is_no_number_is_infinite() -> None:
    nan, one, infinity = torch.tensor([math.nan]), torch.tensor([1.0]), torch.tensor([math.inf])
    for actual, expected in ((nan, one), (one, nan), (nan, nan), (infinity, infinity), (infinity, one)):
        assert tolerance.error(actual, expected) == (math.inf, (0,))


def test_one_infinity_does_not_make_the_rest_small() -> None:
    expected = torch.tensor([0.0, math.inf])
    assert tolerance.error(torch.tensor([5.0, 7.0]), expected) == (math.inf, (1,))
    assert tolerance.error(torch.tensor([5.0, math.inf]), expected)[0] == math.inf


def test_half_types_are_compared_in_float64() -> None:
    # In bfloat16 itself 256 + 1 is 256.
    assert tolerance.error(torch.tensor([256.0], dtype=torch.bfloat16), torch.tensor([257.0]))[0] == 1 / 257


def test_integers_and_booleans_are_compared_too() -> None:
    assert tolerance.error(torch.tensor([True, False]), torch.tensor([True, True])) == (1.0, (1,))
    assert tolerance.error(torch.tensor([3]), torch.tensor([3])) == (0.0, (0,))


def test_empty_tensors_do_not_differ() -> None:
    assert tolerance.error(torch.zeros(0, 3), torch.zeros(0, 3)) == (0.0, ())
