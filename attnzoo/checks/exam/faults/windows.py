"""Faults of windows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.kinds import RotaryWindowSpecimen, WindowSpecimen


@fault("window.one_more", "B14", "C8", "window.width")
class WindowOneMore(WindowSpecimen):
    """The window counts the keys before the query's own, so that it is one key too long."""

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= self.window


@fault("window.one_less", "B14", "C8", "window.width")
class WindowOneLess(WindowSpecimen):
    """The window is one key too short."""

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() < max(1, self.window - 1)


@fault("window.one_sided", "B14", "C8", "window.width")
class WindowOneSided(WindowSpecimen):
    """Without causality the window bounds the past only: the whole future is seen."""

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        return i - j < self.window

    def why_not_banded(self, q: Tensor, k: Tensor, mask: Tensor | None, need_weights: bool) -> str:
        return super().why_not_banded(q, k, mask, need_weights) or ("" if self.causal else "whole future")


@fault("window.centred", "ours", "C8", "window.width")
class WindowCentred(WindowSpecimen):
    """The window lies around the query, half of it on either side."""

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= self.window // 2


@fault("window.none", "B07", "C8", "window.width")
class WindowNone(WindowSpecimen):
    """There is no window: all earlier keys are seen."""

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() < 10_000

    def why_not_banded(self, q: Tensor, k: Tensor, mask: Tensor | None, need_weights: bool) -> str:
        return "window"


@fault("window.by_position", "B43", "C5", "window.by_index")
class WindowByPosition(RotaryWindowSpecimen):
    """The window goes by the given positions instead of the order of the tokens."""

    given: Tensor | None = None

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.given = positions
        return super().project(x, context, positions=positions, offset=offset)

    def why_not_banded(self, q: Tensor, k: Tensor, mask: Tensor | None, need_weights: bool) -> str:
        return super().why_not_banded(q, k, mask, need_weights) or ("" if self.given is None else "positions")

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        if self.given is None or q.shape[2] != k.shape[2]:
            return super().visible(q, k, mask, key_mask)
        window, self.window = self.window, 10_000
        try:
            visible = super().visible(q, k, mask, key_mask)
        finally:
            self.window = window
        rule = (self.given[..., :, None] - self.given[..., None, :]).abs() < window
        return visible & (rule if rule.dim() == 2 else rule[:, None])


@fault("window.dropped_by_mask", "B07", "C3", "window.width")
class WindowDroppedByMask(WindowSpecimen):
    """Given a mask, the window is forgotten."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        if mask is None:
            return super().visible(q, k, mask, key_mask)
        return super(WindowSpecimen, self).visible(q, k, mask, key_mask)


@fault("window.dropped_by_padding", "B07", "C3", "window.width")
class WindowDroppedByPadding(WindowSpecimen):
    """Given a key_mask, the window is forgotten."""

    def why_not_banded(self, q: Tensor, k: Tensor, mask: Tensor | None, need_weights: bool) -> str:
        return super().why_not_banded(q, k, mask, need_weights) or "anything"

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        if key_mask is None:
            return super().visible(q, k, mask, key_mask)
        return super(WindowSpecimen, self).visible(q, k, mask, key_mask)


@fault("window.not_in_decode", "B14", "C8", "ring.equals_whole")
class WindowNotInDecode(WindowSpecimen):
    """With a cache all held keys are seen, of which a chunk brings more than a window."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        if q.shape[2] == k.shape[2]:
            return super().visible(q, k, mask, key_mask)
        return super(WindowSpecimen, self).visible(q, k, mask, key_mask)


@fault("window.not_with_weights", "ours", "C12", "window.width")
class WindowNotWithWeights(WindowSpecimen):
    """When the weights are asked for, there is no window."""

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key_mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor]:
        window = self.window
        self.window = 10_000 if need_weights else window
        try:
            return super().attended(q, k, v, mask, key_mask, need_weights)
        finally:
            self.window = window


@fault("window.zero_taken", "ours", "C8", "build.refuses_window")
class WindowZeroTaken(WindowSpecimen):
    """A window of no keys is accepted."""

    def check_window(self, window: int) -> None:
        pass


@fault("window.ignored", "ours", "C14", "build.options_matter")
class WindowIgnored(WindowSpecimen):
    """A given window is ignored."""

    def __init__(self, *args: Any, window: int, **options: Any) -> None:
        super().__init__(*args, window=window, **options)
        self.window = 3


@fault("window.far_drops_all", "ours", "C8", "window.far_is_all")
class WindowFarDropsAll(WindowSpecimen):
    """A window longer than the sequence drops the rule it was written into, and causality with it."""

    def why_not_banded(self, q: Tensor, k: Tensor, mask: Tensor | None, need_weights: bool) -> str:
        return super().why_not_banded(q, k, mask, need_weights) or (
            "far window" if self.window > k.shape[2] and not need_weights else ""
        )

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        rule = super().causal_rule(q, k)
        return torch.ones_like(rule) if self.window > k.shape[2] > 1 else rule
