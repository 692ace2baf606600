"""What a call asks of a layer, as one value; what of it no layer can take is refused here, before anything happens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnzoo.errors import InputError
from attnzoo.ops import masks
from attnzoo.ops.cache import KVCache
from attnzoo.ops.numbers import holds_integers


@dataclass(frozen=True)
class Call:
    """The arguments of `layer(x, ...)`.

    x: (b, t, c)    context: (b, s, c)    mask: (t, s) or 4 axes    key_mask: (b, s)    positions: (t,) or (b, t)
    cache: of the layer's own    document: (b, t)
    """

    x: Tensor
    context: Tensor | None = None
    mask: Tensor | None = None
    key_mask: Tensor | None = None
    positions: Tensor | None = None
    cache: KVCache | None = None
    document: Tensor | None = None
    need_weights: bool = False

    @property
    def b(self) -> int:
        """The batch."""
        return self.x.shape[0]

    @property
    def t(self) -> int:
        """How many tokens ask."""
        return self.x.shape[1]

    @property
    def past(self) -> int:
        """How many tokens came before, from the cache."""
        return 0 if self.cache is None else self.cache.length

    @property
    def s(self) -> int:
        """How many tokens there are to see, cached ones counted."""
        return self.past + self.t if self.context is None else self.context.shape[1]

    def check(self, *, d_model: int, heads: int, max_seq_len: int | None, like: Tensor, owner: object) -> None:
        """Raises `InputError` for what does not fit the layer, or fits no layer.

        like: a tensor of the layer's dtype and device    owner: stands for the layer in its caches
        """
        _check_tokens("x", self.x, d_model, like)
        if self.cache is not None:
            self._check_cache(self.cache, like, owner)
        if self.context is not None:
            _check_tokens("context", self.context, d_model, like)
            if self.context.shape[0] != self.b:
                raise InputError(f"context is a batch of {self.context.shape[0]}, x a batch of {self.b}")
        if max_seq_len is not None:
            self._check_lengths(max_seq_len)
        b, t, s = self.b, self.t, self.s
        if self.mask is not None:
            _check_plain("mask", self.mask)
            masks.check_mask(self.mask, b=b, h=heads, t=t, s=s, like=self.x)
        if self.key_mask is not None:
            _check_plain("key_mask", self.key_mask)
            masks.check_key_mask(self.key_mask, b=b, s=s, like=self.x)
        if self.document is not None:
            _check_plain("document", self.document)
            masks.check_document(self.document, b=b, s=s, like=self.x)
        if self.positions is not None:
            _check_plain("positions", self.positions)
            _check_positions(self.positions, b, t, self.x)

    def _check_cache(self, cache: KVCache, like: Tensor, owner: object) -> None:
        if not isinstance(cache, KVCache):
            raise InputError(f"cache is a {type(cache).__name__}; it must come from layer.new_cache(batch, max_len)")
        cache.check(owner=owner, batch=self.b, t=self.t, dtype=like.dtype, device=like.device)

    def _check_lengths(self, max_seq_len: int) -> None:
        _check_length("x", self.past + self.t, max_seq_len, " (cached tokens counted)" if self.past else "")
        if self.context is not None:
            _check_length("context", self.context.shape[1], max_seq_len)


def _check_plain(name: str, given: Tensor) -> None:
    """Raises `InputError` for what is no tensor, or one that does not hold a number for each place."""
    if not isinstance(given, Tensor):
        raise InputError(f"{name} is a {type(given).__name__}; it must be a tensor, such as torch.as_tensor({name})")
    if given.layout != torch.strided:
        raise InputError(f"{name} is of layout {given.layout}; it must be dense: {name}.to_dense(), or a padded tensor")


def _check_tokens(name: str, tokens: Tensor, d_model: int, like: Tensor) -> None:
    _check_plain(name, tokens)
    if tokens.dim() != 3 or tokens.shape[-1] != d_model:
        raise InputError(f"{name} is {tuple(tokens.shape)}; it must be (batch, tokens, d_model={d_model})")
    if tokens.device != like.device:
        raise InputError(
            f"{name} is on {tokens.device}, the layer on {like.device}; try {name}.to({str(like.device)!r})"
        )
    if tokens.dtype != like.dtype and not torch.is_autocast_enabled(tokens.device.type):
        raise InputError(f"{name} is {tokens.dtype}, the layer {like.dtype}; try {name}.to({like.dtype})")


def _check_length(name: str, length: int, max_seq_len: int, counted: str = "") -> None:
    if length > max_seq_len:
        raise InputError(
            f"{name} makes {length} tokens{counted}, more than max_seq_len ({max_seq_len}); "
            f"shorten it, or build with max_seq_len={length} or more"
        )


def _check_positions(positions: Tensor, b: int, t: int, like: Tensor) -> None:
    if not holds_integers(positions):
        raise InputError(f"positions is {positions.dtype}; it must hold integers, such as torch.arange(t)")
    if tuple(positions.shape) not in ((t,), (b, t)):
        raise InputError(f"positions is {tuple(positions.shape)}; it must be (t,) = ({t},) or (b, t) = ({b}, {t})")
    if positions.device != like.device:
        raise InputError(f"positions is on {positions.device}, x on {like.device}")
