"""Grouped-query attention with rotary positions: queries and keys turn by an angle that grows with their position.

    q'_i = R(p) q_i,  k'_j = R(p) k_j         R(p) turns channel pair n by p θ^(-2n/r)
    head_i = softmax(q'_i k'_jᵀ / √d, later keys blocked) v_j    with j = ⌊i / (h / g)⌋
    y = [head_1 … head_h] W_o

Turned so, q' · k' depends on the distance of the two tokens only.

Differs: the paper pairs neighbouring channels, which is layout "interleaved" here; the default, "half", pairs channel n
with n + r / 2, as Llama and NeoX do. A checkpoint of one layout is noise in the other.
"""

from __future__ import annotations

from torch import Tensor, nn

import attnzoo
from attnzoo import ops
from attnzoo.ops.rope import Layout


class RotaryAttention(ops.AttentionLayer):
    """Grouped-query attention with rotary position embedding (arXiv:2104.09864, section 3.2).

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, s, d)    weights: (b, h, t, s)    y: (b, t, c)
    kv_heads: as many as `heads` where not given    theta: the base of the angles
    layout: "half" (Llama, NeoX) or "interleaved" (GPT-J)    rotary_dim: how many channels of a head turn, all if None
    """

    variant = "rope"
    takes_context = False
    takes_positions = True

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        theta: float = 10000.0,
        layout: Layout = "half",
        rotary_dim: int | None = None,
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
            kv_heads=kv_heads,
            head_dim=head_dim,
            causal=causal,
            scale=scale,
            dropout=dropout,
            max_seq_len=max_seq_len,
            backend=backend,
        )
        self.rotary = ops.Rotary(self.head_dim, theta=theta, layout=layout, rotary_dim=rotary_dim)
        self.qkv = nn.Linear(d_model, (heads + 2 * self.kv_heads) * self.head_dim, bias=bias)
        self.out = nn.Linear(heads * self.head_dim, d_model, bias=bias)

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        return ops.project_turned_qkv(
            self.qkv,
            self.rotary,
            x,
            heads=self.heads,
            kv_heads=self.kv_heads,
            positions=positions,
            offset=offset,
        )


def as_oracle(layer: RotaryAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    rotary = layer.rotary
    return attnzoo.oracle.Layer(
        attnzoo.oracle.raw(layer),
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        causal=layer.causal,
        scale=layer.scale,
        rope=attnzoo.oracle.Rope(theta=rotary.theta, layout=rotary.layout, rotary_dim=rotary.rotary_dim),
    )


VARIANT = attnzoo.Variant(
    name="rope",
    build=RotaryAttention,
    summary="Grouped-query attention with rotary positions, as in Llama.",
    paper="arXiv:2104.09864",
    traits=attnzoo.Traits(
        causal="optional", rows="one", cache="kv", cross=False, positions="relative", memory="linear"
    ),
    oracle=as_oracle,
    cases=[
        dict(d_model=24, heads=6, kv_heads=3, head_dim=10),
        dict(d_model=24, heads=4, kv_heads=2, head_dim=10, layout="interleaved"),
        dict(d_model=24, heads=4, kv_heads=2, head_dim=10, rotary_dim=4, theta=500.0, bias=True),
        dict(d_model=24, heads=3, kv_heads=3, layout="interleaved", rotary_dim=6, causal=False),
        dict(d_model=24, heads=4, kv_heads=1, scale=0.5),
    ],
)
