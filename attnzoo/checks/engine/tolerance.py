"""How far a result may lie from the truth: derived from the type, in this one place."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Largest error at unit scale that a sound layer of this size makes. float32 and float64 hold a forward pass of three
# matrix products over some tens of terms; 1e-12 is far above float64's own error, and far below the 6e-8 that a
# float32 step hidden in a float64 layer would leave. The half types are their epsilon.
FLOOR = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    torch.bfloat16: torch.finfo(torch.bfloat16).eps,
    torch.float16: torch.finfo(torch.float16).eps,
}

# How much of the error of the plain computation a layer may make (C17).
SHARE = 2.0

# A gradient sums over tokens and channels, so that its last digits depend on the order: this many roundings are sound.
# The gradient of a key's bias is all cancellation: it was seen to need 64. That of the input is content with 16.
ROUNDINGS = 64
ROUNDINGS_OF_INPUT = 16

# A weight is the exponential of a logit, and errs by as many roundings as that is large. Of logits with a spread of 2
# the largest in hundreds of cases lie beyond 10: float32 was seen to err by 12 roundings.
ROUNDINGS_OF_OUTPUT = 16

# A plain computation that is itself wrong buys no more than this many floors.
CEILING = 50.0


def budget(dtype: torch.dtype, plain: float = 0.0) -> float:
    """The error allowed in `dtype`, given the error of the plain computation in the same type against float64.

    >>> [f"{budget(torch.float32, plain):.0e}" for plain in (0.0, 4e-6, 1.0)]
    ['1e-06', '8e-06', '5e-05']
    """
    floor = FLOOR[dtype]
    return min(max(floor, SHARE * plain), CEILING * floor)


def rounding(dtype: torch.dtype, roundings: int = ROUNDINGS) -> float:
    """What sound orders of summing a gradient may differ by."""
    return roundings * torch.finfo(dtype).eps


def summed(dtype: torch.dtype, terms: float) -> float:
    """What a gradient may be off by each of whose numbers sums this many: independent roundings grow as a root.

    terms: the numbers of the output over those of the gradient. A matrix has about as many as there are tokens over
    channels; a vector that acts on every head and token, hundreds.
    """
    return rounding(dtype) * math.sqrt(max(1.0, terms))


def error(actual: Tensor, expected: Tensor) -> tuple[float, tuple[int, ...]]:
    """The worst difference over the scale of what was expected (at least 1), and where it is.

    A difference that is no number counts as infinite, and so does any from infinity. Empty tensors differ by 0.
    """
    if expected.numel() == 0:
        return 0.0, ()
    a, e = _float64(actual), _float64(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(a - e)
    flat = int(difference.argmax())  # the first NaN, where there is one
    worst = float(difference.flat[flat])
    where = tuple(int(i) for i in np.unravel_index(flat, difference.shape))
    return (worst / max(1.0, float(np.abs(e).max())) if math.isfinite(worst) else math.inf), where


def _float64(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.detach().cpu().double().numpy(force=True)
    return array
