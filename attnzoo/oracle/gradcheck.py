"""Gradients by brute force, and two ways to say how far a hand-derived one is off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnzoo.errors import InputError
from attnzoo.oracle.arrays import Array


def central_differences(f: Callable[[], float], array: Array, eps: float = 1e-6) -> Array:
    """The gradient of f by each entry of `array`, which f reads: nudge the entry up and down, see what f does.

    `array` is nudged in place and put back to the same bits.

    >>> x = np.array([1.0, 2.0, 3.0])
    >>> central_differences(lambda: float(np.sum(x**2)), x).round(6)
    array([2., 4., 6.])
    """
    if array.dtype != np.float64:
        raise InputError(f"central differences drown in the rounding of {array.dtype}; use a float64 array")
    gradient = np.zeros(array.shape)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + eps
        above = f()
        array[index] = kept - eps
        below = f()
        array[index] = kept
        gradient[index] = (above - below) / (2 * eps)
    return gradient


def relative_error(got: Array, expected: Array) -> Array:
    """Entry by entry: |got - expected| / max(|got|, |expected|), and 0 where both are zero.

    Strict, and fair only while no entry is near zero. Central differences carry an absolute error of about one size
    for all entries: the loss is rounded to about 1e-16 of its terms, and (above - below) / (2 * eps) blows that up to
    1e-11 ... 1e-10. Beside an entry of 0.04 that is nothing; an entry of 1e-6 keeps only four digits, though its
    hand-derived value is right. A larger layer has more entries, so more that happen to lie near zero, and a longer
    sum, so more rounding. Measured with `SelfAttention(C, hs)`, loss sum(out * G), X and G drawn after each of
    np.random.seed(0) ... (99), the worst of Wq, Wk, Wv and X over all seeds:

        B, T, C, hs     relative_error     seeds with one above 1e-5     relative_to_largest
        2, 5,  8, 4            8.0e-05                      4 of 100                 2.2e-08
        3, 7, 16, 8            1.3e-04                     12 of 100                 1.3e-08

    So use it on small layers whose draw is fixed, and `relative_to_largest` on the others.
    """
    _same_shape(got, expected)
    size = np.maximum(np.abs(got), np.abs(expected))
    error: Array = np.abs(got - expected) / np.where(size == 0, 1.0, size)
    return error


def relative_to_largest(got: Array, expected: Array) -> float:
    """The worst |got - expected|, relative to the largest |expected|: the rounding of one big entry is forgiven to all.

    Fair on layers of any size, see `relative_error`; blind to what goes wrong in tiny entries only.

    >>> relative_to_largest(np.array([100.0, 0.2]), np.array([100.0, 0.1]))
    0.001
    """
    _same_shape(got, expected)
    worst, largest = np.max(np.abs(got - expected), initial=0.0), np.max(np.abs(expected), initial=0.0)
    return float(worst / largest) if largest else float(worst)


def _same_shape(got: Array, expected: Array) -> None:
    if got.shape != expected.shape:
        raise InputError(f"a gradient of shape {got.shape} cannot be compared with one of shape {expected.shape}")
