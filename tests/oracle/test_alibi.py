"""Linear biases against the numbers of the paper and of its authors' code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnzoo.errors import ConfigError
from attnzoo.oracle import alibi, alibi_slopes, attention


def test_eight_heads_are_the_slopes_of_the_paper() -> None:
    assert alibi_slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


@pytest.mark.parametrize("heads", [1, 2, 16, 32])
def test_a_power_of_two_is_one_row_of_slopes_down_to_a_256th(heads: int) -> None:
    slopes = alibi_slopes(heads)
    assert slopes[-1] == pytest.approx(2**-8)
    np.testing.assert_allclose(slopes[1:] / slopes[:-1], 2 ** (-8 / heads))
    assert slopes[0] == pytest.approx(2 ** (-8 / heads))


@pytest.mark.parametrize(
    ("heads", "due"),
    [
        (3, [2**-4, 2**-8, 2**-2]),
        (5, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [*(2.0**-i for i in range(1, 9)), *(2 ** -(i + 0.5) for i in range(4))]),
    ],
)
def test_other_numbers_of_heads_take_every_second_slope_of_the_next_power(heads: int, due: list[float]) -> None:
    np.testing.assert_allclose(alibi_slopes(heads), due)


def test_a_key_is_heard_less_the_farther_off_it_stands() -> None:
    """Slope 1/2 (head 4 of 5), equal keys, the third token: e^0, e^-1/2 and e^-1 backwards."""
    q, k = np.zeros((1, 5, 3, 2)), np.zeros((1, 5, 3, 2))
    _, weights = attention(q, k, np.zeros((1, 5, 3, 1)), bias=alibi(5, 3, 3), visible=np.tri(3, dtype=bool))
    shares = [math.exp(-1), math.exp(-0.5), 1.0]
    np.testing.assert_allclose(weights[0, 4, 2], np.array(shares) / sum(shares))
    assert weights[0, 4, 2].round(3).tolist() == [0.186, 0.307, 0.506]


def test_distances_go_by_the_newest_queries_and_to_both_sides() -> None:
    np.testing.assert_array_equal(alibi(3, 2, 5), alibi(3, 5, 5)[:, -2:])
    np.testing.assert_array_equal(alibi(3, 5, 5), alibi(3, 5, 5).swapaxes(1, 2))


def test_no_heads_have_no_slopes() -> None:
    with pytest.raises(ConfigError, match=r"heads \(0\)"):
        alibi_slopes(0)
