"""Faults that show on large sizes only."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.kinds import AlibiSpecimen, RotarySpecimen
from attnzoo.checks.exam.faults.scores import scaled_gradient
from attnzoo.checks.exam.faults.specimen import Specimen, SpecimenCache


@fault("long.to_end_of_block", "ours", "C5", "causality.long")
class ToEndOfBlock(Specimen):
    """Beyond 128 tokens a query sees to the end of its block of 64."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        t, s = q.shape[2], k.shape[2]
        if s <= 128:
            return super().causal_rule(q, k)
        block = torch.arange(s, device=q.device) // 64
        return block[s - t :, None] >= block


@fault("long.without_gradients", "ours", "C5", "causality.long")
class WithoutGradients(Specimen):
    """Beyond 128 tokens, and where no gradient is asked for, the newest queries miss the first key."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        rule = super().causal_rule(q, k)
        if not torch.is_grad_enabled() and q.shape[2] > 128:
            rule[128:, 0] = False
        return rule


@fault("long.scale_grows", "ours", "C2", "truth.large")
class ScaleGrows(Specimen):
    """Beyond 512 keys the scale grows with the logarithm of their number."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) * max(1.0, math.log(max(k.shape[2], 1), 512))


@fault("long.mask_ends", "ours", "C4", "truth.large")
class MaskEnds(Specimen):
    """Beyond 512 keys a boolean mask is left out."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        rule = super().mask_rule(mask)
        return torch.ones_like(rule) if mask.dtype == torch.bool and mask.shape[-1] > 512 else rule


@fault("long.weights_shared", "ours", "C12", "truth.large")
class LongWeightsShared(Specimen):
    """Beyond 512 keys the returned weights are those of the first head, for all of them."""

    def show(self, weights: Tensor) -> Tensor:
        return weights[:, :1].expand_as(weights) if weights.shape[-1] > 512 else weights


@fault("long.gradient_halved", "ours", "C2", "truth.large_gradients")
class LongGradientHalved(Specimen):
    """Beyond 256 keys the backward pass gives half of the values' gradient."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, scaled_gradient(v, 0.5) if v.shape[2] > 256 else v)


@fault("long.distances_end", "ours", "C5", "truth.large")
class DistancesEnd(AlibiSpecimen):
    """Distances beyond 256 are taken to be 256."""

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        return super().distance(q, k).clamp(max=256)


@fault("wide.fixed_scale", "ours", "C2", "truth.large")
class FixedScale(Specimen):
    """Heads of 64 channels and more are all scaled by an eighth."""

    def choose_scale(self, scale: float | None) -> float:
        return 0.125 if scale is None and self.head_dim >= 64 else super().choose_scale(scale)


@fault("many.padded_by_eights", "ours", "C4", "mask.padding")
class PaddedByEights(Specimen):
    """From the ninth sample on, samples are padded as the first ones are."""

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        return super().key_rule(key_mask[torch.arange(len(key_mask), device=q.device) % 8], q)


@fault("cache.growth_forgets", "ours", "C13", "cache.long")
class GrowthForgets(Specimen):
    """When a cache grows beyond 128 tokens, those from 64 to 128 are not taken along."""

    class Cache(SpecimenCache):
        def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            grows = self.length > 0 and self.length + k.shape[2] > 128
            keys, values = super().append(k, v)
            lost = slice(64, 128) if grows else slice(0)
            keys, values = keys.clone(), values.clone()
            keys[:, :, lost], values[:, :, lost] = 0.0, 0.0
            return keys, values


@fault("cache.late_padding_ignored", "ours", "C4", "cache.long")
class LatePaddingIgnored(Specimen):
    """In steps of one token on 64 keys or more, the key_mask is ignored."""

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        rule = super().key_rule(key_mask, q)
        return torch.ones_like(rule) if q.shape[2] == 1 and key_mask.shape[1] >= 64 else rule


@fault("rope.wraps", "ours", "C9", "cache.long")
class Wraps(RotarySpecimen):
    """With a cache, positions that are not given start again after 256."""

    def default_positions(self, x: Tensor, offset: int) -> Tensor:
        return super().default_positions(x, offset % 256)
