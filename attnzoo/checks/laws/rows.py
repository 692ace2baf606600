"""Laws of the weights: their sums, their signs, and that they are the ones that were used."""

from __future__ import annotations

import torch

from attnzoo.checks.engine import tolerance
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import ROOT, law, staged, weights


@law("rows.sums", "C15", needs=[weights], cases="all", after=(ROOT, "shape.weights"))
def sums(lab: Lab, see: Evidence) -> None:
    """The weights of a query sum to what the variant declares, over the keys, and softmax weights are not negative.

    A softmax over the wrong axis sums to one too, but down the columns.
    """
    rows = lab.variant.traits.rows
    for dtype in lab.dtypes():
        w = lab.layer(dtype)(lab.tokens(dtype=dtype), need_weights=True)[1]
        see.finite(w, "the weights")
        if rows == "free":
            continue
        see.holds(bool((w >= 0).all()), f"no weight is negative; the least is {float(w.detach().min()):.3g}")
        total = w.sum(-1)
        if rows == "one":
            see.close(total, torch.ones_like(total), "the sums over the keys, due to be 1")
        else:
            top = float(total.detach().max())
            see.holds(top <= 1 + 1e-6, f"the sums over the keys are at most 1; the largest is {top:.6g}")


@law("rows.same_output", "C12", needs=[weights], cases="all", after=(ROOT, "shape.weights"))
def same_output(lab: Lab, see: Evidence) -> None:
    """Asking for the weights does not change the output, nor its gradient."""
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype).requires_grad_()
        dy = lab.tokens(dtype=dtype, draw=2)
        y, asked = layer(x), layer(x, need_weights=True)[0]
        see.close(asked, y, f"the output with weights asked for, {dtype}")
        (dx,), (dx_asked,) = torch.autograd.grad(y, x, dy), torch.autograd.grad(asked, x, dy)
        see.close(
            dx_asked,
            dx,
            f"the input's gradient with weights asked for, {dtype}",
            plain=tolerance.rounding(dtype, tolerance.ROUNDINGS_OF_INPUT),
        )


@law("rows.gradient", "C12", needs=[weights], after=(ROOT, "shape.weights"))
def gradient(lab: Lab, see: Evidence) -> None:
    """The gradient of the returned weights, where they carry one, is theirs: the slope along the input, to 1e-7.

    A loss on the weights learns from it. Weights that carry none say so, once they are differentiated.
    """
    layer = lab.layer()
    x, along, step = lab.tokens(), lab.tokens(draw=5), 1e-5
    leaf = x.clone().requires_grad_()
    w = layer(leaf, need_weights=True)[1]
    if not w.requires_grad:
        see.holds(True, "the returned weights carry no gradient")
        return
    pull = lab.normal(*w.shape, draw=6)
    (slopes,) = torch.autograd.grad(w, leaf, pull)
    with torch.no_grad():
        ends = [(layer(x + sign * step * along, need_weights=True)[1] * pull).sum() for sign in (1, -1)]
    due, got = float(ends[0] - ends[1]) / (2 * step), float((slopes * along).sum())
    off = abs(got - due) / max(1.0, float(slopes.abs().max()))
    see.holds(off < 1e-7, f"the slope of the weights along the input is their gradient to 1e-7; it is off by {off:.1e}")


@law("rows.used", "C12", needs=[weights, staged], cases="all", after=(ROOT, "shape.weights"))
def used(lab: Lab, see: Evidence) -> None:
    """The returned weights are the ones that were used: weights times values, merged, is the output."""
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        w = layer(x, need_weights=True)[1]
        v = layer.project(x)[2]
        shared = v.repeat_interleave(w.shape[1] // v.shape[1], dim=1)
        see.close(layer.merge(w @ shared), layer(x), f"merge(weights @ values) and the output, {dtype}")


@law("rows.probed", "C12", needs=[weights, staged], cases="all", after=(ROOT, "shape.weights"))
def probed(lab: Lab, see: Evidence) -> None:
    """The matrix read out of the fast path, by feeding it one-hot values, is the matrix that is returned.

    Every family of attention is linear in the values, so the identity in place of them shows the effective matrix.
    """
    layer = lab.layer()
    x = lab.tokens()
    q, k, _ = layer.project(x)
    b, g, s, _ = k.shape
    identity = torch.eye(s, dtype=x.dtype, device=x.device).expand(b, g, s, s)
    see.close(
        layer.attend(q, k, identity), layer(x, need_weights=True)[1], "the probed matrix and the returned weights"
    )
