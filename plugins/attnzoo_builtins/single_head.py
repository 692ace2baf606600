"""One head of causal attention: the formula itself.

q = x W_q,  k = x W_k,  v = x W_v
y = softmax(q kᵀ / √d, later keys blocked) v W_o
"""

from __future__ import annotations

from torch import Tensor, nn

import attnzoo
from attnzoo import ops


class SingleHeadCausalAttention(ops.AttentionLayer):
    """Scaled dot-product attention with one head (arXiv:1706.03762, section 3.2.1).

    x: (b, t, c)    q, k, v: (b, 1, t, d)    weights: (b, 1, t, s)    y: (b, t, c)
    """

    variant = "single_head"

    def __init__(
        self,
        d_model: int,
        head_dim: int | None = None,
        *,
        bias: bool = False,
        causal: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
        max_seq_len: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            d_model=d_model,
            head_dim=head_dim,
            causal=causal,
            scale=scale,
            dropout=dropout,
            max_seq_len=max_seq_len,
            backend=backend,
        )
        self.qkv = nn.Linear(d_model, 3 * self.head_dim, bias=bias)
        self.out = nn.Linear(self.head_dim, d_model, bias=bias)

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        return ops.project_qkv(self.qkv, x, context, heads=1, kv_heads=1)


def as_oracle(layer: SingleHeadCausalAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer(
        attnzoo.oracle.raw(layer), heads=1, head_dim=layer.head_dim, causal=layer.causal, scale=layer.scale
    )


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
