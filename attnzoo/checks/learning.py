"""The law of learning: gradients that are right go downhill."""

from __future__ import annotations

from itertools import pairwise

import torch

from attnzoo.checks.evidence import Evidence
from attnzoo.checks.lab import Lab
from attnzoo.checks.law import law

STEPS = 10
HALVINGS = 25


@law("learning.ten_steps", "C16", cases="options")
def ten_steps(lab: Lab, see: Evidence) -> None:
    """Ten plain gradient steps on a real loss lower it at every step, from the parameters as they are built.

    The loss is the squared distance to a layer with other parameters. The first step must gain at least a third of
    what the slope promises; the step length that does is kept, or halved while it is too long for the steps after.
    """
    layer = lab.fresh().double()
    x = lab.tokens()
    with torch.no_grad():
        target = lab.layer()(x)
    start = [parameter.detach().clone() for parameter in layer.parameters()]
    losses: list[float] = []
    for halvings in range(HALVINGS):
        with torch.no_grad():
            for parameter, value in zip(layer.parameters(), start, strict=True):
                parameter.copy_(value)
        losses = _descend(layer, x, target, step=2.0**-halvings)
        if losses and all(after < before for before, after in pairwise(losses)):
            break
    fallen = sum(after < before for before, after in pairwise(losses))
    see.holds(fallen == STEPS, f"each of {STEPS} steps lowers the loss; {fallen} did: {_told(losses)}")
    see.reacts(torch.tensor(losses[0]), torch.tensor(losses[-1]), "the loss over ten steps")


def _descend(layer: torch.nn.Module, x: torch.Tensor, target: torch.Tensor, step: float) -> list[float]:
    """The losses before each step and after the last; none where the first step gains too little."""
    losses: list[float] = []
    promised = 0.0
    for taken in range(STEPS + 1):
        loss = (layer(x) - target).square().mean()
        losses.append(float(loss.detach()))
        if taken == 1 and losses[0] - losses[1] < promised / 3:
            return []
        parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        promised = step * sum(float(gradient.square().sum()) for gradient in gradients if gradient is not None)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=step)
    return losses


def _told(losses: list[float]) -> str:
    return ", ".join(f"{loss:.4g}" for loss in losses) or "no step gains what its slope promises"
