"""Who may see whom, by the index of a token in its sequence: causality, windows, documents. True where allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnzoo.errors import ConfigError, InputError


def causal(t: int, s: int) -> NDArray[np.bool_]:
    """Nobody sees the future: (t, s).

    The queries are the last t tokens of the sequence, so the corner of the triangle lies bottom right (C5).

    >>> causal(2, 4).astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    index_q, index_k = np.arange(s - t, s), np.arange(s)
    return index_k[None, :] <= index_q[:, None]


def within(window: int, t: int, s: int) -> NDArray[np.bool_]:
    """Nobody sees farther than a window, to either side: (t, s). Met with `causal`, these are `window` keys (C8).

    >>> within(2, 3, 4).astype(int)
    array([[1, 1, 1, 0],
           [0, 1, 1, 1],
           [0, 0, 1, 1]])
    >>> (within(2, 3, 4) & causal(3, 4)).sum(axis=1)
    array([2, 2, 2])
    """
    if window < 1:
        raise ConfigError(f"window ({window}) counts the query's own token, so it must be at least 1")
    index_q, index_k = np.arange(s - t, s), np.arange(s)
    near: NDArray[np.bool_] = np.abs(index_q[:, None] - index_k[None, :]) < window
    return near


def same_document(document: NDArray[Any], t: int) -> NDArray[np.bool_]:
    """Nobody sees a token of another document: (b, 1, t, s), for the last t tokens. The ids are mere names.

    document: (b, s), integers

    >>> same_document(np.array([[7, 7, 4, 7]]), 4)[0, 0].astype(int)
    array([[1, 1, 0, 1],
           [1, 1, 0, 1],
           [0, 0, 1, 0],
           [1, 1, 0, 1]])
    """
    document = np.asarray(document)
    if document.ndim != 2 or not np.issubdtype(document.dtype, np.integer) or document.shape[1] < t:
        raise InputError(f"document must be integers of shape (b, s), s >= {t}; got {document.dtype} {document.shape}")
    ids_q, ids_k = document[:, document.shape[1] - t :], document
    same: NDArray[np.bool_] = ids_q[:, None, :, None] == ids_k[:, None, None, :]
    return same
