"""Laws of autograd: a result carries a graph where one is asked for, the right one, and none where none is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import law, weights
from attnzoo.checks.laws.truth import questions


def ways_to_ask(lab: Lab, x: Tensor) -> dict[str, dict[str, Tensor]]:
    """The questions, and a context where the case takes one."""
    asks = questions(lab, x)
    if lab.variant.traits.cross and not lab.case.causal:
        asks["context"] = {"context": lab.tokens(t=5, draw=1)}
    return asks


@law("graph.off", "C18", cases="default")
def off(lab: Lab, see: Evidence) -> None:
    """Under `torch.no_grad` no result carries a graph, in eval, in training and with a cache, and none is inference's.

    A layer that turns gradients on by itself keeps all activations of a long text alive where nobody will learn.
    """
    layer, x = lab.layer(), lab.tokens()
    for training in (False, True):
        layer.train(training)
        mode = "in training" if training else "in eval"
        for how, asked in ways_to_ask(lab, x).items():
            with torch.no_grad():
                results = {"output": layer(x, **asked)}
                if lab.variant.traits.weights:
                    results["output beside weights"], results["weights"] = layer(x, **asked, need_weights=True)
            for name, values in results.items():
                see.holds(not values.requires_grad, f"the {name} {mode} under no_grad carries no graph, {how}")
                see.holds(not values.is_inference(), f"the {name} {mode} under no_grad may be trained on, {how}")
    layer.eval()
    if lab.variant.traits.cache != "none" and lab.causal:
        cache = layer.new_cache(*x.shape[:2])
        with torch.no_grad():
            for start, end in ((0, 2), (2, 3)):
                y = layer(x[:, start:end], cache=cache)
                see.holds(not y.requires_grad, f"tokens {start} to {end} with a cache, under no_grad, carry no graph")


@law("graph.paths", "C12", cases="default")
def paths(lab: Lab, see: Evidence) -> None:
    """However a call is asked, and whatever it returns besides, its gradients are the slopes of its output.

    Of the input and of all parameters at once, along one direction, by central differences in float64: a path on which
    one of them is cut off answers right and learns nothing.
    """
    layer, x, dy = lab.layer(), lab.tokens(), lab.tokens(draw=2)
    for how, asked in ways_to_ask(lab, x).items():

        def alone(leaf: Tensor, asked: dict[str, Tensor] = asked) -> Tensor:
            return torch.sum(layer(leaf, **asked) * dy)

        def beside(leaf: Tensor, asked: dict[str, Tensor] = asked) -> Tensor:
            return torch.sum(layer(leaf, **asked, need_weights=True)[0] * dy)

        _downhill(lab, see, layer, x, alone, f"the output, {how}")
        if lab.variant.traits.weights:
            _downhill(lab, see, layer, x, beside, f"the output beside weights, {how}")
    if lab.variant.traits.cache != "none" and lab.causal:

        def cached(leaf: Tensor) -> Tensor:
            return torch.sum(layer(leaf, cache=layer.new_cache(*x.shape[:2])) * dy)

        _downhill(lab, see, layer, x, cached, "the output of a first call with a cache")


@law("graph.weights", "C12", needs=[weights], cases="default", where=lambda case: not case.flat and not case.solitary)
def of_weights(lab: Lab, see: Evidence) -> None:
    """The returned weights carry their gradient: a loss on them, as for guided attention, teaches what made them."""
    layer, x = lab.layer(), lab.tokens()
    for how, asked in ways_to_ask(lab, x).items():
        w = layer(x, **asked, need_weights=True)[1]
        see.holds(w.requires_grad, f"the returned weights carry a graph, {how}")
        pull = lab.normal(*w.shape, draw=4)

        def loss(leaf: Tensor, asked: dict[str, Tensor] = asked, pull: Tensor = pull) -> Tensor:
            return torch.sum(layer(leaf, **asked, need_weights=True)[1] * pull)

        _downhill(lab, see, layer, x, loss, f"the returned weights, {how}")


def _downhill(lab: Lab, see: Evidence, layer: Any, x: Tensor, loss: Callable[[Tensor], Tensor], what: str) -> None:
    """The slope of a loss along a direction through the input and all parameters is what its gradients tell."""
    leaf = x.clone().requires_grad_()
    leaves = [leaf, *layer.parameters()]
    found = torch.autograd.grad(loss(leaf), leaves, allow_unused=True)
    along = [lab.normal(*values.shape, draw=20 + i).to(values.dtype) for i, values in enumerate(leaves)]
    due = sum(float((slope * way).sum()) for slope, way in zip(found, along, strict=True) if slope is not None)
    step, ends = 1e-6, []
    with torch.no_grad():
        for sign in (1, -1):
            for values, way in zip(leaves, along, strict=True):
                values.add_(way, alpha=sign * step)
            ends.append(float(loss(leaf)))
            for values, way in zip(leaves, along, strict=True):
                values.add_(way, alpha=-sign * step)
    measured = (ends[0] - ends[1]) / (2 * step)
    size = max(1.0, *(float(slope.abs().max()) for slope in found if slope is not None))
    off = abs(measured - due) / size
    see.holds(off < 1e-6, f"the slope of {what}, agrees with its gradients to 1e-6; it is off by {off:.1e}")
