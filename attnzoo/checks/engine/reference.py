"""Plain attention in torch, by an explicit mask and torch's own SDPA: the second side of the truth.

Written apart from `attnzoo.ops`, so that a shared bug cannot cancel out.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F


def causal(t: int, s: int, device: torch.device) -> Tensor:
    """(t, s), True where query i, token s - t + i of the sequence, may see key j (C5)."""
    return torch.ones(t, s, dtype=torch.bool, device=device).tril(s - t)


def visible(
    t: int,
    s: int,
    device: torch.device,
    *,
    causal: bool,
    window: int | None = None,
    document: Tensor | None = None,
) -> Tensor | None:
    """Which keys a query may see, by their index in the sequence: (t, s), with documents (b, 1, t, s); None for all.

    The queries are the newest t of the s tokens.    window: the nearest so many, the own included (C8)
    document: (b, s), ids
    """
    i, j = torch.arange(s - t, s, device=device)[:, None], torch.arange(s, device=device)
    rules = [i >= j] if causal else []
    if window is not None:
        rules.append((i - j).abs() < window)
    if document is not None:
        rules.append(document[:, None, s - t :, None] == document[:, None, None, :])
    return None if not rules else functools.reduce(torch.logical_and, rules)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, visible: Tensor | None = None, bias: Tensor | None = None, scale: float
) -> Tensor:
    """q: (b, h, t, d)    k, v: (b, g, s, d)    visible: boolean, bias: floating, both broadcast to (b, h, t, s)"""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    mask = visible
    if bias is not None:
        mask = bias.to(q.dtype) if visible is None else bias.to(q.dtype).masked_fill(~visible, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def weights(q: Tensor, k: Tensor, *, visible: Tensor | None = None, bias: Tensor | None = None, scale: float) -> Tensor:
    """The same attention's matrix: SDPA fed with the identity for values. returns: (b, h, t, s)"""
    b, g, s, _ = k.shape
    identity = torch.eye(s, dtype=q.dtype, device=q.device).expand(b, g, s, s)
    return attention(q, k, identity, visible=visible, bias=bias, scale=scale)


def rotate(x: Tensor, positions: Tensor, *, theta: float, layout: str, rotary_dim: int) -> Tensor:
    """Rotary positions: pair n of token p turns by the angle p * theta^(-2 n / rotary_dim).

    x: (b, h, t, d)    positions: (t,) or (b, t)    returns: (b, h, t, d), computed in float64
    """
    turned, rest = x[..., :rotary_dim].double(), x[..., rotary_dim:]
    half = rotary_dim // 2
    first, second = (
        (turned[..., :half], turned[..., half:]) if layout == "half" else (turned[..., ::2], turned[..., 1::2])
    )
    powers = torch.arange(half, dtype=torch.float64, device=x.device) / half
    angle = positions.double()[..., None] / theta**powers
    angle = angle if positions.dim() == 1 else angle[:, None]
    cos, sin = torch.cos(angle), torch.sin(angle)
    pair = first * cos - second * sin, first * sin + second * cos
    back = torch.cat(pair, dim=-1) if layout == "half" else torch.stack(pair, dim=-1).flatten(-2)
    return torch.cat([back.to(x.dtype), rest], dim=-1)
