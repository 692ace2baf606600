"""The memory of decoding: keys and values of the tokens seen so far.

A step is written first and counts once it is committed: one that was staged and never committed, since the call failed
behind it, is as if it had not been.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from attnzoo.errors import InputError
from attnzoo.ops.numbers import holds_integers, whole
from attnzoo.ops.rules import check_window

FIRST_ROOM = 16  # tokens that a growing cache has room for at first


class KVCache:
    """Keys and values of up to `max_len` tokens, set aside once and written in place.

    >>> cache = KVCache(1, 4, kv_heads=2, head_dim=3, dtype=torch.float32)
    >>> keys, values = cache.append(torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 3))
    >>> keys.shape, cache.length, cache.nbytes
    (torch.Size([1, 2, 3, 3]), 3, 144)

    max_len: None for a cache that grows, by doubling, so that a token costs the same on the average

    owner: stands for the layer that made it, which alone may use it; None for a cache of nobody's

    What is held is detached from the autograd graph. `nbytes` is `2 * b * g * length * d * itemsize`.
    Raises `InputError` for sizes that cannot be.
    """

    def __init__(
        self,
        batch: int,
        max_len: int | None = None,
        *,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
        owner: object = None,
    ) -> None:
        needs = f"a cache needs batch >= 0 and max_len >= 1; got batch={batch}, max_len={max_len}"
        batch = whole(batch, needs, least=0)
        self.max_len = None if max_len is None else whole(max_len, needs, least=1)
        self.owner = owner
        self._length = 0
        self._staged = 0  # tokens that are written behind the last one, and do not count yet
        self._keys, self._values = self._room(batch, kv_heads, self._first_room(), head_dim, dtype, device)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy belongs to the same layer, or to the copy of the layer that is made along with it."""
        twin = copy.copy(self)
        memo[id(self)] = twin
        for name, value in vars(self).items():
            setattr(twin, name, memo.get(id(value), value) if name == "owner" else copy.deepcopy(value, memo))
        return twin

    @property
    def length(self) -> int:
        """How many tokens were seen."""
        return self._length

    @property
    def held(self) -> int:
        """How many tokens are held: the newest ones."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held."""
        b, g, _, d = self._keys.shape
        return 2 * b * g * self.held * d * self._keys.element_size()

    def check(self, *, owner: object, batch: int, t: int, dtype: torch.dtype, device: torch.device) -> None:
        """Raises `InputError` unless it is this layer's cache, and t more tokens of this batch fit."""
        mine = self._keys
        if self.owner is not owner:
            raise InputError(
                f"this cache was not made by this layer, and its (kv_heads, head_dim) = {tuple(mine.shape[1::2])} keys "
                "and values mean nothing here; each layer needs its own, from layer.new_cache(batch, max_len)"
            )
        if mine.dtype != dtype or mine.device != device:
            raise InputError(
                f"this cache is {mine.dtype} on {mine.device}, the layer {dtype} on {device}; "
                "make the cache after moving the layer"
            )
        self._check_room(batch, t)

    def _check_room(self, batch: int, t: int) -> None:
        held = self._keys.shape[0]
        if held != batch:
            raise InputError(f"this cache is for a batch of {held}, the input is a batch of {batch}")
        if self.max_len is not None and self._length + t > self.max_len:
            raise InputError(
                f"{t} more tokens do not fit: the cache holds {self._length} of max_len ({self.max_len}); "
                f"make it with max_len={self._length + t} or more, or without max_len, so that it grows"
            )

    def append(self, k: Tensor, v: Tensor, *, in_order: bool = True) -> tuple[Tensor, Tensor]:
        """Remember t more tokens; returns all keys and values, with gradients for the new ones only.

        k, v: (b, g, t, d)    returns: two of (b, g, held, d)
        in_order: False where the order of the keys does not matter, as for a lone query that sees them all
        Raises `InputError`, and remembers nothing, where they do not fit.
        """
        seen = self.stage(k, v, in_order=in_order)
        self.commit()
        return seen

    def stage(self, k: Tensor, v: Tensor, *, in_order: bool = True) -> tuple[Tensor, Tensor]:
        """As `append`, but the new tokens do not count before `commit`; without it they are forgotten again."""
        self._check_tokens(k, v)
        start, end = self._length, self._length + k.shape[2]
        if end > self._keys.shape[2]:
            self._grow(end)
        self._keys[:, :, start:end] = k.detach()
        self._values[:, :, start:end] = v.detach()
        self._staged = k.shape[2]
        return _with_new(self._keys[:, :, :end], k), _with_new(self._values[:, :, :end], v)

    def commit(self) -> None:
        """The tokens staged last count from now on."""
        self._length, self._staged = self._length + self._staged, 0

    def reset(self) -> None:
        """Forget every token."""
        self._length = self._staged = 0

    def crop(self, n: int) -> None:
        """Keep the first n tokens: the way back after a rejected speculation."""
        n = whole(n, f"crop({n!r}) must be a whole number of tokens to keep; the cache holds {self._length}")
        if not 0 <= n <= self._length:
            raise InputError(f"crop({n}) is out of reach: the cache holds {self._length} tokens")
        self._length, self._staged = n, 0

    def reorder(self, index: Tensor | Sequence[int]) -> None:
        """Row i becomes what row `index[i]` was, as beam search needs. index: (b,), integers of any type, or a list"""
        rows = self._rows(index)
        self._forget_staged()
        with torch.inference_mode(False):
            keys, values = self._keys.index_select(0, rows), self._values.index_select(0, rows)
        self._keys, self._values = keys, values

    def _rows(self, index: Tensor | Sequence[int]) -> Tensor:
        """The rows that `reorder` names. Raises `InputError` unless each is an integer, and there."""
        try:
            rows = torch.as_tensor(index, device=self._keys.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"reorder takes integers of shape (b,); got {index!r}") from error
        empty = rows.numel() == 0  # an empty list is of torch's default type
        if rows.dim() != 1 or not (holds_integers(rows) or (empty and not isinstance(index, Tensor))):
            raise InputError(f"reorder takes integers of shape (b,); got {rows.dtype} of shape {tuple(rows.shape)}")
        rows = rows.long()
        if not empty and not 0 <= int(rows.min()) <= int(rows.max()) < self._keys.shape[0]:
            raise InputError(f"reorder({rows.tolist()}) names rows that a batch of {self._keys.shape[0]} does not have")
        return rows

    def _forget_staged(self) -> None:
        """Undo a step that never came to its commit."""
        self._staged = 0

    def _check_tokens(self, k: Tensor, v: Tensor) -> None:
        if k.shape != v.shape:
            raise InputError(f"k {tuple(k.shape)} and v {tuple(v.shape)} must have one shape, (b, g, t, d)")
        # torch itself would broadcast one sample over the batch, and one token over no room at all, without a word.
        b, g, t, d = k.shape
        mine = self._keys
        if (mine.shape[1], mine.shape[3]) != (g, d):
            raise InputError(
                f"this cache holds (kv_heads, head_dim) = {(mine.shape[1], mine.shape[3])}, the tokens have {(g, d)}"
            )
        if mine.device != k.device:
            raise InputError(f"this cache is on {mine.device}, the tokens on {k.device}")
        self._check_room(b, t)

    def _first_room(self) -> int:
        """How many tokens to set memory aside for."""
        return FIRST_ROOM if self.max_len is None else self.max_len

    def _room(
        self, b: int, g: int, tokens: int, d: int, dtype: torch.dtype, device: torch.device | str | None
    ) -> tuple[Tensor, Tensor]:
        # Zeros, not empty memory: an uninitialised NaN behind a mask would still poison a weighted sum.
        # Normal tensors even in inference mode: those made there could never be written outside of it.
        with torch.inference_mode(False):
            keys = torch.zeros(b, g, tokens, d, dtype=dtype, device=device)
            return keys, torch.zeros_like(keys)

    def _grow(self, tokens: int) -> None:
        old_keys, old_values = self._keys, self._values
        b, g, room, d = old_keys.shape
        while room < tokens:
            room *= 2
        keys, values = self._room(b, g, room, d, old_keys.dtype, old_keys.device)
        keys[:, :, : self._length] = old_keys[:, :, : self._length]
        values[:, :, : self._length] = old_values[:, :, : self._length]
        self._keys, self._values = keys, values


class WindowCache(KVCache):
    """Keys and values of the newest `window` tokens, in a ring: a new token takes the place of the oldest.

    >>> cache = WindowCache(1, window=2, kv_heads=2, head_dim=3, dtype=torch.float32)
    >>> for _ in range(5):
    ...     keys, values = cache.append(torch.ones(1, 2, 1, 3), torch.ones(1, 2, 1, 3))
    >>> keys.shape, cache.length, cache.held, cache.nbytes
    (torch.Size([1, 2, 2, 3]), 5, 2, 96)

    max_len: how many tokens it may see at most, None for any number
    rollback: how many more tokens to hold, so that `crop` can take that many back

    `length` counts the tokens seen, for the next one stands behind all of them; `nbytes` counts the bytes held.
    """

    def __init__(
        self,
        batch: int,
        max_len: int | None = None,
        *,
        window: int,
        rollback: int = 0,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
        owner: object = None,
    ) -> None:
        rollback = whole(rollback, f"rollback counts tokens to take back, 0 or more; got {rollback!r}", least=0)
        self.window, self.slots = check_window(window), window + rollback
        super().__init__(batch, max_len, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=device, owner=owner)
        self._oldest = 0  # the index of the oldest token held
        self._written_over: tuple[Tensor, Tensor, Tensor] | None = None  # slots, keys and values that staged ones took

    @property
    def held(self) -> int:
        """How many tokens are held: the newest ones."""
        return self._length - self._oldest

    def stage(self, k: Tensor, v: Tensor, *, in_order: bool = True) -> tuple[Tensor, Tensor]:
        """As `append`, which returns the keys and values that the new queries could see.

        k, v: (b, g, t, d)    returns: two of (b, g, n, d), the newest n tokens, n at most window - 1 + t
        """
        self._check_tokens(k, v)
        self._forget_staged()
        t, slots = k.shape[2], self._keys.shape[2]
        end = self._length + t
        as_it_lies = not in_order and t == 1 and slots <= self.window and not (k.requires_grad or v.requires_grad)
        seen = None if as_it_lies else self._behind(k, v)
        self._write(k, v, self._slots(max(self._length, end - slots), end))
        self._staged = t
        if seen is not None:
            return seen
        n = min(end - self._oldest, slots)
        return self._keys[:, :, :n].to(k.dtype), self._values[:, :, :n].to(v.dtype)

    def _write(self, k: Tensor, v: Tensor, fresh: Tensor) -> None:
        """The newest tokens into these slots; what a full ring held there is kept until they are committed."""
        if self._length + k.shape[2] - self._oldest > self._keys.shape[2]:
            self._written_over = fresh, self._keys.index_select(2, fresh), self._values.index_select(2, fresh)
        n = fresh.shape[0]
        self._keys[:, :, fresh] = k[:, :, k.shape[2] - n :].detach().to(self._keys.dtype)
        self._values[:, :, fresh] = v[:, :, v.shape[2] - n :].detach().to(self._values.dtype)

    def commit(self) -> None:
        """The tokens staged last count from now on, and those that they took the place of are gone."""
        self._oldest = max(self._oldest, self._length + self._staged - self._keys.shape[2])
        self._written_over = None
        super().commit()

    def reset(self) -> None:
        """Forget every token."""
        super().reset()
        self._oldest, self._written_over = 0, None

    def crop(self, n: int) -> None:
        """Keep the first n tokens. Raises `InputError` where the window of the next token is no longer whole."""
        n = whole(n, f"crop({n!r}) must be a whole number of tokens to keep; {self._length} tokens were seen")
        first = 0 if self._oldest == 0 else self._oldest + self.window - 1
        if not 0 <= n <= self._length:
            raise InputError(f"crop({n}) is out of reach: {self._length} tokens were seen")
        if n < first:
            raise InputError(
                f"crop({n}) is out of reach: {self._length} tokens were seen, and the cache can go back to {first}; "
                f"make it by layer.new_cache(batch, max_len, rollback={self._length - n}) to go back further"
            )
        self._forget_staged()
        self._length = n

    def _forget_staged(self) -> None:
        super()._forget_staged()
        if self._written_over is not None:
            slots, keys, values = self._written_over
            with torch.inference_mode(False):
                self._keys[:, :, slots] = keys
                self._values[:, :, slots] = values
            self._written_over = None

    def _first_room(self) -> int:
        return self.slots if self.max_len is None else min(self.slots, self.max_len)

    def _behind(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that new ones could see, in order, and these behind them."""
        past = self._slots(max(self._oldest, self._length - self.window + 1), self._length)
        return (
            torch.cat([self._keys.index_select(2, past).to(k.dtype), k], dim=2),
            torch.cat([self._values.index_select(2, past).to(v.dtype), v], dim=2),
        )

    def _slots(self, start: int, end: int) -> Tensor:
        """Where the tokens from start to end lie."""
        return torch.arange(start, end, device=self._keys.device) % self._keys.shape[2]


def _with_new(held: Tensor, new: Tensor) -> Tensor:
    """The held tokens; where gradients flow through the newest ones, these as they are instead of their copy."""
    if not new.requires_grad:
        return held if held.dtype == new.dtype else held.to(new.dtype)
    past = held[:, :, : held.shape[2] - new.shape[2]]
    return torch.cat([past.to(new.dtype), new], dim=2)
