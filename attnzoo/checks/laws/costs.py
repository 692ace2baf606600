"""Laws of cost: what grows with the length of the sequence grows no faster than is claimed.

Counted, not timed: bytes that autograd keeps, and multiplications, which are the same on any machine.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo import counting
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import cached, law
from attnzoo.variant import Variant

# Tokens; the law compares them with half as many. Where all grows in proportion the ratio is 2, by squares 4.
LENGTH = 1024
RATIO = 2.2


def linear_memory(variant: Variant) -> str | None:
    """What it keeps for the backward pass grows in proportion to the tokens."""
    return None if variant.traits.memory == "linear" else "declares that its memory is quadratic"


def linear_work(variant: Variant) -> str | None:
    """Its operations grow in proportion to the tokens."""
    return None if variant.traits.work == "linear" else "declares that its work is quadratic"


@law("cost.memory", "C12", needs=[linear_memory], cases="default")
def memory(lab: Lab, see: Evidence) -> None:
    """Twice the tokens keep at most 2.2 times the bytes for the backward pass, and no single tensor more than that.

    Every storage that autograd saves is counted once. A hidden matrix of all pairs quadruples.
    """
    layer = _lean(lab)
    (half, largest_half), (whole, largest) = (
        kept(layer, lab.tokens(1, t, torch.float32)) for t in (LENGTH // 2, LENGTH)
    )
    see.holds(half > 0, f"a call keeps something for its backward pass, not {half} bytes")
    for what, one, two in (("all that is kept", half, whole), ("the largest tensor kept", largest_half, largest)):
        told = f"{what} for the backward pass grows from {one} to {two} bytes as {LENGTH // 2} tokens become {LENGTH}"
        see.holds(two <= RATIO * one, f"{told}: {two / one:.2f} times, at most {RATIO}")


def _lean(lab: Lab) -> Any:
    """A layer whose window, if it has one, is far shorter than the sequence."""
    return lab.layer(torch.float32, **({"window": 16} if lab.window else {}))


def kept(layer: Any, x: Tensor) -> tuple[int, int]:
    """The bytes of all storages that autograd saves in a call, and of the largest one."""
    sizes = counting.storages(lambda: layer(x.requires_grad_()))
    return sum(sizes), max(sizes, default=0)


@law("cost.work", "C12", needs=[linear_work], cases="default")
def work(lab: Lab, see: Evidence) -> None:
    """Twice the tokens take at most 2.2 times the multiplications of a forward pass."""
    layer = _lean(lab)
    half, whole = (flops(layer, lab.tokens(1, t, torch.float32)) for t in (LENGTH // 2, LENGTH))
    see.holds(half > 0, f"the multiplications of a call can be counted; {half} were")
    told = f"{LENGTH // 2} tokens take {half} operations, {LENGTH} take {whole}"
    see.holds(whole <= RATIO * half, f"{told}: {whole / max(half, 1):.2f} times, at most {RATIO}")


@law("cost.decode", "C12", needs=[cached], cases="default", where=lambda case: case.causal)
def decode(lab: Lab, see: Evidence) -> None:
    """A cached step takes work in proportion to the tokens held: none of it is done for the old tokens again.

    With a ring the held tokens are the window, and a step costs the same however far it has come.
    """
    layer = _lean(lab)
    steps = []
    for t in (128, 256):
        x, cache = lab.tokens(1, t + 1, torch.float32), layer.new_cache(1, t + 1)
        layer(x[:, :t], cache=cache)
        steps.append(flops(layer, x[:, t:], cache=cache))
    see.holds(steps[0] > 0, f"the multiplications of a step can be counted; {steps[0]} were")
    most = 1.05 if lab.variant.traits.cache == "ring" else RATIO
    told = f"a step after 128 tokens takes {steps[0]} operations, after 256 {steps[1]}"
    see.holds(steps[1] <= most * steps[0], f"{told}: {steps[1] / max(steps[0], 1):.2f} times, at most {most}")


def flops(layer: Any, x: Tensor, **asked: Any) -> int:
    """The operations of a forward pass, in matrix products and in torch's fused kernels."""
    return counting.flops(lambda: layer(x, **asked))
