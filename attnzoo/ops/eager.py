"""The definition of attention, step by step. Every other kernel is held to it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.ops.heads import share_kv
from attnzoo.ops.masks import hide, wide_type
from attnzoo.ops.terms import Terms


def run(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """Scores, scale, cap, bias, mask, softmax, weighted sum (C2).

    q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)    returns: mixed (b, h, t, e), weights (b, h, t, s)
    """
    h, t, s = q.shape[1], q.shape[2], k.shape[2]
    wide = wide_type(q.dtype)
    visible = terms.visible(t, s, q.device)
    if visible is not None:
        k, v = hide(k, visible), hide(v, visible)
    k, v = share_kv(k, h), share_kv(v, h)
    logits = terms.scale * (q.to(wide) @ k.to(wide).mT)  # (b, h, t, s)
    if terms.softcap is not None:
        logits = terms.softcap * torch.tanh(logits / terms.softcap)
    added = terms.added(h, t, s, like=q)
    if added is not None:
        logits = logits + added
    weights = softmax(logits, visible, terms.sinks).to(v.dtype)
    return F.dropout(weights, terms.dropout) @ v, weights


def softmax(logits: Tensor, visible: Tensor | None, sinks: Tensor | None) -> Tensor:
    """Softmax over the visible keys, and over the sink of each head where there is one; a row that sees none is zero.

    A blind row is made harmless before the softmax, not only after it: softmax over nothing but -inf is NaN, and the
    backward pass would multiply that NaN by zero, which is NaN again. A sink always sees, so that it needs no help.

    logits: (b, h, t, s)    visible: boolean, broadcastable to it    sinks: (h,)    returns: (b, h, t, s)
    """
    if visible is not None:
        logits = logits.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        lowest = torch.finfo(logits.dtype).min  # for -inf, which is no sink: a row of nothing but -inf would be NaN
        sink = sinks.to(logits.dtype).clamp(min=lowest)[:, None, None].expand(*logits.shape[:-1], 1)
        return torch.cat([logits, sink], dim=-1).softmax(dim=-1)[..., :-1]
    if visible is None:
        return logits.softmax(dim=-1)
    blind = ~visible.any(dim=-1, keepdim=True)
    return logits.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)
