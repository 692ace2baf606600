"""Questions about what shows on large sizes only."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from attnzoo.checks.engine import law
from attnzoo.checks.engine.lab import seed_torch
from attnzoo.checks.exam.questions.witness import Witness, fact, question


@question()
def hundreds(w: Witness) -> Any:
    with torch.no_grad():
        return w.layer()(w.tokens(t=200, b=1))


@question()
def six_hundred(w: Witness) -> Any:
    with torch.no_grad():
        return w.layer()(w.tokens(t=600, b=1))[:, -8:]


@question(law.masked)
@torch.no_grad()
def six_hundred_masked(w: Witness) -> Any:
    return w.layer()(w.tokens(t=600, b=1), mask=w.lab.mask(600, 600))[:, -8:]


@question(law.weights)
@torch.no_grad()
def six_hundred_weights(w: Witness) -> Any:
    return w.layer()(w.tokens(t=600, b=1), need_weights=True)[1][:, :, -4:]


@question()
def hundreds_gradient(w: Witness) -> Any:
    x = w.tokens(t=300, b=1).requires_grad_()
    return torch.autograd.grad(w.layer()(x)[:, -8:], x, w.tokens(t=8, b=1, draw=2))[0]


@question(law.normalised)
def six_hundred_in_half(w: Witness) -> Any:
    x = w.tokens(t=600, b=1, dtype=torch.bfloat16)
    with torch.no_grad():
        half, whole = w.layer(torch.bfloat16)(x).double(), w.layer()(x.double())
    return fact(float((half - whole).abs().mean()) < 0.03 * float(whole.abs().mean()))


@question(law.normalised, law.cached)
@torch.no_grad()
def far_steps_in_half(w: Witness) -> Any:
    x = w.tokens(t=300, b=1, dtype=torch.bfloat16)
    cache = w.layer(torch.bfloat16).new_cache(1, 300)
    w.layer(torch.bfloat16)(x[:, :295], cache=cache)
    half = torch.cat([w.layer(torch.bfloat16)(x[:, i : i + 1], cache=cache) for i in range(295, 300)], dim=1).double()
    whole = w.layer()(x.double())[:, 295:]
    return fact(float((half - whole).abs().mean()) < 0.03 * float(whole.abs().mean()))


@question(law.padded)
def nine_padded(w: Witness) -> Any:
    return w.layer()(w.tokens(b=9), key_mask=w.lab.padding([7, 6, 5, 4, 3, 2, 7, 6, 3], 7, left=True))


@question(law.cached)
def hundreds_of_steps(w: Witness) -> Any:
    room = [] if law.growing(w.lab.variant) is None else [280]
    cache, x = w.layer().new_cache(2, *room), w.tokens(t=266, b=2)
    with torch.no_grad():
        parts = [w.layer()(x[:, a:e], cache=cache) for a, e in pairwise((0, 100, 150, 260, 265, 266))]
    return torch.cat(parts[1:], dim=1)


@question(law.cached, law.padded)
def hundred_padded_steps(w: Witness) -> Any:
    cache, x = w.layer().new_cache(2, 110), w.tokens(t=102, b=2)
    real = w.lab.padding([102, 80], 102, left=True)
    with torch.no_grad():
        parts = [w.layer()(x[:, a:e], cache=cache, key_mask=real[:, :e]) for a, e in pairwise((0, 100, 101, 102))]
    return torch.cat(parts[1:], dim=1)


@question(law.option("head_dim"), law.option("scale"))
def wide_heads(w: Witness) -> Any:
    outputs = []
    for scale in (None, 80**-0.5):
        seed_torch(1, w.lab.device)
        layer = w.make(torch.float64, redrawn=False, head_dim=80, scale=scale, **_unrotated(w))
        outputs.append(layer(3 * w.tokens()))
    return fact(torch.allclose(*outputs))


def _unrotated(w: Witness) -> dict[str, Any]:
    """A head of another width turns as a whole."""
    return {"rotary_dim": None} if w.lab.case.options.get("rotary_dim") else {}
