"""Scaled dot-product attention: the readable definition, and torch's fused kernel where it gives the same result."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.errors import ConfigError, InputError, Unsupported, did_you_mean
from attnzoo.ops import masks
from attnzoo.ops.heads import check_groups, share_kv

BACKENDS = ("auto", "eager", "sdpa")


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    need_weights: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...
@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    need_weights: Literal[True],
    backend: str = "auto",
) -> tuple[Tensor, Tensor]: ...
@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    need_weights: bool,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]: ...
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale * q kᵀ + mask) v, for grouped heads, with every rule of C2 to C8 (arXiv:1706.03762, eq. 1).

    >>> q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 4, 4), torch.eye(4).reshape(1, 1, 4, 4)
    >>> attend(q, k, v, causal=True)
    tensor([[[[0.3333, 0.3333, 0.3333, 0.0000],
              [0.2500, 0.2500, 0.2500, 0.2500]]]])

    q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)    returns: (b, h, t, e)
    mask: (t, s), or 4 axes that broadcast to (b, h, t, s): boolean, True = may attend; or floating, added
    key_mask: (b, s), boolean, True = a real token
    causal: query i of t is token s - t + i and sees no later token
    scale: `d ** -0.5` where not given    dropout: the share of weights dropped; the caller passes 0 in eval
    need_weights: returns also the weights before dropout, (b, h, t, s)
    backend: "eager" is the definition, "sdpa" torch's fused kernel, "auto" the fastest that does what was asked

    Limit: torch's kernel adds -inf to a logit that a boolean mask blocks, so one that overflows the wide type (beyond
    3e38 in float32) is NaN there, unless no query at all sees its key. Eager has no such limit.

    Raises `InputError` for shapes, dtypes or devices that do not fit, `Unsupported` for a named backend that cannot
    do what was asked, `ConfigError` for an unknown backend, a dropout that is no share, or heads that do not share
    the key-value heads evenly.
    """
    _check(q, k, v, mask, key_mask)
    check_dropout(dropout)
    why_not = _why_not_sdpa(mask, need_weights)
    if backend == "sdpa" and why_not:
        raise Unsupported(f"backend='sdpa' {why_not}; use backend='auto' or 'eager'")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if check_backend(backend) == "eager" or why_not:
        mixed, weights = eager(q, k, v, mask=mask, key_mask=key_mask, causal=causal, scale=scale, dropout=dropout)
        return (mixed, weights) if need_weights else mixed
    return sdpa(q, k, v, mask=mask, key_mask=key_mask, causal=causal, scale=scale, dropout=dropout)


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    key_mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """The definition, step by step: scores, scale, mask, softmax, weighted sum. Arguments as in `attend`.

    returns: mixed (b, h, t, e), weights (b, h, t, s)
    """
    h, t, s = q.shape[1], q.shape[2], k.shape[2]
    wide = masks.wide_type(q.dtype)
    visible = masks.visibility(t, s, mask=mask, key_mask=key_mask, causal_rule=causal, device=q.device)
    if visible is not None:
        k, v = masks.hide(k, visible), masks.hide(v, visible)
    k, v = share_kv(k, h), share_kv(v, h)
    with without_autocast(q.device):  # autocast would take the logits in half precision
        logits = scale * (q.to(wide) @ k.to(wide).mT)  # (b, h, t, s)
        if mask is not None and mask.is_floating_point():
            logits = logits + mask.to(wide)
        weights = (logits.softmax(dim=-1) if visible is None else _masked_softmax(logits, visible)).to(v.dtype)
        return F.dropout(weights, dropout) @ v, weights


def _masked_softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible keys; a row that sees none is zero.

    A blind row is made harmless before the softmax, not only after it: softmax over nothing but -inf is NaN, and the
    backward pass would multiply that NaN by zero, which is NaN again.
    """
    blind = ~visible.any(dim=-1, keepdim=True)
    logits = logits.masked_fill(~visible, float("-inf")).masked_fill(blind, 0.0)
    return logits.softmax(dim=-1).masked_fill(blind, 0.0)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    key_mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
) -> Tensor:
    """The same by `torch.nn.functional.scaled_dot_product_attention`. Arguments as in `attend`; mask boolean."""
    t, s = q.shape[2], k.shape[2]
    # torch's causal flag is anchored top-left, which is C5's rule only for as many queries as keys.
    flag = causal and t == s and mask is None and key_mask is None
    visible = None
    if not flag:
        visible = masks.visibility(t, s, mask=mask, key_mask=key_mask, causal_rule=causal, device=q.device)
    if visible is not None:
        k, v = masks.hide(k, visible), masks.hide(v, visible)
    if scale <= 0:  # torch's causal CPU kernel scales after it masks: -inf times 0 or less is no longer -inf
        q, scale = (q * 0.0, 1.0) if scale == 0 else (-q, -scale)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, is_causal=flag, scale=scale, dropout_p=dropout, enable_gqa=q.shape[1] != k.shape[1]
    )


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast off; on the meta device, where only shapes are computed, there is none."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def check_backend(backend: str) -> str:
    """Raises `ConfigError` for a backend that does not exist."""
    if backend not in BACKENDS:
        raise ConfigError(
            f"unknown backend {backend!r}; it takes {', '.join(BACKENDS)}{did_you_mean(backend, BACKENDS)}"
        )
    return backend


def check_dropout(dropout: float) -> None:
    """Raises `ConfigError` for a dropout that is no share of the weights, or all of them."""
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout ({dropout}) is a share of weights: it must be at least 0 and below 1")


def _why_not_sdpa(mask: Tensor | None, need_weights: bool) -> str | None:
    if need_weights:
        return "returns no weights"
    if mask is not None and mask.is_floating_point():
        return "does not add a floating mask in the wide type, nor give it a gradient"
    return None


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> None:
    if not q.dim() == k.dim() == v.dim() == 4:
        raise InputError(f"q, k, v need 4 axes, (b, h, t, d); got {q.dim()}, {k.dim()} and {v.dim()}")
    (b, h, t, d), (_, g, s, _) = q.shape, k.shape
    if k.shape != (b, g, s, d) or v.shape[:3] != (b, g, s):
        raise InputError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit (b, h, t, d), (b, g, s, d), "
            "(b, g, s, e)"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise InputError(f"q, k and v must share one dtype; got {q.dtype}, {k.dtype} and {v.dtype}")
    if not q.is_floating_point():
        raise InputError(f"q, k and v are {q.dtype}; weights are shares, so they need a floating type; try q.float()")
    if not q.device == k.device == v.device:
        raise InputError(f"q, k and v must share one device; got {q.device}, {k.device} and {v.device}")
    check_groups(h, g)
    if mask is not None:
        masks.check_mask(mask, b=b, h=h, t=t, s=s, like=q)
    if key_mask is not None:
        masks.check_key_mask(key_mask, b=b, s=s, like=q)
