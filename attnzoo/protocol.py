"""What an attention layer is, in types; and the alphabet of axes that every room of attnzoo uses.

    b  batch            h  query heads        c  model width (d_model)
    t  query tokens     g  key-value heads    d  head width
    s  key tokens

Layers take `(b, t, c)`. Inside, q is `(b, h, t, d)`, k and v are `(b, g, s, d)`, weights are `(b, h, t, s)`.

Most laws of the suite give a layer up to 71 tokens, some a few hundred, 600 at most, and those of costs 1024 where
`Traits` claim linear memory or work. A layer whose option `max_seq_len` is a number where it is not given is built with
2048; one that takes fewer tokens in any case cannot be judged.
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
    """Keys and values of the tokens seen so far, of every row of a batch. A ring ("ring" in `Traits.cache`) holds the
    newest of them only.

    Only the call that it is handed to adds tokens to it. A call that is refused changes nothing.
    """

    @property
    def length(self) -> int:
        """How many tokens were seen, also those that a ring has let go: the next one has this index."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held, not of the room set aside; 0 in a new cache."""

    def reset(self) -> None:
        """Forget every token, so that the cache is as good as new."""

    def crop(self, n: int) -> None:
        """Keep the first n tokens, as after a rejected guess: `length` becomes n, and the next token has index n.

        Raises `InputError`, with n and `length`, for more tokens than were seen; and, with n and the least that is
        possible, where a ring has let go of what the next token could see (see `rollback` in `Cached.new_cache`).
        """

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row `index[i]` was, as beam search needs; `length` and `nbytes` stay.

        index: (b,), an integer for each row; it may name a row twice
        """


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
    """A layer that can decode step by step."""

    def new_cache(self, batch: int, max_len: int) -> Cache:
        """An empty cache for this many rows, of the layer's dtype and on its device.

        max_len: how many tokens it takes at most; a call that brings more raises `InputError`, with `length` and
            `max_len`. Where it may be left out (`max_len=None`), the cache grows as it must.
        rollback: a keyword that a ring may take besides, `rollback=0`: how many tokens `crop` must be able to take back
            once the window is full. The ring holds as many more.
        """


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
