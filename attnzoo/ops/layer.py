"""The forward pass that every variant shares: check, project, remember, attend, merge."""

from __future__ import annotations

from contextlib import nullcontext
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.errors import ConfigError, Unsupported
from attnzoo.ops.attend import check, check_backend, check_dropout, check_scale, serve, terms_of, why_not
from attnzoo.ops.cache import KVCache
from attnzoo.ops.call import Call
from attnzoo.ops.explain import Explanation, explain
from attnzoo.ops.heads import check_groups, head_width, merge_heads
from attnzoo.ops.once import in_backward, random_state_kept
from attnzoo.ops.sdpa import fused

C = TypeVar("C", bound=KVCache)
ORDERLESS = {"window", "softcap", "sinks"}  # terms to which a lone query's keys may come in any order


class AttentionLayer(nn.Module):
    """Base of a variant: the sizes, and a forward pass in three stages, `merge(attend(project(x)))`.

    A variant sets `self.out`, writes `project`, and `terms` for what its formula has more than the plain one: a window,
    a cap, a bias, sinks. Where it differs beyond that, it writes `attend` or `merge` anew. A variant that takes
    `positions` or `document` says so with `takes_positions = True`, `takes_document = True`; one that cannot read from
    `context`, with `takes_context = False`; one that cannot decode, with `takes_cache = False`.

    Raises `ConfigError` at build for sizes that do not fit; `InputError` at call for tensors that do not fit, before
    a cache is touched; `Unsupported` for an argument that the layer does not honour.
    """

    variant: ClassVar[str] = "attention"
    takes_context: ClassVar[bool] = True
    takes_positions: ClassVar[bool] = False
    takes_document: ClassVar[bool] = False
    takes_cache: ClassVar[bool] = True

    def __init__(
        self,
        *,
        d_model: int,
        heads: int = 1,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
        max_seq_len: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        for word, number in dict(
            d_model=d_model, heads=heads, kv_heads=kv_heads, head_dim=head_dim, max_seq_len=max_seq_len
        ).items():
            if number is not None and (not isinstance(number, Integral) or isinstance(number, bool) or number < 1):
                raise ConfigError(f"{word} must be a whole number above 0; got {number!r}")
        check_dropout(dropout)
        check_groups(heads, kv_heads)
        self.d_model, self.heads, self.kv_heads = d_model, heads, kv_heads
        self.head_dim = head_width(d_model, heads, head_dim)
        self.causal = causal
        self.scale = self.head_dim**-0.5 if scale is None else check_scale(scale)
        self.dropout = dropout
        self.max_seq_len = max_seq_len
        self.backend = check_backend(backend)
        self._owner = object()  # stands for this layer in its caches

    if TYPE_CHECKING:
        out: nn.Module  # (b, t, h * d) -> (b, t, c)

        @overload
        def __call__(
            self,
            x: Tensor,
            context: Tensor | None = None,
            *,
            mask: Tensor | None = None,
            key_mask: Tensor | None = None,
            positions: Tensor | None = None,
            cache: KVCache | None = None,
            document: Tensor | None = None,
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
            cache: KVCache | None = None,
            document: Tensor | None = None,
            need_weights: Literal[True],
        ) -> tuple[Tensor, Tensor]: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
        document: Tensor | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """y = layer(x); y, weights = layer(x, need_weights=True).

        x: (b, t, c)    context: (b, s, c)    y: (b, t, c)    weights: (b, h, t, s), before dropout
        mask: (t, s), or 4 axes that broadcast to (b, h, t, s); boolean, True = may attend, or floating, added
        key_mask: (b, s), boolean, True = a real token    positions: (t,) or (b, t), integers
        cache: from `new_cache`; x then holds the newest tokens, and s counts the cached ones too
        document: (b, t), integers: a token sees tokens of its own document only
        """
        call = Call(x, context, mask, key_mask, positions, cache, document, need_weights)
        self._admit(call)
        draws = self.training and self.dropout > 0 and not torch.compiler.is_compiling()
        with random_state_kept(x.device) if draws else nullcontext():
            answer = self._answer(call)
        if cache is not None:
            cache.commit()  # the last act: a call that failed before it has not happened
        return answer

    def _admit(self, call: Call) -> None:
        """Refuse what cannot be served, before anything happens."""
        self._refuse_what_is_not_honoured(call)
        call.check(
            d_model=self.d_model, heads=self.heads, max_seq_len=self.max_seq_len, like=self._like(), owner=self._owner
        )
        if call.cache is not None and in_backward():
            raise Unsupported(
                f"{self.variant}: a call with a cache runs a second time here, in a backward pass, as activation "
                "checkpointing does it, and its tokens would be cached twice; call without the cache, or without "
                "checkpointing"
            )
        if self.backend not in ("auto", "eager"):  # these can do everything
            self._refuse_what_the_backend_cannot(call)

    def _answer(self, call: Call) -> Tensor | tuple[Tensor, Tensor]:
        """Project, remember, attend, merge."""
        cache, mask, key_mask, need_weights = call.cache, call.mask, call.key_mask, call.need_weights
        q, k, v = self.project(call.x, call.context, positions=call.positions, offset=call.past)
        forgotten = 0
        if cache is not None:
            orderless = not need_weights and mask is None and key_mask is None and self.terms().keys() <= ORDERLESS
            k, v = cache.stage(k, v, in_order=not orderless)
            forgotten = call.s - k.shape[2]  # a window's cache has let go of the tokens behind it
        if forgotten:
            mask, key_mask = _newest(mask, k.shape[2]), _newest(key_mask, k.shape[2])
        # A stranger's `attend` need not know of documents.
        more: dict[str, Any] = {} if call.document is None else {"document": call.document}
        if not need_weights:
            return self.merge(self.attend(q, k, v, mask=mask, key_mask=key_mask, **more))
        mixed, weights = self.attend(q, k, v, mask=mask, key_mask=key_mask, need_weights=True, **more)
        return self.merge(mixed), F.pad(weights, (forgotten, 0)) if forgotten else weights

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x: (b, t, c)    context: (b, s, c)    returns: q (b, h, t, d), k and v (b, g, s, d), rotated and normed"""
        raise TypeError(f"{type(self).__name__} must write project(x, context=None, *, positions=None, offset=0)")

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        document: Tensor | None = None,
        need_weights: bool = False,
    ) -> Any:
        """softmax(scale * q kᵀ + mask) v with the layer's own scale, causality, terms and dropout; see `ops.attend`.

        q: (b, h, t, d)    k, v: (b, g, s, d)    returns: (b, h, t, d), with `need_weights` also (b, h, t, s)
        """
        if mask is key_mask is document is None and not need_weights and self._is_lone(q):
            return fused(q, k, v, visible=None, triangle=False, scale=self.scale, dropout=0.0)
        check(q, k, v)
        terms = terms_of(q, k, mask=mask, key_mask=key_mask, document=document, **self._own_terms())
        return serve(q, k, v, terms, need_weights, self.backend)

    def _is_lone(self, q: Tensor) -> bool:
        """One token that sees all others by the plain formula: decoding need not wait for the terms of a call."""
        plain = q.dim() == 4 and q.shape[2] == 1 and not self.terms() and self.backend in ("auto", "sdpa")
        drops = self.training and self.dropout > 0
        return plain and not drops and not q.is_meta and not torch.is_autocast_enabled(q.device.type)

    def terms(self) -> dict[str, Any]:
        """What the formula has more than the plain one, in the words of `ops.attend`: window, softcap, bias, sinks."""
        return {}

    def _own_terms(self) -> dict[str, Any]:
        dropout = self.dropout if self.training else 0.0
        return dict(causal=self.causal, scale=self.scale, dropout=dropout, **self.terms())

    def explain(self, x: Tensor, *, past: int = 0, need_weights: bool = False, **asked: Any) -> Explanation:
        """Which kernel serves the call `layer(x)`, and what it costs; see `ops.explain`.

        x: (b, t, c)    past: how many of the tokens are cached ones, so that only the later ones ask
        asked: `mask`, `key_mask` or `document` of the call

        Raises `Unsupported` for a layer that attends in its own way.
        """
        if type(self).attend is not AttentionLayer.attend:
            raise Unsupported(f"{self.variant}: cannot be explained, for it attends in its own way, not by ops.attend")
        q, k, v = self.project(x)
        asked |= dict(backend=self.backend, need_weights=need_weights, **self._own_terms())
        return explain(q[:, :, past:], k, v, **asked)

    def merge(self, mixed: Tensor) -> Tensor:
        """mixed: (b, h, t, d)    returns: (b, t, c)"""
        y: Tensor = self.out(merge_heads(mixed))
        return y

    def new_cache(self, batch: int, max_len: int | None = None) -> KVCache:
        """An empty cache for `batch` sequences of up to `max_len` tokens, on the layer's device and in its dtype.

        Without `max_len` it grows. Raises `Unsupported` for a layer with causal=False.
        """
        return self.cache_of(KVCache, batch, max_len)

    def cache_of(self, kind: type[C], batch: int, max_len: int | None, **more: Any) -> C:
        """An empty cache of this kind with the layer's sizes. Raises `Unsupported` where the layer takes none."""
        self._refuse_cache()
        like = self._like()
        return kind(
            batch,
            max_len,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=like.dtype,
            device=like.device,
            owner=self._owner,
            **more,
        )

    def _like(self) -> Tensor:
        """A tensor of the layer's dtype and device: `out.weight` where there is one, for that is found at once.

        A projection that was put in its place may hold integers, or small factors of another type beside the weight
        that they adapt (LoRA): there the largest floating tensor tells.
        """
        weight = getattr(self.out, "weight", None)
        if isinstance(weight, Tensor) and weight.is_floating_point():
            return weight
        for module in (self.out, self):
            held = [x for x in (*module.parameters(), *module.buffers()) if x.is_floating_point()]
            if held:
                return max(held, key=Tensor.numel)
        return torch.empty(0)

    def extra_repr(self) -> str:
        sizes = f"d_model={self.d_model}, heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}"
        numbers = {word: value for word, value in self.terms().items() if isinstance(value, int | float)}
        return ", ".join([sizes, f"causal={self.causal}", *(f"{word}={value}" for word, value in numbers.items())])

    def _refuse_cache(self) -> None:
        if not self.takes_cache:
            raise Unsupported(f"{self.variant}: cache is not supported; pass the whole sequence, without a cache")
        if not self.causal:
            raise Unsupported(
                f"{self.variant}: cache needs causal=True: without it, every new token would change the old outputs; "
                "build with causal=True, or pass the whole sequence"
            )

    def _refuse_what_is_not_honoured(self, call: Call) -> None:
        context, cache = call.context, call.cache
        if call.document is not None and not self.takes_document:
            raise Unsupported(
                f"{self.variant}: document has no effect here; use the variant for packed sequences "
                "(`attnzoo list` shows which), or a boolean mask that keeps documents apart"
            )
        if call.positions is not None and not self.takes_positions:
            raise Unsupported(
                f"{self.variant}: positions has no effect here; leave it out, or use a variant that knows positions "
                "(`attnzoo list` shows which)"
            )
        if context is not None and not self.takes_context:
            raise Unsupported(
                f"{self.variant}: context cannot be combined with rotated positions; for cross-attention use a variant "
                "that takes context, built with causal=False (`attnzoo list` shows which)"
            )
        if context is not None and self.causal:
            raise Unsupported(
                f"{self.variant}: context has no causal order with x (C5); build with causal=False for cross-attention"
            )
        if context is not None and cache is not None:
            raise Unsupported(f"{self.variant}: context with cache is not supported; pass the whole context each call")
        if cache is not None and not (self.takes_cache and self.causal):
            self._refuse_cache()

    def _refuse_what_the_backend_cannot(self, call: Call) -> None:
        alike = call.x.new_empty(()).requires_grad_(torch.is_grad_enabled() and self._learns(call.x))
        q = alike.expand(call.b, self.heads, call.t, self.head_dim)
        k = alike.expand(call.b, self.kv_heads, call.s, self.head_dim)
        asked: dict[str, Any] = dict(mask=call.mask, key_mask=call.key_mask, document=call.document)
        reason = why_not(self.backend, q, k, terms_of(q, k, **asked, **self._own_terms()), call.need_weights)
        if reason is not None:
            raise Unsupported(
                f"{self.variant}: backend={self.backend!r} {reason}; build with backend='auto' or 'eager'"
            )

    def _learns(self, x: Tensor) -> bool:
        return x.requires_grad or any(parameter.requires_grad for parameter in self.parameters())


def _newest(tokens: Tensor | None, n: int) -> Tensor | None:
    """The columns of the newest n tokens of a mask, or its one column for all. (.., s) -> (.., n)"""
    return None if tokens is None else tokens[..., max(0, tokens.shape[-1] - n) :]
