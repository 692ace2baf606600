"""Multi-head attention: h heads side by side, each with a share of the width.

head_i = softmax(q_i k_iᵀ / √d, later keys blocked) v_i
y = [head_1 … head_h] W_o
"""

from __future__ import annotations

from typing_extensions import Unpack

import attnzoo
from attnzoo import ops


class CausalMultiHeadAttention(ops.GroupedLayer):
    """Multi-head attention (arXiv:1706.03762, section 3.2.2).

    x: (b, t, c)    q, k, v: (b, h, t, d)    weights: (b, h, t, s)    y: (b, t, c)
    """

    variant = "mha"

    def __init__(self, d_model: int, heads: int, **options: Unpack[ops.Options]) -> None:
        super().__init__(d_model, heads, **options)


def as_oracle(layer: CausalMultiHeadAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer.of(layer)


VARIANT = attnzoo.Variant(
    name="mha",
    build=CausalMultiHeadAttention,
    summary="Multi-head attention: every head with its own queries, keys and values.",
    paper="arXiv:1706.03762",
    traits=attnzoo.Traits(causal="optional", rows="one", cache="kv", cross=True, positions="none", memory="linear"),
    oracle=as_oracle,
    cases=[
        dict(d_model=24, heads=4),
        dict(d_model=24, heads=3, head_dim=10, bias=True),
        dict(d_model=24, heads=4, causal=False),
        dict(d_model=24, heads=1, scale=0.5),
    ],
)
