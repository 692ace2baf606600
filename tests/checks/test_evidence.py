"""What a law may say, and in which words it is told that it does not hold."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnzoo.checks.engine.evidence import Broken, Evidence, NoReaction
from attnzoo.errors import ConfigError, InputError


def at(*place: int, value: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Ones of (2, 3), but for one place."""
    x = torch.ones(2, 3, dtype=dtype)
    x[place] = value
    return x


@pytest.fixture
def see() -> Evidence:
    return Evidence()


# close


def test_close_tells_what_by_how_much_against_which_budget_and_where(see: Evidence) -> None:
    words = (
        r"the output: off by 1\.0e-03, 1e\+03 times its budget of 1\.0e-06, worst at \(1, 2\): 1\.001 where 1 is due"
    )
    with pytest.raises(Broken, match=words):
        see.close(at(1, 2, value=1.001), at(), "the output")


def test_close_records_the_worst_error_over_its_budget(see: Evidence) -> None:
    see.close(at(0, 0, value=1 + 2**-21), at(), "the first")
    see.close(at(), at(), "the second")
    assert (see.comparisons, see.worst_of) == (2, "the first")
    assert see.worst == pytest.approx(2**-21 / 1e-6)


def test_close_records_a_failure_too(see: Evidence) -> None:
    with pytest.raises(Broken):
        see.close(at(0, 0, value=2.0), at(), "the output")
    assert (see.comparisons, see.worst_of) == (1, "the output")


def test_close_holds_float64_to_less_than_float32(see: Evidence) -> None:
    see.close(at(0, 0, value=1 + 5e-7), at(), "in float32")
    with pytest.raises(Broken, match=r"budget of 1\.0e-12"):
        see.close(at(0, 0, value=1 + 5e-7, dtype=torch.float64), at(dtype=torch.float64), "in float64")
    see.close(at(0, 0, value=1 + 5e-7, dtype=torch.float64), at(), "in float64", dtype=torch.float32)


def test_close_allows_twice_the_error_of_the_plain_computation(see: Evidence) -> None:
    see.close(at(0, 0, value=1 + 9e-6), at(), "the output", plain=5e-6)
    with pytest.raises(Broken, match=r"budget of 8\.0e-06"):
        see.close(at(0, 0, value=1 + 9e-6), at(), "the output", plain=4e-6)


@pytest.mark.parametrize(("actual", "expected"), [(math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)])
def test_nan_is_never_close(see: Evidence, actual: float, expected: float) -> None:
    with pytest.raises(Broken, match=r"worst at \(0, 1\)"):
        see.close(at(0, 1, value=actual), at(0, 1, value=expected), "the output", plain=math.inf)


def test_close_wants_the_same_shape(see: Evidence) -> None:
    with pytest.raises(Broken, match=r"the output: shape \(2, 3\) where \(2, 1\) is due"):
        see.close(torch.ones(2, 3), torch.ones(2, 1), "the output")


def test_close_of_nothing_compares_nothing(see: Evidence) -> None:
    see.close(torch.ones(0, 3), torch.ones(0, 3), "the output")
    assert see.comparisons == 0


# exactly


def test_exactly_wants_the_same_bits_dtype_and_shape(see: Evidence) -> None:
    see.exactly(at(), at(), "the output")
    assert see.comparisons == 1
    with pytest.raises(Broken, match=r"the output: must be the same to the bit, but differs by 1\.2e-07 at \(1, 0\)"):
        see.exactly(at(1, 0, value=1 + 2**-23), at(), "the output")
    with pytest.raises(Broken, match=r"torch\.float64 \(2, 3\) where torch\.float32 \(2, 3\) is due"):
        see.exactly(at(dtype=torch.float64), at(), "the output")
    with pytest.raises(Broken, match=r"torch\.float32 \(2, 2\) where torch\.float32 \(2, 3\) is due"):
        see.exactly(at()[:, :2], at(), "the output")


def test_nan_is_not_exactly_nan(see: Evidence) -> None:
    with pytest.raises(Broken, match="same to the bit"):
        see.exactly(at(0, 0, value=math.nan), at(0, 0, value=math.nan), "the output")


# holds, finite


def test_holds_tells_the_fact(see: Evidence) -> None:
    see.holds(True, "length is 3, not 3")
    assert see.comparisons == 1
    with pytest.raises(Broken, match=r"^length is 3, not 4$"):
        see.holds(False, "length is 3, not 4")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_finite_finds_what_is_no_number(see: Evidence, value: float) -> None:
    see.finite(at(), "the output")
    assert see.comparisons == 1
    with pytest.raises(Broken, match="the output: must be finite, but holds NaN or infinity"):
        see.finite(at(1, 1, value=value), "the output")


# raises


def refuse() -> None:
    raise InputError("mask is (2, 3); it must be (3, 3)")


def test_raises_wants_this_error_with_these_words(see: Evidence) -> None:
    see.raises(InputError, refuse, "a mask", words=((2, 3), "must"))
    assert see.comparisons == 1
    with pytest.raises(Broken, match=r"a mask: the error must name \(4, 3\), bool; it says: mask is \(2, 3\)"):
        see.raises(InputError, refuse, "a mask", words=((4, 3), "bool", (3, 3)))


def test_raises_names_an_error_of_another_kind(see: Evidence) -> None:
    with pytest.raises(Broken, match="a mask: must raise ConfigError, but raised InputError: mask is"):
        see.raises(ConfigError, refuse, "a mask")
    with pytest.raises(Broken, match="must raise InputError, but raised ZeroDivisionError: "):
        see.raises(InputError, lambda: 1 // 0, "a mask")


def test_raises_takes_any_of_several_errors(see: Evidence) -> None:
    see.raises((ConfigError, InputError), refuse, "a mask", words=("must",))
    with pytest.raises(Broken, match="a mask: must raise ConfigError or TypeError, but raised InputError"):
        see.raises((ConfigError, TypeError), refuse, "a mask")
    with pytest.raises(Broken, match="a mask: must raise ConfigError or TypeError, but was accepted"):
        see.raises((ConfigError, TypeError), lambda: None, "a mask")


def test_raises_tells_that_a_call_was_accepted(see: Evidence) -> None:
    with pytest.raises(Broken, match="a mask: must raise InputError, but was accepted"):
        see.raises(InputError, lambda: None, "a mask")


# differs, reacts


def test_differs_wants_more_than_rounding(see: Evidence) -> None:
    see.differs(at(), at(0, 0, value=1.1), "two draws")
    assert see.comparisons == 1
    with pytest.raises(Broken, match=r"two draws: must differ, but by 1\.0e-04 only"):
        see.differs(at(), at(0, 0, value=1 + 1e-4), "two draws")


def test_a_control_that_does_not_react_is_no_failure_of_the_layer(see: Evidence) -> None:
    with pytest.raises(
        NoReaction, match=r"the past: nothing moved \(0\.0e\+00\), so that the law could not have failed"
    ):
        see.reacts(at(), at(), "the past")
    with pytest.raises(NoReaction):
        see.reacts(at(), at(0, 0, value=1 + 1e-4), "the past")
    with pytest.raises(NoReaction):
        see.reacts(torch.ones(0, 3), torch.ones(0, 3), "nothing at all")


def test_a_control_is_no_comparison(see: Evidence) -> None:
    see.reacts(at(), at(0, 0, value=2.0), "the past")
    assert (see.controls, see.comparisons) == (1, 0)
