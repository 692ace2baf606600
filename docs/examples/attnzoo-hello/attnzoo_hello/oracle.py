"""The same layer in NumPy float64, forward, and backward by hand. It shares no code with `layer.py`, so no mistake.

Attention itself is attnzoo's: `attnzoo.oracle.attention` and its gradients. New here is the norm of one head's channels
u = (u_1 … u_d), with gain g:

    r = (mean(u²) + ε)^(-1/2)        n = r u        out = g n

Backward. Raising u_j raises n_j by r, and lowers r, which all n_i share: ∂r/∂u_j = -r³ u_j / d. So

    ∂n_i/∂u_j = r [i = j] - r³ u_i u_j / d = r ([i = j] - n_i n_j / d)

Write dZ for the gradient of the loss by Z. Summed over i with what each n_i is worth,

    dn = g dout        du = r (dn - n mean(n dn))        dg = sum of n dout over batch, heads and tokens

In words: of what is asked of n, the part along n itself cannot be had, for its length is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnzoo.oracle import attention, attention_backward, causal

Array = NDArray[np.float64]

EPS = 1e-6


class NormedOracle:
    """An `attnzoo.protocol.Oracle`: `forward`, then `backward`, then `grads` by the layer's own parameter names.

    params: "qkv.weight" ((h + 2 g) * d, c), rows [q | k | v]; "out.weight" (c, h * d); "q_gain" and "k_gain" (d,); and
        "qkv.bias" and "out.bias" where the layer has them
    """

    def __init__(
        self, params: Mapping[str, Array], *, heads: int, kv_heads: int, causal: bool, scale: float | None
    ) -> None:
        self.params, self.heads, self.kv_heads, self.causal, self.scale = params, heads, kv_heads, causal, scale
        self.d = len(params["q_gain"])
        self.cuts = [heads * self.d, (heads + kv_heads) * self.d]  # where q ends and k ends among the rows of qkv
        self.grads: Mapping[str, Array] = {}
        self.kept: tuple[Any, ...] = ()

    def forward(
        self,
        x: Array,
        context: Array | None = None,
        *,
        mask: NDArray[Any] | None = None,
        key_mask: NDArray[np.bool_] | None = None,
        positions: NDArray[np.int64] | None = None,
    ) -> tuple[Array, Array]:
        """x: (b, t, c)    context: (b, s, c)    returns: y (b, t, c), weights (b, h, t, s)"""
        source = x if context is None else context
        rows_x, rows_source = self.linear("qkv", x), self.linear("qkv", source)
        u_q = self.split(np.split(rows_x, self.cuts, axis=-1)[0])  # (b, h, t, d)
        u_k, v = (self.split(rows) for rows in np.split(rows_source, self.cuts, axis=-1)[1:])  # (b, g, s, d)
        q, k = self.norm("q_gain", u_q), self.norm("k_gain", u_k)

        visible, bias = np.ones((1, 1, x.shape[1], source.shape[1]), dtype=np.bool_), None
        if self.causal:
            visible = visible & causal(x.shape[1], source.shape[1])
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]
        if mask is not None and mask.dtype == np.bool_:
            visible = visible & mask  # True: may be seen
        elif mask is not None:
            bias = mask  # added to the logits
        mixed, weights = attention(q, k, v, visible=visible, bias=bias, scale=self.scale)

        merged = self.merge(mixed)
        self.kept = (x, source, context is not None, u_q, u_k, q, k, v, weights, merged)
        return self.linear("out", merged), weights

    def backward(self, dy: Array) -> tuple[Array, Array | None]:
        """dy: (b, t, c)    returns: dx (b, t, c), and dcontext (b, s, c) or None. The lines of `forward`, upwards."""
        x, source, cross, u_q, u_k, q, k, v, weights, merged = self.kept
        self.grads = {name: np.zeros_like(value) for name, value in self.params.items()}
        dmerged = self.linear_backward("out", merged, dy)
        dq, dk, dv, _ = attention_backward(self.split(dmerged), q, k, v, weights, scale=self.scale)
        du_q = self.norm_backward("q_gain", u_q, dq)
        du_k = self.norm_backward("k_gain", u_k, dk)

        # One fused projection serves x and the source: each sends back the rows that it fed, zeros for the others.
        drows_x = np.zeros((*x.shape[:2], self.params["qkv.weight"].shape[0]))
        drows_source = np.zeros((*source.shape[:2], self.params["qkv.weight"].shape[0]))
        drows_x[..., : self.cuts[0]] = self.merge(du_q)
        drows_source[..., self.cuts[0] : self.cuts[1]] = self.merge(du_k)
        drows_source[..., self.cuts[1] :] = self.merge(dv)
        dx, dsource = self.linear_backward("qkv", x, drows_x), self.linear_backward("qkv", source, drows_source)
        return (dx, dsource) if cross else (dx + dsource, None)

    def norm(self, gain: str, u: Array) -> Array:
        """u: (b, n, t, d)    returns: (b, n, t, d)"""
        normed: Array = self.params[gain] * unit(u)[0]
        return normed

    def norm_backward(self, gain: str, u: Array, dout: Array) -> Array:
        """Adds dg to `grads`; returns du, as derived above."""
        n, r = unit(u)
        self.grads[gain][:] += (n * dout).sum(axis=(0, 1, 2))
        dn = self.params[gain] * dout
        du: Array = r * (dn - n * (n * dn).mean(axis=-1, keepdims=True))
        return du

    def linear(self, name: str, x: Array) -> Array:
        """y = x W^T + bias, as in torch."""
        y: Array = x @ self.params[f"{name}.weight"].T
        return y + self.params.get(f"{name}.bias", 0.0)

    def linear_backward(self, name: str, x: Array, dy: Array) -> Array:
        """Adds dW and dbias to `grads`; returns dx."""
        self.grads[f"{name}.weight"][:] += np.einsum("bto,btc->oc", dy, x)
        if f"{name}.bias" in self.grads:
            self.grads[f"{name}.bias"][:] += dy.sum(axis=(0, 1))
        dx: Array = dy @ self.params[f"{name}.weight"]
        return dx

    def split(self, x: Array) -> Array:
        """(b, t, n * d) -> (b, n, t, d)"""
        b, t, width = x.shape
        heads: Array = x.reshape(b, t, width // self.d, self.d).swapaxes(1, 2)
        return heads

    def merge(self, x: Array) -> Array:
        """(b, n, t, d) -> (b, t, n * d)"""
        b, n, t, d = x.shape
        merged: Array = x.swapaxes(1, 2).reshape(b, t, n * d)
        return merged


def unit(u: Array) -> tuple[Array, Array]:
    """n = r u with unit mean square, and r.    u: (b, n, t, d)    returns: (b, n, t, d), (b, n, t, 1)"""
    r: Array = 1 / np.sqrt((u**2).mean(axis=-1, keepdims=True) + EPS)
    return r * u, r
