"""Faults of autograd: graphs where none is asked for, gradients cut off, derivatives that are not there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.specimen import Specimen, SpecimenCache


@fault("graph.by_itself", "ours", "C18", "graph.off")
class GraphByItself(Specimen):
    """The last projection turns gradients on by itself, so that results hold a graph under no_grad."""

    def merge(self, mixed: Tensor) -> Tensor:
        with torch.enable_grad():
            return super().merge(mixed)


@fault("graph.cut_in_prompt", "ours", "C12", "graph.paths")
class CutInPrompt(Specimen):
    """The first call with a cache sends no gradient to its keys and values, as if only decoding ever had one."""

    def remember(self, cache: SpecimenCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        first = cache.length == 0
        k, v = super().remember(cache, k, v)
        return (k.detach(), v.detach()) if first else (k, v)


@fault("graph.weights_cut", "ours", "C12", "graph.weights")
class WeightsCut(Specimen):
    """The returned weights carry no gradient."""

    def show(self, weights: Tensor) -> Tensor:
        return weights.detach()


class _Recomputed(torch.autograd.Function):
    """A weighted sum whose backward pass computes it again, beside the graph."""

    @staticmethod
    def forward(ctx: Any, attend: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.attend = attend
        ctx.save_for_backward(q, k, v)
        mixed: Tensor = attend(q, k, v)
        return mixed

    @staticmethod
    def backward(ctx: Any, pull: Tensor) -> Any:
        with torch.enable_grad():
            given = [part.detach().requires_grad_() for part in ctx.saved_tensors]
            mixed = ctx.attend(*given)
        return None, *torch.autograd.grad(mixed, given, pull.detach())


@fault("backward.constant", "ours", "C2", "truth.second_derivative")
class BackwardConstant(Specimen):
    """The weighted sum is recomputed in the backward pass, whose gradients are constants: no slope, and no word."""

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key_mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor]:
        if need_weights or mask is not None or not q.requires_grad or (self.training and self.dropout):
            return super().attended(q, k, v, mask, key_mask, need_weights)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed: Tensor = self.attend(q, k, v, key_mask=key_mask)
            return mixed

        mixed: Tensor = _Recomputed.apply(attend, q, k, v)  # type: ignore[no-untyped-call]
        return mixed, torch.empty(0)
