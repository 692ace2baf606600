"""The one kind of array used here, and how to undo a broadcast."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sum_to(gradient: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of an array of `shape` that was broadcast to the shape of `gradient`: each copy adds its share.

    >>> sum_to(np.ones((2, 3, 5)), (3, 1))
    array([[10.],
           [10.],
           [10.]])
    """
    added = gradient.ndim - len(shape)
    stretched = tuple(added + axis for axis, size in enumerate(shape) if size == 1)
    summed: Array = gradient.sum(axis=(*range(added), *stretched), keepdims=True)
    return summed.reshape(shape)
