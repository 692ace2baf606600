"""Plain calls."""

from __future__ import annotations

from typing import Any

import torch

from attnzoo.checks.engine import law
from attnzoo.checks.exam.questions.witness import Witness, fact, question


@question()
def plain(w: Witness) -> Any:
    return w.layer()(w.tokens())


@question()
def alone(w: Witness) -> Any:
    return w.layer()(w.tokens(b=1))


@question()
def four(w: Witness) -> Any:
    return w.layer()(w.tokens(b=4))


@question()
def one_token(w: Witness) -> Any:
    return w.layer()(w.tokens(t=1))


@question()
def seventeen(w: Witness) -> Any:
    return w.layer()(w.tokens(t=17, b=1))


@question()
def long(w: Witness) -> Any:
    return w.layer()(w.tokens(t=71, b=1))


@question()
def single(w: Witness) -> Any:
    return w.layer(torch.float32)(w.tokens(dtype=torch.float32))


@question()
def half(w: Witness) -> Any:
    x = w.tokens(dtype=torch.bfloat16)
    return w.layer(torch.bfloat16)(x)


@question()
def half_type(w: Witness) -> Any:
    return str(w.layer(torch.bfloat16)(w.tokens(dtype=torch.bfloat16)).dtype)


@question()
def half_softmax(w: Witness) -> Any:
    x = 4 * w.tokens(t=64, b=1, dtype=torch.float16)
    with torch.no_grad():
        off = w.layer(torch.float16)(x).double() - w.layer()(x.double())
    return fact(float(off.abs().mean()) < 0.02)


@question()
def loud(w: Witness) -> Any:
    return fact(bool(torch.isfinite(w.layer()(200 * w.tokens())).all()))


@question(law.weights)
def weights(w: Witness) -> Any:
    return w.layer()(w.tokens(), need_weights=True)[1]


@question(law.weights)
def half_weights(w: Witness) -> Any:
    return w.layer(torch.bfloat16)(w.tokens(dtype=torch.bfloat16), need_weights=True)[1]


@question(law.weights)
def output_with_weights(w: Witness) -> Any:
    return w.layer()(w.tokens(), need_weights=True)[0]


@question(law.staged)
def matrix(w: Witness) -> Any:
    q, k, _ = w.layer().project(w.tokens())
    s = k.shape[2]
    return w.layer().attend(q, k, torch.eye(s, dtype=k.dtype).to(k.device).expand(*k.shape[:2], s, s))


@question(law.staged)
def staged(w: Witness) -> Any:
    layer, x = w.layer(), w.tokens()
    return fact(torch.allclose(layer.merge(layer.attend(*layer.project(x))), layer(x)))


@question()
def very_loud(w: Witness) -> Any:
    return w.layer()(100 * w.tokens())


@question()
def half_very_loud(w: Witness) -> Any:
    return fact(bool(torch.isfinite(w.layer(torch.float16)(100 * w.tokens(dtype=torch.float16))).all()))


@question(law.weights)
def weights_gradient(w: Witness) -> Any:
    x = w.tokens().requires_grad_()
    weights = w.layer()(x, need_weights=True)[1]
    return torch.autograd.grad(weights, x, w.lab.normal(*weights.shape, draw=6))[0]
