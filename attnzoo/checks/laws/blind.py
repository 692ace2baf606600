"""Laws of what is not seen: queries that see nothing, and keys that nobody sees, however large."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import ROOT, law, masked, padded, sees_known, staged, weights
from attnzoo.checks.laws.masks import floating, several


@law("mask.blind_rows", "C6", needs=[masked, padded], where=several, after=(ROOT, "mask.all_true"))
def blind_rows(lab: Lab, see: Evidence) -> None:
    """A query that may see no key gives zero weights and exactly zero from the weighted sum; gradients stay finite.

    Softmax over nothing but -inf is 0 / 0. The emptiness may come from two masks neither of which is empty.
    """
    for dtype in (*lab.dtypes(), torch.bfloat16):
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        b, t, _ = x.shape
        some = torch.ones(t, t, dtype=torch.bool, device=lab.device)
        some[2] = False
        half = torch.ones(t, t, dtype=torch.bool, device=lab.device)
        half[2, t // 2 :] = False
        real = torch.ones(b, t, dtype=torch.bool, device=lab.device)
        real[:, : t // 2] = False
        blind_by_both = 2 if not lab.causal else slice(0, t // 2)
        for what, asked, blind in (
            ("one boolean row", {"mask": some}, 2),
            ("one row of -inf", {"mask": floating(some, dtype)}, 2),
            ("mask and key_mask together", {"mask": half, "key_mask": real}, blind_by_both),
            ("padding of everything", {"key_mask": torch.zeros_like(real)}, slice(None)),
        ):
            _nothing_from_nothing(lab, see, layer, x, asked, blind, f"{what}, {dtype}")


def _nothing_from_nothing(
    lab: Lab, see: Evidence, layer: Any, x: Tensor, asked: dict[str, Tensor], blind: int | slice, what: str
) -> None:
    leaf = x.clone().requires_grad_()
    y = layer(leaf, **asked)
    parameters = list(layer.parameters())
    gradients = torch.autograd.grad(y.float().square().sum(), [leaf, *parameters], allow_unused=True)
    see.finite(y, f"the output with nothing to see by {what}")
    with torch.no_grad():
        see.finite(layer(x, **asked), f"the output without gradients, with nothing to see by {what}")
    for gradient in gradients:
        if gradient is not None:
            see.finite(gradient, f"gradients with nothing to see by {what}")
    if lab.variant.traits.weights:
        w = layer(x, **asked, need_weights=True)[1][:, :, blind]
        see.exactly(w, torch.zeros_like(w), f"the weights of a query that sees nothing by {what}")
    if staged(lab.variant) is None:
        q, k, v = layer.project(x)
        mixed = layer.attend(q, k, v, **asked)[:, :, blind]
        see.exactly(mixed, torch.zeros_like(mixed), f"the weighted sum of a query that sees nothing by {what}")


@law("mask.blind_gradient", "C6", needs=[masked, staged], cases="default")
def blind_gradient(lab: Lab, see: Evidence) -> None:
    """The query that sees nothing gets a gradient of exactly zero, and so does every key that nobody sees."""
    layer = lab.layer()
    q, k, v = (stage.detach().requires_grad_() for stage in layer.project(lab.tokens()))
    t = q.shape[2]
    mask = torch.ones(t, t, dtype=torch.bool, device=lab.device)
    mask[2] = False
    mask[:, 1] = False
    mixed = layer.attend(q, k, v, mask=mask)
    dq, dk, dv = torch.autograd.grad(mixed, [q, k, v], torch.ones_like(mixed))
    see.exactly(dq[:, :, 2], torch.zeros_like(dq[:, :, 2]), "the gradient of the query that sees nothing")
    see.exactly(dk[:, :, 1], torch.zeros_like(dk[:, :, 1]), "the gradient of the key that nobody sees")
    see.exactly(dv[:, :, 1], torch.zeros_like(dv[:, :, 1]), "the gradient of the value that nobody sees")
    see.reacts(torch.zeros_like(dv[:, :, 3]), dv[:, :, 3], "the gradient of a value that is seen")


@law("mask.poison", "C6", needs=[padded])
def poison(lab: Lab, see: Evidence) -> None:
    """Values behind a mask, however large, reach no output that may not see them, and no gradient.

    A finite stand-in for minus infinity, or a weight that is small instead of zero, lets them through.
    """
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        b, t, _ = x.shape
        hidden = t - 2 if lab.causal else 1
        real = torch.ones(b, t, dtype=torch.bool, device=lab.device)
        real[:, hidden] = False
        seen = [i for i in range(t) if i != hidden]
        asked = {"key_mask": real}
        clean, clean_gradient = _seen_gradient(layer, x, asked, seen)
        # What is more than a softmax may multiply three tokens, whose cube must fit.
        for size in (1e4, 1e15 if lab.variant.traits.plain or dtype == torch.float64 else 1e10):
            loud = x.clone()
            loud[:, hidden] = size
            y, gradient = _seen_gradient(layer, loud, asked, seen)
            see.close(y, clean, f"outputs beside a padded token of {size:g}")
            see.close(gradient[:, seen], clean_gradient[:, seen], f"gradients beside a padded token of {size:g}")
            see.exactly(
                gradient[:, hidden], torch.zeros_like(gradient[:, hidden]), f"the padded token's gradient, {size:g}"
            )
            if lab.causal:
                earlier = list(range(hidden))
                y, gradient = _seen_gradient(layer, loud, {}, earlier)
                due, due_gradient = _seen_gradient(layer, x, {}, earlier)
                see.close(y, due, f"outputs before a token of {size:g}")
                see.close(gradient[:, earlier], due_gradient[:, earlier], f"gradients before a token of {size:g}")


def _seen_gradient(layer: Any, x: Tensor, asked: dict[str, Tensor], seen: list[int]) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    y = layer(leaf, **asked)[:, seen]
    (gradient,) = torch.autograd.grad(y.sum(), leaf)
    return y.detach(), gradient


@law("mask.overflow", "C6", needs=[masked, padded, staged], cases="default")
def overflow(lab: Lab, see: Evidence) -> None:
    """Keys and values that nobody may see are harmless up to the largest number there is.

    Their logits overflow to infinity, and infinity plus a mask of -inf is NaN.
    """
    for dtype in (torch.float32, torch.bfloat16):
        layer = lab.layer(dtype)
        q, k, v = layer.project(lab.tokens(dtype=dtype))
        b, t = q.shape[0], q.shape[2]
        real = torch.ones(b, t, dtype=torch.bool, device=lab.device)
        real[:, 1] = False
        largest = torch.finfo(dtype).max
        loud_k, loud_v = k.clone(), v.clone()
        loud_k[:, :, 1] = largest * torch.where(k[:, :, 1] > 0, 1.0, -1.0).to(dtype)
        loud_v[:, :, 1] = largest
        for asked in ({"key_mask": real}, {"mask": real[:, None, None, :]}):
            clean = layer.attend(q, k, v, **asked)
            loud = layer.attend(q, loud_k, loud_v, **asked)
            see.close(loud, clean, f"the weighted sum beside a hidden key of {largest:.1e} by {', '.join(asked)}")


@law("mask.out_of_reach", "C3", needs=[masked, weights, sees_known], where=several, after=(ROOT, "mask.all_true"))
def out_of_reach(lab: Lab, see: Evidence) -> None:
    """A blocked key has a weight of exactly zero even where its logit would win by far, and a visible one has not."""
    for dtype in (*lab.dtypes(), torch.bfloat16, torch.float16):
        layer = lab.layer(dtype)
        x = (lab.tokens() * 6).to(dtype)
        t = x.shape[1]
        mask = lab.mask(t, t)
        w = layer(x, mask=mask, need_weights=True)[1]
        rule = lab.visible(t, t)
        visible = mask if rule is None else mask & rule
        behind = w.masked_select(~visible)
        see.exactly(behind, torch.zeros_like(behind), f"weights behind a mask, {dtype}")
        see.reacts(torch.zeros_like(w), w, "weights before the mask")
