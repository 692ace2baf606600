"""Faults of conduct: modes, state, and what is returned."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.specimen import Specimen, SpecimenCache


@fault("backend.any", "ours", "C12", "build.refuses_backend")
class BackendAny(Specimen):
    """A backend that does not exist is accepted."""

    def check_options(self, dropout: float, backend: str) -> None:
        super().check_options(dropout, "auto")


@fault("weights.after_dropout", "B62", "C12", "mode.dropout_weights")
class WeightsAfterDropout(Specimen):
    """The returned weights are those after dropout."""

    def show(self, weights: Tensor) -> Tensor:
        return self.drop(weights)


@fault("weights.averaged", "B62", "C12", "shape.weights")
class WeightsAveraged(Specimen):
    """The returned weights are averaged over the heads."""

    def show(self, weights: Tensor) -> Tensor:
        return weights.mean(1)


@fault("weights.of_first_head", "ours", "C12", "rows.used")
class WeightsOfFirstHead(Specimen):
    """The returned weights are those of the first head, for all heads."""

    def show(self, weights: Tensor) -> Tensor:
        return weights[:, :1].expand_as(weights)


@fault("weights.logarithms", "B62", "C15", "rows.sums")
class WeightsLogarithms(Specimen):
    """The returned weights are logarithms."""

    def show(self, weights: Tensor) -> Tensor:
        return weights.clamp(min=1e-30).log()


@fault("weights.transposed", "B76", "C1", "rows.used")
class WeightsTransposed(Specimen):
    """The returned weights have keys before queries."""

    def show(self, weights: Tensor) -> Tensor:
        return weights.mT


@fault("weights.change_output", "ours", "C12", "rows.same_output")
class WeightsChangeOutput(Specimen):
    """When the weights are asked for, the output is that of rounded weights."""

    def forward(self, x: Tensor, *args: Any, need_weights: bool = False, **asked: Any) -> Any:
        self.rounded = need_weights
        return super().forward(x, *args, need_weights=need_weights, **asked)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix((weights * 256).round() / 256 if getattr(self, "rounded", False) else weights, v)


@fault("half.weights_rounded", "ours", "C17", "numerics.half_weights")
class HalfWeightsRounded(Specimen):
    """In half types the returned weights are rounded to eighths."""

    def show(self, weights: Tensor) -> Tensor:
        return (weights * 8).round() / 8 if weights.dtype in (torch.bfloat16, torch.float16) else weights


@fault("half.values_rounded", "ours", "C17", "numerics.half_layer")
class HalfValuesRounded(Specimen):
    """In half types the mixed values are rounded to sixteenths before the output projection."""

    def join(self, mixed: Tensor) -> Tensor:
        half = mixed.dtype in (torch.bfloat16, torch.float16)
        return super().join((mixed * 16).round() / 16 if half else mixed)


@fault("double.only", "ours", "C2", "truth.oracle")
class DoubleOnly(Specimen):
    """In float64 the first key is left out."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights[..., 1:] @ v[..., 1:, :] if v.dtype == torch.float64 else super().mix(weights, v)


@fault("single.only", "ours", "C2", "truth.oracle")
class SingleOnly(Specimen):
    """In float32 the weights are rounded to bfloat16."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights.bfloat16().float() if weights.dtype == torch.float32 else weights, v)


@fault("long.only", "ours", "C2", "truth.oracle")
class LongOnly(Specimen):
    """Beyond 64 tokens the first ones are forgotten."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights[..., -64:] @ v[..., -64:, :]


@fault("output.pair", "B62", "C1", "build.runs")
class OutputPair(Specimen):
    """A plain call returns the weights as well."""

    def forward(self, x: Tensor, *args: Any, need_weights: bool = False, **asked: Any) -> Any:
        return super().forward(x, *args, need_weights=True, **asked)


@fault("output.dtype", "B41", "C19", "shape.output")
class OutputDtype(Specimen):
    """The output of a half layer is float32."""

    def merge(self, mixed: Tensor) -> Tensor:
        y = super().merge(mixed)
        return y.float() if y.dtype in (torch.bfloat16, torch.float16) else y


@fault("input.cast", "ours", "C19", "shape.refuses_tokens")
class InputCast(Specimen):
    """An input of another type is cast without a word."""

    def forward(self, x: Tensor, *args: Any, **asked: Any) -> Any:
        return super().forward(x.to(self.q.weight.dtype), *args, **asked)


@fault("input.changed", "ours", "C13", "mode.inputs_untouched")
class InputChanged(Specimen):
    """The input is changed in place."""

    def forward(self, x: Tensor, *args: Any, **asked: Any) -> Any:
        y = super().forward(x, *args, **asked)
        if not x.requires_grad:
            x.mul_(1.01)
        return y


@fault("input.mask_changed", "ours", "C13", "mode.inputs_untouched")
class MaskChanged(Specimen):
    """A boolean mask is changed in place: causality is written into it."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        visible = super().visible(q, k, mask, key_mask)
        if mask is not None and mask.dtype == torch.bool and mask.dim() == 2 and self.causal:
            mask &= self.causal_rule(q, k)
        return visible


@fault("state.remembers", "ours", "C18", "mode.repeatable")
class Remembers(Specimen):
    """A running mean of earlier calls is subtracted from the output."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.mean = 0.0

    def merge(self, mixed: Tensor) -> Tensor:
        y = super().merge(mixed)
        before = self.mean
        self.mean = 0.9 * self.mean + 0.1 * float(y.detach().mean()) if y.numel() else self.mean
        return y - (before if math.isfinite(before) else 0.0)


@fault("state.second_call", "B57", "C18", "mode.repeatable")
class SecondCall(Specimen):
    """Every second call is wrong."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls = 0

    def forward(self, x: Tensor, *args: Any, **asked: Any) -> Any:
        self.calls += 1
        return super().forward(x, *args, **asked)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, v) * (1.0 if self.calls % 2 else 1.001)


@fault("state.stirs_randomness", "ours", "C18", "mode.repeatable")
class StirsRandomness(Specimen):
    """A call in eval draws from torch's global generator, for dropout of nothing."""

    def drop(self, weights: Tensor) -> Tensor:
        torch.rand(1)
        return super().drop(weights)


@fault("state.seeds_itself", "ours", "C18", "mode.repeatable")
class SeedsItself(Specimen):
    """A call sets the seed of torch's global generator."""

    def drop(self, weights: Tensor) -> Tensor:
        torch.manual_seed(0)
        return super().drop(weights)


@fault("state.shared", "ours", "C18", "build.apart")
class Shared(Specimen):
    """All layers of a width share one output projection."""

    memory: ClassVar[dict[Any, Any]] = {}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.share_out()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.share_out()
        return self

    def share_out(self) -> None:
        own = self.out.weight
        place = own.shape, own.dtype, own.device
        kept = self.memory.get(place)
        if kept is None or (kept.shape, kept.dtype, kept.device) != place:  # or moved since, by another layer
            kept = self.memory[place] = own
        self.out.weight = kept


@fault("state.saves_tables", "B68", "C16", "state.dict")
class SavesTables(Specimen):
    """A derived mask is saved in the state_dict."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        length = self.max_seq_len or 128
        self.register_buffer("triangle", torch.ones(length, length, dtype=torch.bool).tril())


@fault("state.keeps_weights", "B70", "C18", "state.copies")
class KeepsWeights(Specimen):
    """The last weights are kept on the layer with their graph, so that it cannot be copied."""

    def show(self, weights: Tensor) -> Tensor:
        return weights

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        self.last = weights
        return super().mix(weights, v)


@fault("state.length_limit", "ours", "C1", "build.max_seq_len")
class LengthUnlimited(Specimen):
    """A given max_seq_len is not enforced."""

    def check_tokens(self, x: Tensor, held: int) -> None:
        limit, self.max_seq_len = self.max_seq_len, None
        try:
            super().check_tokens(x, held)
        finally:
            self.max_seq_len = limit


@fault("mode.unmasked_in_training", "ours", "C12", "mode.train_is_eval")
class UnmaskedInTraining(Specimen):
    """In training a boolean mask is left out."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        rule = super().mask_rule(mask)
        return torch.ones_like(rule) if self.training and mask.dtype == torch.bool else rule


@fault("mode.unmasked_without_gradients", "ours", "C12", "mode.train_is_eval")
class UnmaskedWithoutGradients(Specimen):
    """Without gradients a whole sequence takes a way of its own, which leaves out the mask."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        quick = not torch.is_grad_enabled() and q.shape[2] == k.shape[2]
        return super().visible(q, k, None if quick else mask, key_mask)


@fault("mode.weights_in_inference", "ours", "C12", "mode.train_is_eval")
class WeightsInInference(Specimen):
    """In inference mode the returned weights are averaged over the heads."""

    def show(self, weights: Tensor) -> Tensor:
        return weights.mean(1, keepdim=True).expand_as(weights) if torch.is_inference_mode_enabled() else weights


@fault("init.own_generator", "ours", "C16", "build.seeded")
class OwnGenerator(Specimen):
    """Parameters are drawn from NumPy's generator."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        with torch.no_grad():
            self.out.weight.copy_(torch.from_numpy(np.random.randn(*self.out.weight.shape) * 0.1))


@fault("init.fixed_seed", "ours", "C16", "build.seeded")
class FixedSeed(Specimen):
    """The constructor sets a seed of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        torch.manual_seed(0)
        super().__init__(*args, **options)


@fault("hooks.bypassed", "ours", "C18", "mode.hooks")
class HooksBypassed(Specimen):
    """The output projection is applied by its weights, past its hooks."""

    def merge(self, mixed: Tensor) -> Tensor:
        return F.linear(self.join(mixed), self.out.weight, self.out.bias)


@fault("autocast.breaks", "B78", "C19", "state.autocast")
class AutocastBreaks(Specimen):
    """Under autocast the layer fails on mixed types."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        if v.dtype != self.q.weight.dtype:
            raise RuntimeError(f"expected {self.q.weight.dtype}, got {v.dtype}")
        return super().mix(weights, v)


@fault("autocast.cache_breaks", "B78", "C19", "state.autocast")
class AutocastBreaksCache(Specimen):
    """Under autocast a cache does not take keys of another type than the layer's."""

    def remember(self, cache: SpecimenCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if k.dtype != self.k.weight.dtype:
            raise RuntimeError(f"expected {self.k.weight.dtype}, got {k.dtype}")
        return super().remember(cache, k, v)


@fault("autocast.mask_forgotten", "ours", "C19", "state.autocast")
class AutocastForgetsMask(Specimen):
    """Under autocast a boolean mask is taken for a floating one, and added."""

    def mask_rule(self, mask: Tensor) -> Tensor:
        rule = super().mask_rule(mask)
        return torch.ones_like(rule) if torch.is_autocast_enabled(mask.device.type) else rule


@fault("numerics.unit_keys", "ours", "C6", "numerics.zeros")
class UnitKeys(Specimen):
    """Keys are divided by their length and multiplied by it again, so that a token of zeros is NaN."""

    def split(self, x: Tensor) -> Tensor:
        heads = super().split(x)
        length: Tensor = heads.norm(dim=-1, keepdim=True)
        return heads / length * length


@fault("claims.too_much", "ours", "C14", "claims.claimed")
class ClaimsTooMuch(Specimen):
    """The key_mask is claimed and not taken."""

    def check_key_mask(self, key_mask: Tensor | None, x: Tensor, s: int) -> None:
        if key_mask is not None:
            raise NotImplementedError("no key_mask here")
