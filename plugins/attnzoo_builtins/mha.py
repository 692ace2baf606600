"""Multi-head attention: h heads side by side, each with a share of the width.

head_i = softmax(q_i k_iᵀ / √d, later keys blocked) v_i
y = [head_1 … head_h] W_o
"""

from __future__ import annotations

from torch import Tensor, nn

import attnzoo
from attnzoo import ops


class CausalMultiHeadAttention(ops.AttentionLayer):
    """Multi-head attention (arXiv:1706.03762, section 3.2.2).

    x: (b, t, c)    q, k, v: (b, h, t, d)    weights: (b, h, t, s)    y: (b, t, c)
    """

    variant = "mha"

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        head_dim: int | None = None,
        bias: bool = False,
        causal: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
        max_seq_len: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            d_model=d_model,
            heads=heads,
            head_dim=head_dim,
            causal=causal,
            scale=scale,
            dropout=dropout,
            max_seq_len=max_seq_len,
            backend=backend,
        )
        self.qkv = nn.Linear(d_model, 3 * heads * self.head_dim, bias=bias)
        self.out = nn.Linear(heads * self.head_dim, d_model, bias=bias)

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        return ops.project_qkv(self.qkv, x, context, heads=self.heads, kv_heads=self.heads)


def as_oracle(layer: CausalMultiHeadAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer(
        attnzoo.oracle.raw(layer), heads=layer.heads, head_dim=layer.head_dim, causal=layer.causal, scale=layer.scale
    )


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
