"""Laws of positions: what a variant knows of where a token stands is what it declares."""

from __future__ import annotations

import torch

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Case, Lab
from attnzoo.checks.engine.law import law, positional, sees_all
from attnzoo.variant import Variant


def unplaced(variant: Variant) -> str | None:
    """It knows no positions."""
    return None if variant.traits.positions == "none" else f"knows {variant.traits.positions} positions"


def relative(variant: Variant) -> str | None:
    """It sees distances only."""
    kind = variant.traits.positions
    return None if kind == "relative" else f"declares positions {kind!r}, not 'relative'"


def absolute(variant: Variant) -> str | None:
    """It sees where a token stands."""
    kind = variant.traits.positions
    return None if kind == "absolute" else f"declares positions {kind!r}, not 'absolute'"


def indexed(variant: Variant) -> str | None:
    """It knows the order of the tokens, and takes no positions."""
    kind = variant.traits.positions
    return None if kind == "index" else f"declares positions {kind!r}, not 'index'"


@law("position.permutation", "C5", needs=[unplaced, sees_all], where=lambda case: case.t > 1)
def permutation(lab: Lab, see: Evidence) -> None:
    """Without positions attention is blind to order: permuted tokens give permuted outputs.

    Under causality the last token still sees all: its output does not move when those before it are permuted. Where
    only some keys are seen, which ones goes by the order, and the law does not apply.
    """
    layer = lab.layer()
    x = lab.tokens()
    t = x.shape[1]
    turned = [*reversed(range(t - 1)), t - 1]
    if lab.causal:
        see.close(
            layer(x[:, turned])[:, -1], layer(x)[:, -1], "the last output, when the tokens before it are reversed"
        )
    else:
        see.close(layer(x[:, turned]), layer(x)[:, turned], "outputs of permuted tokens")
    if lab.causal or not lab.case.flat:  # where all is the mean of all, no output tells one order from another
        see.reacts(layer(x)[:, 0], layer(x[:, turned])[:, 0], "the first output when another token comes first")


@law("position.shift", "C9", needs=[relative], where=lambda case: not case.flat and not case.solitary)
def shift(lab: Lab, see: Evidence) -> None:
    """Relative positions see distances only: counting from elsewhere changes nothing, counting in other steps does.

    At any position: in float64 to 1e-9 after a shift by a hundred thousand, in float32 within its own rounding, where
    angles made in float32 would be off by a hundredth.
    """
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        index = torch.arange(x.shape[1], device=lab.device)
        y = layer(x)
        for far in (1, 1000, 100_003, -1000):
            # Angles grow with the position, and so does their rounding, in float64.
            angle_error = abs(far) * torch.finfo(torch.float64).eps
            see.close(
                layer(x, positions=index + far), y, f"the output {far} positions further, {dtype}", plain=angle_error
            )
        if x.shape[1] > 1:
            see.differs(y, layer(x, positions=index * 2), "the outputs under single and under double distances")


@law(
    "position.distinct",
    "C9",
    needs=[positional],
    cases="default",
    where=lambda case: case.t > 1 and not case.flat and not case.solitary,
)
def distinct(lab: Lab, see: Evidence) -> None:
    """Neighbouring positions stay distinct in half types: 256 and 257 are not one place, nor 2048 and 2049.

    Positions held in bfloat16 are exact to 256 only, in float16 to 2048.
    """
    for dtype in (torch.bfloat16, torch.float16):
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        index = torch.arange(x.shape[1], device=lab.device)
        near = index.clone()
        near[1:] += 1
        for start in (256, 2048):
            y = layer(x, positions=index + start)
            # Turned in the half type itself, as many sound layers do: sines, products and their sum are each rounded.
            plain = 4 * torch.finfo(dtype).eps
            if lab.variant.traits.positions == "relative":
                see.close(y, layer(x, positions=index), f"the output from position {start} on, {dtype}", plain=plain)
            see.reacts(y, layer(x, positions=near + start), f"the output when a distance grows by one at {start}")
        see.finite(y, f"the output from position 2048 on, {dtype}")


def placed(case: Case) -> bool:
    """Cases of several samples of several tokens, in which positions show."""
    return case.b > 1 and case.t > 1 and not case.flat and not case.solitary


@law("position.per_sample", "C5", needs=[positional], where=placed)
def per_sample(lab: Lab, see: Evidence) -> None:
    """Positions (b, t) belong to their sample: each is as it would be alone."""
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    step = torch.arange(1, b + 1, device=lab.device)[:, None]
    places = step * torch.arange(t, device=lab.device)  # the first token's is that of all: only later ones differ
    alone = torch.cat([layer(x[i : i + 1], positions=places[i]) for i in range(b)])
    see.close(layer(x, positions=places), alone, "samples with positions of their own, together and alone")
    see.reacts(layer(x), layer(x, positions=places), "the output under positions of each sample")


@law("position.not_visibility", "C5", needs=[positional], where=lambda case: case.causal and case.t > 2)
def not_visibility(lab: Lab, see: Evidence) -> None:
    """Positions never decide who sees whom: causality goes by the order of the tokens, whatever positions they bear."""
    layer = lab.layer()
    x, other = lab.tokens(), lab.tokens(draw=1)
    backwards = torch.arange(x.shape[1], device=lab.device).flip(0)
    j = x.shape[1] // 2
    changed = torch.cat([x[:, :j], other[:, j:]], dim=1)
    before, after = layer(x, positions=backwards), layer(changed, positions=backwards)
    if lab.causal:
        see.close(after[:, :j], before[:, :j], "earlier outputs, positions counting down, when later tokens change")
    see.reacts(before[:, j:], after[:, j:], "later outputs")
    see.finite(before, "outputs under positions that count down")


@law("position.matters", "C5", needs=[absolute], where=lambda case: case.t > 1 and not case.flat)
def matters(lab: Lab, see: Evidence) -> None:
    """Absolute positions see where a token stands: counting from elsewhere changes the output."""
    layer = lab.layer()
    x = lab.tokens()
    index = torch.arange(x.shape[1], device=lab.device)
    see.differs(layer(x), layer(x, positions=index + 1), "the outputs in place and one position further")
    see.finite(layer(x, positions=index + 1), "the output one position further")


@law("position.order", "C5", needs=[indexed], where=lambda case: case.t > 2)
def order(lab: Lab, see: Evidence) -> None:
    """What goes by the index of the tokens knows their order: reverse those before the last, and it answers anew."""
    layer = lab.layer()
    x = lab.tokens()
    t = x.shape[1]
    turned = [*reversed(range(t - 1)), t - 1]
    see.differs(layer(x)[:, -1], layer(x[:, turned])[:, -1], "the last output when the tokens before it are reversed")
    see.reacts(layer(x)[:, 0], layer(x[:, turned])[:, 0], "the first output when another token comes first")
