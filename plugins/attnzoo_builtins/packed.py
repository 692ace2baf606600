"""Attention over packed sequences: several documents in one row, and no token sees another document's.

    head_i = softmax(q'_i k'_jᵀ / √d, later keys and other documents' blocked) v_j    with j = ⌊i / (h / g)⌋
    y = [head_1 … head_h] W_o                              q', k' with rotary positions, as in `rope`

Packing fills a batch without padding. Each document comes out as it would alone: rotary positions see distances only,
so they need not begin again with each document.
"""

from __future__ import annotations

from typing_extensions import Unpack

import attnzoo
from attnzoo import ops


class PackedAttention(ops.RotaryLayer):
    """Grouped-query attention with rotary positions over packed documents (arXiv:2107.02027, section 3.2.2).

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, t, d)    weights: (b, h, t, t)    y: (b, t, c)
    document: (b, t), integers, in the call: which document a token belongs to; one document where not given
    kv_heads: as many as `heads` where not given    theta, layout, rotary_dim: as in `rope`

    >>> import torch
    >>> layer = PackedAttention(d_model=16, heads=2)
    >>> x, document = torch.randn(1, 5, 16), torch.tensor([[0, 0, 0, 1, 1]])
    >>> torch.allclose(layer(x, document=document)[:, 3:], layer(x[:, 3:]), atol=1e-6)
    True
    """

    variant = "packed"
    takes_document = True
    takes_cache = False

    def __init__(
        self, d_model: int, heads: int, kv_heads: int | None = None, **options: Unpack[ops.RotaryOptions]
    ) -> None:
        super().__init__(d_model, heads, kv_heads, **options)


def as_oracle(layer: PackedAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer.of(layer, rope=attnzoo.oracle.Rope.of(layer.rotary))


VARIANT = attnzoo.Variant(
    name="packed",
    build=PackedAttention,
    summary="Grouped-query attention over packed documents, with rotary positions.",
    paper="arXiv:2107.02027",
    traits=attnzoo.Traits(
        causal="optional", rows="one", cache="none", positions="relative", document=True, memory="linear"
    ),
    oracle=as_oracle,
    cases=[
        dict(d_model=24, heads=6, kv_heads=3, head_dim=10),
        dict(d_model=24, heads=4, kv_heads=2, head_dim=10, layout="interleaved"),
        dict(d_model=24, heads=3, kv_heads=3, causal=False),
        dict(d_model=24, heads=4, kv_heads=2, head_dim=10, rotary_dim=4, bias=True),
    ],
)
