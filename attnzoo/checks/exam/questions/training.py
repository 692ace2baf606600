"""Questions about gradients, training, and memory layout."""

from __future__ import annotations

import copy
from typing import Any

import torch

from attnzoo.checks.engine import law
from attnzoo.checks.exam.questions.witness import Witness, fact, question, taken


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


@question(law.masked)
def training_masked(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer()).train()
    return layer(w.tokens(), mask=w.lab.mask(7, 7))


@question(law.masked)
@torch.no_grad()
def masked_without_gradients(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=w.lab.mask(7, 7))


@question(law.weights)
@torch.inference_mode()
def weights_in_inference(w: Witness) -> Any:
    return w.layer()(w.tokens(), need_weights=True)[1]


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


@question(law.option("dropout"), law.masked)
def dropout_under_mask(w: Witness) -> Any:
    layer, rows = copy.deepcopy(w.layer(dropout=0.5)).train(), w.lab.mask(7, 7)
    return fact(torch.allclose(layer(w.tokens(), mask=rows), layer(w.tokens(), mask=rows)))


@question(law.option("dropout"), law.staged)
def dropout_pattern(w: Witness) -> Any:
    """What is dropped together: the channels of a sum of ones, the queries, heads and samples of one-hot values."""
    layer = copy.deepcopy(w.layer(dropout=0.5)).train()
    q, k, _ = layer.project(w.tokens(t=11))
    one_hot = torch.eye(11, dtype=k.dtype, device=k.device).expand(*k.shape[:2], 11, 11)
    sums, kept = layer.attend(q, k, torch.ones_like(one_hot)), layer.attend(q, k, one_hot)[..., -1, :] != 0
    alike = {
        "channels": (sums - sums[..., :1]).abs().amax() < 1e-9,
        "heads": (kept == kept[:, :1]).all(),
        "samples": (kept == kept[:1]).all(),
        "keys": (kept == kept[..., :1]).all(),
    }
    return ", ".join(f"{what} {fact(bool(same))}" for what, same in alike.items())


@question()
def frozen_gradient(w: Witness) -> Any:
    layer, x = copy.deepcopy(w.layer()).requires_grad_(False), w.tokens().requires_grad_()
    return torch.autograd.grad(layer(x), x, w.tokens(draw=2))[0]


@question()
def learns_everywhere(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer())
    layer(w.tokens()).square().sum().backward()
    return fact(all(parameter.grad is not None for parameter in layer.parameters()))


@question()
def gradient_in_half(w: Witness) -> Any:
    x = w.tokens(dtype=torch.bfloat16).requires_grad_()
    return torch.autograd.grad(w.layer(torch.bfloat16)(x), x, w.tokens(dtype=torch.bfloat16, draw=2))[0]


@question()
def gradient_after_another_call(w: Witness) -> Any:
    x = w.tokens().requires_grad_()
    y = w.layer()(x)
    w.layer()(w.tokens(draw=1))
    return torch.autograd.grad(y, x, w.tokens(draw=2))[0]


@question()
def other_parameters(w: Witness) -> Any:
    """Whether a call with other parameters computes with these."""
    layer, twin = w.layer(), copy.deepcopy(w.layer())
    others = {name: 0.8 * values.detach() + 0.01 for name, values in layer.named_parameters()}
    twin.load_state_dict(others)
    return fact(torch.allclose(torch.func.functional_call(layer, others, (w.tokens(),)), twin(w.tokens())))


@question()
def gradient_twice(w: Witness) -> Any:
    """Whether the second derivative is that of the gradient, where there is one."""
    x, along, step = w.tokens(), w.tokens(draw=5), 1e-5

    def slope(at: torch.Tensor, *, graph: bool) -> torch.Tensor:
        leaf = at if graph else at.detach().requires_grad_()
        return torch.autograd.grad(w.layer()(leaf).square().sum(), leaf, create_graph=graph)[0]

    leaf = x.clone().requires_grad_()
    try:
        first = slope(leaf, graph=True)
        got = torch.autograd.grad((first * along).sum(), leaf, allow_unused=True)[0] if first.requires_grad else None
    except RuntimeError:
        return fact(True)
    if got is None:
        return "a constant"
    due = (slope(x + step * along, graph=False) - slope(x - step * along, graph=False)) / (2 * step)
    return fact(float((got - due).abs().max()) < 1e-4 * float(due.abs().max()))
