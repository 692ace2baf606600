"""A layer questioned from outside: its matrix, read off with one-hot values, and who may see whom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def effective(layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, **rules: Any) -> Tensor:
    """The matrix M of `attend(q, k, v) == M @ v`, read off with one-hot values: from any kernel, of any family.

    q: (b, h, t, d)    k, v: (b, g, s, d)    rules: what else `attend` takes, such as mask    returns: (b, h, t, s)
    """
    attend: Any = layer.attend
    tokens, width = v.shape[-2:]
    columns = []
    with evaluating(layer), torch.no_grad():
        for start in range(0, tokens, width):  # as many keys at once as a value has channels
            shown = min(width, tokens - start)
            one_hot = torch.zeros_like(v)
            one_hot[..., start : start + shown, :shown] = torch.eye(shown, dtype=v.dtype, device=v.device)
            columns.append(attend(q, k, one_hot, **rules)[..., :shown])
    return torch.cat(columns, dim=-1) if columns else q.new_zeros(*q.shape[:3], 0)


def visibility(layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, **rules: Any) -> Tensor:
    """Who may see whom, by the layer's own rules: True where a key gets a weight from small random queries and keys.

    Arguments as in `effective`; the values of q, k and v do not matter.    returns: boolean, (b, h, t, s)
    """
    generator = torch.Generator(q.device).manual_seed(0)

    def sees() -> Tensor:
        small_q, small_k = (0.1 * torch.empty_like(x).normal_(generator=generator) for x in (q, k))
        return effective(layer, small_q, small_k, v, **rules) != 0

    return sees() | sees() | sees()  # a weight may be zero by chance, but not three times


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """weights: (b, h, t, s)    v: (b, g, s, d)    returns: weights @ v, (b, h, t, d)"""
    return weights @ share(v, weights.shape[1])


def share(x: Tensor, heads: int) -> Tensor:
    """x: (b, g, s, d)    returns: (b, h, s, d)"""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def tolerance(like: Tensor) -> float:
    """How far two sound ways to the same tensor may lie apart."""
    return 32 * torch.finfo(like.dtype).eps * max(1.0, float(like.abs().max()) if like.numel() else 1.0)


@contextmanager
def evaluating(layer: nn.Module) -> Iterator[None]:
    """Dropout sleeps inside; afterwards every submodule is in the mode it was in."""
    modes = {module: module.training for module in layer.modules()}
    layer.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
