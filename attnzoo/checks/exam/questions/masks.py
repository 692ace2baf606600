"""Questions about masks and padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import law
from attnzoo.checks.exam.questions.witness import Witness, fact, question, taken


@question(law.padded)
def padded_in_half(w: Witness) -> Any:
    x = w.tokens(dtype=torch.bfloat16)
    return w.layer(torch.bfloat16)(x, key_mask=w.lab.padding([7, 5, 4], 7, left=False))


@question(law.masked)
def mask_strewn(w: Witness) -> Any:
    rows = w.lab.mask(7, 7)
    return w.layer()(w.tokens(), mask=torch.stack([rows, rows.flip(-1)], dim=-1)[..., 0])


@question(law.masked)
def mask(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=w.lab.mask(7, 7))


@question(law.masked)
def mask_per_sample(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=w.lab.mask(3, 1, 7, 7))


@question(law.masked)
def mask_per_head(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=w.lab.mask(3, w.heads, 7, 7))


@question(law.masked)
def mask_of_all(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=torch.ones(7, 7, dtype=torch.bool, device=w.lab.device))


@question(law.masked)
def mask_of_floats(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=2 * w.lab.normal(7, 7, draw=3))


@question(law.masked)
def mask_of_floats_per_head(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=2 * w.lab.normal(3, w.heads, 7, 7, draw=3))


@question(law.masked)
def mask_gradient(w: Witness) -> Any:
    given = (2 * w.lab.normal(7, 7, draw=3)).requires_grad_()
    return torch.autograd.grad(w.layer()(w.tokens(), mask=given).sum(), given)[0]


@question(law.masked)
def mask_of_minus_infinity(w: Witness) -> Any:
    allowed = w.lab.mask(7, 7)
    return w.layer()(w.tokens(), mask=torch.zeros_like(allowed, dtype=torch.float64).masked_fill(~allowed, -torch.inf))


@question(law.masked)
def mask_in_half(w: Witness) -> Any:
    fine = 256 + w.lab.normal(7, 7).float().abs()
    return w.layer(torch.bfloat16)(w.tokens(dtype=torch.bfloat16), mask=fine)


@question(law.masked)
def mask_of_integers(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), mask=torch.ones(7, 7, dtype=torch.long)))


@question(law.masked)
def mask_of_three_axes(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), mask=torch.ones(3, 7, 7, dtype=torch.bool)))


@question(law.padded)
def padded_left(w: Witness) -> Any:
    return w.layer()(w.tokens(), key_mask=w.lab.padding([7, 5, 3], 7, left=True))


@question(law.padded)
def padded_right(w: Witness) -> Any:
    return w.layer()(w.tokens(), key_mask=w.lab.padding([4, 7, 2], 7, left=False))


@question(law.padded)
def padded_alone(w: Witness) -> Any:
    return w.layer()(w.tokens(b=1), key_mask=w.lab.padding([5], 7, left=True))


@question(law.masked, law.padded)
def padded_and_masked(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=w.lab.mask(7, 7), key_mask=w.lab.padding([7, 5, 3], 7, left=True))


@question(law.padded)
def padding_of_integers(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), key_mask=torch.ones(3, 7, dtype=torch.long)))


@question(law.masked)
def blind(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=_blind_row(w))


@question(law.masked, law.padded)
def blind_by_both(w: Witness) -> Any:
    rows = torch.ones(7, 7, dtype=torch.bool, device=w.lab.device)
    rows[2, 3:] = False
    real = torch.ones(3, 7, dtype=torch.bool, device=w.lab.device)
    real[:, :3] = False
    return w.layer()(w.tokens(), mask=rows, key_mask=real)


@question(law.masked)
def blind_gradient(w: Witness) -> Any:
    x = w.tokens().requires_grad_()
    return torch.autograd.grad(w.layer()(x, mask=_blind_row(w)).square().sum(), x)[0]


@question(law.staged, law.masked)
def blind_value_gradient(w: Witness) -> Any:
    q, k, v = (part.detach().requires_grad_() for part in w.layer().project(w.tokens()))
    rows = _blind_row(w)
    rows[:, 1] = False
    return torch.autograd.grad(w.layer().attend(q, k, v, mask=rows).sum(), v)[0]


def _blind_row(w: Witness) -> Tensor:
    rows = torch.ones(7, 7, dtype=torch.bool, device=w.lab.device)
    rows[2] = False
    return rows


@question(law.padded)
def behind_padding(w: Witness) -> Any:
    x = w.tokens()
    x[:, 5] = 1e12
    real = torch.ones(3, 7, dtype=torch.bool, device=w.lab.device)
    real[:, 5] = False
    return w.layer()(x, key_mask=real)[:, [0, 1, 2, 3, 4, 6]]


@question(law.staged, law.padded)
def behind_overflow(w: Witness) -> Any:
    q, k, v = w.layer(torch.float32).project(w.tokens(dtype=torch.float32))
    real = torch.ones(3, 7, dtype=torch.bool, device=w.lab.device)
    real[:, 1] = False
    k = k.clone()
    k[:, :, 1] = torch.finfo(torch.float32).max
    return fact(bool(torch.isfinite(w.layer(torch.float32).attend(q, k, v, key_mask=real)).all()))


@question(law.masked)
def mask_of_all_in_one_head(w: Witness) -> Any:
    rows = w.lab.mask(3, w.heads, 7, 7)
    rows[0, 0] = True
    return w.layer()(w.tokens(), mask=rows)


@question(law.masked)
def mask_of_low_numbers(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=torch.full((7, 7), -2e4, dtype=torch.float64, device=w.lab.device))


@question(law.masked)
def mask_of_one_column(w: Witness) -> Any:
    rows = torch.ones(3, 1, 7, 1, dtype=torch.bool, device=w.lab.device)
    rows[1, 0, 4] = False
    return w.layer()(w.tokens(), mask=rows)
