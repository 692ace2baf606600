"""Faults of masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.specimen import Specimen


@fault("mask.inverted", "B04", "C3", "mask.blocks")
class MaskInverted(Specimen):
    """A boolean mask blocks where it is True."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        return ~mask if mask.dtype == torch.bool else super().mask_rule(mask)


@fault("mask.added", "B05", "C3", "mask.blocks")
class MaskAdded(Specimen):
    """A boolean mask is added to the logits as ones and zeros, and blocks nothing."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        return torch.ones_like(mask, dtype=torch.bool)

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        return logits if mask is None else logits + mask.to(logits.dtype)


@fault("mask.integers_taken", "B05", "C3", "shape.refuses_mask")
class IntegersTaken(Specimen):
    """A mask of integers is accepted."""

    def check_mask(self, mask: Tensor | None, x: Tensor, s: int) -> None:
        super().check_mask(mask if mask is None or mask.is_floating_point() else mask.bool(), x, s)

    def mask_rule(self, mask: Tensor) -> Tensor:
        return super().mask_rule(mask if mask.is_floating_point() else mask.bool())


@fault("mask.three_axes_taken", "ours", "C4", "shape.refuses_mask")
class ThreeAxesTaken(Specimen):
    """A mask of three axes is accepted, and guessed to be one per sample."""

    def check_mask(self, mask: Tensor | None, x: Tensor, s: int) -> None:
        super().check_mask(mask[:, None] if mask is not None and mask.dim() == 3 else mask, x, s)

    def mask_rule(self, mask: Tensor) -> Tensor:
        return super().mask_rule(mask[:, None] if mask.dim() == 3 else mask)


@fault("mask.replaces_causality", "B07", "C3", "causality.no_future")
class MaskReplacesCausality(Specimen):
    """A mask takes the place of causality instead of meeting it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, **asked: Any) -> Any:
        causal, self.causal = self.causal, self.causal and mask is None
        try:
            return super().attend(q, k, v, mask=mask, **asked)
        finally:
            self.causal = causal


@fault("mask.drops_padding", "B07", "C3", "mask.intersect")
class MaskDropsPadding(Specimen):
    """Given a mask, the key_mask is forgotten."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        return super().visible(q, k, mask, None if mask is not None else key_mask)


@fault("mask.united", "B07", "C3", "mask.intersect")
class MasksUnited(Specimen):
    """Mask and key_mask are joined by OR."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        if mask is None or key_mask is None:
            return super().visible(q, k, mask, key_mask)
        return super().visible(q, k, mask, None) | super().visible(q, k, None, key_mask)


@fault("mask.none_means_causal", "B08", "C5", "causality.dependencies")
class NoneMeansCausal(Specimen):
    """Without a mask the layer is causal, also when it was built with causal=False."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        visible = super().visible(q, k, mask, key_mask)
        square = q.shape[2] == k.shape[2]
        return visible & self.causal_rule(q, k) if square and mask is None and key_mask is None else visible


@fault("mask.tiled_over_heads", "B11", "C4", "mask.per_sample")
class MaskTiled(Specimen):
    """A mask per sample is tiled over the flattened batch and heads, so that samples get each other's."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        b, h = logits.shape[:2]
        if visible.shape[1] == 1:
            visible = visible[:, 0].repeat(h, 1, 1).reshape(b, h, *visible.shape[2:])
        return super().softmax(logits, visible)


@fault("mask.after_softmax", "B13", "C3", "rows.sums")
class MaskAfterSoftmax(Specimen):
    """Weights are zeroed after the softmax and not normalised again."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return logits.softmax(-1).masked_fill(~visible, 0.0)


@fault("mask.multiplied", "B13", "C3", "causality.weights")
class MaskMultiplied(Specimen):
    """Blocked logits are multiplied by zero, so that the key still gets exp(0)."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return (logits * visible).softmax(-1)


@fault("mask.transposed", "ours", "C4", "mask.forms")
class MaskTransposed(Specimen):
    """A mask of two axes is read keys first."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        return super().mask_rule(mask.mT if mask.dim() == 2 and mask.shape[0] == mask.shape[1] else mask)


@fault("mask.first_sample_for_all", "ours", "C4", "mask.per_sample")
class FirstMaskForAll(Specimen):
    """The mask of the first sample serves the whole batch."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        return super().mask_rule(mask[:1] if mask.dim() == 4 else mask)


@fault("mask.first_head_for_all", "ours", "C4", "mask.adds")
class FirstHeadsMaskForAll(Specimen):
    """The floating mask of the first head serves all heads."""

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        return super().add_mask(logits, mask[:, :1] if mask is not None and mask.dim() == 4 else mask, q)


@fault("mask.changes_scale", "ours", "C12", "mask.all_true")
class MaskChangesScale(Specimen):
    """The path that takes a mask forgets the scale, so that even an all-True mask changes the output."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, **asked: Any) -> Any:
        return super().attend(q if mask is None else q / max(self.scale, 1e-3), k, v, mask=mask, **asked)


@fault("mask.float_rounded", "B78", "C3", "mask.wide")
class FloatMaskRounded(Specimen):
    """A floating mask is cast to the type of the queries before it is added."""

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        return super().add_mask(logits, mask.to(q.dtype) if mask is not None and mask.is_floating_point() else mask, q)


@fault("mask.float_detached", "B67", "C3", "mask.adds")
class FloatMaskDetached(Specimen):
    """A floating mask gets no gradient."""

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        kept = super().add_mask(logits, mask.detach() if mask is not None else None, q)
        return kept if mask is None or mask.dtype == torch.bool else kept + 0.0 * mask.clamp(-1, 1).nan_to_num()


@fault("mask.float_scaled", "ours", "C2", "mask.adds")
class FloatMaskScaled(Specimen):
    """A floating mask is added before the scale, and scaled with the logits."""

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        if mask is None or mask.dtype == torch.bool:
            return logits
        return logits + (self.scale * mask).nan_to_num(nan=float("-inf"), neginf=float("-inf")).to(logits.dtype)


@fault("mask.float_subtracted", "ours", "C3", "truth.oracle")
class FloatMaskSubtracted(Specimen):
    """A floating mask is subtracted."""

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        return super().add_mask(logits, -mask if mask is not None and mask.is_floating_point() else mask, q)


@fault("mask.float_as_boolean", "ours", "C3", "mask.adds")
class FloatMaskAsBoolean(Specimen):
    """A floating mask only blocks: its finite values are ignored."""

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        return logits


@fault("padding.on_queries", "B10", "C4", "mask.padding")
class PaddingOnQueries(Specimen):
    """The key_mask blocks the rows of padded queries instead of the padded keys."""

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        return key_mask[:, None, -q.shape[2] :, None]


@fault("padding.pairs_alike", "B10", "C4", "truth.oracle")
class PaddingPairsAlike(Specimen):
    """A pair is allowed when both are real or both padded, so that padding attends to padding."""

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        return key_mask[:, None, -q.shape[2] :, None] == key_mask[:, None, None, :]


@fault("padding.rolled", "B11", "C4", "mask.padding")
class PaddingOfTheNeighbour(Specimen):
    """Each sample gets the padding of its neighbour."""

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        return super().key_rule(key_mask.roll(1, 0), q)


@fault("padding.ignored", "B13", "C14", "mask.padding")
class PaddingIgnored(Specimen):
    """The key_mask is accepted and has no effect."""

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        return torch.ones_like(key_mask)[:, None, None, :]


@fault("padding.batch_of_one", "B13", "C4", "mask.padding")
class PaddingSkippedForOne(Specimen):
    """For a batch of one the key_mask is skipped."""

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        return super().key_rule(torch.ones_like(key_mask) if key_mask.shape[0] == 1 else key_mask, q)


@fault("padding.right_only", "B43", "C4", "mask.padding")
class PaddingRightOnly(Specimen):
    """The key_mask is read as a length from the left, so that left padding is misread."""

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        index = torch.arange(key_mask.shape[1], device=key_mask.device)
        return super().key_rule(index < key_mask.sum(1, keepdim=True), q)


@fault("padding.new_tokens_only", "ours", "C4", "cache.padded")
class PaddingOfNewTokensOnly(Specimen):
    """With a cache, the key_mask is applied to the newest tokens only."""

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        old = key_mask.shape[1] - q.shape[2]
        return super().key_rule(torch.cat([torch.ones_like(key_mask[:, :old]), key_mask[:, old:]], dim=1), q)


@fault("padding.integers_taken", "ours", "C4", "shape.refuses_key_mask")
class PaddingOfAnyType(Specimen):
    """A key_mask of integers or floats is accepted."""

    def check_key_mask(self, key_mask: Tensor | None, x: Tensor, s: int) -> None:
        super().check_key_mask(None if key_mask is None else key_mask.bool(), x, s)

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        return super().key_rule(key_mask.bool(), q)


def _groups_first(mask: Tensor, groups: int) -> Tensor:
    """The heads of a mask (b, h, t, s), counted through the groups first."""
    b, h, t, s = mask.shape
    return mask.reshape(b, h // groups, groups, t, s).transpose(1, 2).reshape(b, h, t, s)


@fault("mask.heads_shuffled", "ours", "C4", "mask.heads")
class MaskHeadsShuffled(Specimen):
    """A mask for each head is counted through the groups first, and reaches other heads."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        rule = super().mask_rule(mask)
        return _groups_first(rule, self.kv_heads) if rule.dim() == 4 and rule.shape[1] > 1 else rule

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        each = mask is not None and mask.dim() == 4 and mask.shape[1] > 1
        return super().add_mask(logits, _groups_first(mask, self.kv_heads) if each and mask is not None else mask, q)


@fault("mask.first_head_decides", "ours", "C4", "mask.heads")
class MaskFirstHeadDecides(Specimen):
    """A mask for each head is taken for none where that of the first head allows all."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        rule = super().mask_rule(mask)
        none = mask.dtype == torch.bool and mask.dim() == 4 and mask.numel() > 0 and bool(mask[0, 0].all())
        return torch.ones_like(rule) if none else rule


@fault("mask.float_of_group", "ours", "C3", "mask.weighs")
class MaskFloatOfGroup(Specimen):
    """The heads of a group share the floating mask of their first."""

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        if mask is not None and mask.dim() == 4 and mask.shape[1] > 1:
            group = self.heads // self.kv_heads
            mask = mask[:, ::group].repeat_interleave(group, dim=1)
        return super().add_mask(logits, mask, q)


@fault("mask.low_blocks", "ours", "C3", "mask.low")
class MaskLowBlocks(Specimen):
    """A floating mask blocks from -10000 down, not at minus infinity only."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        return mask if mask.dtype == torch.bool else mask > -1e4


@fault("mask.column_skipped", "ours", "C4", "mask.broadcasts")
class MaskColumnSkipped(Specimen):
    """A mask that is the same for all keys is left out, also where it blocks them all."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        rule = super().mask_rule(mask)
        return torch.ones_like(rule) if mask.shape[-1] == 1 else rule


@fault("mask.gradient_halved", "ours", "C3", "mask.learns")
class MaskGradientHalved(Specimen):
    """A floating mask gets half of its gradient."""

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        floating = mask is not None and mask.is_floating_point()
        half = torch.where(mask.isfinite(), (mask + mask.detach()) / 2, mask) if floating and mask is not None else mask
        return super().add_mask(logits, half, q)


@fault("padding.not_in_half", "ours", "C17", "numerics.half_asked")
class PaddingNotInHalf(Specimen):
    """In a half type a kernel of its own leaves out the key_mask."""

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        rule = super().key_rule(key_mask, q)
        return torch.ones_like(rule) if q.dtype in (torch.bfloat16, torch.float16) else rule


@fault("backward.not_in_half", "ours", "C17", "numerics.half_asked")
class KeysDetachedInHalf(Specimen):
    """In a half type no gradient flows through the keys."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k.detach() if k.dtype in (torch.bfloat16, torch.float16) else k)


@fault("mask.read_in_order", "ours", "C1", "shape.non_contiguous")
class MaskReadInOrder(Specimen):
    """A mask is read as if its numbers lay one after another in memory."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        return super().visible(q, k, in_order(mask), in_order(key_mask))


def in_order(mask: Tensor | None) -> Tensor | None:
    """What a kernel reads that trusts its input to be contiguous."""
    if mask is None or mask.is_contiguous() or not all(mask.stride()):
        return mask
    return mask.as_strided(mask.shape, torch.empty(mask.shape).stride())
