"""One attention head as a layer, forward and backward by hand: the file to read first.

Forward, for one sequence X of shape (T, C); the batch rides along:

    Q = X Wq      K = X Wk      V = X Wv        (T, hs)
    S = scale Q K^T                             (T, T)    scale = hs ** -0.5
    A = softmax of each row of S                (T, T)
    out = A V                                   (T, hs)

Backward. Write dZ for the gradient of the loss by Z: same shape as Z. Given dout, walk the lines above from the last
to the first. Two rules are enough.

1. A product. If Y = L R, then Y_ij = sum_k L_ik R_kj. L_ik meets every Y_ij of its row with the factor R_kj, so

       dL = dY R^T        and in the same way        dR = L^T dY

2. A softmax row. If a_j = exp(s_j) / sum_k exp(s_k), then raising s_k raises a_k and takes from all others:
   da_j / ds_k = a_j ([j = k] - a_k). Summed over j with what each a_j is worth,

       ds_k = sum_j da_j a_j ([j = k] - a_k) = a_k (da_k - sum_j a_j da_j)

   In words: a key gains as far as it is worth more than the average key, weighted by the attention it gets.

Line by line:

    out = A V            dA = dout V^T                 dV = A^T dout          (rule 1)
    A = softmax(S)       dS = A (dA - rowsum(A dA))    entry by entry         (rule 2)
    S = scale Q K^T      dQ = scale dS K               dK = scale dS^T Q      (rule 1, twice)
    Q = X Wq             dWq = X^T dQ                  X receives dQ Wq^T     (rule 1; so for K and V)

X feeds three products, so dX = dQ Wq^T + dK Wk^T + dV Wv^T. One W serves the whole batch, so dW sums over it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnzoo.errors import AttnZooError, ConfigError, InputError
from attnzoo.oracle.arrays import Array


class SelfAttention:
    """Non-causal self-attention with one head: (B, T, C) -> (B, T, hs), with its gradients.

    >>> layer = SelfAttention(8, 4)
    >>> out = layer.forward(np.ones((2, 5, 8)))
    >>> out.shape
    (2, 5, 4)
    >>> dX = layer.backward(np.ones_like(out))
    >>> dX.shape, layer.dWq.shape
    ((2, 5, 8), (8, 4))

    Parameters Wq, Wk, Wv: (C, hs). Gradients dWq, dWk, dWv: the same, or None before `backward` and after `zero_grad`.
    """

    def __init__(self, C: int, hs: int, seed: int = 42) -> None:
        if C < 1 or hs < 1:
            raise ConfigError(f"SelfAttention needs a width and a head width of at least 1, got C={C} and hs={hs}")
        rng = np.random.default_rng(seed)
        self.C, self.hs = C, hs
        self.scale = hs**-0.5
        self.Wq: Array = rng.standard_normal((C, hs)) * 0.02
        self.Wk: Array = rng.standard_normal((C, hs)) * 0.02
        self.Wv: Array = rng.standard_normal((C, hs)) * 0.02
        self.cache: tuple[Array, Array, Array, Array, Array] | None = None
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.dWq: Array | None = None
        self.dWk: Array | None = None
        self.dWv: Array | None = None

    def forward(self, X: NDArray[Any]) -> Array:
        """X: (B, T, C)    returns: (B, T, hs). Keeps (X, Q, K, V, A) in `cache` for `backward`."""
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 3 or X.shape[-1] != self.C:
            raise InputError(f"SelfAttention takes X of shape (B, T, {self.C}), got {X.shape}")

        Q, K, V = X @ self.Wq, X @ self.Wk, X @ self.Wv  # (B, T, hs)
        S = self.scale * Q @ K.swapaxes(1, 2)  # (B, T, T)
        A = _softmax(S)
        self.cache = (X, Q, K, V, A)
        return A @ V

    def backward(self, dout: NDArray[Any]) -> Array:
        """dout: (B, T, hs)    returns dX: (B, T, C), and stores dWq, dWk, dWv."""
        if self.cache is None:
            raise AttnZooError("SelfAttention.backward needs what forward keeps: call forward(X) first")
        X, Q, K, V, A = self.cache
        dout = np.asarray(dout, dtype=np.float64)
        if dout.shape != V.shape:
            raise InputError(f"dout must have the shape of the output, {V.shape}, got {dout.shape}")

        dA = dout @ V.swapaxes(1, 2)
        dV = A.swapaxes(1, 2) @ dout
        dS = A * (dA - (A * dA).sum(axis=-1, keepdims=True))
        dQ = self.scale * dS @ K
        dK = self.scale * dS.swapaxes(1, 2) @ Q

        self.dWq = np.einsum("btc,bth->ch", X, dQ)
        self.dWk = np.einsum("btc,bth->ch", X, dK)
        self.dWv = np.einsum("btc,bth->ch", X, dV)
        dX: Array = dQ @ self.Wq.T + dK @ self.Wk.T + dV @ self.Wv.T
        return dX


def _softmax(S: Array) -> Array:
    # Subtracting the largest logit changes nothing (it cancels in the fraction) and keeps exp from overflowing.
    # `initial` lets a sequence without tokens through.
    E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
    A: Array = E / E.sum(axis=-1, keepdims=True)
    return A
