"""Faults of the ring that holds a window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.kinds import RingCache, RotaryWindowSpecimen, WindowSpecimen
from attnzoo.checks.exam.faults.specimen import SpecimenCache


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


class _KnowsPlaces(WindowSpecimen):
    """Knows how far the ring is turned, once the window is full and a lone token comes; 0 in any other call."""

    turn = 0

    def forward(self, x: Tensor, *args: Any, **asked: Any) -> Any:
        self.turn = 0
        return super().forward(x, *args, **asked)

    def remember(self, cache: SpecimenCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        lone_and_full = k.shape[2] == 1 and cache.length >= self.window
        self.turn = (cache.length + 1) % self.window if lone_and_full else 0
        return super().remember(cache, k, v)

    def turned(self, x: Tensor) -> Tensor:
        """The columns of the window in the order in which the keys lie."""
        seen = x[..., -self.window :].roll(self.turn, -1)
        return torch.cat([x[..., : -self.window], seen], dim=-1)


@fault("ring.mask_as_it_lies", "ours", "C4", "ring.masked")
class RingMasksAsItLies(_KnowsPlaces):
    """Once the window is full, a lone token's mask goes by where the keys lie in the ring, and not by their order."""

    def held(self, mask: Tensor | None, k: Tensor) -> Tensor | None:
        newest = super().held(mask, k)
        return newest if newest is None or newest.dim() != 4 or not self.turn else self.turned(newest)


@fault("ring.weights_as_they_lie", "ours", "C12", "ring.weights")
class RingWeighsAsItLies(_KnowsPlaces):
    """Once the window is full, a lone token's weights come in the order in which the keys lie in the ring."""

    def show(self, weights: Tensor) -> Tensor:
        return self.turned(weights) if self.turn else weights
