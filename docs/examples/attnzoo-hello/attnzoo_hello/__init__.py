"""A plugin of attnzoo with one variant: attention with normalised queries and keys."""

from __future__ import annotations

import attnzoo
from attnzoo_hello.layer import NormedAttention
from attnzoo_hello.oracle import NormedOracle


def as_oracle(layer: NormedAttention) -> NormedOracle:
    """The same layer in NumPy float64, from its raw weights."""
    return NormedOracle(
        attnzoo.oracle.raw(layer), heads=layer.heads, kv_heads=layer.kv_heads, causal=layer.causal, scale=layer.scale
    )


@attnzoo.hookimpl
def attnzoo_variants() -> list[attnzoo.Variant]:
    """What this plugin brings. attnzoo calls this when it first needs to know."""
    return [
        attnzoo.Variant(
            name="hello_qk_norm",
            build=NormedAttention,
            summary="Grouped-query attention with RMS-normed queries and keys, as in Qwen3 without its rotation.",
            paper="arXiv:2010.04245",
            # Each claim is tested both ways: what is claimed must work, what is not must be refused.
            traits=attnzoo.Traits(causal="optional", rows="one", cache="kv", cross=True, positions="none"),
            oracle=as_oracle,
            # Pairwise different sizes, so that no two axes can be mixed up unseen. The first is the default case.
            cases=[
                dict(d_model=24, heads=6, kv_heads=3, head_dim=10),
                dict(d_model=24, heads=4, kv_heads=2, bias=True),
                dict(d_model=24, heads=3, kv_heads=3, causal=False),
                dict(d_model=24, heads=6, kv_heads=2, scale=0.5),
            ],
        )
    ]
