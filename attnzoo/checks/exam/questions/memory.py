"""Questions about what lives longer than a call."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch

from attnzoo.checks.engine import law
from attnzoo.checks.engine.lab import Randomness, Switches, seed_torch
from attnzoo.checks.exam.questions.witness import Witness, fact, question, taken


@question()
def result_kept(w: Witness) -> Any:
    layer = w.make(torch.float64)
    with torch.no_grad():
        y = layer(w.tokens())
        before = y.clone()
        layer(w.tokens(draw=1))
    return fact(torch.equal(y, before))


@question(law.masked)
def mask_changed(w: Witness) -> Any:
    layer, rows = w.make(torch.float64), w.lab.mask(7, 7)
    layer(w.tokens(), mask=rows)
    rows.copy_(w.lab.mask(7, 7, draw=3))
    return layer(w.tokens(), mask=rows)


@question(law.masked)
def low_mask_kept(w: Witness) -> Any:
    low = torch.where(w.lab.mask(7, 7), 0.0, -1e9).double()
    before = low.clone()
    with torch.no_grad():
        w.layer()(w.tokens(), mask=low)
    return fact(torch.equal(low, before))


@question()
def input_freed(w: Witness) -> Any:
    layer, x = w.make(torch.float64), w.tokens()
    layer(x)
    kept = weakref.ref(x)
    del x
    return fact(kept() is None)


@question()
def switches(w: Witness) -> Any:
    layer, before = w.make(torch.float64), Switches()
    layer(w.tokens())
    after_call = before.moved()
    taken(lambda: layer(w.tokens()[..., :-1]))
    moved = before.moved()
    before.restore()
    return f"by a call {after_call}, by a refused one {moved}"


@question()
def loaded_from_nothing(w: Witness) -> Any:
    return taken(lambda: w.make(torch.float64).load_state_dict({}))


@question()
def modes(w: Witness) -> Any:
    layer = w.make(torch.float64)
    frozen = next(iter(layer.parameters())).requires_grad_(False)
    layer.train()
    thawed = frozen.requires_grad
    layer.eval()
    return f"eval reaches all {fact(not any(module.training for module in layer.modules()))}, thaws {fact(thawed)}"


@question()
def stirred(w: Witness) -> Any:
    before = Randomness.stirred()
    w.make(torch.float64, redrawn=False)
    return str([source for source in before.moved() if source != "torch's"])


@question(law.weights)
def heads_at_birth(w: Witness) -> Any:
    seed_torch(1, w.lab.device)
    weights = w.make(torch.float64, redrawn=False)(w.tokens(), need_weights=True)[1]
    return fact(weights.shape[1] > 1 and torch.allclose(weights[:, -1], weights[:, 0]))


@question()
def cast_after_a_call(w: Witness) -> Any:
    layer = w.make(torch.float32)
    never = copy.deepcopy(layer).double()(w.tokens())
    layer(w.tokens(dtype=torch.float32))
    return fact(torch.allclose(copy.deepcopy(layer).double()(w.tokens()), never, rtol=1e-12, atol=1e-12))


@question()
def nan_shown(w: Witness) -> Any:
    x = w.tokens()
    x[0, -1] = torch.nan
    return fact(bool(w.layer()(x)[0, -1].isnan().any()))
