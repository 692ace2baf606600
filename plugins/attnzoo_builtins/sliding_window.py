"""Sliding-window attention: each token sees only the newest tokens, so that work and memory grow with the length.

    q'_i = R(p) q_i,  k'_j = R(p) k_j                                   rotary positions, as in `rope`
    head_i = softmax(q'_i k'_jᵀ / √d, all but the newest n keys blocked) v_j    with j = ⌊i / (h / g)⌋
    y = [head_1 … head_h] W_o

Differs: a window of n is n keys, the query's own included (C8), as in Mistral. flash-attn's `window_size=(n, 0)` and
ONNX's `left_window_size` count the keys behind the query, which are n + 1 in all.
"""

from __future__ import annotations

from typing_extensions import Unpack

import attnzoo
from attnzoo import ops


class SlidingWindowAttention(ops.RotaryLayer):
    """Grouped-query attention with rotary positions over a sliding window (arXiv:2310.06825, section 2).

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, s, d)    weights: (b, h, t, s)    y: (b, t, c)
    window: how many keys a query sees, its own included; without causality, less than so many tokens to each side
    kv_heads: as many as `heads` where not given    theta, layout, rotary_dim: as in `rope`
    """

    variant = "sliding_window"

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        window: int,
        **options: Unpack[ops.RotaryOptions],
    ) -> None:
        super().__init__(d_model, heads, kv_heads, **options)
        self.window = ops.check_window(window)

    def terms(self) -> dict[str, object]:
        return {"window": self.window}

    def new_cache(self, batch: int, max_len: int | None = None, *, rollback: int = 0) -> ops.WindowCache:
        """A ring of the newest `window` tokens, and of `rollback` more where `crop` is to take that many back.

        max_len: how many tokens it may see at most; any number where not given
        """
        return self.cache_of(ops.WindowCache, batch, max_len, window=self.window, rollback=rollback)


def as_oracle(layer: SlidingWindowAttention) -> attnzoo.oracle.Layer:
    """The same layer in NumPy float64."""
    return attnzoo.oracle.Layer.of(layer, rope=attnzoo.oracle.Rope.of(layer.rotary), window=layer.window)


VARIANT = attnzoo.Variant(
    name="sliding_window",
    build=SlidingWindowAttention,
    summary="Grouped-query attention over a sliding window, with rotary positions, as in Mistral.",
    paper="arXiv:2310.06825",
    traits=attnzoo.Traits(
        causal="optional", rows="one", cache="ring", positions="relative", sees="some", memory="linear", work="linear"
    ),
    oracle=as_oracle,
    cases=[
        dict(d_model=24, heads=6, kv_heads=3, head_dim=10, window=4),
        dict(d_model=24, heads=4, kv_heads=2, head_dim=10, window=1, layout="interleaved"),
        dict(d_model=24, heads=3, kv_heads=3, window=3, causal=False),
        dict(d_model=24, heads=4, kv_heads=2, head_dim=10, window=16, rotary_dim=4, bias=True),
        dict(d_model=24, heads=4, kv_heads=1, window=7, scale=0.5),
    ],
)
