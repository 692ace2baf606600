"""Attention with linear biases: a key is heard less the farther off it stands. arXiv:2108.12409, section 3."""

from __future__ import annotations

import numpy as np

from attnzoo.errors import ConfigError
from attnzoo.oracle.arrays import Array


def alibi_slopes(heads: int) -> Array:
    """How much a logit loses per token of distance, one slope a head: (h,).

    For a power of two, h slopes in a row from 2 ** (-8 / h) down to 2 ** -8. For other numbers of heads, those of the
    next lower power of two, and then every second one of twice that power, as in the authors' own code.

    >>> alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625])
    >>> alibi_slopes(6)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625, 0.5       ,
           0.125     ])
    """
    if heads < 1:
        raise ConfigError(f"heads ({heads}) must be at least 1")
    power = 1
    while 2 * power <= heads:
        power *= 2
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-8 * i / (2 * power)) for i in range(1, 2 * power, 2)][: heads - power]
    return np.array(slopes)


def alibi(heads: int, t: int, s: int) -> Array:
    """What is added to the logits, -slope * |i - j| by token index: (h, t, s). The queries are the last t tokens.

    >>> alibi(1, 2, 3) * 2**8
    array([[[-1., -0., -1.],
            [-2., -1., -0.]]])
    """
    distance = np.abs(np.arange(s - t, s)[:, None] - np.arange(s)[None, :])
    bias: Array = -alibi_slopes(heads)[:, None, None] * distance
    return bias
