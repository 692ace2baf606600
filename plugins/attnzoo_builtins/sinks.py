"""Attention with sinks: a learned logit per head takes part in the softmax, so that a head may look at nothing.

    z = q'_i k'_jᵀ / √d                                   q', k' with rotary positions, as in `rope`
    w = exp(z) / (exp(sink_i) + Σ exp(z))                  over the keys that are not blocked
    y = [w_1 v_1 … w_h v_h] W_o                            head i reads key-value head ⌊i / (h / g)⌋

The weights of a query sum to less than one; what is missing went to the sink. The sink is compared with the scaled
logits and is itself neither scaled nor capped.

Differs: transformers' GPT-OSS leaves the sinks out, without a word, when it runs on SDPA.
"""

from __future__ import annotations

import torch
from torch import nn
from typing_extensions import Unpack

import attnzoo
from attnzoo import ops


class SinkAttention(ops.RotaryLayer):
    """Grouped-query attention with rotary positions and learned sinks (arXiv:2508.10925, section 2.2).

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, s, d)    weights: (b, h, t, s)    y: (b, t, c)    sinks: (h,)
    kv_heads: as many as `heads` where not given    theta, layout, rotary_dim: as in `rope`
    """

    variant = "sinks"

    def __init__(
        self, d_model: int, heads: int, kv_heads: int | None = None, **options: Unpack[ops.RotaryOptions]
    ) -> None:
        super().__init__(d_model, heads, kv_heads, **options)
        self.sinks = nn.Parameter(torch.zeros(heads))

    def terms(self) -> dict[str, object]:
        return {"sinks": self.sinks}


def as_oracle(layer: SinkAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer.of(layer, rope=attnzoo.oracle.Rope.of(layer.rotary))


VARIANT = attnzoo.Variant(
    name="sinks",
    build=SinkAttention,
    summary="Grouped-query attention with learned sinks and rotary positions, as in GPT-OSS.",
    paper="arXiv:2508.10925",
    traits=attnzoo.Traits(
        causal="optional", rows="at_most_one", cache="kv", positions="relative", plain=False, memory="linear"
    ),
    oracle=as_oracle,
    cases=[
        dict(d_model=24, heads=6, kv_heads=3, head_dim=10),
        dict(d_model=24, heads=4, kv_heads=2, head_dim=10, layout="interleaved"),
        dict(d_model=24, heads=3, kv_heads=3, causal=False),
        dict(d_model=24, heads=4, kv_heads=2, head_dim=10, rotary_dim=4, bias=True),
        dict(d_model=24, heads=4, kv_heads=1, scale=0.5),
    ],
)
