"""The inner steps of attention, taken again from a call's real q, k and v, and held against its real output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnzoo.viz.probe import effective, evaluating, mix, share, tolerance, visibility
from attnzoo.viz.stages import Watched


@dataclass(frozen=True)
class Part:
    """A tensor on the way: its name and symbolic shape, what it cost, and where; `visible` picks what is not masked."""

    name: str
    axes: str
    made: Tensor
    parameters: int = 0
    flops: int = 0
    where: str = ""
    visible: Tensor | None = None

    def at(self, where: str) -> Part:
        return replace(self, where=where)


@dataclass(frozen=True)
class Inside:
    """The steps between q, k, v and the mixed values; whether they give the real output, and how far off they are."""

    parts: Sequence[Part]
    proven: bool
    error: float
    note: str


def inner_steps(layer: Any, seen: Watched) -> Inside:
    """Scores, scale, mask, softmax, weighted sum; or the effective matrix alone, where attention is made otherwise."""
    allowed, error = tolerance(seen.y), float("inf")
    visible = visibility(layer, seen.q, seen.k, seen.v, **seen.rules)
    if visible.shape[1] == seen.q.shape[1]:
        scale = getattr(layer, "scale", None)
        scale = seen.q.shape[-1] ** -0.5 if scale is None else float(scale)
        parts, weights = softmax_steps(seen, visible, scale)
        error = gap(layer, seen, weights)
        if error <= allowed:
            note = f"Proven: scores to weighted sum, taken again from q, k and v, give the real output to {error:.0e}."
            return Inside([*parts, weighted_sum("weights · v", seen, weights)], True, error, note)
    matrix = effective(layer, seen.q, seen.k, seen.v, **seen.rules)
    plain_error, error = error, gap(layer, seen, matrix)
    parts = [Part("matrix M", f"b {heads_of(matrix, seen)} t s", matrix), weighted_sum("M · v", seen, matrix)]
    note = (
        f"Not softmax(scale · q kᵀ) v, which is off by {plain_error:.0e}: there is a cap, a bias, a sink or another "
        f"formula, so that scores are not shown. The matrix M is read off attend with one-hot values; it "
    )
    if error <= allowed:
        return Inside(parts, True, error, f"{note}gives the real output to {error:.0e}.")
    return Inside(parts, False, error, f"{note}is off by {error:.0e} too, so that it is NOT what happens here.")


def softmax_steps(seen: Watched, visible: Tensor, scale: float) -> tuple[list[Part], Tensor]:
    """The definition (C2), in the wide type (C10).    returns: the steps, and the weights (b, h, t, s)"""
    wide = torch.promote_types(seen.q.dtype, torch.float32)
    h, (b, _, t, d), s = seen.q.shape[1], seen.q.shape, seen.k.shape[2]
    scores = seen.q.to(wide) @ share(seen.k, h).to(wide).mT
    logits = scale * scores
    entries = b * h * t * s
    parts = [
        Part("scores q · kᵀ", "b h t s", scores, flops=2 * entries * d),
        Part(f"scaled by {scale:.3g}", "b h t s", logits, flops=entries),
    ]
    mask = seen.rules.get("mask")
    if mask is not None and mask.is_floating_point():
        logits = logits + mask.to(wide)
    blind = ~visible.any(dim=-1, keepdim=True)
    logits = logits.masked_fill(~visible, float("-inf"))
    hidden = int((~visible).sum())
    if hidden:
        parts.append(Part(f"masked, {hidden / entries:.0%} hidden", "b h t s", logits, visible=visible))
    weights = logits.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)
    parts.append(Part("softmax: weights", "b h t s", weights, flops=3 * entries, visible=visible if hidden else None))
    return parts, weights


def weighted_sum(name: str, seen: Watched, weights: Tensor) -> Part:
    """The real mixed values; the FLOPs are those of weights @ v."""
    e = seen.mixed.shape[-1]
    axes = f"b {heads_of(seen.mixed, seen)} t {'d' if e == seen.q.shape[-1] else e}"
    return Part(name, axes, seen.mixed, flops=2 * weights.numel() * e)


def gap(layer: Any, seen: Watched, weights: Tensor) -> float:
    """How far merge(weights @ v) is from the real output, at most."""
    if weights.shape[1] % seen.v.shape[1]:
        return float("inf")
    with evaluating(layer), torch.no_grad():
        y = layer.merge(mix(weights, seen.v.to(weights.dtype)).to(seen.mixed.dtype))
    return float((y - seen.y).abs().max()) if y.numel() else 0.0


def heads_of(made: Tensor, seen: Watched) -> str:
    """The letter of the heads, or their number where attention mixes them into more or fewer."""
    return "h" if made.shape[1] == seen.q.shape[1] else str(made.shape[1])
