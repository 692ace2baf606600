"""Attention with soft-capped scores: no logit goes beyond ±c, however far queries and keys agree.

    z = q'_i k'_jᵀ / √d                                   q', k' with rotary positions, as in `rope`
    head_i = softmax(c tanh(z / c), later keys blocked) v_j    with j = ⌊i / (h / g)⌋
    y = [head_1 … head_h] W_o

The cap comes after the scale and before the mask: capped after it, -inf would be -c, and blocked keys be seen.

Differs: transformers' Gemma 2 leaves the cap out, without a word, when it runs on SDPA.
"""

from __future__ import annotations

from typing_extensions import Unpack

import attnzoo
from attnzoo import ops


class SoftcapAttention(ops.RotaryLayer):
    """Grouped-query attention with rotary positions and soft-capped logits (arXiv:2408.00118, section 2).

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, s, d)    weights: (b, h, t, s)    y: (b, t, c)
    softcap: the bound of the logits, 50 in Gemma 2    kv_heads: as many as `heads` where not given
    theta, layout, rotary_dim: as in `rope`
    """

    variant = "softcap"

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        softcap: float = 50.0,
        **options: Unpack[ops.RotaryOptions],
    ) -> None:
        super().__init__(d_model, heads, kv_heads, **options)
        self.softcap = ops.check_softcap(softcap)

    def terms(self) -> dict[str, object]:
        return {"softcap": self.softcap}


def as_oracle(layer: SoftcapAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer.of(layer, rope=attnzoo.oracle.Rope.of(layer.rotary), softcap=layer.softcap)


VARIANT = attnzoo.Variant(
    name="softcap",
    build=SoftcapAttention,
    summary="Grouped-query attention with soft-capped scores and rotary positions, as in Gemma 2.",
    paper="arXiv:2408.00118",
    traits=attnzoo.Traits(
        causal="optional", rows="one", cache="kv", positions="relative", plain=False, memory="linear"
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
