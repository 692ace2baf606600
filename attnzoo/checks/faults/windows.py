"""Faults of windows, and of the ring that holds one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.faults.fault import fault
from attnzoo.checks.faults.kinds import RingCache, RotaryWindowSpecimen, WindowSpecimen
from attnzoo.errors import Unsupported


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


# The ring.


@fault("ring.one_more", "B14", "C13", "ring.counts")
class RingOneMore(WindowSpecimen):
    """The ring holds one token more than its window."""

    class Ring(RingCache):
        def keep(self, newest: int) -> None:
            super().keep(newest + 1)


@fault("ring.two_short", "B14", "C8", "ring.equals_whole")
class RingTwoShort(WindowSpecimen):
    """The ring holds two tokens less than its window, one less than a step must see."""

    class Ring(RingCache):
        def keep(self, newest: int) -> None:
            super().keep(max(1, newest - 2))


@fault("ring.wrapped_order", "B59", "C8", "ring.equals_whole")
class RingWrappedOrder(WindowSpecimen):
    """A chunk that crosses the end of the ring is read back in the order in which it lies in memory."""

    class Ring(RingCache):
        def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            place, size = self.seen % self.room, k.shape[2]
            keys, values = super().append(k, v)
            if self.keys is not None and self.values is not None and self.room > size > self.room - place:
                self.keys, self.values = self.keys.roll(1, 2), self.values.roll(1, 2)
            return keys, values


@fault("ring.chunk_cut", "ours", "C8", "ring.equals_whole")
class RingCutsChunks(WindowSpecimen):
    """A chunk forgets the tokens before it, as if it had filled the whole ring."""

    class Ring(RingCache):
        def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = super().append(k, v)
            size = k.shape[2]
            return (keys[:, :, -size:], values[:, :, -size:]) if size > 1 else (keys, values)


@fault("ring.crop_unchecked", "ours", "C13", "ring.crop")
class RingCropsUnchecked(WindowSpecimen):
    """`crop` goes back to tokens that the ring has overwritten long ago."""

    class Ring(RingCache):
        def crop(self, n: int) -> None:
            held = 0 if self.keys is None else self.keys.shape[2]
            if n <= self.seen and self.keys is not None and self.values is not None:
                left = max(0, held - (self.seen - n))
                self.keys, self.values, self.seen = self.keys[:, :, :left], self.values[:, :, :left], n
            else:
                super().crop(n)


@fault("ring.rollback_ignored", "ours", "C13", "ring.crop")
class RingIgnoresRollback(WindowSpecimen):
    """The ring holds no more than its window, whatever was to be taken back, and crops all the same."""

    class Ring(RingCache):
        def keep(self, newest: int) -> None:
            super().keep(self.window)

        def crop(self, n: int) -> None:
            held = 0 if self.keys is None else self.keys.shape[2]
            if n < self.seen - 4:
                super().crop(n)
            elif self.keys is not None and self.values is not None and n <= self.seen:
                left = max(0, held - (self.seen - n))
                self.keys, self.values, self.seen = self.keys[:, :, :left], self.values[:, :, :left], n
            else:
                super().crop(n)


@fault("ring.reorders_keys_only", "B60", "C13", "ring.reorder")
class RingReordersKeysOnly(WindowSpecimen):
    """`reorder` moves the keys of a ring and forgets the values."""

    class Ring(RingCache):
        def reorder(self, index: Tensor) -> None:
            values = self.values
            super().reorder(index)
            self.values = values


@fault("ring.reset_keeps_place", "B57", "C13", "cache.reset")
class RingResetKeepsPlace(WindowSpecimen):
    """`reset` empties the ring and goes on counting."""

    class Ring(RingCache):
        def reset(self) -> None:
            seen = self.seen
            super().reset()
            self.seen = seen


@fault("ring.length_held", "B42", "C13", "ring.counts")
class RingCountsHeld(WindowSpecimen):
    """`length` counts the tokens held, so that it stands still once the window is full."""

    class Ring(RingCache):
        @property
        def length(self) -> int:
            return min(self.seen, self.room)

    def check_key_mask(self, key_mask: Tensor | None, x: Tensor, s: int) -> None:
        super().check_key_mask(key_mask, x, s if key_mask is None else key_mask.shape[-1])

    def check_mask(self, mask: Tensor | None, x: Tensor, s: int) -> None:
        super().check_mask(mask, x, s if mask is None or mask.shape[-1] == 1 else mask.shape[-1])


@fault("ring.oldest_padding", "B43", "C4", "ring.padded")
class RingReadsOldestPadding(WindowSpecimen):
    """Once the window is full, the first columns of the key_mask are read instead of the newest."""

    def held(self, mask: Tensor | None, k: Tensor) -> Tensor | None:
        if mask is None or mask.dim() != 2 or mask.shape[1] <= k.shape[2] or mask.shape[0] == 1:
            return super().held(mask, k)
        return mask[:, : k.shape[2]]


@fault("ring.places_of_held", "B42", "C5", "ring.equals_whole")
class RingPlacesOfHeld(RotaryWindowSpecimen):
    """Once the window is full, new tokens are placed by how many are held."""

    def default_positions(self, x: Tensor, offset: int) -> Tensor:
        return super().default_positions(x, min(offset, self.window))


@fault("ring.stops_growing", "B59", "C13", "cache.grows")
class GrowsOnce(WindowSpecimen):
    """A ring without a given length forgets all it held after 64 tokens."""

    class Ring(RingCache):
        def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            if self.max_len is None and self.seen < 64 <= self.seen + k.shape[2]:
                self.keys = None if self.keys is None else torch.zeros_like(self.keys)
                self.values = None if self.values is None else torch.zeros_like(self.values)
            return super().append(k, v)
