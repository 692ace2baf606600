"""Faults of positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import reference
from attnzoo.checks.exam.faults.fault import fault
from attnzoo.checks.exam.faults.kinds import AbsoluteSpecimen, RotarySpecimen
from attnzoo.checks.exam.faults.specimen import Specimen


@fault("rope.other_layout", "B37", "C9", "truth.oracle")
class OtherLayout(RotarySpecimen):
    """Half-split and interleaved pairs are confused."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        width = self.rope.rotary_dim or x.shape[-1]
        other = "interleaved" if self.rope.layout == "half" else "half"
        return reference.rotate(x, positions, theta=self.rope.theta, layout=other, rotary_dim=width)


@fault("rope.theta_ignored", "B46", "C9", "truth.oracle")
class ThetaIgnored(RotarySpecimen):
    """A given theta is ignored."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        width = self.rope.rotary_dim or x.shape[-1]
        return reference.rotate(x, positions, theta=10000.0, layout=self.rope.layout, rotary_dim=width)


@fault("rope.full_denominator", "ours", "C9", "truth.oracle")
class FullDenominator(RotarySpecimen):
    """Partial rotation takes the frequencies of the whole head width."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        width = self.rope.rotary_dim or x.shape[-1]
        theta = self.rope.theta ** (width / x.shape[-1])
        return reference.rotate(x, positions, theta=theta, layout=self.rope.layout, rotary_dim=width)


@fault("rope.partial_ignored", "ours", "C14", "truth.oracle")
class PartialIgnored(RotarySpecimen):
    """A given rotary_dim is ignored: the whole head turns."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        whole = x.shape[-1]
        return reference.rotate(x, positions, theta=self.rope.theta, layout=self.rope.layout, rotary_dim=whole)


@fault("rope.in_bfloat16", "B39", "C9", "position.distinct")
class PositionsInHalf(RotarySpecimen):
    """Positions are held in the layer's type: in bfloat16 256 and 257 are one place."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().rotate(x, positions.to(x.dtype))


@fault("rope.in_float32", "B39", "C9", "position.shift")
class AnglesInFloat32(RotarySpecimen):
    """Angles are made in float32, and are off at far positions."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        width = self.rope.rotary_dim or x.shape[-1]
        powers = torch.arange(width // 2, dtype=torch.float32, device=x.device) / (width // 2)
        turned, step = x, positions.float()[..., None] / self.rope.theta**powers
        # The angle that float32 makes, as the position that would make it in float64.
        exact = positions.double()[..., None] / self.rope.theta ** powers.double()
        off = (step.double() - exact).abs().amax(-1)
        turned = super().rotate(x, positions)
        return turned * (1 + off if positions.dim() == 1 else 1 + off[:, None])[..., None].to(x.dtype)


@fault("rope.queries_only", "B43", "C9", "position.shift")
class QueriesOnly(RotarySpecimen):
    """Only the queries turn."""

    def place(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotate(q, positions), k


@fault("rope.opposite", "ours", "C9", "position.shift")
class OppositeTurns(RotarySpecimen):
    """Queries and keys turn in opposite directions, so that logits depend on the sum of positions."""

    def place(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotate(q, positions), self.rotate(k, -positions)


@fault("rope.twice", "ours", "C9", "truth.oracle")
class Twice(RotarySpecimen):
    """Queries and keys are turned twice."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().rotate(super().rotate(x, positions), positions)


@fault("rope.values_too", "ours", "C9", "truth.oracle")
class ValuesToo(RotarySpecimen):
    """The values turn as well."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, context, positions=positions, offset=offset)
        return q, k, self.rotate(v, self.default_positions(x, offset) if positions is None else positions)


@fault("rope.missing", "ours", "C9", "position.shift")
class RopeMissing(RotarySpecimen):
    """Nothing turns at all."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return x


@fault("rope.upcasts", "B41", "C19", "cache.counts")
class Upcasts(RotarySpecimen):
    """Rotated keys come out in float32 also in half layers, and the cache grows with them."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        turned = super().rotate(x, positions)
        return turned.float() if x.dtype in (torch.bfloat16, torch.float16) else turned


@fault("rope.no_offset", "B42", "C5", "cache.equals_whole")
class NoOffset(RotarySpecimen):
    """With a cache, new tokens are placed from 0 on."""

    def default_positions(self, x: Tensor, offset: int) -> Tensor:
        return super().default_positions(x, 0)


@fault("rope.late_offset", "B42", "C5", "cache.equals_whole")
class LateOffset(RotarySpecimen):
    """With a cache, the offset is read after it was advanced."""

    def default_positions(self, x: Tensor, offset: int) -> Tensor:
        return super().default_positions(x, offset + x.shape[1] if offset else 0)


@fault("rope.positions_ignored", "ours", "C14", "truth.oracle")
class PositionsIgnored(RotarySpecimen):
    """Given positions are ignored."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(x, context, offset=offset)


@fault("rope.first_samples_positions", "ours", "C5", "position.per_sample")
class FirstSamplesPositions(RotarySpecimen):
    """The positions of the first sample serve the whole batch."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().rotate(x, positions if positions.dim() == 1 else positions[0])


@fault("rope.backwards_by_default", "ours", "C5", "truth.default_positions")
class BackwardsByDefault(RotarySpecimen):
    """Positions that are not given count down."""

    def default_positions(self, x: Tensor, offset: int) -> Tensor:
        return -super().default_positions(x, offset)


@fault("rope.table_cast", "B39", "C19", "state.casts")
class TableCast(RotarySpecimen):
    """The frequencies are a buffer that is cast with the layer, and come back rounded."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        width = self.rope.rotary_dim or self.head_dim
        powers = torch.arange(width // 2, dtype=torch.float64) / (width // 2)
        self.register_buffer("frequency", 1 / self.rope.theta**powers, persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        frequency = self.get_buffer("frequency")
        ratio = frequency[1].double() if len(frequency) > 1 else torch.tensor(1.0)
        theta = float(ratio ** -len(frequency)) if len(frequency) > 1 else self.rope.theta
        width = 2 * len(frequency)
        return reference.rotate(x, positions, theta=theta, layout=self.rope.layout, rotary_dim=width)


@fault("rope.table_on_meta", "B71", "C19", "state.meta")
class TableOnMeta(RotarySpecimen):
    """The table of angles is made in the constructor only, and is lost on the meta device."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("ones", torch.ones(512), persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().rotate(x, positions) * self.get_buffer("ones")[0].to(x.dtype)


@fault("rope.floats_taken", "ours", "C5", "shape.refuses_positions")
class FloatsTaken(RotarySpecimen):
    """Positions of floats are accepted."""

    def check_positions(self, positions: Tensor | None, x: Tensor) -> None:
        super().check_positions(None if positions is None else positions.long(), x)


@fault("positions.accepted", "ours", "C14", "claims.unclaimed")
class PositionsAccepted(Specimen):
    """Positions are accepted by a layer that has no use for them."""

    def refuse(self, context: Tensor | None, positions: Tensor | None, cache: Any) -> None:
        super().refuse(context, None, cache)


@fault("positions.secret", "ours", "C5", "position.permutation")
class SecretPositions(Specimen):
    """A layer without positions looks at the order of the tokens after all."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        near = torch.arange(k.shape[2], device=k.device).to(q.dtype) * 0.1
        return super().logits(q, k) + near


@fault("positions.absolute_ignored", "ours", "C5", "position.matters")
class AbsoluteIgnored(AbsoluteSpecimen):
    """Given absolute positions are ignored."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(x, context, offset=offset)


@fault("positions.absolute_no_offset", "B42", "C5", "cache.equals_whole")
class AbsoluteNoOffset(AbsoluteSpecimen):
    """With a cache, absolute positions of new tokens start at 0."""

    def default_positions(self, x: Tensor, offset: int) -> Tensor:
        return super().default_positions(x, 0)


@fault("rope.positions_ignored_when_cached", "ours", "C14", "cache.positions")
class PositionsIgnoredWhenCached(RotarySpecimen):
    """Given positions are ignored as soon as the cache holds something."""

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(x, context, positions=None if offset else positions, offset=offset)


@fault("rope.alike_when_they_start_alike", "ours", "C5", "position.per_sample")
class AlikeWhenTheyStartAlike(RotarySpecimen):
    """Positions that start alike in every sample are taken to be those of the first throughout."""

    def place(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        alike = positions.dim() == 2 and positions.numel() and bool((positions[:, 0] == positions[0, 0]).all())
        return super().place(q, k, positions[0] if alike else positions)


@fault("rope.negative_clamped", "ours", "C9", "position.shift")
class NegativeClamped(RotarySpecimen):
    """Positions below zero are taken for zero."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().rotate(x, positions.clamp(min=0))


@fault("rope.bounded_by_length", "ours", "C9", "build.max_seq_len")
class BoundedByLength(RotarySpecimen):
    """Positions beyond max_seq_len are taken for the last one before it."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().rotate(x, positions if self.max_seq_len is None else positions.clamp(max=self.max_seq_len - 1))
