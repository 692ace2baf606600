"""Rotary positions: pairs of numbers turn by an angle that grows with the position. arXiv:2104.09864, equation 34."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnzoo.errors import ConfigError, InputError
from attnzoo.oracle.arrays import Array

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class Rope:
    """How a layer rotates its queries and keys: the options of `rotate`."""

    theta: float = 10000.0
    layout: Layout = "half"
    rotary_dim: int | None = None

    @classmethod
    def of(cls, rotary: Any) -> Rope:
        """The same as what a layer rotates with, which keeps the three as attributes."""
        return cls(theta=rotary.theta, layout=rotary.layout, rotary_dim=rotary.rotary_dim)

    def rotate(self, x: NDArray[Any], positions: NDArray[Any]) -> Array:
        return rotate(x, positions, theta=self.theta, layout=self.layout, rotary_dim=self.rotary_dim)

    def backward(self, dy: NDArray[Any], positions: NDArray[Any]) -> Array:
        return rotate_backward(dy, positions, theta=self.theta, layout=self.layout, rotary_dim=self.rotary_dim)


def rotate(
    x: NDArray[Any],
    positions: NDArray[Any],
    *,
    theta: float = 10000.0,
    layout: Layout = "half",
    rotary_dim: int | None = None,
) -> Array:
    """Turn pair i of the token at position p by the angle p * theta ** (-2 i / rotary_dim).

    The layout says who makes a pair (C9): "half" (Llama, NeoX) takes dim i and dim i + rotary_dim / 2,
    "interleaved" (GPT-J) takes the neighbours 2 i and 2 i + 1. Dims from rotary_dim on pass unturned.

    x: (b, h, t, d)    positions: (t,) or (b, t)    rotary_dim: even, at most d; d where not given
    returns: (b, h, t, d)

    >>> rotate(np.array([[[[1.0, 0.0, 0.0, 0.0]]]]), np.array([1]))[0, 0, 0].round(4)
    array([0.5403, 0.    , 0.8415, 0.    ])
    """
    x, positions = np.asarray(x, dtype=np.float64), np.asarray(positions, dtype=np.float64)
    b, _, t, d = x.shape
    rotary_dim = d if rotary_dim is None else rotary_dim
    if layout not in ("half", "interleaved"):
        raise ConfigError(f"layout must be 'half' or 'interleaved', got {layout!r}")
    if rotary_dim % 2 or not 0 < rotary_dim <= d:
        raise ConfigError(f"rotary_dim ({rotary_dim}) must be even, at least 2 and at most the head width ({d})")
    if positions.shape not in ((t,), (b, t)):
        raise InputError(f"positions must have shape {(t,)} or {(b, t)}, got {positions.shape}")

    if positions.ndim == 2:
        positions = positions[:, None, :]  # the same for every head
    pairs = rotary_dim // 2
    turned: Array = x.copy()
    for i in range(pairs):
        first, second = (i, i + pairs) if layout == "half" else (2 * i, 2 * i + 1)
        angle = positions * theta ** (-2 * i / rotary_dim)
        turned[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
        turned[..., second] = x[..., first] * np.sin(angle) + x[..., second] * np.cos(angle)
    return turned


def rotate_backward(
    dy: NDArray[Any],
    positions: NDArray[Any],
    *,
    theta: float = 10000.0,
    layout: Layout = "half",
    rotary_dim: int | None = None,
) -> Array:
    """The gradient of `rotate` by x. A rotation's transpose is the rotation back, so: turn by the negative angle."""
    back = -np.asarray(positions, dtype=np.float64)
    return rotate(dy, back, theta=theta, layout=layout, rotary_dim=rotary_dim)
