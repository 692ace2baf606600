"""One head of causal attention: the formula itself.

q = x W_q,  k = x W_k,  v = x W_v
y = softmax(q kᵀ / √d, later keys blocked) v W_o
"""

from __future__ import annotations

from typing_extensions import Unpack

import attnzoo
from attnzoo import ops


class SingleHeadCausalAttention(ops.GroupedLayer):
    """Scaled dot-product attention with one head (arXiv:1706.03762, section 3.2.1).

    x: (b, t, c)    q, k, v: (b, 1, t, d)    weights: (b, 1, t, s)    y: (b, t, c)
    """

    variant = "single_head"

    def __init__(
        self, d_model: int, head_dim: int | None = None, *, bias: bool = False, **conduct: Unpack[ops.Conduct]
    ) -> None:
        super().__init__(d_model, head_dim=head_dim, bias=bias, **conduct)


def as_oracle(layer: SingleHeadCausalAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer.of(layer)


VARIANT = attnzoo.Variant(
    name="single_head",
    build=SingleHeadCausalAttention,
    summary="One causal head of scaled dot-product attention.",
    paper="arXiv:1706.03762",
    traits=attnzoo.Traits(causal="optional", rows="one", cache="kv", cross=True, positions="none", memory="linear"),
    oracle=as_oracle,
    cases=[
        dict(d_model=24, head_dim=10),
        dict(d_model=24),
        dict(d_model=24, head_dim=10, bias=True, causal=False),
        dict(d_model=24, head_dim=10, scale=0.5),
    ],
)
