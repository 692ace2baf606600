"""Rotary position embedding (arXiv:2104.09864): turn each pair of channels by an angle that grows with the position."""

from __future__ import annotations

import math
from array import array
from functools import lru_cache
from itertools import chain
from typing import Literal, get_args

import torch
from torch import Tensor

from attnzoo.errors import ConfigError
from attnzoo.ops.masks import wide_type

Layout = Literal["half", "interleaved"]
LAYOUTS = get_args(Layout)
PIECE = 512  # tokens that are turned at once where there are many
Table = tuple[Tensor, Tensor]  # cosines and sines


def rotate(x: Tensor, positions: Tensor, *, theta: float = 10000.0, layout: Layout = "half") -> Tensor:
    """Pair i of token p turns by `p * theta ** (-2 i / d)`.

    >>> x = torch.tensor([1.0, 0, 0, 0]).reshape(1, 1, 1, 4)
    >>> rotate(x, torch.tensor([1])).flatten(), rotate(x, torch.tensor([1]), layout="interleaved").flatten()
    (tensor([0.5403, 0.0000, 0.8415, 0.0000]), tensor([0.5403, 0.8415, 0.0000, 0.0000]))

    x: (b, h, t, d), d even    positions: (t,) or (b, t), integers    returns: (b, h, t, d)
    layout: "half" pairs channel i with i + d / 2 (Llama, NeoX), "interleaved" pairs 2 i with 2 i + 1 (GPT-J)
    Raises `ConfigError` for an unknown layout.
    """
    check_layout(layout)
    return _turn(x, *_table(positions, x.shape[-1], theta, wide_type(x.dtype)), layout)


def _table(positions: Tensor, d: int, theta: float, dtype: torch.dtype) -> Table:
    """Cosine and sine of every angle, (t, 1, d / 2) or (b, t, 1, d / 2).

    In float64: in float32 an angle at position 100 000 is already off by a hundredth (C9).
    """
    channel = torch.arange(0, d, 2, dtype=torch.float64, device=positions.device)
    angle = positions[..., None, None] * theta ** (channel / -d)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _table_from(first: int, t: int, d: int, theta: float, dtype: torch.dtype, device: torch.device) -> Table:
    """The same for t tokens in a row: position first + n i + j turns by the turn of first + n i, and then by that of j.

    So √t angles need a cosine and a sine in float64, not t.
    """
    n = math.isqrt(t - 1) + 1 if t else 1
    frequency = torch.tensor(_frequencies(d, theta), dtype=torch.float64, device=device)
    far = torch.arange(first, first + t, n, dtype=torch.float64, device=device)[:, None] * frequency
    near = torch.arange(n, dtype=torch.float64, device=device)[:, None] * frequency
    turn = torch.polar(torch.ones_like(far), far)[:, None] * torch.polar(torch.ones_like(near), near)
    turn = turn.flatten(0, 1)[:t, None]
    return turn.real.to(dtype), turn.imag.to(dtype)


@lru_cache
def _frequencies(d: int, theta: float) -> tuple[float, ...]:
    return tuple(theta ** (-2 * i / d) for i in range(d // 2))


def _turn(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """x: (b, h, t, d)    returns: (b, h, t, d), laid out token by token, so that the heads merge without a copy"""
    wide = x.transpose(1, 2)  # (b, t, h, d)
    if x.dtype != cos.dtype:
        wide = wide.to(cos.dtype)
    if _is_long(wide):
        back = _turn_in_pieces(wide, cos, sin, layout)
    else:
        one, two = _pairs(wide, layout)
        back = _whole((one * cos).addcmul_(two, sin, value=-1), (two * cos).addcmul_(one, sin), layout)
    return (back if x.dtype == cos.dtype else back.to(x.dtype)).transpose(1, 2)


def _pairs(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Views of the first and the second channel of each pair. x: (.., d)    returns: (.., d / 2) each"""
    if layout == "interleaved":
        return x[..., ::2], x[..., 1::2]
    one, two = x.chunk(2, dim=-1)
    return one, two


def _whole(one: Tensor, two: Tensor, layout: Layout) -> Tensor:
    """The way back from `_pairs`. one, two: (.., d / 2)    returns: (.., d)"""
    return torch.cat((one, two), dim=-1) if layout == "half" else torch.stack((one, two), dim=-1).flatten(-2)


def _is_long(x: Tensor) -> bool:
    """Whether pieces pay: many tokens on a CPU, no gradients, and no compiler that does better. x: (b, t, h, d)"""
    long = x.shape[1] > PIECE and x.device.type == "cpu"
    return long and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def _turn_in_pieces(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """The same turn, in place, of some tokens after the others, which stay in the processor's cache meanwhile.

    x: (b, t, h, d)    returns: (b, t, h, d)
    """
    back = torch.empty_like(x, memory_format=torch.contiguous_format)
    pieces = [torch.split(whole, PIECE, dim=-3) for whole in (x, back, cos, sin)]
    for given, turned, c, s in zip(*pieces, strict=True):
        (one, two), (first, second) = _pairs(given, layout), _pairs(turned, layout)
        first.copy_(one).mul_(c).addcmul_(two, s, value=-1)
        second.copy_(two).mul_(c).addcmul_(one, s)
    return back


def _turn_one(x: Tensor, position: int, theta: float, layout: Layout) -> Tensor:
    """The same for a single token, by few operations, which decoding waits for: x · cos + partner · sin.

    x: (b, h, 1, d)    returns: (b, h, 1, d)
    """
    wide = wide_type(x.dtype)
    kept = _row(position, x.shape[-1], theta, layout, "d" if wide == torch.float64 else "f")
    row = torch.frombuffer(kept, dtype=wide)
    cos, sin = (row if x.device.type == "cpu" else row.to(x.device)).view(2, -1).unbind()
    one, two = _pairs(x, layout)
    turned = (x * cos).addcmul_(_whole(two, one, layout), sin)
    return turned if turned.dtype == x.dtype else turned.to(x.dtype)


@lru_cache
def _row(position: int, d: int, theta: float, layout: Layout, kind: str) -> array[float]:
    """The cosines of all channels, then the sines, with a minus for the first of each pair.

    kind: "f" for C's floats, "d" for its doubles

    Kept, since all layers of a model turn the newest token alike.
    """
    angles = [position * frequency for frequency in _frequencies(d, theta)]
    cos, sin = list(map(math.cos, angles)), list(map(math.sin, angles))
    minus = [-value for value in sin]
    if layout == "half":
        return array(kind, [*cos, *cos, *minus, *sin])
    return array(kind, [*chain(*zip(cos, cos, strict=True)), *chain(*zip(minus, sin, strict=True))])


def check_layout(layout: str) -> None:
    """Raises `ConfigError` for a layout that does not exist."""
    if layout not in LAYOUTS:
        raise ConfigError(f"unknown layout {layout!r}; it takes {' or '.join(map(repr, LAYOUTS))}")


class Rotary:
    """The rotation of one layer: turns the first `rotary_dim` channels of each head and passes the rest.

    >>> Rotary(head_dim=8, rotary_dim=4)(torch.ones(1, 1, 2, 8), torch.arange(2))[0, 0, 1, 4:]
    tensor([1., 1., 1., 1.])

    Holds no tensor: angles are made where and when they are needed, so no move, cast or checkpoint can spoil them.
    Raises `ConfigError` for an odd or too large `rotary_dim`, or an unknown layout.
    """

    def __init__(
        self, head_dim: int, *, theta: float = 10000.0, layout: Layout = "half", rotary_dim: int | None = None
    ) -> None:
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        if head_dim < 2:
            raise ConfigError(f"head_dim ({head_dim}) has no pair of channels to turn; take a head_dim of 2 or more")
        if not isinstance(rotary_dim, int) or rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
            raise ConfigError(
                f"rotary_dim ({rotary_dim}) must be even, above 0 and at most head_dim ({head_dim}); "
                f"try rotary_dim={max(2, int(min(rotary_dim, head_dim)) // 2 * 2)}"
            )
        check_layout(layout)
        if not 0 < theta < math.inf:
            raise ConfigError(f"theta ({theta}) must be above 0, and finite")
        self.theta, self.layout, self.rotary_dim = theta, layout, rotary_dim

    def __call__(self, x: Tensor, positions: Tensor | None = None, *, offset: int = 0) -> Tensor:
        """x: (b, h, t, d)    positions: (t,) or (b, t), counted on from `offset` where not given

        returns: (b, h, t, d)
        """
        d, whole = self.rotary_dim, self.rotary_dim == x.shape[-1]
        turned = self._turned(x if whole else x[..., :d], positions, offset)
        return turned if whole else torch.cat([turned, x[..., d:]], dim=-1)

    def _turned(self, x: Tensor, positions: Tensor | None, offset: int) -> Tensor:
        """x: (b, h, t, rotary_dim)    returns: (b, h, t, rotary_dim)"""
        t = x.shape[2]
        if positions is None and torch.compiler.is_compiling():  # which knows neither complex numbers nor `offset`
            positions = torch.arange(offset, offset + t, device=x.device)
        if positions is not None:
            return rotate(x, positions, theta=self.theta, layout=self.layout)
        if t == 1:
            return _turn_one(x, offset, self.theta, self.layout)
        table = _table_from(offset, t, self.rotary_dim, self.theta, wide_type(x.dtype), x.device)
        return _turn(x, *table, self.layout)

    def __repr__(self) -> str:
        return f"Rotary(theta={self.theta:g}, layout={self.layout!r}, rotary_dim={self.rotary_dim})"
