"""Attention by torch's fused kernel, `torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.ops.heads import share_kv
from attnzoo.ops.masks import hide, wide_type
from attnzoo.ops.terms import Terms


def why_not(terms: Terms) -> str | None:
    """Why torch's kernel cannot do what was asked, or None where it can."""
    if terms.softcap is not None:
        return "knows no softcap"
    if terms.bias is not None:
        return "adds a bias only as a tensor of t by s, and not in the wide type"
    if terms.adds_mask:
        return "does not add a floating mask in the wide type, nor give it a gradient"
    return None


def run(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
    """q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)    returns: (b, h, t, e)"""
    t, s = q.shape[2], k.shape[2]
    triangle, visible = False, None
    if terms.rule is not None or terms.has_mask:
        reach = terms.span(t, s)
        if reach.start > 0 or reach.stop < s:
            terms, k, v = terms.part(slice(0, t), reach), k[:, :, reach], v[:, :, reach]
        triangle = terms.is_triangle(t, k.shape[2])
        visible = None if triangle else terms.visible(t, k.shape[2], q.device)
        if visible is not None:
            k, v = hide(k, visible), hide(v, visible)
    if terms.sinks is None:
        return fused(q, k, v, visible=visible, triangle=triangle, scale=terms.scale, dropout=terms.dropout)
    width = v.shape[-1]
    q, k, v, scale = with_sink(q, k, v, terms.sinks, terms.scale)
    if triangle:  # torch's flag is anchored top-left: a first query for the first key, the sink, keeps the rest in line
        q = F.pad(q, (0, 0, 1, 0))
    elif visible is not None:
        visible = F.pad(visible.expand(*visible.shape[:-1], k.shape[2] - 1), (1, 0), value=True)
    mixed = fused(q, k, v, visible=visible, triangle=triangle, scale=scale, dropout=terms.dropout)
    return mixed[:, :, 1 if triangle else 0 :, :width]


def fused(
    q: Tensor, k: Tensor, v: Tensor, *, visible: Tensor | None, triangle: bool, scale: float, dropout: float
) -> Tensor:
    """One call of torch's kernel, in the form that is fastest and exact.

    visible: boolean, broadcastable to (b, h, t, s)    triangle: causal from the first token on, for as many keys
    """
    (b, h, t, d), g, e = q.shape, k.shape[1], v.shape[-1]
    # Torch's kernels want one width, and channels side by side in memory; otherwise a matrix of t by s is made.
    if d != e:
        q, k, v = (F.pad(x, (0, max(d, e) - x.shape[-1])) for x in (q, k, v))
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    q, scale = above_zero(q, scale)  # torch's causal CPU kernel scales after it masks: -inf times 0 is no longer -inf
    alike = visible is None or (visible.dim() == 4 and visible.shape[1:3] == (1, 1))  # for every query
    folded = h != g and alike and not triangle
    if folded:  # every query of a group reads the same keys: as more queries of one head, they read them once
        q = q.reshape(b, g, h // g * t, q.shape[-1])
    elif h != g and not _takes_groups(q, visible):
        k, v = share_kv(k, h), share_kv(v, h)
    groups = q.shape[1] != k.shape[1]
    mixed = F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, is_causal=triangle, scale=scale, dropout_p=dropout, enable_gqa=groups
    )
    mixed = mixed.reshape(b, h, t, v.shape[-1]) if folded else mixed
    return mixed if d == e else mixed[..., :e]


def above_zero(q: Tensor, scale: float) -> tuple[Tensor, float]:
    """Queries and a scale above zero that give the same logits, to the bit: a sign costs a half type no digits."""
    if scale > 0:
        return q, scale
    return (q * 0.0, 1.0) if scale == 0 else (-q, -scale)


def _cpu_takes_groups() -> bool:
    """Whether torch's kernel for the CPU reads grouped heads as they are, as that of torch 2.6 does not."""
    with torch.inference_mode(False), torch.enable_grad():
        q = torch.zeros(1, 2, 1, 8, device="cpu", requires_grad=True)
        mixed = F.scaled_dot_product_attention(q, q[:, :1], q[:, :1], enable_gqa=True)
    return "Flash" in str(mixed.grad_fn)


CPU_TAKES_GROUPS = _cpu_takes_groups()


def _takes_groups(q: Tensor, visible: Tensor | None) -> bool:
    """Whether the kernel for this reads grouped heads as they are; where not, they make it keep a matrix of t by s."""
    return visible is None and q.dtype != torch.float32 if q.is_cuda else CPU_TAKES_GROUPS


def with_sink(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor, float]:
    """The sink of each head as one more key, the first, whose value is zero: softmax counts it, the sum does not.

    Its logit comes in by one more channel: the sink in each query, 1 in the key. The channels are then filled up to a
    multiple of 8, for queries, keys and values alike, since torch's kernels want that.

    q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)    sinks: (h,)
    returns: q (b, h, t, n), k and v (b, g, 1 + s, n), n > d and n >= e, and the scale that goes with them
    """
    d, e = q.shape[-1], v.shape[-1]
    n = -(-max(d + 1, e) // 8) * 8
    q, scale = above_zero(q, scale)  # the sink is not scaled, and cannot be divided by nothing
    far = torch.finfo(q.dtype).max  # an infinite channel times the 0 of the other keys would be NaN
    channel = (sinks.to(wide_type(q.dtype)) / scale).clamp(-far, far)
    channel = channel[:, None, None].expand(*q.shape[:-1], 1).to(q.dtype)  # expanded first: gradients sum in the wide
    q = torch.cat([q, channel, q.new_zeros(*q.shape[:-1], n - d - 1)], dim=-1)
    sink = k.new_zeros(*k.shape[:2], 1, n)
    sink[..., d] = 1.0
    k = torch.cat([sink, F.pad(k, (0, n - d))], dim=2)
    return q, k, F.pad(v, (0, n - e, 1, 0)), scale
