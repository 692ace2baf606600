"""Faults of heads, widths and layouts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.specimen import Specimen


@fault("heads.split_by_view", "B29", "C1", "causality.dependencies")
class SplitByView(Specimen):
    """Heads are split by a view that mixes time with heads."""

    def split(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        return x.reshape(b, width // self.head_dim, t, self.head_dim)


@fault("heads.merged_by_view", "B29", "C1", "causality.dependencies")
class MergedByView(Specimen):
    """Heads are merged without transposing back."""

    def join(self, mixed: Tensor) -> Tensor:
        b, h, t, d = mixed.shape
        return mixed.reshape(b, t, h * d)


@fault("heads.interleaved", "B34", "C1", "truth.oracle")
class HeadsInterleaved(Specimen):
    """The queries' channels are dealt out to the heads like cards."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        _, k, v = super().project(x, context, positions=positions, offset=offset)
        q = self.q(x).unflatten(-1, (self.head_dim, self.heads)).permute(0, 3, 1, 2)
        return q, k, v


@fault("heads.reversed_in_merge", "ours", "C1", "truth.oracle")
class HeadsReversed(Specimen):
    """Heads are merged in reverse order."""

    def join(self, mixed: Tensor) -> Tensor:
        return super().join(mixed.flip(1))


@fault("heads.keys_and_values_swapped", "B34", "C1", "truth.oracle")
class KeysAndValuesSwapped(Specimen):
    """Keys and values are taken from each other's rows of a fused projection."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, context, positions=positions, offset=offset)
        return q, v, k


@fault("heads.tiled", "B30", "C7", "truth.grouping")
class HeadsTiled(Specimen):
    """Key-value heads are tiled over the query heads instead of repeated in groups."""

    def share(self, x: Tensor, heads: int) -> Tensor:
        return x.repeat(1, heads // x.shape[1], 1, 1)


@fault("heads.values_tiled", "B30", "C7", "rows.used")
class ValuesTiled(Specimen):
    """Keys are repeated in groups, values are tiled."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Any:
        tiled = v.repeat(1, q.shape[1] // v.shape[1], 1, 1)
        return super().attend(q, k, tiled, mask=mask, key_mask=key_mask, need_weights=need_weights)


@fault("heads.single_key_value_head", "ours", "C7", "truth.oracle")
class SingleKeyValueHead(Specimen):
    """With one key-value head, only the first query head reads it; the others read zeros."""

    def share(self, x: Tensor, heads: int) -> Tensor:
        if x.shape[1] > 1:
            return super().share(x, heads)
        return torch.cat([x, x.new_zeros(x.shape[0], heads - 1, *x.shape[2:])], dim=1)


@fault("heads.odd", "ours", "C1", "truth.oracle")
class OddHeads(Specimen):
    """With an odd number of heads the last one is dropped: heads are handled in pairs."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        mixed = super().mix(weights, v)
        if mixed.shape[1] % 2 == 0:
            return mixed
        return torch.cat([mixed[:, :-1], torch.zeros_like(mixed[:, -1:])], dim=1)


@fault("heads.uneven_width_taken", "ours", "C2", "build.refuses_uneven_width")
class UnevenWidthTaken(Specimen):
    """Heads that do not divide d_model are accepted, and the width is rounded down."""

    def head_width(self) -> int:
        return self.d_model // self.heads


@fault("heads.uneven_groups_taken", "ours", "C7", "build.refuses_uneven_groups")
class UnevenGroupsTaken(Specimen):
    """Heads that cannot share the key-value heads evenly are accepted."""

    def check_groups(self) -> None:
        pass

    def share(self, x: Tensor, heads: int) -> Tensor:
        return super().share(x, heads) if heads % x.shape[1] == 0 else x.repeat_interleave(heads, dim=1)[:, :heads]


@fault("heads.stages_lie", "ours", "C1", "shape.stages")
class StagesLie(Specimen):
    """The stages are not what the layer does: merging applies the output projection to rectified values."""

    def forward(self, x: Tensor, *args: Any, **asked: Any) -> Any:
        self.inside = True
        try:
            return super().forward(x, *args, **asked)
        finally:
            self.inside = False

    def join(self, mixed: Tensor) -> Tensor:
        return super().join(mixed) if getattr(self, "inside", False) else super().join(F.relu(mixed))


@fault("heads.bias_ignored", "ours", "C14", "build.options_matter")
class BiasIgnored(Specimen):
    """bias=True makes no bias."""

    def __init__(self, *args: Any, bias: bool = False, **options: Any) -> None:
        super().__init__(*args, bias=False, **options)


@fault("batch.above_two", "ours", "C1", "batch.independent")
class AboveTwoSamples(Specimen):
    """From the third sample on the queries of the first are used."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(torch.cat([q[:2], q[:1].expand_as(q[2:])]), k)


@fault("batch.of_four", "ours", "C1", "drawn.oracle")
class BatchOfFour(Specimen):
    """In a batch of four, the last sample gets the values of the first: no named size shows it."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, torch.cat([v[:-1], v[:1]]) if v.shape[0] == 4 else v)


@fault("batch.normalised", "ours", "C1", "batch.independent")
class BatchNormalised(Specimen):
    """The values are centred over the batch."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, v - v.mean(0, keepdim=True))


@fault("batch.by_row", "ours", "C1", "batch.order")
class BatchByRow(Specimen):
    """What a sample gives depends on its row in the batch."""

    def merge(self, mixed: Tensor) -> Tensor:
        return super().merge(mixed * (1 + torch.arange(mixed.shape[0]).to(mixed)[:, None, None, None]))


@fault("layout.raw_memory", "B65", "C1", "shape.non_contiguous")
class RawMemory(Specimen):
    """The input is read in the order in which it lies in memory."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        if x.numel() and not x.is_contiguous() and x.untyped_storage().size() >= x.numel() * x.element_size():
            b, t, c = x.shape
            x = x.as_strided((b, t, c), (t * c, c, 1), 0) if x.stride(0) else x
        return super().project(x, context, positions=positions, offset=offset)


class _PackedGradient(torch.autograd.Function):
    """The identity, with a backward pass that reads its gradient as if it lay packed in memory."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        packed = torch.zeros(grad.shape, dtype=grad.dtype, device=grad.device)
        memory = grad.as_strided((grad.untyped_storage().size() // grad.element_size(),), (1,), 0)
        count = min(packed.numel(), memory.numel())
        packed.view(-1)[:count] = memory[:count]
        return packed


@fault("layout.packed_gradient", "B65", "C1", "shape.non_contiguous")
class PackedGradient(Specimen):
    """The backward pass reads an expanded or transposed gradient as if it were contiguous."""

    def merge(self, mixed: Tensor) -> Tensor:
        y: Tensor = _PackedGradient.apply(super().merge(mixed))  # type: ignore[no-untyped-call]
        return y


@fault("layout.empty", "ours", "C1", "shape.empty")
class EmptyFails(Specimen):
    """An empty batch or sequence is an error."""

    def join(self, mixed: Tensor) -> Tensor:
        if mixed.numel() == 0:
            raise RuntimeError("cannot reshape tensor of 0 elements")
        return super().join(mixed)
