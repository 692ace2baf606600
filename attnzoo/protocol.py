"""What an attention layer is, in types; and the alphabet of axes that every room of attnzoo uses.

    b  batch            h  query heads        c  model width (d_model)
    t  query tokens     g  key-value heads    d  head width
    s  key tokens

Layers take `(b, t, c)`. Inside, q is `(b, h, t, d)`, k and v are `(b, g, s, d)`, weights are `(b, h, t, s)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


class Attention(Protocol):
    """The call every variant answers. `y = layer(x)`; `y, weights = layer(x, need_weights=True)`.

    x: (b, t, c)    context: (b, s, c)    mask: (t, s), or 4 axes that broadcast to (b, h, t, s)
    key_mask: (b, s)    positions: (t,) or (b, t)    y: (b, t, c)    weights: (b, h, t, s)

    A variant over packed sequences (`Traits.document`) also takes `document`, integer ids (b, t): a token sees the
    tokens of its own document only.
    """

    @overload
    def __call__(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        need_weights: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        need_weights: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...


class Cache(Protocol):
    """Keys and values of the tokens seen so far. `nbytes` counts the tokens held, not the room set aside.

    `length` counts the tokens seen, which a ring ("ring" in `Traits.cache`) holds the newest of only.
    """

    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def reset(self) -> None: ...
    def crop(self, n: int) -> None: ...
    def reorder(self, index: Tensor) -> None: ...


@runtime_checkable
class Staged(Protocol):
    """A layer that shows its stages: `merge(attend(*project(x))) == layer(x)`. Opens deeper checks and pictures."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Any: ...
    def merge(self, mixed: Tensor) -> Tensor: ...


@runtime_checkable
class Cached(Protocol):
    """A layer that can decode step by step.

    Where `max_len` may be left out the cache grows as it must; where it is given, more tokens are refused. A ring also
    takes `rollback`: how many tokens `crop` must be able to take back once the window is full.
    """

    def new_cache(self, batch: int, max_len: int) -> Cache: ...


class Oracle(Protocol):
    """The same layer in NumPy float64, made from a module's raw weights by `Variant.oracle`.

    `forward` returns y `(b, t, c)` and weights `(b, h, t, s)`; `backward` takes dy and returns dx (and dcontext, or
    None); `grads` then holds one array per parameter of the module, under the module's own parameter names. That of
    a variant over packed sequences takes `document` (b, t) too.
    """

    grads: Mapping[str, Array]

    def forward(
        self,
        x: Array,
        context: Array | None = None,
        *,
        mask: NDArray[Any] | None = None,
        key_mask: NDArray[np.bool_] | None = None,
        positions: NDArray[np.int64] | None = None,
    ) -> tuple[Array, Array]: ...
    def backward(self, dy: Array) -> tuple[Array, Array | None]: ...
