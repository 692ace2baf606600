"""The definition of attention, one query token at a time: grouped heads, a softcap, a bias, sinks, who sees whom.

b  batch    h  query heads    g  key-value heads    t  query tokens    s  key tokens    d  head width
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnzoo.errors import InputError
from attnzoo.oracle.arrays import Array

# Taken for the largest logit of a row that has none, so that it can be subtracted.
LOWEST = float(np.finfo(np.float64).min)


def attention(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    visible: NDArray[np.bool_] | None = None,
    bias: NDArray[Any] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: NDArray[Any] | None = None,
) -> tuple[Array, Array]:
    """Each query mixes the values of the keys it may see, weighted by a softmax over just these keys.

    The order is that of C2: scale, softcap, bias, visibility, softmax.

    q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)
    visible: boolean, broadcasts to (b, h, t, s), True where the query may see the key
    bias: broadcasts to (b, h, t, s), added to the scaled logits; only -inf blocks
    scale: d ** -0.5 where not given
    softcap: bends the scaled logits into (-softcap, softcap), arXiv:2408.00118
    sinks: (h,), one more logit per head that takes its share of the softmax and gives nothing
    returns: mixed (b, h, t, e), weights (b, h, t, s); both zero in a row that sees nothing

    >>> q, k, v = np.zeros((1, 1, 2, 3)), np.zeros((1, 1, 2, 3)), np.array([[[[1.0], [3.0]]]])
    >>> earlier = np.tril(np.ones((2, 2), dtype=bool))
    >>> mixed, weights = attention(q, k, v, visible=earlier)
    >>> weights[0, 0]
    array([[1. , 0. ],
           [0.5, 0.5]])
    >>> mixed[0, 0, :, 0]
    array([1., 2.])

    Two keys with a logit of 0 beside a sink of log 2: each e^0 out of e^0 + e^0 + 2, or one out of 1 + 2.

    >>> attention(q, k, v, visible=earlier, sinks=np.log([2.0]))[1][0, 0].round(4)
    array([[0.3333, 0.    ],
           [0.25  , 0.25  ]])
    """
    q, k, v = (np.asarray(array, dtype=np.float64) for array in (q, k, v))
    group = _group(q, k, v)
    (b, h, t, d), s = q.shape, k.shape[2]
    scale = d**-0.5 if scale is None else scale
    bias = np.broadcast_to(np.asarray(0.0 if bias is None else bias, dtype=np.float64), (b, h, t, s))
    visible = np.broadcast_to(True if visible is None else visible, (b, h, t, s)) & (bias != -np.inf)

    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    mixed, weights = np.zeros((b, h, t, v.shape[-1])), np.zeros((b, h, t, s))
    for i in range(t):
        seen = visible[:, :, i]
        logits = scale * np.einsum("bhsd,bhsd->bhs", _where(seen, q[:, :, i, None]), _where(seen, k))
        if softcap is not None:
            logits = softcap * np.tanh(logits / softcap)
        logits = np.where(seen, logits + bias[:, :, i], -np.inf)
        if sinks is not None:
            sink = np.broadcast_to(np.asarray(sinks, dtype=np.float64)[:, None], (b, h, 1))
            logits = np.concatenate([logits, sink], axis=-1)
        row = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=LOWEST))
        total = row.sum(axis=-1, keepdims=True)  # 0 where nothing is seen
        weights[:, :, i] = row[..., :s] / np.where(total == 0, 1.0, total)  # the sink's own weight is dropped
        mixed[:, :, i] = np.einsum("bhs,bhse->bhe", weights[:, :, i], _where(seen, v))
    return mixed, weights


def attention_backward(
    dmixed: NDArray[Any],
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    weights: Array,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Array, Array, Array, Array]:
    """The gradients of `attention`, from its inputs and the weights it returned; that of the sinks: `sinks_backward`.

    For one query q with the keys k_j and values v_j it sees (derived step by step in `self_attention.py`):

        mixed = sum_j w_j v_j                     dw_j = dmixed . v_j             dv_j = w_j dmixed
        w = softmax(logits)                       dlogit_j = w_j (dw_j - sum_i w_i dw_i)
        logit_j = scale q . k_j + bias_j          dq = scale sum_j dlogit_j k_j   dk_j = scale dlogit_j q
                                                  dbias_j = dlogit_j

    A softcap c stands between the two last lines. With a_j = scale q . k_j and logit_j = c tanh(a_j / c) + bias_j,

        da_j = dlogit_j (1 - tanh(a_j / c)^2)                                     since tanh' = 1 - tanh^2

    and da_j takes the place of dlogit_j in dq and dk. A sink is one more term below the fraction line of w. Its value
    is nothing, so it adds nothing to sum_i w_i dw_i, and the second line stays as it is, over the keys alone.

    Each step carries the factor w_j: where the weight is zero nothing flows, so visibility need not be told again.
    A key-value head sums what the query heads of its group send back.

    dmixed: (b, h, t, e)    weights: (b, h, t, s)    q, k, v, scale, softcap: as given to `attention`
    returns: dq, dk, dv in the shapes of q, k, v, and dbias (b, h, t, s); see `arrays.sum_to` for a bias that broadcast
    """
    dmixed, q, k, v = (np.asarray(array, dtype=np.float64) for array in (dmixed, q, k, v))
    group = _group(q, k, v)
    scale = q.shape[-1] ** -0.5 if scale is None else scale

    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    dq, dk, dv, dbias = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), np.zeros_like(weights)
    for i in range(q.shape[2]):
        row, seen = weights[:, :, i], weights[:, :, i] != 0
        query, keys, values = _where(seen, q[:, :, i, None]), _where(seen, k), _where(seen, v)
        back = _where(seen, dmixed[:, :, i, None])
        drow = np.einsum("bhse,bhse->bhs", values, back)
        dlogits = row * (drow - (row * drow).sum(axis=-1, keepdims=True))
        dv += row[..., None] * back
        dbias[:, :, i] = dlogits
        if softcap is not None:
            logits = scale * np.einsum("bhsd,bhsd->bhs", query, keys)
            dlogits = dlogits * (1 - np.tanh(logits / softcap) ** 2)
        dq[:, :, i] = scale * np.einsum("bhs,bhsd->bhd", dlogits, keys)
        dk += scale * dlogits[..., None] * query
    return dq, _sum_groups(dk, group), _sum_groups(dv, group), dbias


def sinks_backward(dmixed: NDArray[Any], v: NDArray[Any], weights: Array) -> Array:
    """The gradient of `attention` by its sinks, from the weights it returned.

    For one query, with w = softmax(logits and sink): raising the sink takes from every key in proportion,
    dw_j / dsink = -w_j w_sink. Summed over the keys with what each is worth, and over all queries of the head,

        dsink = -w_sink sum_j w_j dw_j        w_sink = 1 - sum_j w_j        dw_j = dmixed . v_j

    dmixed: (b, h, t, e)    v: (b, g, s, e)    weights: (b, h, t, s)    returns: (h,)

    One key of value 1 whose logit is the sink's: the output is sigmoid(logit - sink) = 1/2, its slope by the sink -1/4.

    >>> sinks_backward(np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1)), np.full((1, 1, 1, 1), 0.5))
    array([-0.25])
    """
    dmixed, v = np.asarray(dmixed, dtype=np.float64), np.asarray(v, dtype=np.float64)
    v, dsinks = np.repeat(v, weights.shape[1] // v.shape[1], axis=1), np.zeros(weights.shape[1])
    for i in range(weights.shape[2]):
        row, seen = weights[:, :, i], weights[:, :, i] != 0
        drow = np.einsum("bhse,bhse->bhs", _where(seen, v), _where(seen, dmixed[:, :, i, None]))
        dsinks -= ((1 - row.sum(axis=-1)) * (row * drow).sum(axis=-1)).sum(axis=0)
    return dsinks


def _where(seen: NDArray[np.bool_], x: Array) -> Array:
    """What belongs to the keys that a query sees, and zeros for the others: no value of a hidden key enters a sum.

    seen: (b, h, s)    x: (b, h, s, d), or (b, h, 1, d) for what is the query's own    returns: (b, h, s, d)
    """
    return np.where(seen[..., None], x, 0.0)


def _sum_groups(x: Array, group: int) -> Array:
    """The gradient of a key-value head, from those of the query heads that read it: (b, h, s, d) to (b, g, s, d)."""
    b, h, s, d = x.shape
    summed: Array = x.reshape(b, h // group, group, s, d).sum(axis=2)
    return summed


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
