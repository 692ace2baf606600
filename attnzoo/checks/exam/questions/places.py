"""Questions about positions and context."""

from __future__ import annotations

import copy
from typing import Any

import torch

from attnzoo.checks.engine import law
from attnzoo.checks.exam.questions.witness import Witness, fact, question, taken


@question()
def places(w: Witness) -> Any:
    return w.layer()(w.tokens(), positions=torch.arange(7, device=w.lab.device) * 2 + 3)


@question()
def places_per_sample(w: Witness) -> Any:
    steps = torch.arange(1, 4, device=w.lab.device)[:, None] * torch.arange(7, device=w.lab.device)
    return w.layer()(w.tokens(), positions=steps)


@question()
def places_backwards(w: Witness) -> Any:
    return w.layer()(w.tokens(), positions=torch.arange(7, device=w.lab.device).flip(0))


@question()
def places_far(w: Witness) -> Any:
    return w.layer()(w.tokens(), positions=torch.arange(7, device=w.lab.device) + 300_000)


@question()
def distance_alone(w: Witness) -> Any:
    """Whether far away the layer answers as it does near by: rounding tells angles of single precision apart."""
    layer, near = w.layer(), torch.arange(7, device=w.lab.device)
    return fact(torch.allclose(layer(w.tokens(), positions=near), layer(w.tokens(), positions=near + 300_000)))


@question()
def places_in_half(w: Witness) -> Any:
    x = w.tokens(dtype=torch.bfloat16)
    return w.layer(torch.bfloat16)(x, positions=torch.arange(7, device=w.lab.device) + 256)


@question()
def places_of_floats(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), positions=torch.arange(7.0, device=w.lab.device)))


@question(law.cross)
def context(w: Witness) -> Any:
    return w.layer()(w.tokens(), w.tokens(t=11, draw=1))


@question(law.cross, law.masked)
def context_masked(w: Witness) -> Any:
    return w.layer()(w.tokens(), w.tokens(t=11, draw=1), mask=w.lab.mask(7, 11))


@question(law.cross, law.padded, law.weights)
def context_weights(w: Witness) -> Any:
    real = w.lab.padding([11, 8, 5], 11, left=False)
    return w.layer()(w.tokens(), w.tokens(t=11, draw=1), key_mask=real, need_weights=True)[1]


@question(law.cross)
def context_learned(w: Witness) -> Any:
    """Whether every parameter gets a gradient from a context."""
    layer = copy.deepcopy(w.layer())
    layer(w.tokens(), w.tokens(t=11, draw=1)).square().sum().backward()
    return fact(all(parameter.grad is not None for parameter in layer.parameters()))


@question(law.cross)
def context_of_one(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), w.tokens(t=1, draw=1)))


@question(law.cross)
def context_gradient(w: Witness) -> Any:
    other = w.tokens(t=11, draw=1).requires_grad_()
    return torch.autograd.grad(w.layer()(w.tokens(), other).sum(), other)[0]


@question(law.positional)
def places_of_each_start(w: Witness) -> Any:
    starts = 2 * torch.arange(3, device=w.lab.device)[:, None]
    return w.layer()(w.tokens(), positions=starts + torch.arange(7, device=w.lab.device) ** 2 * (1 + starts))


@question(law.positional)
def places_below_zero(w: Witness) -> Any:
    return w.layer()(w.tokens(), positions=2 * torch.arange(7, device=w.lab.device) - 9)


@question(law.cross)
def context_of_as_many(w: Witness) -> Any:
    return w.layer()(w.tokens(), w.tokens(draw=1))
