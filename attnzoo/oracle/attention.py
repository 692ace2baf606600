"""The definition of attention, one query at a time: grouped heads, a mask, a bias, and rows that see nothing.

b  batch    h  query heads    g  key-value heads    t  query tokens    s  key tokens    d  head width
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnzoo.errors import InputError
from attnzoo.oracle.arrays import Array


def attention(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    visible: NDArray[np.bool_] | None = None,
    bias: NDArray[Any] | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Each query mixes the values of the keys it may see, weighted by a softmax over just these keys.

    q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)
    visible: boolean, broadcasts to (b, h, t, s), True where the query may see the key
    bias: broadcasts to (b, h, t, s), added to the scaled logits; only -inf blocks
    scale: d ** -0.5 where not given
    returns: mixed (b, h, t, e), weights (b, h, t, s); both zero in a row that sees nothing

    >>> q, k, v = np.zeros((1, 1, 2, 3)), np.zeros((1, 1, 2, 3)), np.array([[[[1.0], [3.0]]]])
    >>> mixed, weights = attention(q, k, v, visible=causal(2, 2))
    >>> weights[0, 0]
    array([[1. , 0. ],
           [0.5, 0.5]])
    >>> mixed[0, 0, :, 0]
    array([1., 2.])
    """
    q, k, v = (np.asarray(array, dtype=np.float64) for array in (q, k, v))
    group = _group(q, k, v)
    (b, h, t, d), s = q.shape, k.shape[2]
    scale = d**-0.5 if scale is None else scale
    bias = np.broadcast_to(np.asarray(0.0 if bias is None else bias, dtype=np.float64), (b, h, t, s))
    visible = np.broadcast_to(True if visible is None else visible, (b, h, t, s)) & (bias != -np.inf)

    mixed, weights = np.zeros((b, h, t, v.shape[-1])), np.zeros((b, h, t, s))
    for n, head, i in np.ndindex(b, h, t):
        seen = np.flatnonzero(visible[n, head, i])  # the hidden keys never enter a sum, so no value of theirs can leak
        if seen.size:
            keys, values = k[n, head // group, seen], v[n, head // group, seen]
            logits = scale * (keys @ q[n, head, i]) + bias[n, head, i, seen]
            row = np.exp(logits - logits.max())
            row /= row.sum()
            weights[n, head, i, seen] = row
            mixed[n, head, i] = row @ values
    return mixed, weights


def attention_backward(
    dmixed: NDArray[Any],
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    weights: Array,
    *,
    scale: float | None = None,
) -> tuple[Array, Array, Array, Array]:
    """The gradients of `attention`, from its inputs and the weights it returned.

    For one query q with the keys k_j and values v_j it sees (derived step by step in `self_attention.py`):

        mixed = sum_j w_j v_j                     dw_j = dmixed . v_j             dv_j = w_j dmixed
        w = softmax(logits)                       dlogit_j = w_j (dw_j - sum_i w_i dw_i)
        logit_j = scale q . k_j + bias_j          dq = scale sum_j dlogit_j k_j   dk_j = scale dlogit_j q
                                                  dbias_j = dlogit_j

    Each step carries the factor w_j: where the weight is zero nothing flows, so visibility need not be told again.
    A key-value head sums what the query heads of its group send back.

    dmixed: (b, h, t, e)    weights: (b, h, t, s)    q, k, v, scale: as given to `attention`
    returns: dq, dk, dv in the shapes of q, k, v, and dbias (b, h, t, s); see `arrays.sum_to` for a bias that broadcast
    """
    dmixed, q, k, v = (np.asarray(array, dtype=np.float64) for array in (dmixed, q, k, v))
    group = _group(q, k, v)
    scale = q.shape[-1] ** -0.5 if scale is None else scale

    dq, dk, dv, dbias = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), np.zeros_like(weights)
    for n, head, i in np.ndindex(weights.shape[:3]):
        g, seen = head // group, np.flatnonzero(weights[n, head, i])
        row = weights[n, head, i, seen]
        drow = v[n, g, seen] @ dmixed[n, head, i]
        dlogits = row * (drow - row @ drow)
        dq[n, head, i] = scale * (dlogits @ k[n, g, seen])
        dk[n, g, seen] += scale * np.outer(dlogits, q[n, head, i])
        dv[n, g, seen] += np.outer(row, dmixed[n, head, i])
        dbias[n, head, i, seen] = dlogits
    return dq, dk, dv, dbias


def causal(t: int, s: int) -> NDArray[np.bool_]:
    """Who may see whom when nobody sees the future: (t, s), True where allowed.

    The queries are the last t tokens of the sequence, so the corner of the triangle lies bottom right (C5).

    >>> causal(2, 4).astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    index_q, index_k = np.arange(s - t, s), np.arange(s)
    return index_k[None, :] <= index_q[:, None]


def _group(q: Array, k: Array, v: Array) -> int:
    """How many query heads share a key-value head: query head h reads key-value head h // group (C7)."""
    if q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1] or k.shape[:3] != v.shape[:3]:
        raise InputError(
            f"attention takes q (b, h, t, d), k (b, g, s, d), v (b, g, s, e); got {q.shape}, {k.shape}, {v.shape}"
        )
    group, rest = divmod(q.shape[1], k.shape[1])
    if rest:
        raise InputError(f"heads ({q.shape[1]}) must be a multiple of kv_heads ({k.shape[1]})")
    return int(group)
