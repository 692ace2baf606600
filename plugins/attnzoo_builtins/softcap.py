"""Attention with soft-capped scores: no logit goes beyond ±c, however far queries and keys agree.

    z = q'_i k'_jᵀ / √d                                   q', k' with rotary positions, as in `rope`
    head_i = softmax(c tanh(z / c), later keys blocked) v_j    with j = ⌊i / (h / g)⌋
    y = [head_1 … head_h] W_o

The cap comes after the scale and before the mask: capped after it, -inf would be -c, and blocked keys be seen.

Differs: transformers' Gemma 2 leaves the cap out, without a word, when it runs on SDPA.
"""

from __future__ import annotations

from torch import Tensor, nn

import attnzoo
from attnzoo import ops
from attnzoo.ops.rope import Layout


class SoftcapAttention(ops.AttentionLayer):
    """Grouped-query attention with rotary positions and soft-capped logits (arXiv:2408.00118, section 2).

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, s, d)    weights: (b, h, t, s)    y: (b, t, c)
    softcap: the bound of the logits, 50 in Gemma 2    kv_heads: as many as `heads` where not given
    theta, layout, rotary_dim: as in `rope`
    """

    variant = "softcap"
    takes_context = False
    takes_positions = True

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        softcap: float = 50.0,
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
        self.softcap = ops.check_softcap(softcap)
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

    def terms(self) -> dict[str, object]:
        return {"softcap": self.softcap}


def as_oracle(layer: SoftcapAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer(
        attnzoo.oracle.raw(layer),
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        causal=layer.causal,
        scale=layer.scale,
        rope=attnzoo.oracle.Rope(
            theta=layer.rotary.theta, layout=layer.rotary.layout, rotary_dim=layer.rotary.rotary_dim
        ),
        softcap=layer.softcap,
    )


VARIANT = attnzoo.Variant(
    name="softcap",
    build=SoftcapAttention,
    summary="Grouped-query attention with soft-capped scores and rotary positions, as in Gemma 2.",
    paper="arXiv:2408.00118",
    traits=attnzoo.Traits(
        causal="optional",
        rows="one",
        cache="kv",
        cross=False,
        positions="relative",
        plain=False,
        memory="linear",
    ),
    oracle=as_oracle,
    cases=[
        dict(d_model=24, heads=6, kv_heads=3, head_dim=10, softcap=2.0),
        dict(d_model=24, heads=4, kv_heads=2, head_dim=10, layout="interleaved"),
        dict(d_model=24, heads=3, kv_heads=3, softcap=1.0, causal=False),
        dict(d_model=24, heads=4, kv_heads=2, head_dim=10, softcap=3.0, rotary_dim=4, bias=True),
        dict(d_model=24, heads=4, kv_heads=1, softcap=1.5, scale=0.5),
    ],
)
