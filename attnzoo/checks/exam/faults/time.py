"""Faults of causality."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.kinds import RotarySpecimen
from attnzoo.checks.exam.faults.specimen import Specimen


def _all(q: Tensor, k: Tensor) -> Tensor:
    return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)


def _index(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of queries (t, 1) and keys (s,) in the sequence."""
    t, s = q.shape[2], k.shape[2]
    return torch.arange(s - t, s, device=q.device)[:, None], torch.arange(s, device=q.device)


@fault("causal.missing", "ours", "C5", "causality.no_future")
class CausalMissing(Specimen):
    """There is no causal mask."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        return _all(q, k)


@fault("causal.one_ahead", "ours", "C5", "causality.no_future")
class CausalOneAhead(Specimen):
    """A query sees one token ahead."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        i, j = _index(q, k)
        return j <= i + 1


@fault("causal.not_itself", "ours", "C5", "causality.first_token")
class CausalNotItself(Specimen):
    """A query does not see its own token."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        i, j = _index(q, k)
        return j < i


@fault("causal.reversed", "ours", "C5", "causality.first_token")
class CausalReversed(Specimen):
    """A query sees the future instead of the past."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        i, j = _index(q, k)
        return j >= i


@fault("causal.top_left", "B01", "C5", "causality.bottom_right")
class CausalTopLeft(Specimen):
    """The triangle is anchored at the top left, although the queries are the newest tokens."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        return _all(q, k).tril()


@fault("causal.flag_in_decode", "B02", "C5", "cache.equals_whole")
class CausalFlagInDecode(Specimen):
    """A single query sees the first key only: the causal flag stays on in decoding."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        return _all(q, k).tril() if q.shape[2] == 1 else super().causal_rule(q, k)


@fault("causal.not_in_chunks", "ours", "C5", "cache.equals_whole")
class CausalNotInChunks(Specimen):
    """A chunk of new tokens on a cache is not causal within itself."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        return _all(q, k) if q.shape[2] != k.shape[2] else super().causal_rule(q, k)


@fault("causal.not_in_training", "ours", "C5", "causality.no_future")
class CausalNotInTraining(Specimen):
    """In train mode there is no causal mask."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        return _all(q, k) if self.training else super().causal_rule(q, k)


@fault("causal.not_in_eval", "ours", "C5", "causality.no_future")
class CausalNotInEval(Specimen):
    """In eval there is no causal mask."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        return super().causal_rule(q, k) if self.training else _all(q, k)


@fault("causal.not_with_weights", "ours", "C5", "causality.weights")
class CausalNotWithWeights(Specimen):
    """When the weights are asked for, there is no causal mask."""

    def forward(self, x: Tensor, *args: Any, need_weights: bool = False, **asked: Any) -> Any:
        self.asked_weights = need_weights
        return super().forward(x, *args, need_weights=need_weights, **asked)

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        return _all(q, k) if self.asked_weights else super().causal_rule(q, k)


@fault("causal.not_when_long", "ours", "C5", "causality.no_future")
class CausalNotWhenLong(Specimen):
    """Beyond 64 tokens there is no causal mask."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        return _all(q, k) if k.shape[2] > 64 else super().causal_rule(q, k)


@fault("causal.block_edges", "ours", "C5", "causality.no_future")
class CausalByBlocks(Specimen):
    """The triangle is drawn in blocks of 16, so that a query sees to the end of its block once there are several."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        i, j = _index(q, k)
        return j // 16 <= i // 16 if k.shape[2] > 16 else j <= i


@fault("causal.window", "B14", "C5", "causality.dependencies")
class CausalWindow(Specimen):
    """A query sees its four newest tokens only: a window that nobody asked for."""

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        i, j = _index(q, k)
        return (j <= i) & (i - j < 4)


@fault("causal.by_position", "B43", "C5", "position.not_visibility")
class CausalByPosition(RotarySpecimen):
    """Causality goes by the given positions instead of the order of the tokens."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.given = positions
        return super().project(x, context, positions=positions, offset=offset)

    def causal_rule(self, q: Tensor, k: Tensor) -> Tensor:
        if self.given is None or q.shape[2] != k.shape[2]:
            return super().causal_rule(q, k)
        rule = self.given[..., None, :] <= self.given[..., :, None]
        return rule if rule.dim() == 2 else rule[:, None]


@fault("causal.refused", "ours", "C5", "claims.causal")
class CausalOnly(Specimen):
    """causal=False is accepted and changes nothing."""

    def __init__(self, *args: Any, causal: bool = True, **options: Any) -> None:
        super().__init__(*args, causal=True, **options)


@fault("cross.causal", "B08", "C5", "causality.cross_sees_all")
class CrossCausal(Specimen):
    """Cross-attention is causal."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        visible = super().visible(q, k, mask, key_mask)
        return visible if self.causal or q.shape[2] == k.shape[2] else visible & _all(q, k).tril()


@fault("cross.ignored", "ours", "C14", "truth.oracle_cross")
class ContextIgnored(Specimen):
    """The context is ignored: keys and values come from the queries' tokens."""

    def source(self, x: Tensor, context: Tensor | None) -> Tensor:
        if context is None:
            return x
        return torch.cat([x, x], dim=1)[:, : context.shape[1]] if context.shape[1] <= 2 * x.shape[1] else context


@fault("cross.no_gradient", "ours", "C5", "truth.oracle_cross")
class ContextDetached(Specimen):
    """No gradient reaches the context."""

    def source(self, x: Tensor, context: Tensor | None) -> Tensor:
        return x if context is None else context.detach() + 0.0 * context


@fault("cross.unmasked", "ours", "C4", "mask.on_context")
class ContextUnmasked(Specimen):
    """With a context a mask of queries by its tokens is left out."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        other = not self.causal and q.shape[2] != k.shape[2]
        return super().visible(q, k, None if other else mask, key_mask)


@fault("cross.weights_of_padding", "ours", "C12", "truth.oracle_cross")
class WeightsOfPaddedContext(Specimen):
    """The returned weights of a context are spread over its padding as well, though the output is not."""

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key_mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor]:
        mixed, weights = super().attended(q, k, v, mask, key_mask, need_weights)
        if not need_weights or self.causal or key_mask is None or q.shape[2] == k.shape[2]:
            return mixed, weights
        return mixed, super().attended(q, k, v, mask, None, True)[1]


@fault("cross.keys_learn_nothing", "ours", "C5", "truth.oracle_cross")
class ContextTeachesNothing(Specimen):
    """No gradient of a context reaches the projection of the keys, though it reaches the context."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, context, positions=positions, offset=offset)
        if context is None:
            return q, k, v
        bias = None if self.k.bias is None else self.k.bias.detach()
        return q, self.split(F.linear(context, self.k.weight.detach(), bias)), v


@fault("cross.in_causal_layer", "ours", "C5", "claims.cross_alone")
class CrossInCausalLayer(Specimen):
    """A causal layer accepts a context."""

    def refuse(self, context: Tensor | None, positions: Tensor | None, cache: Any) -> None:
        super().refuse(None, positions, cache)


@fault("cross.single_token", "ours", "C5", "claims.cross_cache")
class CrossSingleToken(Specimen):
    """A context of a single token is refused."""

    def check_context(self, x: Tensor, context: Tensor) -> None:
        super().check_context(x, context)
        if context.shape[1] == 1:
            raise RuntimeError("a context needs two tokens")


@fault("cross.values_of_equal_length", "ours", "C5", "causality.cross_sees_all")
class CrossValuesOfEqualLength(Specimen):
    """With a context as long as the sequence, the values come from the sequence."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, context, positions=positions, offset=offset)
        alike = context is not None and context.shape == x.shape
        return q, k, self.split(self.v(x)) if alike else v
