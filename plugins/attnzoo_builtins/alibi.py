"""Attention with linear biases: the further away a key, the less it counts, at a rate of its own in each head.

    head_i = softmax(q_i k_jᵀ / √d - m_i |distance|, later keys blocked) v_j    with j = ⌊i / (h / g)⌋
    y = [head_1 … head_h] W_o                                                    and m_i = 2^(-8 i / h)

It needs no position embedding, and works on sequences longer than it was trained on.

Differs: distances are between token indices, and no `positions` are taken. BLOOM adds m j instead of -m (i - j), which
is the same after the softmax. For a number of heads that is no power of two the slopes are those of the paper's code.
"""

from __future__ import annotations

from typing_extensions import Unpack

import attnzoo
from attnzoo import ops


class AlibiAttention(ops.GroupedLayer):
    """Grouped-query attention with linear biases (arXiv:2108.12409, section 3).

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, s, d)    weights: (b, h, t, s)    y: (b, t, c)
    kv_heads: as many as `heads` where not given
    """

    variant = "alibi"
    takes_context = False

    def __init__(self, d_model: int, heads: int, kv_heads: int | None = None, **options: Unpack[ops.Options]) -> None:
        super().__init__(d_model, heads, kv_heads, **options)
        self.alibi = ops.Alibi(heads)

    def terms(self) -> dict[str, object]:
        return {"bias": self.alibi}


def as_oracle(layer: AlibiAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer.of(layer, alibi=True)


VARIANT = attnzoo.Variant(
    name="alibi",
    build=AlibiAttention,
    summary="Grouped-query attention with linear biases instead of positions, as in BLOOM and MPT.",
    paper="arXiv:2108.12409",
    traits=attnzoo.Traits(causal="optional", rows="one", cache="kv", positions="index", plain=False, memory="linear"),
    oracle=as_oracle,
    cases=[
        dict(d_model=24, heads=6, kv_heads=3, head_dim=10),
        dict(d_model=24, heads=4, kv_heads=2, bias=True),
        dict(d_model=24, heads=3, kv_heads=3, causal=False),
        dict(d_model=24, heads=8, kv_heads=2, head_dim=10, scale=0.5),
    ],
)
