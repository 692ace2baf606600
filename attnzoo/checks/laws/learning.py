"""Laws of learning: gradients reach what they must, and go downhill."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch.utils.checkpoint import checkpoint

from attnzoo.checks.engine import tolerance
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import law
from attnzoo.checks.laws.truth import gradients, questions

STEPS = 10
HALVINGS = 25


@law("learning.reaches", "C16")
def reaches(lab: Lab, see: Evidence) -> None:
    """Every parameter that asks for a gradient gets one: none is left over, cut off, or applied to nothing."""
    layer = lab.layer()
    layer(lab.tokens()).square().sum().backward()
    asking = [(name, parameter) for name, parameter in layer.named_parameters() if parameter.requires_grad]
    missed = [name for name, parameter in asking if parameter.grad is None]
    see.holds(not missed, f"every parameter gets a gradient, but not {', '.join(missed)}")


@law("learning.frozen", "C16")
def frozen(lab: Lab, see: Evidence) -> None:
    """Frozen parameters stop no gradient: the input of a frozen layer gets the one that it gets of a trained layer.

    And the other way round: the parameters get theirs where the input asks for none, as in a first layer.
    """
    layer = lab.layer()
    x, dy = lab.tokens(), lab.tokens(draw=2)
    leaf, own = x.clone().requires_grad_(), list(layer.parameters())
    due, *due_own = torch.autograd.grad(layer(leaf), [leaf, *own], dy, allow_unused=True)
    for (name, _), got, of_both in zip(
        layer.named_parameters(), torch.autograd.grad(layer(x), own, dy, allow_unused=True), due_own, strict=True
    ):
        if of_both is not None:
            what = f"the gradient of {name}, where the input asks for none"
            see.holds(got is not None, f"{what}, is there")
            see.close(got, of_both, what, plain=tolerance.rounding(x.dtype))
    for parameter in own:
        parameter.requires_grad_(False)
    y = layer(leaf)
    see.holds(y.requires_grad, "the output of a frozen layer carries the gradient of its input")
    (got,) = torch.autograd.grad(y, leaf, dy)
    see.close(got, due, "the input's gradient of a frozen layer, and of one that learns")


@law("learning.twice", "C18", cases="default")
def twice(lab: Lab, see: Evidence) -> None:
    """A layer may be called again before the backward pass, and recomputed in it: each call has its own gradient.

    As where layers are shared, gradients summed over parts of a batch, or activations checkpointed.
    """
    layer = lab.layer()
    x, other, dy = lab.tokens(), lab.tokens(draw=1), lab.tokens(draw=2)
    for how, asked in questions(lab, x).items():
        call = partial(layer, **asked)
        due = gradients(layer, x, dy, asked)
        ways = {"another call comes between": call, "it is recomputed": partial(checkpoint, call, use_reentrant=False)}
        for what, answer in ways.items():
            leaf = x.clone().requires_grad_()
            y = answer(leaf)
            call(other)
            found = torch.autograd.grad(y, [leaf, *layer.parameters()], dy, allow_unused=True)
            for (name, slope), got in zip(due.items(), found, strict=True):
                got = torch.zeros_like(slope) if got is None else got
                see.close(got, slope, f"the gradient of {name} when {what}, {how}")


@law("learning.ten_steps", "C16", cases="options")
def ten_steps(lab: Lab, see: Evidence) -> None:
    """Ten plain gradient steps on a real loss lower it at every step, from the parameters as they are built.

    The loss is the squared distance to a layer with other parameters. The first step must gain at least a third of
    what the slope promises; the step length that does is kept, or halved while it is too long for the steps after.
    """
    layer = lab.fresh().double().eval()  # without dropout, whatever the case asks for
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
