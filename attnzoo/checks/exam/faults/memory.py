"""Faults of what lives longer than a call."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.checks.engine import reference
from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.kinds import RotarySpecimen
from attnzoo.checks.exam.faults.specimen import Specimen


@fault("state.reuses_output", "ours", "C18", "mode.repeatable")
class ReusesOutput(Specimen):
    """Without gradients every call writes its output into one and the same tensor."""

    room: ClassVar[dict[Any, Tensor]] = {}

    def merge(self, mixed: Tensor) -> Tensor:
        y = super().merge(mixed)
        if torch.is_grad_enabled() or y.is_inference():
            return y
        return self.room.setdefault((id(type(self)), y.shape, y.dtype), torch.empty_like(y)).copy_(y)


@fault("state.mask_by_identity", "ours", "C18", "mode.reads_anew")
class MaskByIdentity(Specimen):
    """A mask is known by the tensor that holds it: changed in place, it is still the old one."""

    known: Any = None

    def mask_rule(self, mask: Tensor) -> Tensor:
        if self.known is None or self.known[0] is not mask:
            self.known = (mask, super().mask_rule(mask).clone())
        rule: Tensor = self.known[1]
        return rule


@fault("state.keeps_inputs", "ours", "C18", "mode.keeps_nothing")
class KeepsInputs(Specimen):
    """Every input is kept in a list, and never freed."""

    kept: ClassVar[list[Tensor]] = []

    def source(self, x: Tensor, context: Tensor | None) -> Tensor:
        self.kept.append(x)
        del self.kept[:-8]
        return super().source(x, context)


@fault("state.leaves_precision", "ours", "C18", "mode.leaves_switches")
class LeavesPrecision(Specimen):
    """A call sets the precision of float32 products for the whole process."""

    def source(self, x: Tensor, context: Tensor | None) -> Tensor:
        torch.set_float32_matmul_precision("medium")
        return super().source(x, context)


@fault("state.refused_without_gradients", "ours", "C18", "mode.leaves_switches")
class RefusedWithoutGradients(Specimen):
    """A refused call leaves gradients switched off for the whole process."""

    def check_tokens(self, x: Tensor, held: int) -> None:
        on = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        super().check_tokens(x, held)
        torch.set_grad_enabled(on)


@fault("state.loads_anything", "ours", "C16", "state.dict")
class LoadsAnything(Specimen):
    """A state_dict that lacks parameters is loaded without a word."""

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False, assign=assign)


@fault("mode.thaws", "ours", "C18", "mode.reaches_all")
class Thaws(Specimen):
    """`train` makes every parameter learn, frozen ones too."""

    def train(self, mode: bool = True) -> Any:
        return super().train(mode).requires_grad_(True) if mode else super().train(mode)


@fault("mode.not_below", "ours", "C18", "mode.reaches_all")
class NotBelow(Specimen):
    """`eval` reaches the layer and none of its modules."""

    def train(self, mode: bool = True) -> Any:
        self.training = mode
        return self


@fault("init.seeds_numpy", "ours", "C16", "build.seeded")
class SeedsNumpy(Specimen):
    """The constructor seeds NumPy's generator, always alike."""

    def choose_scale(self, scale: float | None) -> float:
        np.random.seed(0)
        return super().choose_scale(scale)


@fault("init.heads_alike", "ours", "C16", "build.heads_differ")
class HeadsAlike(Specimen):
    """All heads are born with the parameters of the first."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        with torch.no_grad():
            for linear in (self.q, self.k):
                for parameter in linear.parameters():
                    first = parameter[: self.head_dim]
                    parameter.copy_(first.repeat(len(parameter) // self.head_dim, *[1] * (parameter.dim() - 1)))


@fault("rope.table_kept", "ours", "C19", "state.casts")
class TableKept(RotarySpecimen):
    """Angles made in a call stay in its type, and serve a layer that was cast since."""

    made: torch.dtype | None = None

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        self.made = self.made or x.dtype
        width = self.rope.rotary_dim or x.shape[-1]
        theta, layout = self.rope.theta, self.rope.layout
        turned = reference.rotate(x.to(self.made).double(), positions, theta=theta, layout=layout, rotary_dim=width)
        return turned.to(self.made).to(x.dtype)


@fault("input.low_mask_raised", "ours", "C13", "mode.inputs_untouched")
class LowMaskRaised(Specimen):
    """Where no gradient is asked for, a floating mask below -10000 is raised to that, in the caller's tensor."""

    def add_mask(self, logits: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
        if mask is not None and mask.is_floating_point() and not torch.is_grad_enabled() and not mask.is_inference():
            mask.masked_fill_((mask < -1e4) & mask.isfinite(), -1e4)
        return super().add_mask(logits, mask, q)


@fault("input.nan_hidden", "ours", "C1", "numerics.nan")
class NanHidden(Specimen):
    """What is NaN in the input is taken for 0."""

    def source(self, x: Tensor, context: Tensor | None) -> Tensor:
        return super().source(x, context).nan_to_num()

    def split(self, x: Tensor) -> Tensor:
        return super().split(x.nan_to_num())


class _BySaved(torch.autograd.Function):
    """The weighted sum, whose backward pass reads what the last call on as many tokens left in the layer."""

    @staticmethod
    def forward(ctx: Any, layer: Any, weights: Tensor, v: Tensor) -> Tensor:
        ctx.layer, ctx.sizes = layer, (weights.shape, v.shape)
        layer.last[ctx.sizes] = weights.detach(), v.detach()
        return weights @ v

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        weights, v = ctx.layer.last[ctx.sizes]
        return None, dy @ v.mT, weights.mT @ dy


@fault("backward.of_last_call", "ours", "C18", "learning.twice")
class BackwardOfLastCall(Specimen):
    """The backward pass reads what the layer saved in its last call, whichever call it belongs to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.last: dict[Any, tuple[Tensor, Tensor]] = {}

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        mixed: Tensor = _BySaved.apply(self, weights, v)  # type: ignore[no-untyped-call]
        return mixed


@fault("state.keeps_parameter", "ours", "C16", "state.functional")
class KeepsParameter(Specimen):
    """A parameter is kept aside when the layer is built, so that a call with other parameters uses the old one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.__dict__["kept"] = self.out.weight

    def merge(self, mixed: Tensor) -> Tensor:
        return F.linear(self.join(mixed), self.__dict__["kept"], self.out.bias)
