"""The memory of decoding: keys and values of the tokens seen so far."""

from __future__ import annotations

import torch
from torch import Tensor

from attnzoo.errors import InputError
from attnzoo.ops.rules import check_window

FIRST_ROOM = 16  # tokens that a growing cache has room for at first


class KVCache:
    """Keys and values of up to `max_len` tokens, set aside once and written in place.

    >>> cache = KVCache(1, 4, kv_heads=2, head_dim=3, dtype=torch.float32)
    >>> keys, values = cache.append(torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 3))
    >>> keys.shape, cache.length, cache.nbytes
    (torch.Size([1, 2, 3, 3]), 3, 144)

    max_len: None for a cache that grows, by doubling, so that a token costs the same on the average

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
    ) -> None:
        if batch < 0 or (max_len is not None and max_len < 1):
            raise InputError(f"a cache needs batch >= 0 and max_len >= 1; got batch={batch}, max_len={max_len}")
        self.max_len = max_len
        self._length = 0
        self._keys, self._values = self._room(
            batch, kv_heads, FIRST_ROOM if max_len is None else max_len, head_dim, dtype, device
        )

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

    def check(
        self, *, batch: int, t: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises `InputError` unless t more tokens of such a layer and batch fit."""
        mine = self._keys
        if (mine.shape[1], mine.shape[3]) != (kv_heads, head_dim):
            raise InputError(
                f"this cache holds (kv_heads, head_dim) = {(mine.shape[1], mine.shape[3])}, the layer needs "
                f"{(kv_heads, head_dim)}; each layer needs its own, from layer.new_cache(batch, max_len)"
            )
        if mine.dtype != dtype or mine.device != device:
            raise InputError(
                f"this cache is {mine.dtype} on {mine.device}, the layer {dtype} on {device}; "
                "make the cache after moving the layer"
            )
        if mine.shape[0] != batch:
            raise InputError(f"this cache is for a batch of {mine.shape[0]}, the input is a batch of {batch}")
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
        self._check_tokens(k, v)
        start, end = self._length, self._length + k.shape[2]
        if end > self._keys.shape[2]:
            self._grow(end)
        self._keys[:, :, start:end] = k.detach()
        self._values[:, :, start:end] = v.detach()
        self._length = end
        return _with_new(self._keys[:, :, :end], k), _with_new(self._values[:, :, :end], v)

    def reset(self) -> None:
        """Forget every token."""
        self._length = 0

    def crop(self, n: int) -> None:
        """Keep the first n tokens: the way back after a rejected speculation."""
        if not 0 <= n <= self._length:
            raise InputError(f"crop({n}) is out of reach: the cache holds {self._length} tokens")
        self._length = n

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row `index[i]` was, as beam search needs. index: (b,), integers"""
        if index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise InputError(f"reorder takes integers of shape (b,); got {index.dtype} of shape {tuple(index.shape)}")
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self._keys.shape[0]:
            raise InputError(
                f"reorder({index.tolist()}) names rows that a batch of {self._keys.shape[0]} does not have"
            )
        with torch.inference_mode(False):
            self._keys = self._keys.index_select(0, index)
            self._values = self._values.index_select(0, index)

    def _check_tokens(self, k: Tensor, v: Tensor) -> None:
        if k.shape != v.shape:
            raise InputError(f"k {tuple(k.shape)} and v {tuple(v.shape)} must have one shape, (b, g, t, d)")
        # torch itself would broadcast one sample over the batch, and one token over no room at all, without a word.
        b, g, t, d = k.shape
        self.check(batch=b, t=t, kv_heads=g, head_dim=d, dtype=self._keys.dtype, device=k.device)

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
        self._keys, self._values = self._room(b, g, room, d, old_keys.dtype, old_keys.device)
        self._keys[:, :, : self._length] = old_keys[:, :, : self._length]
        self._values[:, :, : self._length] = old_values[:, :, : self._length]


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
    ) -> None:
        if rollback < 0:
            raise InputError(f"rollback counts tokens to take back, 0 or more; got {rollback}")
        check_window(window)
        slots = window + rollback if max_len is None else min(window + rollback, max_len)
        super().__init__(batch, slots, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=device)
        self.max_len, self.window = max_len, window
        self._oldest = 0  # the index of the oldest token held

    @property
    def held(self) -> int:
        """How many tokens are held: the newest ones."""
        return self._length - self._oldest

    def append(self, k: Tensor, v: Tensor, *, in_order: bool = True) -> tuple[Tensor, Tensor]:
        """Remember t more tokens; returns the keys and values that the new queries could see.

        k, v: (b, g, t, d)    returns: two of (b, g, n, d), the newest n tokens, n at most window - 1 + t
        in_order: False where the order of the keys does not matter, as for a lone query that sees them all
        Raises `InputError`, and remembers nothing, where they do not fit.
        """
        self._check_tokens(k, v)
        t, slots = k.shape[2], self._keys.shape[2]
        as_it_lies = not in_order and t == 1 and slots <= self.window and not (k.requires_grad or v.requires_grad)
        seen = None if as_it_lies else self._behind(k, v)
        start, end = self._length, self._length + t
        fresh = self._slots(max(start, end - slots), end)
        self._keys[:, :, fresh] = k[:, :, t - len(fresh) :].detach().to(self._keys.dtype)
        self._values[:, :, fresh] = v[:, :, t - len(fresh) :].detach().to(self._values.dtype)
        self._length, self._oldest = end, max(self._oldest, end - slots)
        if seen is None:
            return self._keys[:, :, : self.held].to(k.dtype), self._values[:, :, : self.held].to(v.dtype)
        return seen

    def reset(self) -> None:
        """Forget every token."""
        self._length = self._oldest = 0

    def crop(self, n: int) -> None:
        """Keep the first n tokens. Raises `InputError` where the window of the next token is no longer whole."""
        first = 0 if self._oldest == 0 else self._oldest + self.window - 1
        if not 0 <= n <= self._length:
            raise InputError(f"crop({n}) is out of reach: {self._length} tokens were seen")
        if n < first:
            raise InputError(
                f"crop({n}) is out of reach: {self._length} tokens were seen, and the cache can go back to {first}; "
                f"make it by layer.new_cache(batch, max_len, rollback={self._length - n}) to go back further"
            )
        self._length = n

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
