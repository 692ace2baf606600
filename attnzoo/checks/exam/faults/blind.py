"""Faults of what is not seen: queries that see nothing, and what stands for minus infinity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.specimen import Specimen


@fault("blind.mean", "B17", "C6", "mask.blind_rows")
class BlindMean(Specimen):
    """A finite stand-in for minus infinity: a query that sees nothing takes the mean of what it may not see."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return logits.masked_fill(~visible, -1e9).softmax(-1)


@fault("blind.nan", "B17", "C6", "mask.blind_rows")
class BlindNaN(Specimen):
    """A query that sees nothing is NaN."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return logits.masked_fill(~visible, float("-inf")).softmax(-1)


@fault("blind.nan_gradient", "B17", "C6", "mask.blind_rows")
class BlindNaNGradient(Specimen):
    """A query that sees nothing is zero, but its gradient is NaN: the guard comes after the softmax only."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        blocked = torch.zeros_like(logits).masked_fill(~visible, float("-inf"))
        return torch.where(visible.any(-1, keepdim=True), (logits + blocked).softmax(-1), 0.0)


@fault("blind.by_mask_only", "B17", "C6", "mask.blind_rows")
class BlindByMaskOnly(Specimen):
    """The guard for queries that see nothing looks at each mask alone, not at their intersection."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        **asked: Any,
    ) -> Any:
        self.both = mask is not None and key_mask is not None
        return super().attend(q, k, v, mask=mask, key_mask=key_mask, **asked)

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        if self.both:
            return logits.masked_fill(~visible, -1e9).softmax(-1)
        return super().softmax(logits, visible)


@fault("blind.ghost_gradient", "ours", "C6", "mask.blind_gradient")
class BlindGhostGradient(Specimen):
    """A query that sees nothing is exactly zero, but passes a gradient to the values."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, need_weights: bool = False, **asked: Any) -> Any:
        mixed, weights = super().attend(q, k, v, need_weights=True, **asked)
        ghost = self.share(v, q.shape[1]).mean(2, keepdim=True) * (weights.sum(-1, keepdim=True) == 0)
        mixed = mixed + (ghost - ghost.detach())
        return (mixed, weights) if need_weights else mixed


@fault("filler.small", "B20", "C3", "causality.weights")
class FillerSmall(Specimen):
    """Blocked logits are set to -10, which leaves them weight."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        blind = ~visible.any(-1, keepdim=True)
        return logits.masked_fill(~visible, -10.0).softmax(-1).masked_fill(blind, 0.0)


@fault("filler.added", "B20", "C6", "mask.poison")
class FillerAdded(Specimen):
    """Blocked logits are lowered by ten thousand instead of replaced: a larger one still wins."""

    def hide(self, x: Tensor, visible: Tensor) -> Tensor:
        return x

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        blind = ~visible.any(-1, keepdim=True)
        return (logits - 1e4 * ~visible).softmax(-1).masked_fill(blind, 0.0)


@fault("filler.twice", "B20", "C6", "mask.blind_rows")
class FillerTwice(Specimen):
    """Each mask adds the type's lowest number: twice blocked is minus infinity, and a full row of it NaN."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        **asked: Any,
    ) -> Any:
        self.rules = [super().visible(q, k, mask, None), super().visible(q, k, None, key_mask)]
        return super().attend(q, k, v, mask=mask, key_mask=key_mask, **asked)

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        low = torch.finfo(logits.dtype).min
        for rule in self.rules:
            logits = logits + torch.zeros_like(logits).masked_fill(~rule, low)
        return logits.softmax(-1)


@fault("filler.overflow", "B19", "C6", "mask.overflow")
class FillerOverflow(Specimen):
    """Blocking adds minus infinity, so that a hidden logit that overflowed becomes NaN."""

    def hide(self, x: Tensor, visible: Tensor) -> Tensor:
        return x

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        blocked = torch.zeros_like(logits).masked_fill(~visible, float("-inf"))
        blind = ~visible.any(-1, keepdim=True)
        return (logits + blocked).masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
