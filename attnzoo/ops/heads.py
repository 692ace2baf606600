"""Splitting a width into heads, sharing key-value heads among query heads, and merging back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from einops import repeat
from torch import Tensor, nn

from attnzoo.errors import ConfigError
from attnzoo.ops.rope import Rotary


def head_width(d_model: int, heads: int, head_dim: int | None = None) -> int:
    """The width of one head: `head_dim` where given, else an equal share of `d_model`.

    >>> head_width(64, 8), head_width(64, 6, head_dim=16)
    (8, 16)

    Raises `ConfigError` where `heads` does not divide `d_model` and `head_dim` is left out.
    """
    if head_dim is not None:
        return head_dim
    if d_model % heads:
        raise ConfigError(
            f"heads ({heads}) must divide d_model ({d_model}) when head_dim is left out; "
            f"try heads={_nearest_divisor(d_model, heads)}, or give head_dim={max(1, d_model // heads)}"
        )
    return d_model // heads


def check_groups(heads: int, kv_heads: int) -> None:
    """Raises `ConfigError` unless every key-value head serves equally many query heads."""
    if kv_heads < 1 or heads % kv_heads:
        raise ConfigError(
            f"heads ({heads}) must be a multiple of kv_heads ({kv_heads}); "
            f"try kv_heads={_nearest_divisor(heads, kv_heads)}"
        )


def split_heads(x: Tensor, heads: int) -> Tensor:
    """x: (b, t, h * d)    returns: (b, h, t, d)"""
    b, t, width = x.shape
    return x.view(b, t, heads, width // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """x: (b, h, t, d)    returns: (b, t, h * d)"""
    return x.transpose(1, 2).flatten(2)


def join_tokens(parts: Sequence[Tensor]) -> Tensor:
    """What queries that follow one another gave, as one; it lies in memory as merging the heads wants it, (b, t, h, d).

    parts: (b, h, n, d) each    returns: (b, h, t, d)
    """
    return parts[0] if len(parts) == 1 else torch.cat([x.transpose(1, 2) for x in parts], dim=1).transpose(1, 2)


def share_kv(x: Tensor, heads: int) -> Tensor:
    """Give each group of query heads its key-value head (C7): query head h reads head `h // (heads // kv_heads)`.

    x: (b, g, s, d)    returns: (b, h, s, d)
    """
    kv_heads = x.shape[1]
    if kv_heads == heads:
        return x
    check_groups(heads, kv_heads)
    return repeat(x, "b g s d -> b (g group) s d", group=heads // kv_heads)


def project_qkv(
    qkv: nn.Module, x: Tensor, context: Tensor | None, *, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries from x, keys and values from `context` (from x where there is none), by one fused projection.

    qkv: (.., c) -> (.., (h + 2 g) * d), its rows in the order [all q | all k | all v]
    x: (b, t, c)    context: (b, s, c)    returns: q (b, h, t, d), k and v (b, g, s, d)
    """
    sizes = heads, kv_heads, kv_heads
    q, k, v = split_heads(qkv(x), sum(sizes)).split_with_sizes(sizes, dim=1)
    if context is not None:
        _, k, v = split_heads(qkv(context), sum(sizes)).split_with_sizes(sizes, dim=1)
    return q, k, v


def project_turned_qkv(
    qkv: nn.Module,
    rotary: Rotary,
    x: Tensor,
    *,
    heads: int,
    kv_heads: int,
    positions: Tensor | None = None,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values from x, queries and keys turned by their positions, both at once.

    qkv: as in `project_qkv`    x: (b, t, c)    positions: (t,) or (b, t), counted on from `offset` where not given
    returns: q (b, h, t, d), k and v (b, g, t, d)
    """
    rows = split_heads(qkv(x), heads + 2 * kv_heads)
    q, k = rotary(rows[:, : heads + kv_heads], positions, offset=offset).split_with_sizes((heads, kv_heads), dim=1)
    return q, k, rows[:, heads + kv_heads :]


def _nearest_divisor(number: int, wish: int) -> int:
    return min((n for n in range(1, number + 1) if number % n == 0), key=lambda n: abs(n - wish))
