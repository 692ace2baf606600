"""Grouped-query attention with rotary positions: queries and keys turn by an angle that grows with their position.

    q'_i = R(p) q_i,  k'_j = R(p) k_j         R(p) turns channel pair n by p θ^(-2n/r)
    head_i = softmax(q'_i k'_jᵀ / √d, later keys blocked) v_j    with j = ⌊i / (h / g)⌋
    y = [head_1 … head_h] W_o

Turned so, q' · k' depends on the distance of the two tokens only.

Differs: the paper pairs neighbouring channels, which is layout "interleaved" here; the default, "half", pairs channel n
with n + r / 2, as Llama and NeoX do. A checkpoint of one layout is noise in the other.
"""

from __future__ import annotations

from typing_extensions import Unpack

import attnzoo
from attnzoo import ops


class RotaryAttention(ops.RotaryLayer):
    """Grouped-query attention with rotary position embedding (arXiv:2104.09864, section 3.2).

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, s, d)    weights: (b, h, t, s)    y: (b, t, c)
    kv_heads: as many as `heads` where not given    theta: the base of the angles
    layout: "half" (Llama, NeoX) or "interleaved" (GPT-J)    rotary_dim: how many channels of a head turn, all if None
    """

    variant = "rope"

    def __init__(
        self, d_model: int, heads: int, kv_heads: int | None = None, **options: Unpack[ops.RotaryOptions]
    ) -> None:
        super().__init__(d_model, heads, kv_heads, **options)


def as_oracle(layer: RotaryAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer.of(layer, rope=attnzoo.oracle.Rope.of(layer.rotary))


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
