"""Attention matrices with their tokens: what every picture is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnzoo.errors import InputError
from attnzoo.viz.tokens import shown

Floats = NDArray[np.float32]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class Maps:
    """Attention matrices, query tokens down and key tokens across, of every head of every layer.

    weights: (layers, h, t, s)    visible: the same shape, False where a query may not see a key
    queries: t labels    keys: s labels    name: what is shown    signed: some weight is negative
    """

    weights: Floats
    visible: Booleans
    queries: Sequence[str]
    keys: Sequence[str]
    name: str = ""

    @property
    def signed(self) -> bool:
        return bool((self.weights < 0).any())

    def only(self, layer: int | None, head: int | None) -> Maps:
        """One layer, one head, or both. Raises `InputError` for a number that there is not."""
        kept, name = (self.weights, self.visible), self.name
        for axis, (what, number) in enumerate({"layer": layer, "head": head}.items()):
            if number is None:
                continue
            count = self.weights.shape[axis]
            if not 0 <= number < count:
                raise InputError(f"there is no {what} {number}; it has {count}, numbered from 0 to {count - 1}")
            kept = (kept[0].take([number], axis), kept[1].take([number], axis))
            name = f"{name}, {what} {number}" if count > 1 else name
        return Maps(*kept, self.queries, self.keys, name.removeprefix(", "))


def labelled(
    weights: Sequence[Any],
    visible: Sequence[Any],
    queries: Sequence[str] | None,
    keys: Sequence[str] | None,
    name: str,
) -> Maps:
    """Stack the layers, each (h, t, s), and put the tokens to the two axes. Raises `InputError` where they misfit."""
    if len({one.shape for one in weights}) != 1:
        raise InputError(f"layers must share one shape (h, t, s); got {sorted({one.shape for one in weights})}")
    t, s = weights[0].shape[-2:]
    if 0 in weights[0].shape:
        raise InputError(f"the weights are {weights[0].shape}, (h, t, s): there is nothing to draw")
    if keys is None and queries is not None:
        if t != s:
            raise InputError(f"{t} queries see {s} other keys; give keys=, their {s} labels")
        keys = queries
    queries = [str(i) for i in range(t)] if queries is None else queries
    keys = [str(i) for i in range(s)] if keys is None else keys
    for axis, labels, count in (("queries", queries, t), ("keys", keys, s)):
        if len(labels) != count:
            raise InputError(f"{axis} are {count}, but {len(labels)} labels came for them")
    hidden = np.where(np.stack(visible), np.stack(weights), 0.0).astype(np.float32)
    return Maps(hidden, np.stack(visible), [shown(q) for q in queries], [shown(k) for k in keys], name and shown(name))


def pick(weights: NDArray[Any], sample: int | None) -> NDArray[Any]:
    """One of a batch.    weights: (b, h, t, s)    returns: (h, t, s)"""
    if sample is None and len(weights) != 1:
        raise InputError(f"there are {len(weights)} samples; say which one to draw: sample=0")
    if not 0 <= (sample or 0) < len(weights):
        raise InputError(f"there is no sample {sample} among {len(weights)}")
    return weights[sample or 0]  # type: ignore[no-any-return]


def four_axes(weights: Any) -> NDArray[Any]:
    found = array(weights)
    if not 2 <= found.ndim <= 4:
        raise InputError(f"weights have {found.ndim} axes, {found.shape}; they take (t, s), (h, t, s) or (b, h, t, s)")
    return found.reshape((1,) * (4 - found.ndim) + found.shape)


def stretch(visible: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    rule = array(True if visible is None else visible)
    if (
        rule.dtype != bool
        or rule.ndim > 4
        or any(size not in (1, full) for size, full in zip(rule.shape[::-1], shape[::-1], strict=False))
    ):
        raise InputError(f"visible is {rule.dtype} {rule.shape}; it must be boolean and broadcast to weights {shape}")
    return np.broadcast_to(rule, shape)


def array(values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values  # numpy has no bfloat16
    return np.asarray(values)
