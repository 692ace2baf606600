"""What is done with a layer in one timed call, and the answer that it must give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnzoo.bench.problem import Given, Problem
from attnzoo.bench.reference import reference

Motion = Literal["forward", "train", "decode"]
Call = Callable[[], "dict[str, Tensor]"]  # what it computed, by name


def motions(motion: Motion, layer: nn.Module, given: Given) -> Call:
    """The call that is timed."""
    prepare: dict[str, Callable[[Any, Given], Call]] = {"forward": forward, "train": train, "decode": decode}
    return prepare[motion](layer, given)


def forward(layer: nn.Module, given: Given) -> Call:
    """y = layer(x), with no gradient wanted."""

    @torch.no_grad()
    def call() -> dict[str, Tensor]:
        return {"y": layer(given.x)}

    return call


def train(layer: nn.Module, given: Given) -> Call:
    """Forward and backward: the gradients of the input and of every parameter."""
    x = given.x.clone().requires_grad_()

    def call() -> dict[str, Tensor]:
        x.grad = None
        layer.zero_grad()
        y = layer(x)
        torch.autograd.backward(y, given.dy)
        idle = [name for name, weight in layer.named_parameters() if weight.grad is None]
        assert x.grad is not None, "no gradient came to the input"
        assert not idle, f"no gradient came to {', '.join(idle)}"
        return {"y": y.detach(), "dx": x.grad}

    return call


def decode(layer: Any, given: Given) -> Call:
    """One token after t - 1 that are cached; the layer takes it back, so that every call is the same."""
    with torch.no_grad():
        layer.start(given.x[:, :-1])
    token = given.x[:, -1:]

    @torch.no_grad()
    def call() -> dict[str, Tensor]:
        return {"y": layer(token)}

    return call


def answer(motion: Motion, problem: Problem, given: Given) -> dict[str, Tensor]:
    """What each call must return, in float64."""
    x = given.x.double()
    if motion == "train":
        x.requires_grad_()
        y = reference(problem, given, x)
        torch.autograd.backward(y, given.dy.double())
        assert x.grad is not None
        return {"y": y.detach(), "dx": x.grad}
    with torch.no_grad():
        return {"y": reference(problem, given, x, first=problem.t - 1 if motion == "decode" else 0)}


# Of the largest number of the answer. float32: sums of a few thousand terms, each rounded; half types: their rounding
# of queries, keys and weights on the way.
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def complaint(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], dtype: torch.dtype) -> str:
    """What is wrong with an answer, or nothing."""
    for name, right in expected.items():
        if found[name].shape != right.shape:
            return f"{name} is {tuple(found[name].shape)}, not {tuple(right.shape)}"
        off = float((found[name].double() - right).abs().max() / right.abs().max())
        if not off <= ALLOWED[dtype]:  # NaN too
            return f"{name} is off by {off:.1e} of its largest number; {ALLOWED[dtype]:.0e} is allowed"
    return ""
