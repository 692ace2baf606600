"""Biases: what is added to the logits, told by the head and the two tokens' indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnzoo.errors import ConfigError

# (head, query, key, dtype), integers that broadcast -> what is added to the scaled and capped logit, in that type
Bias = Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor]


def alibi_slopes(heads: int) -> list[float]:
    """How fast each head forgets (arXiv:2108.12409, section 3, and the authors' code for other numbers of heads).

    >>> alibi_slopes(4), alibi_slopes(3)
    ([0.25, 0.0625, 0.015625, 0.00390625], [0.0625, 0.00390625, 0.25])

    For 2^n heads: 2^(-8 / heads), and its powers. For other numbers: those of the next lower 2^n, then every other
    one of twice as many. Raises `ConfigError` for no heads.
    """
    if heads < 1:
        raise ConfigError(f"heads must be a whole number above 0; got {heads}")
    whole = _whole(heads)
    return [2 ** (-8 * (i + 1) / whole) for i in range(whole)] + [
        2 ** (-4 * (2 * i + 1) / whole) for i in range(heads - whole)
    ]


@dataclass(frozen=True)
class Alibi:
    """Attention with linear biases: the further apart two tokens, the less, by a slope per head (arXiv:2108.12409).

    >>> alibi = Alibi(2)
    >>> alibi(torch.arange(2)[:, None, None], torch.tensor([[3]]), torch.arange(4), torch.float32)[:, 0].tolist()
    [[-0.1875, -0.125, -0.0625, -0.0], [-0.01171875, -0.0078125, -0.00390625, -0.0]]

    head, query, key: integers that broadcast    returns: -slope * |query - key|
    """

    heads: int

    def __call__(self, head: Tensor, query: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
        # Computed, not looked up: a compiled kernel takes no table from outside.
        whole = _whole(self.heads)
        step = torch.where(head < whole, 2 * head + 2, 2 * (head - whole) + 1)
        return -torch.exp2(step.to(dtype) * (-4 / whole)) * (query - key).abs()


def _whole(heads: int) -> int:
    """The next lower power of two, or the number itself."""
    return 1 << heads.bit_length() - 1
