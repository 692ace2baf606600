"""Attention with normalised queries and keys: the logits are bounded, however large the weights grow.

q'_i = g_q · q_i / rms(q_i),  k'_j = g_k · k_j / rms(k_j)        rms(u)² = mean(u²) + ε, over the channels of a head
head_i = softmax(q'_i k'_jᵀ / √d, later keys blocked) v_j        with j = ⌊i / (h / g)⌋
y = [head_1 … head_h] W_o
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnzoo import ops

EPS = 1e-6


class NormedAttention(ops.AttentionLayer):
    """Query-key-normalised attention (arXiv:2010.04245).

    Differs: RMS norm with a gain per channel, shared by all heads, and the usual scale, as in Qwen3; the paper takes
    the Euclidean norm and learns one scale.

    x: (b, t, c)    q: (b, h, t, d)    k, v: (b, g, s, d)    weights: (b, h, t, s)    y: (b, t, c)
    """

    variant = "hello_qk_norm"

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int,
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
            kv_heads=kv_heads,
            head_dim=head_dim,
            causal=causal,
            scale=scale,
            dropout=dropout,
            max_seq_len=max_seq_len,
            backend=backend,
        )
        self.qkv = nn.Linear(d_model, (heads + 2 * kv_heads) * self.head_dim, bias=bias)
        self.q_gain = nn.Parameter(torch.ones(self.head_dim))
        self.k_gain = nn.Parameter(torch.ones(self.head_dim))
        self.out = nn.Linear(heads * self.head_dim, d_model, bias=bias)

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The cache keeps what is returned here, so that a key is normed once.
        q, k, v = ops.project_qkv(self.qkv, x, context, heads=self.heads, kv_heads=self.kv_heads)
        return rms_norm(q, self.q_gain), rms_norm(k, self.k_gain), v


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    """Each head's channels to unit mean square, times the gain. In float32 or wider: a half type overflows at 65504.

    x: (b, n, t, d)    gain: (d,)    returns: (b, n, t, d)

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2)).square().mean().round(decimals=4)
    tensor(1.)
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPS)
    return (normed * gain).to(x.dtype)
