"""Faults of the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.kinds import RotarySpecimen
from attnzoo.checks.exam.faults.specimen import Specimen, SpecimenCache


@fault("cache.not_reset", "B57", "C13", "cache.reset")
class NotReset(Specimen):
    """`reset` keeps the tokens."""

    class Cache(SpecimenCache):
        def reset(self) -> None:
            self.keys = self.keys if self.keys is None else self.keys[:, :, :1]
            self.values = self.values if self.values is None else self.values[:, :, :1]


@fault("cache.late_after_reset", "B57", "C13", "cache.reset")
class LateAfterReset(Specimen):
    """After `reset` the first new token is forgotten: wrong only in decoding after a reset."""

    class Cache(SpecimenCache):
        again = False

        def reset(self) -> None:
            super().reset()
            self.again = True

        def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            if self.again and self.keys is None and self.values is None:
                v = torch.cat([torch.zeros_like(v[:, :, :1]), v[:, :, 1:]], dim=2)
            return super().append(k, v)


@fault("cache.overflow_silent", "B59", "C13", "cache.overflow")
class OverflowSilent(Specimen):
    """Tokens that do not fit are accepted, and the oldest forgotten."""

    def check_cache(self, x: Tensor, cache: SpecimenCache | None) -> None:
        if cache is not None and x.shape[0] != cache.batch:
            super().check_cache(x, cache)

    def remember(self, cache: SpecimenCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = cache.append(k, v)
        room = cache.max_len
        if room is not None and cache.length > room and cache.keys is not None and cache.values is not None:
            cache.keys, cache.values = cache.keys[:, :, -room:], cache.values[:, :, -room:]
        return keys, values


@fault("cache.changed_when_refused", "ours", "C13", "cache.overflow")
class ChangedWhenRefused(Specimen):
    """A call that is refused has already dropped the newest token from the cache."""

    def check_key_mask(self, key_mask: Tensor | None, x: Tensor, s: int) -> None:
        try:
            super().check_key_mask(key_mask, x, s)
        except Exception:
            if self.used is not None and self.used.length:
                self.used.crop(self.used.length - 1)
            raise

    def check_cache(self, x: Tensor, cache: SpecimenCache | None) -> None:
        self.used = cache
        super().check_cache(x, cache)


@fault("cache.reorders_keys_only", "B60", "C13", "cache.reorder")
class ReordersKeysOnly(Specimen):
    """`reorder` moves the keys and forgets the values."""

    class Cache(SpecimenCache):
        def reorder(self, index: Tensor) -> None:
            values = self.values
            super().reorder(index)
            self.values = values


@fault("cache.reorders_backwards", "B60", "C13", "cache.reorder")
class ReordersBackwards(Specimen):
    """`reorder` sends row i to index[i] instead of fetching it from there."""

    class Cache(SpecimenCache):
        def reorder(self, index: Tensor) -> None:
            if self.keys is not None and self.values is not None:
                keys, values = self.keys.clone(), self.values.clone()
                for row, place in enumerate(index.tolist()):
                    keys[place], values[place] = self.keys[row], self.values[row]
                self.keys, self.values = keys, values


@fault("cache.crops_the_front", "ours", "C13", "cache.crop")
class CropsTheFront(Specimen):
    """`crop(n)` keeps the last n tokens instead of the first."""

    class Cache(SpecimenCache):
        def crop(self, n: int) -> None:
            keys, values, length = self.keys, self.values, self.length
            super().crop(n)
            if keys is not None and values is not None:
                self.keys, self.values = keys[:, :, length - n :], values[:, :, length - n :]


@fault("cache.keeps_graph", "B70", "C13", "cache.gradients")
class KeepsGraph(Specimen):
    """Cached tokens hold on to their autograd graph."""

    class Cache(SpecimenCache):
        def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.keys, self.values = super().append(k, v)
            return self.keys, self.values


@fault("cache.loses_gradient", "ours", "C13", "cache.gradients")
class LosesGradient(Specimen):
    """With a cache, the newest tokens' keys and values get no gradient."""

    def remember(self, cache: SpecimenCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return cache.append(k.detach(), v.detach())


@fault("cache.counts_room", "ours", "C13", "cache.counts")
class CountsRoom(Specimen):
    """`nbytes` counts the room set aside instead of the tokens held."""

    class Cache(SpecimenCache):
        @property
        def nbytes(self) -> int:
            return super().nbytes * (self.max_len or 2 * self.length) // self.length if self.length else 0


@fault("cache.holds_all_heads", "ours", "C13", "cache.counts")
class HoldsAllHeads(Specimen):
    """The cache holds the key-value heads written out for every query head."""

    def remember(self, cache: SpecimenCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return cache.append(self.share(k, self.heads), self.share(v, self.heads))


@fault("cache.in_half", "ours", "C12", "cache.equals_whole")
class CacheInHalf(Specimen):
    """The cache holds its tokens in bfloat16."""

    class Cache(SpecimenCache):
        def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = super().append(k, v)
            self.keys, self.values = keys.detach().bfloat16().to(k.dtype), values.detach().bfloat16().to(v.dtype)
            return keys, values


@fault("cache.on_module", "B57", "C18", "cache.apart")
class CacheOnModule(Specimen):
    """All caches of a layer share one memory, kept on the layer."""

    def new_cache(self, batch: int, max_len: int | None = None) -> SpecimenCache:
        self.one = getattr(self, "one", None) or super().new_cache(batch, max_len)
        self.one.reset()
        self.one.batch, self.one.max_len = batch, max_len and 10 * max_len
        return self.one


@fault("cache.without_causality", "ours", "C13", "cache.needs_causality")
class CacheWithoutCausality(Specimen):
    """A layer with causal=False takes a growing cache."""

    def new_cache(self, batch: int, max_len: int | None = None) -> SpecimenCache:
        return SpecimenCache(batch, max_len)

    def refuse(self, context: Tensor | None, positions: Tensor | None, cache: SpecimenCache | None) -> None:
        super().refuse(context, positions, None)


@fault("cache.weights_of_new_keys", "ours", "C12", "cache.weights")
class WeightsOfNewKeys(Specimen):
    """With a cache, the returned weights leave out the cached keys."""

    def forward(self, x: Tensor, *args: Any, **asked: Any) -> Any:
        self.new = x.shape[1]
        return super().forward(x, *args, **asked)

    def show(self, weights: Tensor) -> Tensor:
        return weights[..., -self.new :]


@fault("cache.weights_unpadded", "ours", "C12", "cache.weights")
class CachedWeightsUnpadded(Specimen):
    """The returned weights of a cached step are spread over the padding as well, though its output is not."""

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key_mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor]:
        mixed, weights = super().attended(q, k, v, mask, key_mask, need_weights)
        if not need_weights or key_mask is None or q.shape[2] == k.shape[2]:
            return mixed, weights
        return mixed, super().attended(q, k, v, mask, None, True)[1]


@fault("cache.loses_on_growth", "B59", "C13", "cache.grows")
class LosesOnGrowth(Specimen):
    """When the room is doubled, the values held so far are not copied."""

    class Cache(SpecimenCache):
        def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            grows = self.max_len is None and self.length < 32 <= self.length + k.shape[2]
            if grows and self.values is not None:
                self.values = torch.zeros_like(self.values)
            return super().append(k, v)


@fault("cache.growth_counts_room", "ours", "C13", "cache.grows")
class GrowthCountsRoom(Specimen):
    """`nbytes` of a growing cache counts the room, which is a power of two."""

    class Cache(SpecimenCache):
        @property
        def nbytes(self) -> int:
            held = super().nbytes
            room = 1 << (self.length - 1).bit_length() if self.length else 1
            return held if self.max_len is not None else held // max(1, self.length) * room


@fault("cache.mask_of_new_keys", "ours", "C4", "cache.masked")
class MaskOfNewKeys(Specimen):
    """With a cache, a mask is applied to the newest keys only."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        if mask is None or mask.dtype != torch.bool or q.shape[2] == k.shape[2]:
            return super().visible(q, k, mask, key_mask)
        old = k.shape[2] - q.shape[2]
        opened = torch.cat([torch.ones_like(mask[..., :old]), mask[..., old:]], dim=-1)
        return super().visible(q, k, opened, key_mask)


@fault("cost.recomputes_all", "ours", "C12", "cost.decode")
class RecomputesAll(Specimen):
    """Every step computes the rows of all tokens so far, and throws the old ones away."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **asked: Any) -> Any:
        t, s = q.shape[2], k.shape[2]
        if t == 1 < s and not self.training and self.causal and asked.get("mask") is None:
            mixed, weights = super().attend(q.expand(-1, -1, s, -1), k, v, **{**asked, "need_weights": True})
            mixed, weights = mixed[:, :, -1:], weights[:, :, -1:]
            return (mixed, weights) if asked.get("need_weights") else mixed
        return super().attend(q, k, v, **asked)


@fault("cache.newest_twice", "B57", "C13", "cache.equals_whole")
class NewestTwice(Specimen):
    """The last token of the prompt is fed twice."""

    class Cache(SpecimenCache):
        def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            if self.keys is None:
                super().append(k[:, :, -1:], v[:, :, -1:])
            return super().append(k, v)

    def new_cache(self, batch: int, max_len: int | None = None) -> SpecimenCache:
        return super().new_cache(batch, max_len and 2 * max_len)


@fault("cache.reorders_by_swaps", "ours", "C13", "cache.reorder")
class ReordersBySwaps(Specimen):
    """`reorder` swaps rows in place one after another, and so goes wrong where three change places."""

    class Cache(SpecimenCache):
        def reorder(self, index: Tensor) -> None:
            rows = index.tolist()
            if self.keys is None or self.values is None or sorted(rows) != list(range(len(self.keys))):
                return super().reorder(index)
            order = list(range(len(rows)))
            for i, j in enumerate(rows):
                if j > i:
                    order[i], order[j] = order[j], order[i]
            return super().reorder(torch.tensor(order, device=index.device))


@fault("cache.filled_then_refused", "ours", "C13", "cache.overflow")
class FilledThenRefused(Specimen):
    """A mask that does not fit is refused only after the tokens went into the cache."""

    late: Any = None
    cached = False

    def check_cache(self, x: Tensor, cache: SpecimenCache | None) -> None:
        super().check_cache(x, cache)
        self.cached = cache is not None

    def check_mask(self, mask: Tensor | None, x: Tensor, s: int) -> None:
        self.late = (mask, x, s) if self.cached else None
        if not self.cached:
            super().check_mask(mask, x, s)

    def remember(self, cache: SpecimenCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        remembered = super().remember(cache, k, v)
        late, self.late = self.late, None
        super().check_mask(*late)
        return remembered


@fault("cache.unseen_without_gradients", "ours", "C12", "cache.equals_whole")
class UnseenWithoutGradients(Specimen):
    """Without gradients a lone token takes a way of its own, on which it does not see itself."""

    class Cache(SpecimenCache):
        def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            held = self.keys, self.values
            keys, values = super().append(k, v)
            if torch.is_grad_enabled() or k.shape[2] > 1 or held[0] is None or held[1] is None:
                return keys, values
            return torch.cat([held[0], held[0][:, :, -1:]], dim=2), torch.cat([held[1], held[1][:, :, -1:]], dim=2)


@fault("cache.unmasked_without_gradients", "ours", "C4", "cache.masked")
class UnmaskedWithoutGradients(Specimen):
    """Without gradients a lone token takes a way of its own, which leaves out the mask."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        quick = q.shape[2] == 1 < k.shape[2] and self.causal and not torch.is_grad_enabled()
        return super().visible(q, k, None if quick else mask, key_mask)

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        quick = logits.shape[2] == 1 < logits.shape[3] and self.causal and not torch.is_grad_enabled()
        return super().add_mask(logits, None if quick else mask, q)


@fault("cache.unplaced_without_gradients", "ours", "C12", "cache.positions")
class UnplacedWithoutGradients(RotarySpecimen):
    """Without gradients a lone token takes a way of its own, which counts on and leaves out given positions."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        quick = x.shape[1] == 1 and offset > 0 and not torch.is_grad_enabled()
        return super().project(x, context, positions=None if quick else positions, offset=offset)


@fault("cache.places_in_half", "ours", "C17", "numerics.half_steps")
class PlacesInHalf(RotarySpecimen):
    """In a half type the places of cached steps are counted in that type, where 257 is 256."""

    def default_positions(self, x: Tensor, offset: int) -> Tensor:
        places = super().default_positions(x, offset)
        return places.to(x.dtype).double() if offset else places
