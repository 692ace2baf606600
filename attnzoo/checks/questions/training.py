"""Questions about gradients, training, and memory layout."""

from __future__ import annotations

import copy
from typing import Any

import torch

from attnzoo.checks import law
from attnzoo.checks.questions.witness import Witness, fact, question, taken


@question()
def gradient(w: Witness) -> Any:
    x = w.tokens().requires_grad_()
    return torch.autograd.grad(w.layer()(x), x, w.tokens(draw=2))[0]


@question(law.staged)
def value_gradient(w: Witness) -> Any:
    q, k, v = (part.detach().requires_grad_() for part in w.layer().project(w.tokens()))
    mixed = w.layer().attend(q, k, v)
    return torch.autograd.grad(mixed, v, w.lab.normal(*mixed.shape, draw=2))[0]


@question()
def training(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer()).train()
    return layer(w.tokens())


@question()
def training_gradient(w: Witness) -> Any:
    layer, x = copy.deepcopy(w.layer()).train(), w.tokens().requires_grad_()
    return torch.autograd.grad(layer(x), x, w.tokens(draw=2))[0]


@question(law.option("dropout"))
def dropout_in_eval(w: Witness) -> Any:
    return fact(torch.allclose(w.layer(dropout=0.5)(w.tokens()), w.layer()(w.tokens())))


@question(law.option("dropout"))
def dropout_in_training(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer(dropout=0.5))
    return fact(torch.allclose(layer(w.tokens()), layer.train()(w.tokens())))


@question(law.option("dropout"))
def dropout_mean(w: Witness) -> Any:
    """How much of the eval output is in the mean of many draws, and how widely they spread, in tenths."""
    layer, x = copy.deepcopy(w.layer(dropout=0.5)).train(), w.tokens(b=1)
    y, drawn = w.layer()(x)[0, -1], layer(x.expand(600, -1, -1))[:, -1]
    part, spread = (drawn.mean(0) @ y) / (y @ y), drawn.std(0).norm() / y.norm()
    return f"{float(part.detach()):.1f} of it, spread {float(spread.detach()) * 2:.0f}"


@question(law.option("dropout"), law.weights)
def dropout_weights(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer(dropout=0.5)).train()
    return fact(torch.allclose(layer(w.tokens(), need_weights=True)[1], w.layer()(w.tokens(), need_weights=True)[1]))


@question()
def transposed_input(w: Witness) -> Any:
    return w.layer()(w.tokens().transpose(0, 1).contiguous().transpose(0, 1))


@question()
def expanded_gradient(w: Witness) -> Any:
    x = w.tokens().requires_grad_()
    return torch.autograd.grad(w.layer()(x), x, torch.ones((), dtype=x.dtype).to(x.device).expand(x.shape))[0]


@question()
def empty(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(b=0)))
