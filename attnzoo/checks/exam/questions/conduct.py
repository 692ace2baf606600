"""Questions about conduct: inputs, state, randomness."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from attnzoo.checks.engine import law
from attnzoo.checks.engine.lab import Randomness, seed_torch
from attnzoo.checks.exam.questions.witness import Witness, fact, question, taken


@question()
def input_type(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(dtype=torch.float32)))


@question(law.masked)
def input_kept(w: Witness) -> Any:
    x, rows = w.tokens(), w.lab.mask(7, 7)
    kept, kept_rows = x.clone(), rows.clone()
    copy.deepcopy(w.layer())(x, mask=rows)
    return f"tokens {fact(torch.equal(x, kept))}, mask {fact(torch.equal(rows, kept_rows))}"


@question()
def repeatable(w: Witness) -> Any:
    layer = w.make(torch.float64)
    seed_torch(5, w.lab.device)  # not the seed that a careless layer would set
    before = Randomness()
    first = layer(w.tokens())
    moved = before.moved()
    layer(w.tokens(draw=1))
    third = layer(w.tokens())
    layer(w.tokens(draw=1))
    layer(w.tokens(draw=3))
    off = max(float((later - first).detach().abs().max()) for later in (third, layer(w.tokens())))
    return f"random {moved}, seed {torch.initial_seed()}, repeats {off:.0e}"


@question()
def instances(w: Witness) -> Any:
    one, two = w.make(torch.float64), w.make(torch.float64)
    mine = {values.data_ptr() for values in one.parameters()}
    return fact(any(values.data_ptr() in mine for values in two.parameters()))


@question()
def saved(w: Witness) -> Any:
    layer = w.make(torch.float64)
    return fact(len(layer.state_dict()) == len(list(layer.parameters())))


@question()
def copied(w: Witness) -> Any:
    layer = w.make(torch.float64)
    layer(w.tokens().requires_grad_())
    return taken(lambda: copy.deepcopy(layer))


@question()
def cast(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer()).bfloat16().double()
    layer.load_state_dict(w.layer().state_dict())
    return layer(w.tokens())


@question()
def buffers(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer())
    with torch.no_grad():
        for values in layer.buffers():
            values.fill_(float("nan") if values.is_floating_point() else 0)
    return layer(w.tokens())


@question()
def hooks(w: Witness) -> Any:
    layer, seen = copy.deepcopy(w.layer()), set()
    owners = {name: module for name, module in layer.named_modules() if any(True for _ in module.parameters(False))}
    for name, module in owners.items():
        module.register_forward_hook(lambda *_, name=name: seen.add(name))
    layer(w.tokens())
    return fact(seen == set(owners))


@question()
def under_autocast(w: Witness) -> Any:
    x = w.tokens(dtype=torch.float32)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return taken(lambda: w.layer(torch.float32)(x))


@question(law.masked)
def masked_under_autocast(w: Witness) -> Any:
    """Whether it gives what it gives without, nearly."""
    layer, asked = w.layer(torch.float32), {"mask": w.lab.mask(7, 7)}
    y = layer(w.tokens(dtype=torch.float32), **asked)
    with torch.autocast(y.device.type, dtype=torch.bfloat16):
        mixed = layer(w.tokens(dtype=torch.float32), **asked)
    return fact(torch.allclose(mixed.float(), y, rtol=0.05, atol=0.05))


@question(law.cached)
def steps_under_autocast(w: Witness) -> Any:
    x = w.tokens(dtype=torch.float32)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return taken(lambda: w.layer(torch.float32)(x[:, :1], cache=w.layer(torch.float32).new_cache(3, 7)))


@question()
def zeros(w: Witness) -> Any:
    """The output and the gradient of a token of zeros among others."""
    x = w.tokens()
    x[:, 2] = 0
    leaf = x.requires_grad_()
    y = w.layer()(leaf)
    return torch.cat([y, torch.autograd.grad(y, leaf, w.tokens(draw=2))[0]])


@question()
def seeded(w: Witness) -> Any:
    drawn = []
    for seed in (1, 1, 2):
        seed_torch(seed, w.lab.device)
        fresh: nn.Module = w.make(torch.float64, redrawn=False)
        drawn.append(torch.cat([values.detach().flatten() for values in fresh.parameters()]))
    return f"same {fact(torch.equal(drawn[0], drawn[1]))}, other {fact(torch.equal(drawn[0], drawn[2]))}"
