"""The law of learning: gradients that are right go downhill."""

from __future__ import annotations

from itertools import pairwise

import torch

from attnzoo.checks.evidence import Evidence
from attnzoo.checks.lab import Lab
from attnzoo.checks.law import law

STEPS = 10


@law("learning.ten_steps", "C16", cases="options")
def ten_steps(lab: Lab, see: Evidence) -> None:
    """Ten plain gradient steps on a real loss lower it at every step, from the parameters as they are built.

    The loss is the squared distance to a layer with other parameters. The step follows from the slope: it is halved
    until the first step gains at least a tenth of what the slope promises, and then kept.
    """
    layer = lab.fresh().double()
    x = lab.tokens()
    with torch.no_grad():
        target = lab.layer()(x)
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    step = _step(layer, parameters, x, target)
    losses = [_descend(layer, parameters, x, target, step) for _ in range(STEPS + 1)]
    for i, (before, after) in enumerate(pairwise(losses)):
        see.holds(after < before, f"step {i + 1} lowers the loss {before:.6g}; it became {after:.6g}")
    see.reacts(torch.tensor(losses[0]), torch.tensor(losses[-1]), "the loss over ten steps")


def _loss(layer: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (layer(x) - target).square().mean()
    return loss


def _descend(
    layer: torch.nn.Module, parameters: list[torch.nn.Parameter], x: torch.Tensor, target: torch.Tensor, step: float
) -> float:
    """One step downhill; returns the loss before it."""
    loss = _loss(layer, x, target)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.sub_(gradient, alpha=step)
    return float(loss.detach())


def _step(layer: torch.nn.Module, parameters: list[torch.nn.Parameter], x: torch.Tensor, target: torch.Tensor) -> float:
    """A step length that pays on the first step."""
    start = [parameter.detach().clone() for parameter in parameters]
    before = _loss(layer, x, target)
    gradients = torch.autograd.grad(before, parameters, allow_unused=True)
    slope = sum(float(gradient.square().sum()) for gradient in gradients if gradient is not None)
    step = 1.0
    for _ in range(30):
        _descend(layer, parameters, x, target, step)
        gained = float(before.detach()) - float(_loss(layer, x, target).detach())
        with torch.no_grad():
            for parameter, value in zip(parameters, start, strict=True):
                parameter.copy_(value)
        if gained > 0.1 * step * slope:
            break
        step /= 2
    return step / 2
