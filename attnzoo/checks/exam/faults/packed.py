"""Faults of packed documents."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.kinds import PackedSpecimen


@fault("document.ignored", "B16", "C14", "document.apart")
class DocumentIgnored(PackedSpecimen):
    """The ids are accepted and have no effect."""

    def together(self, ids: Tensor) -> Tensor:
        return torch.ones(*ids.shape, ids.shape[1], dtype=torch.bool, device=ids.device)


@fault("document.leaks_at_border", "B16", "C5", "document.no_leak")
class LeaksAtBorder(PackedSpecimen):
    """The first token of a document sees the last one of the document before."""

    def together(self, ids: Tensor) -> Tensor:
        index = torch.arange(ids.shape[1], device=ids.device)
        return super().together(ids) | (index[:, None] - index == 1)


@fault("document.neighbours_compared", "ours", "C5", "document.no_leak")
class NeighboursCompared(PackedSpecimen):
    """Ids are compared with the neighbour's only, so that a document which goes on after another is two."""

    def together(self, ids: Tensor) -> Tensor:
        border = torch.ones_like(ids)
        border[:, 1:] = ids[:, 1:] != ids[:, :-1]
        return super().together(border.cumsum(1))


@fault("document.sees_smaller_ids", "ours", "C5", "document.no_leak")
class SeesSmallerIds(PackedSpecimen):
    """A token sees the documents of smaller ids too: ids are compared by order."""

    def together(self, ids: Tensor) -> Tensor:
        return ids[:, :, None] >= ids[:, None, :]


@fault("document.first_only", "B16", "C5", "document.apart")
class FirstDocumentOnly(PackedSpecimen):
    """Only the first document is kept apart; the others see each other."""

    def together(self, ids: Tensor) -> Tensor:
        return super().together((ids == ids[:, :1]).long())


@fault("document.first_sample_for_all", "B16", "C5", "document.apart")
class FirstSamplesDocuments(PackedSpecimen):
    """The ids of the first sample serve the whole batch."""

    def together(self, ids: Tensor) -> Tensor:
        return super().together(ids[:1].expand_as(ids))


@fault("document.below_zero_is_padding", "ours", "C5", "document.names")
class BelowZeroIsPadding(PackedSpecimen):
    """An id below zero is taken for padding, and sees nothing."""

    def together(self, ids: Tensor) -> Tensor:
        return super().together(ids) & (ids >= 0)[:, None, :]


@fault("document.names_folded", "ours", "C5", "document.no_leak")
class NamesFolded(PackedSpecimen):
    """Ids are folded into few numbers, so that two documents may have one."""

    def together(self, ids: Tensor) -> Tensor:
        return super().together(ids % 4)


@fault("document.dropped_by_mask", "B07", "C3", "document.intersect")
class DocumentDroppedByMask(PackedSpecimen):
    """Given a mask, the documents are forgotten."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        document, self.document = self.document, None if mask is not None else self.document
        try:
            return super().visible(q, k, mask, key_mask)
        finally:
            self.document = document


@fault("document.united", "B07", "C3", "document.intersect")
class DocumentsUnited(PackedSpecimen):
    """Documents and a mask are joined by OR."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        if self.document is None or mask is None:
            return super().visible(q, k, mask, key_mask)
        rule = super().visible(q, k, None, key_mask)
        document, self.document = self.document, None
        try:
            return rule | super().visible(q, k, mask, key_mask)
        finally:
            self.document = document


@fault("document.not_with_weights", "ours", "C12", "document.no_leak")
class DocumentNotWithWeights(PackedSpecimen):
    """When the weights are asked for, the documents are forgotten."""

    def forward(self, x: Tensor, *args: Any, document: Tensor | None = None, **asked: Any) -> Any:
        return super().forward(x, *args, document=None if asked.get("need_weights") else document, **asked)


@fault("document.any_ids_taken", "ours", "C19", "document.refuses")
class AnyIdsTaken(PackedSpecimen):
    """Ids of floats are accepted."""

    def check_document(self, document: Tensor | None, x: Tensor) -> None:
        super().check_document(None if document is None else document.long(), x)


@fault("document.not_causal", "ours", "C5", "document.no_leak")
class DocumentNotCausal(PackedSpecimen):
    """With documents there is no causality: their blocks take the place of the triangle."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        rule = super().causal_rule(q, k)
        return rule if self.document is None else torch.ones_like(rule)


@fault("document.byte", "ours", "C14", "document.names")
class DocumentByte(PackedSpecimen):
    """Of an id only the lowest byte is kept."""

    def together(self, ids: Tensor) -> Tensor:
        return super().together(ids % 256)


@fault("document.in_float32", "ours", "C14", "document.names")
class DocumentInFloat32(PackedSpecimen):
    """Ids are held in float32, where large ones next to each other are one."""

    def together(self, ids: Tensor) -> Tensor:
        return super().together(ids.float())


@fault("document.minus_one_is_padding", "ours", "C14", "document.names")
class DocumentMinusOneIsPadding(PackedSpecimen):
    """The id -1 is taken for padding, and sees nothing."""

    def together(self, ids: Tensor) -> Tensor:
        return super().together(ids) & (ids != -1)[:, :, None]
