"""Faults of scale and softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.specimen import Specimen


@fault("scale.from_d_model", "B25", "C2", "truth.scale")
class ScaleFromModelWidth(Specimen):
    """The scale comes from the model width instead of the head width."""

    def choose_scale(self, scale: float | None) -> float:
        return self.d_model**-0.5 if scale is None else scale


@fault("scale.from_heads", "B25", "C2", "truth.sdpa")
class ScaleFromHeads(Specimen):
    """The scale comes from the number of heads."""

    def choose_scale(self, scale: float | None) -> float:
        return self.heads**-0.5 if scale is None else scale


@fault("scale.from_divided_width", "B32", "C2", "truth.scale")
class ScaleFromDividedWidth(Specimen):
    """The scale takes the head width to be d_model / heads, although head_dim was given."""

    def choose_scale(self, scale: float | None) -> float:
        return (self.d_model // self.heads) ** -0.5 if scale is None else scale


@fault("scale.twice", "B26", "C2", "truth.oracle")
class ScaleTwice(Specimen):
    """The queries are scaled, and the kernel scales again."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q * self.scale, k)


@fault("scale.missing", "B26", "C2", "truth.oracle")
class ScaleMissing(Specimen):
    """The logits are not scaled at all."""

    def choose_scale(self, scale: float | None) -> float:
        return 1.0


@fault("scale.inverted", "B26", "C2", "truth.sdpa")
class ScaleInverted(Specimen):
    """The logits are multiplied by the root of the head width instead of divided."""

    def choose_scale(self, scale: float | None) -> float:
        return math.sqrt(self.head_dim) if scale is None else scale


@fault("scale.linear", "ours", "C2", "truth.scale")
class ScaleLinear(Specimen):
    """The logits are divided by the head width instead of its root."""

    def choose_scale(self, scale: float | None) -> float:
        return 1.0 / self.head_dim if scale is None else scale


@fault("scale.zero_is_unset", "B26", "C2", "truth.scale")
class ScaleZeroIsUnset(Specimen):
    """An explicit scale of 0 is taken for none given."""

    def choose_scale(self, scale: float | None) -> float:
        return scale if scale else super().choose_scale(None)


@fault("scale.ignored", "ours", "C14", "build.options_matter")
class ScaleIgnored(Specimen):
    """A given scale is ignored."""

    def choose_scale(self, scale: float | None) -> float:
        return super().choose_scale(None)


@fault("softmax.over_queries", "B28", "C10", "rows.sums")
class SoftmaxOverQueries(Specimen):
    """The softmax runs down the columns."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        low = logits.masked_fill(~visible, -1e30)
        return low.softmax(-2).masked_fill(~visible, 0.0)


@fault("softmax.over_heads", "B28", "C10", "rows.sums")
class SoftmaxOverHeads(Specimen):
    """The softmax runs over the heads."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return logits.softmax(1).masked_fill(~visible, 0.0)


@fault("softmax.over_batch", "B28", "C10", "batch.independent")
class SoftmaxOverBatch(Specimen):
    """The softmax runs over the batch."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return logits.softmax(0).masked_fill(~visible, 0.0)


@fault("softmax.in_half", "B22", "C10", "numerics.half_sdpa")
class SoftmaxInHalf(Specimen):
    """Logits and softmax are taken in the half type of the input."""

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        return dtype


@fault("softmax.caps_float64", "B22", "C10", "truth.sdpa")
class SoftmaxCapsFloat64(Specimen):
    """The softmax is always taken in float32, also for float64."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return super().softmax(logits.float(), visible)


@fault("softmax.no_max_shift", "ours", "C10", "numerics.large_logits")
class SoftmaxWithoutShift(Specimen):
    """The row's maximum is not subtracted before exp, so that large logits overflow."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        raised = logits.exp().masked_fill(~visible, 0.0)
        total = raised.sum(-1, keepdim=True)
        return raised / total.masked_fill(total == 0, 1.0)


@fault("softmax.epsilon", "ours", "C15", "rows.sums")
class SoftmaxEpsilon(Specimen):
    """A small number is added to the softmax's denominator."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return super().softmax(logits, visible) / (1 + 1e-5)


@fault("softmax.plus_one", "B52", "C15", "rows.sums")
class SoftmaxPlusOne(Specimen):
    """A literal one is added to the denominator after the shift by the maximum."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        low = logits.masked_fill(~visible, -1e30)
        raised = (low - low.amax(-1, keepdim=True).detach()).exp().masked_fill(~visible, 0.0)
        return raised / (raised.sum(-1, keepdim=True) + 1)


@fault("softmax.floored", "ours", "C10", "mask.out_of_reach")
class WeightsFloored(Specimen):
    """Every weight, a blocked one too, gets at least a hundred-millionth."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return super().softmax(logits, visible).clamp(min=1e-8)


@fault("values.offset", "ours", "C12", "rows.probed")
class ValuesOffset(Specimen):
    """A constant is added to the mixed values, so that they are not linear in the values."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, v) + 0.1


@fault("values.last_key_unread", "ours", "C2", "causality.dependencies")
class LastKeyUnread(Specimen):
    """The last key is never read: a loop ends one too early."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights[..., :-1] @ v[..., :-1, :]


@fault("backward.keys_detached", "ours", "C2", "truth.oracle_gradients")
class KeysDetached(Specimen):
    """No gradient flows through the keys: right forward, wrong backward."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k.detach())


@fault("backward.weights_detached", "ours", "C2", "truth.finite_differences")
class WeightsDetached(Specimen):
    """No gradient flows through the softmax: right forward, wrong backward."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights.detach() @ v


def scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """x, with a gradient that is multiplied by a factor."""
    return factor * x - ((factor - 1) * x).detach()


@fault("backward.values_doubled", "ours", "C2", "truth.sdpa")
class ValueGradientDoubled(Specimen):
    """The gradient of the values comes twice: right forward, wrong backward."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ scaled_gradient(v, 2.0)


@fault("backward.uphill", "ours", "C16", "learning.ten_steps")
class Uphill(Specimen):
    """The gradient has the wrong sign."""

    def merge(self, mixed: Tensor) -> Tensor:
        return scaled_gradient(super().merge(mixed), -1.0)


@fault("backward.in_training", "ours", "C12", "mode.train_is_eval")
class GradientHalvedInTraining(Specimen):
    """The gradient is halved, in train mode only."""

    def merge(self, mixed: Tensor) -> Tensor:
        y = super().merge(mixed)
        return scaled_gradient(y, 0.5) if self.training else y


@fault("scale.sign_lost", "ours", "C2", "build.options_matter")
class ScaleSignLost(Specimen):
    """A scale below zero loses its sign."""

    def choose_scale(self, scale: float | None) -> float:
        return abs(super().choose_scale(scale))


@fault("logits.clamped", "ours", "C2", "truth.large")
class LogitsClamped(Specimen):
    """Logits are cut off at 100 either way, which nobody asked for."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k).clamp(-100, 100)


@fault("logits.in_half", "B22", "C10", "numerics.large_logits")
class LogitsInHalf(Specimen):
    """Queries and keys are multiplied in the half type, and the softmax is taken in float32."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return (self.scale * (q @ k.mT)).to(self.wide(q.dtype))


@fault("weights.gradient_halved", "ours", "C12", "rows.gradient")
class ReturnedWeightsHalved(Specimen):
    """The returned weights carry half of their gradient."""

    def show(self, weights: Tensor) -> Tensor:
        shown = super().show(weights)
        return (shown + shown.detach()) / 2


@fault("backward.key_weights_cut", "ours", "C16", "learning.reaches")
class KeyWeightsCut(Specimen):
    """No gradient reaches the projection of the keys, though it reaches the tokens through them."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        where = self.default_positions(x, offset) if positions is None else positions
        q, _, v = super().project(x, context, positions=positions, offset=offset)
        bias = None if self.k.bias is None else self.k.bias.detach()
        tokens = self.source(self.place_tokens(x, where), context)
        k = self.split(F.linear(tokens, self.k.weight.detach(), bias))
        return q, self.place(k, k, where)[1], v


@fault("backward.stops_at_frozen", "ours", "C16", "learning.frozen")
class StopsAtFrozen(Specimen):
    """Where no parameter learns, no gradient is passed on to the tokens."""

    def source(self, x: Tensor, context: Tensor | None) -> Tensor:
        source = super().source(x, context)
        return source if any(parameter.requires_grad for parameter in self.parameters()) else source.detach()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **asked: Any) -> Any:
        learns = any(parameter.requires_grad for parameter in self.parameters())
        return super().attend(q if learns else q.detach(), k, v, **asked)


class _Softmax(torch.autograd.Function):
    """A softmax with a backward pass by hand, which autograd cannot follow."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        weights = logits.softmax(-1)
        ctx.weights = weights.detach()
        return weights

    @staticmethod
    def backward(ctx: Any, pull: Tensor) -> Any:
        return ctx.weights * (pull - (pull * ctx.weights).sum(-1, keepdim=True))


@fault("backward.not_twice", "ours", "C2", "truth.second_derivative")
class NotTwice(Specimen):
    """The softmax's backward pass is written by hand: its own derivative is silently wrong."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        blind = ~visible.any(-1, keepdim=True)
        seen = logits.masked_fill(~visible, float("-inf")).masked_fill(blind, 0.0)
        weights: Tensor = _Softmax.apply(seen)  # type: ignore[no-untyped-call]
        return weights.masked_fill(blind, 0.0)
