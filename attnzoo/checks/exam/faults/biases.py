"""Faults of softcaps, linear biases and sinks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.kinds import AlibiSpecimen, CappedSpecimen, SunkSpecimen
from attnzoo.checks.exam.faults.specimen import Specimen


class _Forgetful(Specimen):
    """Knows what is asked of it, so that a step can be forgotten then."""

    with_mask = with_weights = in_step = False

    def forward(self, x: Tensor, *args: Any, need_weights: bool = False, **asked: Any) -> Any:
        self.with_weights = need_weights
        return super().forward(x, *args, need_weights=need_weights, **asked)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, **asked: Any) -> Any:
        self.with_mask, self.in_step = mask is not None, q.shape[2] == 1 < k.shape[2]
        return super().attend(q, k, v, mask=mask, **asked)


# Softcaps.


@fault("softcap.missing", "B23", "C2", "softcap.bends")
class SoftcapMissing(CappedSpecimen):
    """The softcap is accepted and has no effect."""

    def cap(self, logits: Tensor) -> Tensor:
        return logits


@fault("softcap.before_scale", "B23", "C2", "softcap.bends")
class SoftcapBeforeScale(CappedSpecimen):
    """The products are capped before they are scaled."""

    def cap(self, logits: Tensor) -> Tensor:
        return super().cap(logits / self.scale) * self.scale if self.scale else logits


@fault("softcap.after_mask", "B23", "C2", "softcap.blocked")
class SoftcapAfterMask(CappedSpecimen):
    """The softcap comes after the mask, so that a blocked key has a logit of minus the cap."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super(CappedSpecimen, self).logits(q, k)

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        blind = ~visible.any(-1, keepdim=True)
        return self.cap(logits.masked_fill(~visible, float("-inf"))).softmax(-1).masked_fill(blind, 0.0)


@fault("softcap.caps_bias", "B23", "C2", "truth.oracle")
class SoftcapCapsBias(CappedSpecimen):
    """A floating mask is added before the softcap, and capped with the logits."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super(CappedSpecimen, self).logits(q, k)

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        return self.cap(super().add_mask(logits, mask, q))


@fault("softcap.clamped", "ours", "C2", "softcap.bends")
class SoftcapClamped(CappedSpecimen):
    """Logits are cut off at the cap instead of bent towards it."""

    def cap(self, logits: Tensor) -> Tensor:
        return logits.clamp(-self.softcap, self.softcap)


@fault("softcap.one_sided", "ours", "C2", "softcap.bounds")
class SoftcapOneSided(CappedSpecimen):
    """Only logits above zero are capped."""

    def cap(self, logits: Tensor) -> Tensor:
        return torch.where(logits > 0, super().cap(logits), logits)


@fault("softcap.multiplied_not_divided", "ours", "C2", "softcap.bends")
class SoftcapUndivided(CappedSpecimen):
    """The logits are not divided by the cap before tanh."""

    def cap(self, logits: Tensor) -> Tensor:
        return self.softcap * torch.tanh(logits)


@fault("softcap.straight_through", "ours", "C2", "truth.finite_differences")
class SoftcapStraightThrough(CappedSpecimen):
    """The backward pass leaves out the softcap: right forward, wrong backward."""

    def cap(self, logits: Tensor) -> Tensor:
        return logits + (super().cap(logits) - logits).detach()


@fault("softcap.not_with_mask", "B23", "C12", "mask.all_true")
class SoftcapNotWithMask(_Forgetful, CappedSpecimen):
    """Given a mask, the softcap is forgotten."""

    def cap(self, logits: Tensor) -> Tensor:
        return logits if self.with_mask else super().cap(logits)


@fault("softcap.not_with_weights", "B23", "C12", "rows.same_output")
class SoftcapNotWithWeights(_Forgetful, CappedSpecimen):
    """When the weights are asked for, the softcap is forgotten."""

    def cap(self, logits: Tensor) -> Tensor:
        return logits if self.with_weights else super().cap(logits)


@fault("softcap.not_in_decode", "B23", "C12", "cache.equals_whole")
class SoftcapNotInDecode(_Forgetful, CappedSpecimen):
    """In a step of one token, the softcap is forgotten."""

    def cap(self, logits: Tensor) -> Tensor:
        return logits if self.in_step else super().cap(logits)


@fault("softcap.zero_taken", "ours", "C2", "build.refuses_softcap")
class SoftcapZeroTaken(CappedSpecimen):
    """A softcap of zero, or below, is accepted."""

    def check_softcap(self, softcap: float) -> None:
        pass


@fault("softcap.ignored", "ours", "C14", "build.options_matter")
class SoftcapIgnored(CappedSpecimen):
    """A given softcap is ignored."""

    def __init__(self, *args: Any, softcap: float = 50.0, **options: Any) -> None:
        super().__init__(*args, softcap=softcap, **options)
        self.softcap = 50.0


# Linear biases.


@fault("alibi.naive_slopes", "B50", "C2", "alibi.slopes")
class NaiveSlopes(AlibiSpecimen):
    """The slopes are 2^(-8 h / H) for any number of heads."""

    def slopes(self) -> Tensor:
        return torch.exp2(-8 * torch.arange(1, self.heads + 1, dtype=torch.float64) / self.heads)


@fault("alibi.from_zero", "B50", "C2", "alibi.slopes")
class SlopesFromZero(AlibiSpecimen):
    """The first slope is 1: the exponents start at 0."""

    def slopes(self) -> Tensor:
        power: int = 1 << (self.heads.bit_length() - 1)
        return super().slopes() * float(2 ** (8 / power))


@fault("alibi.sorted", "B50", "C2", "alibi.slopes")
class SlopesSorted(AlibiSpecimen):
    """The slopes of other than powers of two are sorted."""

    def slopes(self) -> Tensor:
        slopes: Tensor = super().slopes().sort(descending=True).values
        return slopes


@fault("alibi.reversed_sign", "B50", "C2", "alibi.slopes")
class SlopesReversed(AlibiSpecimen):
    """The bias has the wrong sign: the farther a key stands, the more it is heard."""

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        return -super().bias(q, k)


@fault("alibi.scaled", "ours", "C2", "alibi.slopes")
class BiasScaled(AlibiSpecimen):
    """The bias is scaled with the products."""

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        return super().bias(q, k) * self.scale


@fault("alibi.per_key_value_head", "ours", "C7", "alibi.slopes")
class SlopesPerGroup(AlibiSpecimen):
    """The slopes are those of as many heads as there are key-value heads."""

    def slopes(self) -> Tensor:
        heads, self.heads = self.heads, self.kv_heads
        try:
            return super().slopes().repeat_interleave(heads // self.kv_heads)
        finally:
            self.heads = heads


@fault("alibi.restarts_in_decode", "B51", "C5", "cache.equals_whole")
class DistanceRestarts(AlibiSpecimen):
    """With a cache, the distances of new tokens are counted from the first token."""

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        t, s = q.shape[2], k.shape[2]
        return (torch.arange(t, device=q.device)[:, None] - torch.arange(s, device=q.device)).abs()


@fault("alibi.places_in_half", "ours", "C17", "numerics.half_long")
class PlacesInHalf(AlibiSpecimen):
    """In half types the bias is a slope times the key's place in that type, where far places are not told apart."""

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        places = torch.arange(k.shape[2], device=q.device).to(q.dtype)
        bias = self.slopes().to(places)[:, None, None] * places
        return super().bias(q, k) if q.dtype in (torch.float32, torch.float64) else bias.to(self.wide(q.dtype))


@fault("alibi.none_in_decode", "B51", "C12", "cache.equals_whole")
class NoBiasInDecode(_Forgetful, AlibiSpecimen):
    """In a step of one token there is no bias."""

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        return super().bias(q, k) * (0.0 if self.in_step else 1.0)


@fault("alibi.one_way", "ours", "C2", "truth.oracle")
class DistanceOneWay(AlibiSpecimen):
    """Without causality later tokens have a distance below zero, and are heard the more the later they come."""

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        t, s = q.shape[2], k.shape[2]
        return torch.arange(s - t, s, device=q.device)[:, None] - torch.arange(s, device=q.device)


@fault("alibi.missing", "ours", "C14", "position.order")
class BiasMissing(AlibiSpecimen):
    """There is no bias at all."""

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        return 0.0 * super().bias(q, k)


@fault("alibi.not_with_mask", "ours", "C12", "mask.all_true")
class BiasNotWithMask(_Forgetful, AlibiSpecimen):
    """Given a mask, there is no bias: it was handed over in the mask's place."""

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        return super().bias(q, k) * (0.0 if self.with_mask else 1.0)


@fault("alibi.positions_taken", "ours", "C14", "claims.unclaimed")
class AlibiTakesPositions(AlibiSpecimen):
    """Positions are accepted, and have no effect."""

    def refuse(self, context: Tensor | None, positions: Tensor | None, cache: Any) -> None:
        super().refuse(context, None, cache)


# Sinks.


@fault("sinks.scaled", "B52", "C2", "sinks.share")
class SinkScaled(SunkSpecimen):
    """The sink is scaled like a product."""

    def sink(self, logits: Tensor) -> Tensor:
        return self.scale * super().sink(logits)


@fault("sinks.capped", "B52", "C2", "sinks.share")
class SinkCapped(SunkSpecimen, CappedSpecimen):
    """The sink is capped like a product."""

    def sink(self, logits: Tensor) -> Tensor:
        return self.cap(super().sink(logits))


@fault("sinks.unshifted", "B52", "C2", "sinks.share")
class SinkUnshifted(SunkSpecimen):
    """The sink's term is added after the shift by the row's maximum, and not shifted itself."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        low = logits.masked_fill(~visible, -1e30)
        raised = (low - low.amax(-1, keepdim=True).detach()).exp().masked_fill(~visible, 0.0)
        return raised / (raised.sum(-1, keepdim=True) + self.sink(logits).exp().reshape(-1, 1, 1))


@fault("sinks.reversed_sign", "B52", "C2", "sinks.share")
class SinkReversed(SunkSpecimen):
    """The sink has the wrong sign."""

    def sink(self, logits: Tensor) -> Tensor:
        return -super().sink(logits)


@fault("sinks.gives_a_value", "B52", "C2", "sinks.share")
class SinkGivesValue(SunkSpecimen):
    """The sink's share goes to the first value instead of nowhere."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, v) + (1 - weights.sum(-1, keepdim=True)) * v[..., :1, :]


@fault("sinks.weight_kept", "B52", "C1", "shape.weights")
class SinkWeightKept(SunkSpecimen):
    """The returned weights have a column more, that of the sink."""

    def show(self, weights: Tensor) -> Tensor:
        return torch.cat([weights, 1 - weights.sum(-1, keepdim=True)], dim=-1)


@fault("sinks.normalised", "B52", "C15", "sinks.alike")
class SinkNormalised(SunkSpecimen):
    """After the sink has taken its share the rows are normalised again."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        weights = super().softmax(logits, visible)
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)


@fault("sinks.gradient_cut", "B52", "C2", "sinks.gradient")
class SinkGradientCut(SunkSpecimen):
    """The sinks learn nothing: no gradient reaches them."""

    def sink(self, logits: Tensor) -> Tensor:
        return super().sink(logits).detach() + 0.0 * self.sinks.to(logits.dtype)


@fault("sinks.gradient_cut_by_weights", "ours", "C12", "sinks.gradient")
class SinkGradientCutByWeights(_Forgetful, SunkSpecimen):
    """When the weights are asked for, no gradient reaches the sinks."""

    def sink(self, logits: Tensor) -> Tensor:
        return super().sink(logits).detach() if self.with_weights else super().sink(logits)


@fault("sinks.shared_in_group", "ours", "C7", "sinks.alike")
class SinkSharedInGroup(SunkSpecimen):
    """The heads of a group share the sink of their first."""

    def sink(self, logits: Tensor) -> Tensor:
        group = self.heads // self.kv_heads
        return super().sink(logits)[::group].repeat_interleave(group)


@fault("sinks.not_with_mask", "B52", "C12", "mask.all_true")
class SinkNotWithMask(_Forgetful, SunkSpecimen):
    """Given a mask, the sinks are forgotten."""

    def sink(self, logits: Tensor) -> Tensor:
        return super().sink(logits) - (1e4 if self.with_mask else 0.0)


@fault("sinks.not_with_weights", "B52", "C12", "rows.same_output")
class SinkNotWithWeights(_Forgetful, SunkSpecimen):
    """When the weights are asked for, the sinks are forgotten."""

    def sink(self, logits: Tensor) -> Tensor:
        return super().sink(logits) - (1e4 if self.with_weights else 0.0)


@fault("sinks.not_in_decode", "B52", "C12", "cache.equals_whole")
class SinkNotInDecode(_Forgetful, SunkSpecimen):
    """In a step of one token, the sinks are forgotten."""

    def sink(self, logits: Tensor) -> Tensor:
        return super().sink(logits) - (1e4 if self.in_step else 0.0)
