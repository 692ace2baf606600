"""Faults of dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.specimen import Specimen


@fault("dropout.in_eval", "B61", "C11", "mode.dropout")
class DropoutInEval(Specimen):
    """Dropout is active in eval."""

    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.dropout)


@fault("dropout.never", "B61", "C11", "mode.dropout")
class DropoutNever(Specimen):
    """Dropout is never active."""

    def drop(self, weights: Tensor) -> Tensor:
        return weights


@fault("dropout.not_rescaled", "B61", "C11", "mode.dropout_mean")
class DropoutNotRescaled(Specimen):
    """The weights that dropout keeps are not scaled up."""

    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.dropout, self.training) * (1 - self.dropout if self.training else 1)


@fault("dropout.renormalised", "ours", "C11", "mode.dropout_mean")
class DropoutRenormalised(Specimen):
    """After dropout the rows are normalised again."""

    def drop(self, weights: Tensor) -> Tensor:
        kept = super().drop(weights)
        return kept / kept.sum(-1, keepdim=True).clamp(min=1e-6) if self.training and self.dropout else kept


@fault("dropout.any_share", "ours", "C11", "build.refuses_dropout")
class DropoutAnyShare(Specimen):
    """A dropout of 1, or below 0, is accepted."""

    def check_options(self, dropout: float, backend: str) -> None:
        super().check_options(0.0, backend)


@fault("dropout.not_under_mask", "ours", "C11", "mode.dropout")
class DropoutNotUnderMask(Specimen):
    """Given a mask, nothing is dropped."""

    masked = False

    def mask_rule(self, mask: Tensor) -> Tensor:
        self.masked = True
        return super().mask_rule(mask)

    def drop(self, weights: Tensor) -> Tensor:
        masked, self.masked = self.masked, False
        return weights if masked else super().drop(weights)


class WithoutDropout(Specimen):
    """Drops none of the weights, but something else."""

    def drop(self, weights: Tensor) -> Tensor:
        return weights


@fault("dropout.on_values", "ours", "C11", "mode.dropout_pattern")
class DropoutOnValues(WithoutDropout):
    """The values are dropped instead of the weights."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, F.dropout(v, self.dropout, self.training))


@fault("dropout.on_channels", "ours", "C11", "mode.dropout_pattern")
class DropoutOnChannels(WithoutDropout):
    """The channels of the weighted sum are dropped instead of the weights."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return F.dropout(super().mix(weights, v), self.dropout, self.training)


@fault("dropout.on_output_too", "ours", "C11", "mode.dropout_pattern")
class DropoutOnOutputToo(Specimen):
    """The output is dropped as well as the weights."""

    def forward(self, *given: Any, **asked: Any) -> Any:
        found = super().forward(*given, **asked)
        y, *more = found if isinstance(found, tuple) else (found,)
        y = F.dropout(y, self.dropout, self.training)
        return (y, *more) if more else y


@fault("dropout.of_whole_rows", "ours", "C11", "mode.dropout_pattern")
class DropoutOfWholeRows(Specimen):
    """All weights of a query are dropped together, or none."""

    def drop(self, weights: Tensor) -> Tensor:
        return weights * F.dropout(torch.ones_like(weights[..., :1]), self.dropout, self.training)


@fault("dropout.alike_in_heads", "ours", "C11", "mode.dropout_pattern")
class DropoutAlikeInHeads(Specimen):
    """The same weights are dropped in every head."""

    def drop(self, weights: Tensor) -> Tensor:
        return weights * F.dropout(torch.ones_like(weights[:, :1]), self.dropout, self.training)


@fault("dropout.alike_in_samples", "ours", "C11", "mode.dropout_pattern")
class DropoutAlikeInSamples(Specimen):
    """The same weights are dropped in every sample."""

    def drop(self, weights: Tensor) -> Tensor:
        return weights * F.dropout(torch.ones_like(weights[:1]), self.dropout, self.training)
