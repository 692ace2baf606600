"""The memory of decoding: keys and values of the tokens seen so far."""

from __future__ import annotations

import torch
from torch import Tensor

from attnzoo.errors import InputError


class KVCache:
    """Keys and values of up to `max_len` tokens, set aside once and written in place.

    >>> cache = KVCache(1, 4, kv_heads=2, head_dim=3, dtype=torch.float32)
    >>> keys, values = cache.append(torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 3))
    >>> keys.shape, cache.length, cache.nbytes
    (torch.Size([1, 2, 3, 3]), 3, 144)

    What is held is detached from the autograd graph. `nbytes` is `2 * b * g * length * d * itemsize`.
    """

    def __init__(
        self,
        batch: int,
        max_len: int,
        *,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
    ) -> None:
        if batch < 0 or max_len < 1:
            raise InputError(f"a cache needs batch >= 0 and max_len >= 1; got batch={batch}, max_len={max_len}")
        # Zeros, not empty memory: an uninitialised NaN behind a mask would still poison a weighted sum.
        # Normal tensors even in inference mode: those made there could never be written outside of it.
        with torch.inference_mode(False):
            self._keys = torch.zeros(batch, kv_heads, max_len, head_dim, dtype=dtype, device=device)
            self._values = torch.zeros_like(self._keys)
        self._length = 0

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return self._length

    @property
    def max_len(self) -> int:
        """How many tokens fit."""
        return self._keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held."""
        held = self._keys[:, :, : self._length]
        return 2 * held.numel() * held.element_size()

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
        if self._length + t > self.max_len:
            raise InputError(
                f"{t} more tokens do not fit: the cache holds {self._length} of max_len ({self.max_len}); "
                f"make it with max_len={self._length + t} or more"
            )

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Remember t more tokens; returns all keys and values, with gradients for the new ones only.

        k, v: (b, g, t, d)    returns: two of (b, g, length, d)
        Raises `InputError`, and remembers nothing, where they do not fit.
        """
        if k.shape != v.shape:
            raise InputError(f"k {tuple(k.shape)} and v {tuple(v.shape)} must have one shape, (b, g, t, d)")
        # torch itself would broadcast one sample over the batch, and one token over no room at all, without a word.
        b, g, t, d = k.shape
        self.check(batch=b, t=t, kv_heads=g, head_dim=d, dtype=self._keys.dtype, device=k.device)
        start, end = self._length, self._length + t
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


def _with_new(held: Tensor, new: Tensor) -> Tensor:
    """The held tokens; where gradients flow through the newest ones, these as they are instead of their copy."""
    if not new.requires_grad:
        return held.to(new.dtype)
    past = held[:, :, : held.shape[2] - new.shape[2]]
    return torch.cat([past.to(new.dtype), new], dim=2)
