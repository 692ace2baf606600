import numpy as np
import pytest

from attnzoo.errors import InputError
from attnzoo.oracle import central_differences, relative_error, relative_to_largest


def test_central_differences_of_a_cubic_and_the_array_is_put_back() -> None:
    x = np.array([[1.0, -2.0], [0.1, 3.0]])
    before = x.copy()
    gradient = central_differences(lambda: float(np.sum(x**3)), x)
    np.testing.assert_allclose(gradient, 3 * before**2, atol=1e-8)
    np.testing.assert_array_equal(x, before)


def test_central_differences_reach_the_entries_of_a_view() -> None:
    base = np.arange(6.0).reshape(2, 3)
    view = base.T[1:]
    gradient = central_differences(lambda: float(np.sum(base[:, 1:] ** 2)), view)
    np.testing.assert_allclose(gradient, 2 * view, atol=1e-8)


def test_central_differences_refuse_float32() -> None:
    with pytest.raises(InputError, match=r"float32.*float64"):
        central_differences(lambda: 0.0, np.zeros(2, dtype=np.float32))


def test_the_two_measures_by_hand() -> None:
    got, expected = np.array([4.0, 1.0, 0.0]), np.array([5.0, 0.0, 0.0])
    np.testing.assert_allclose(relative_error(got, expected), [0.2, 1.0, 0.0])
    assert relative_to_largest(got, expected) == 0.2
    assert relative_to_largest(expected, np.zeros(3)) == 5.0
    assert relative_to_largest(np.zeros(0), np.zeros(0)) == 0.0


def test_nan_is_never_a_small_error() -> None:
    got, expected = np.array([np.nan, 1.0]), np.array([1.0, 1.0])
    assert not relative_to_largest(got, expected) < 1.0
    assert not relative_error(got, expected).max() < 1.0


@pytest.mark.parametrize("measure", [relative_error, relative_to_largest])
def test_shapes_that_would_broadcast_are_refused(measure: object) -> None:
    assert callable(measure)
    with pytest.raises(InputError, match=r"\(3,\).*\(2, 3\)"):
        measure(np.ones(3), np.ones((2, 3)))
