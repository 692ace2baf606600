"""Grouped-query attention: groups of query heads share one key-value head, which shrinks the cache.

    head_i = softmax(q_i k_jᵀ / √d, later keys blocked) v_j    with j = ⌊i / (h / g)⌋
    y = [head_1 … head_h] W_o

One key-value head for all (g = 1) is multi-query attention, listed as `mqa`.
"""

from __future__ import annotations

from typing_extensions import Unpack

import attnzoo
from attnzoo import ops


class GroupedQueryAttention(ops.GroupedLayer):
    """Grouped-query attention (arXiv:2305.13245, section 2.2).

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, s, d)    weights: (b, h, t, s)    y: (b, t, c)
    """

    variant = "gqa"

    def __init__(self, d_model: int, heads: int, kv_heads: int, **options: Unpack[ops.Options]) -> None:
        super().__init__(d_model, heads, kv_heads, **options)


def multi_query(d_model: int, heads: int, **options: Unpack[ops.Options]) -> GroupedQueryAttention:
    """Multi-query attention (arXiv:1911.02150): all query heads share one key-value head."""
    return GroupedQueryAttention(d_model, heads, kv_heads=1, **options)


def as_oracle(layer: GroupedQueryAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer.of(layer)


TRAITS = attnzoo.Traits(causal="optional", rows="one", cache="kv", cross=True, positions="none", memory="linear")

VARIANT = attnzoo.Variant(
    name="gqa",
    build=GroupedQueryAttention,
    summary="Grouped-query attention: groups of query heads share a key-value head.",
    paper="arXiv:2305.13245",
    traits=TRAITS,
    oracle=as_oracle,
    cases=[
        dict(d_model=24, heads=6, kv_heads=3, head_dim=10),
        dict(d_model=24, heads=4, kv_heads=2, bias=True),
        dict(d_model=24, heads=3, kv_heads=3, causal=False),
        dict(d_model=24, heads=6, kv_heads=2, scale=0.5),
        dict(d_model=24, heads=5, kv_heads=1, head_dim=10),
    ],
)

MQA = attnzoo.Variant(
    name="mqa",
    build=multi_query,
    summary="Multi-query attention: all query heads share one key-value head.",
    paper="arXiv:1911.02150",
    traits=TRAITS,
    oracle=as_oracle,
    cases=[dict(d_model=24, heads=4), dict(d_model=24, heads=3, head_dim=10, bias=True, causal=False)],
)
