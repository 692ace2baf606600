"""Faults of kernels, and of what they cost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.kinds import WindowSpecimen
from attnzoo.checks.exam.faults.specimen import Specimen
from attnzoo.errors import Unsupported


class _KnowsBlocks(WindowSpecimen):
    """Knows whether it computes in blocks."""

    in_blocks = False

    def banded(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        self.in_blocks = True
        try:
            return super().banded(q, k, v, key_mask)
        finally:
            self.in_blocks = False


@fault("backend.window_one_more", "B14", "C12", "backend.agrees")
class BlocksOneMore(_KnowsBlocks):
    """In blocks the window is one key longer than by the definition: two kernels count it differently."""

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() < self.window + self.in_blocks


@fault("backend.padding_forgotten", "B07", "C12", "backend.agrees")
class BlocksForgetPadding(WindowSpecimen):
    """In blocks the key_mask is forgotten."""

    def banded(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().banded(q, k, v, None)


@fault("backend.last_block", "ours", "C12", "backend.agrees")
class LastBlockAlone(WindowSpecimen):
    """A last block that is not full sees itself only."""

    def banded(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        mixed, rest = super().banded(q, k, v, key_mask), q.shape[2] % self.window
        if not rest or q.shape[2] < self.window:
            return mixed
        newest = None if key_mask is None else key_mask[:, -rest:]
        alone = super().banded(q[:, :, -rest:], k[:, :, -rest:], v[:, :, -rest:], newest)
        return torch.cat([mixed[:, :, :-rest], alone], dim=2)


@fault("backend.gradient_halved", "ours", "C12", "backend.agrees")
class BlocksHalveGradient(WindowSpecimen):
    """In blocks the backward pass gives half of the values' gradient."""

    def banded(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().banded(q, k, 0.5 * v + (0.5 * v).detach(), key_mask)


@fault("backend.silently_other", "ours", "C12", "backend.agrees")
class RefusesWithoutName(WindowSpecimen):
    """A kernel that cannot do what was asked refuses without saying which one it is."""

    def attend(self, *stages: Tensor, **asked: Any) -> Any:
        try:
            return super().attend(*stages, **asked)
        except Unsupported as refusal:
            raise Unsupported("this is not taken here") from refusal


@fault("backend.context_unpadded", "B07", "C12", "backend.on_context")
class KernelLeavesContextUnpadded(Specimen):
    """The fused kernel leaves out the key_mask of a context."""

    backends = ("auto", "eager", "sdpa")

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        rule = super().key_rule(key_mask, q)
        other = self.backend == "sdpa" and not self.causal and key_mask.shape[1] != q.shape[2]
        return torch.ones_like(rule) if other else rule


@fault("backend.steps_unpadded", "B07", "C12", "backend.in_steps")
class KernelLeavesStepsUnpadded(Specimen):
    """The fused kernel leaves out the key_mask in cached steps."""

    backends = ("auto", "eager", "sdpa")

    def key_rule(self, key_mask: Tensor, q: Tensor) -> Tensor:
        rule = super().key_rule(key_mask, q)
        step = self.backend == "sdpa" and self.causal and key_mask.shape[1] != q.shape[2]
        return torch.ones_like(rule) if step else rule


@fault("backend.no_dropout", "ours", "C11", "backend.dropout")
class KernelWithoutDropout(Specimen):
    """The plain definition forgets dropout, which the fused kernel does by itself."""

    backends = ("auto", "eager", "sdpa")

    def drop(self, weights: Tensor) -> Tensor:
        return weights if self.backend == "eager" else super().drop(weights)


@fault("backend.oldest_queries", "B01", "C5", "backend.fewer_queries")
class BlocksOfOldestQueries(WindowSpecimen):
    """In blocks fewer queries than keys are taken for the oldest tokens instead of the newest."""

    def why_not_banded(self, q: Tensor, k: Tensor, mask: Tensor | None, need_weights: bool) -> str:
        return super().why_not_banded(q, k[:, :, : q.shape[2]], mask, need_weights)

    def banded(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        t = q.shape[2]
        return super().banded(q, k[:, :, :t], v[:, :, :t], None if key_mask is None else key_mask[:, :t])


@fault("backend.softmax_in_half", "B22", "C17", "backend.half")
class BlocksInHalf(_KnowsBlocks):
    """In blocks the softmax of half types is taken in half."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        half = self.in_blocks and self.q.weight.dtype in (torch.bfloat16, torch.float16)
        return super().softmax(logits.to(self.q.weight.dtype) if half else logits, visible)


@fault("cost.keeps_pairs", "ours", "C12", "cost.memory")
class KeepsPairs(WindowSpecimen):
    """Beside its blocks a matrix of all pairs is kept for the backward pass."""

    def banded(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        pairs = (0 * q[0, 0, :, :1] + torch.zeros_like(k[0, 0, :, 0])).exp()  # (t, t), and exp keeps its result
        return super().banded(q, k, v, key_mask) * pairs[-1, -1]


@fault("cost.all_pairs", "ours", "C12", "cost.work")
class AllPairs(WindowSpecimen):
    """All pairs are computed and most thrown away, and computed again for the backward pass."""

    def banded(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        backend, self.backend = self.backend, "eager"
        try:
            mixed: Tensor = self.attend(q, k, v, key_mask=key_mask)
        finally:
            self.backend = backend
        return mixed
