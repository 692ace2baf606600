"""A sound layer taken to pieces: every step of attention as a method of its own, so that a fault is one step changed.

Written apart from `attnzoo.ops`. It is the exam of the suite, not a variant: slow, plain, and complete by C1 to C19.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.checks.engine import reference
from attnzoo.errors import ConfigError, InputError, Unsupported

Places = Literal["none", "rotary", "absolute", "index"]


class SpecimenCache:
    """Keys and values, joined step by step."""

    def __init__(self, batch: int, max_len: int | None) -> None:
        self.batch, self.max_len = batch, max_len
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in (self.keys, self.values) if part is not None)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys = k if self.keys is None else torch.cat([self.keys, k], dim=2)
        values = v if self.values is None else torch.cat([self.values, v], dim=2)
        self.keys, self.values = keys.detach(), values.detach()
        return keys, values

    def reset(self) -> None:
        self.keys = self.values = None

    def crop(self, n: int) -> None:
        if not 0 <= n <= self.length:
            raise InputError(f"crop({n}) of {self.length} tokens")
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, :n], self.values[:, :, :n]

    def reorder(self, index: Tensor) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[index], self.values[index]


class Specimen(nn.Module):
    """Grouped-query attention without positions.

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, s, d)    weights: (b, h, t, s)
    """

    places: Places = "none"
    fault: Any = None
    backends: tuple[str, ...] = ("auto",)
    Cache: type[SpecimenCache] = SpecimenCache

    def __init_subclass__(cls) -> None:
        """A constructor that hands its other options on takes those of its bases too, and says so when asked."""
        super().__init_subclass__()
        words: dict[str, inspect.Parameter] = {}
        for base in cls.__mro__:
            if "__init__" in vars(base):
                own = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
                named = [word for word in own if word.kind not in (word.VAR_KEYWORD, word.VAR_POSITIONAL)]
                words = {word.name: word for word in named} | words
                if len(named) == len(own):
                    break
        ordered = sorted(words.values(), key=lambda word: (word.kind, word.default is not word.empty))
        cls.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int,
        *,
        head_dim: int | None = None,
        bias: bool = False,
        causal: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
        max_seq_len: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.asked_scale, self.asked_head_dim = scale, head_dim  # whatever a fault makes of them
        self.d_model, self.heads, self.kv_heads, self.causal = d_model, heads, kv_heads, causal
        self.dropout, self.max_seq_len = dropout, max_seq_len
        self.backend = backend
        self.check_options(dropout, backend)
        self.check_groups()
        self.head_dim = self.head_width() if head_dim is None else head_dim
        self.scale = self.choose_scale(scale)
        self.q = nn.Linear(d_model, heads * self.head_dim, bias=bias)
        self.k = nn.Linear(d_model, kv_heads * self.head_dim, bias=bias)
        self.v = nn.Linear(d_model, kv_heads * self.head_dim, bias=bias)
        self.out = nn.Linear(heads * self.head_dim, d_model, bias=bias)

    # Building.

    def check_options(self, dropout: float, backend: str) -> None:
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout ({dropout}) must be at least 0 and below 1")
        if backend not in self.backends:
            raise ConfigError(f"unknown backend {backend!r}; it takes {', '.join(self.backends)}")

    def check_groups(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")

    def head_width(self) -> int:
        if self.d_model % self.heads:
            raise ConfigError(f"heads ({self.heads}) must divide d_model ({self.d_model}), or give head_dim")
        return self.d_model // self.heads

    def choose_scale(self, scale: float | None) -> float:
        return self.head_dim**-0.5 if scale is None else scale

    def new_cache(self, batch: int, max_len: int | None = None) -> SpecimenCache:
        if not self.causal:
            raise Unsupported("cache needs causal=True")
        return self.Cache(batch, max_len)

    # The call.

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: SpecimenCache | None = None,
        need_weights: bool = False,
    ) -> Any:
        self.refuse(context, positions, cache)
        held = 0 if cache is None else cache.length
        self.check_tokens(x, held)
        self.check_cache(x, cache)
        if context is not None:
            self.check_context(x, context)
        s = held + x.shape[1] if context is None else context.shape[1]
        self.check_mask(mask, x, s)
        self.check_key_mask(key_mask, x, s)
        self.check_positions(positions, x)
        q, k, v = self.project(x, context, positions=positions, offset=held)
        if cache is not None:
            k, v = self.remember(cache, k, v)
        mask, key_mask = self.held(mask, k), self.held(key_mask, k)
        mixed, weights = self.attended(q, k, v, mask, key_mask, need_weights)
        y = self.merge(mixed)
        return (y, self.show(F.pad(weights, (s - weights.shape[-1], 0)))) if need_weights else y

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key_mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor]:
        mixed, weights = self.attend(q, k, v, mask=mask, key_mask=key_mask, need_weights=True)
        return mixed, weights

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        where = self.default_positions(x, offset) if positions is None else positions
        x = self.place_tokens(x, where)
        source = self.source(x, context)
        q, k, v = self.split(self.q(x)), self.split(self.k(source)), self.split(self.v(source))
        return *self.place(q, k, where), v

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Any:
        visible = self.visible(q, k, mask, key_mask)
        k, v = self.hide(k, visible), self.hide(v, visible)
        k, v = self.share(k, q.shape[1]), self.share(v, q.shape[1])
        with torch.autocast(q.device.type, enabled=False):
            logits = self.add_mask(self.logits(q, k), mask, q)
            weights = self.softmax(logits, visible).to(v.dtype)
            mixed = self.mix(self.drop(weights), v)
        return (mixed, weights) if need_weights else mixed

    def merge(self, mixed: Tensor) -> Tensor:
        y: Tensor = self.out(self.join(mixed))
        return y

    # The steps.

    def source(self, x: Tensor, context: Tensor | None) -> Tensor:
        return x if context is None else context

    def split(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        return x.reshape(b, t, width // self.head_dim, self.head_dim).transpose(1, 2)

    def join(self, mixed: Tensor) -> Tensor:
        return mixed.transpose(1, 2).flatten(2)

    def default_positions(self, x: Tensor, offset: int) -> Tensor:
        return torch.arange(offset, offset + x.shape[1], device=x.device)

    def place(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def place_tokens(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    def share(self, x: Tensor, heads: int) -> Tensor:
        return x.repeat_interleave(heads // x.shape[1], dim=1)

    def remember(self, cache: SpecimenCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return cache.append(k, v)

    def held(self, mask: Tensor | None, k: Tensor) -> Tensor | None:
        """The columns of a mask that belong to the keys still held, which are the newest ones."""
        return mask if mask is None or mask.shape[-1] <= k.shape[2] else mask[..., -k.shape[2] :]

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        return reference.causal(q.shape[2], k.shape[2], q.device)

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        visible = torch.ones(q.shape[0], 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        if self.causal:
            visible = visible & self.causal_rule(q, k)
        if mask is not None:
            visible = visible & self.mask_rule(mask)
        if key_mask is not None:
            visible = visible & self.key_rule(key_mask, q)
        return visible

    def mask_rule(self, mask: Tensor) -> Tensor:
        return mask if mask.dtype == torch.bool else mask != float("-inf")

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        return key_mask[:, None, None, :]

    def hide(self, x: Tensor, visible: Tensor) -> Tensor:
        return x.masked_fill(~visible.any(2).any(1)[:, None, :, None], 0.0)

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        return torch.promote_types(dtype, torch.float32)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        wide = self.wide(q.dtype)
        return self.scale * (q.to(wide) @ k.to(wide).mT)

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        return logits if mask is None or mask.dtype == torch.bool else logits + mask.to(logits.dtype)

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        blind = ~visible.any(-1, keepdim=True)
        return logits.masked_fill(~visible, float("-inf")).masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)

    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.dropout, self.training)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

    def show(self, weights: Tensor) -> Tensor:
        return weights

    # What is refused.

    def refuse(self, context: Tensor | None, positions: Tensor | None, cache: SpecimenCache | None) -> None:
        if positions is not None and self.places == "none":
            raise Unsupported("positions have no effect here")
        if context is not None and (self.causal or self.places != "none"):
            raise Unsupported("context cannot be combined with causal order or positions")
        if cache is not None and not self.causal:
            raise Unsupported("cache needs causal=True")

    def check_tokens(self, x: Tensor, held: int) -> None:
        like = self.q.weight
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise InputError(f"x is {tuple(x.shape)}; it must be (b, t, {self.d_model})")
        if x.dtype != like.dtype and not torch.is_autocast_enabled(x.device.type):
            raise InputError(f"x is {x.dtype}, the layer {like.dtype}")
        if x.device != like.device:
            raise InputError(f"x is on {x.device}, the layer on {like.device}")
        if self.max_seq_len is not None and held + x.shape[1] > self.max_seq_len:
            raise InputError(f"{held + x.shape[1]} tokens, more than max_seq_len ({self.max_seq_len})")

    def check_cache(self, x: Tensor, cache: SpecimenCache | None) -> None:
        if cache is not None and x.shape[0] != cache.batch:
            raise InputError(f"a batch of {x.shape[0]} for a cache of {cache.batch}")
        if cache is not None and cache.max_len is not None and cache.length + x.shape[1] > cache.max_len:
            raise InputError(f"{x.shape[1]} tokens more than {cache.length} of {cache.max_len}")

    def check_context(self, x: Tensor, context: Tensor) -> None:
        if context.dim() != 3 or context.shape[0] != x.shape[0] or context.shape[-1] != self.d_model:
            raise InputError(f"context is {tuple(context.shape)}; it must be ({x.shape[0]}, s, {self.d_model})")

    def check_mask(self, mask: Tensor | None, x: Tensor, s: int) -> None:
        if mask is None:
            return
        b, t = x.shape[:2]
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise InputError(f"mask is {mask.dtype}; it must be bool or floating")
        if mask.device != x.device:
            raise InputError(f"mask is on {mask.device}, x on {x.device}")
        if mask.dim() == 3:
            raise InputError("mask has 3 axes; write mask[:, None] for one per sample, mask[None] for one per head")
        full = (t, s) if mask.dim() == 2 else (b, self.heads, t, s)
        fits = mask.dim() == len(full) and all(
            size == due or (mask.dim() == 4 and size == 1) for size, due in zip(mask.shape, full, strict=True)
        )
        if not fits:
            raise InputError(f"mask is {tuple(mask.shape)}; it must be ({t}, {s}) or broadcast to {full}")

    def check_key_mask(self, key_mask: Tensor | None, x: Tensor, s: int) -> None:
        if key_mask is None:
            return
        if key_mask.dtype != torch.bool or tuple(key_mask.shape) != (x.shape[0], s):
            raise InputError(
                f"key_mask is {key_mask.dtype} {tuple(key_mask.shape)}; it must be bool ({x.shape[0]}, {s})"
            )

    def check_positions(self, positions: Tensor | None, x: Tensor) -> None:
        if positions is None:
            return
        b, t = x.shape[:2]
        if positions.dtype not in (torch.int32, torch.int64) or tuple(positions.shape) not in ((t,), (b, t)):
            raise InputError(f"positions are {positions.dtype} {tuple(positions.shape)}; they must be integers ({t},)")
