"""Laws of time: no token hears of a later one, and every token hears of all the earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import reference
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Case, Lab, seed_torch
from attnzoo.checks.engine.law import ROOT, causal, cross, law, plain, sees_all, sees_known, staged, weights


def is_causal(case: Case) -> bool:
    """Cases built causal."""
    return case.causal


def has_past(case: Case) -> bool:
    """Cases built causal, of more than one token, whose logits are not all zero."""
    return case.causal and case.t > 1


@law("causality.no_future", "C5", needs=[causal], cases="all", where=has_past)
def no_future(lab: Lab, see: Evidence) -> None:
    """Changing a token changes no earlier output, whatever else is asked: plain, with weights, mask or cache, in
    training and in eval.

    A language model that sees the next token learns to copy it, and its loss falls beautifully. Controls: the token's
    own output does react, and where causality can be turned off, the earlier ones do too.
    """
    layer = lab.layer()
    x, other = lab.tokens(), lab.tokens(draw=1)
    t = x.shape[1]
    cuts = range(1, t) if t < 20 else (1, t // 3, t // 2, t - 1)
    for mode, call in _modes(lab, layer, t).items():
        before = call(x)
        for j in cuts:
            changed = torch.cat([x[:, :j], other[:, j:]], dim=1)
            after = call(changed)
            see.close(after[:, :j], before[:, :j], f"{mode}: outputs before token {j}, when tokens from {j} on change")
            see.reacts(before[:, j:], after[:, j:], f"{mode}: outputs from token {j} on")
    if lab.variant.traits.causal == "optional" and not lab.case.solitary:
        free = lab.layer(causal=False)
        changed = torch.cat([x[:, :1], other[:, 1:]], dim=1)
        see.reacts(free(x)[:, :1], free(changed)[:, :1], "the first output with causal=False")


@law(
    "causality.long",
    "C5",
    needs=[causal],
    cases="default",
    where=is_causal,
    after=(ROOT, "causality.no_future"),
)
def far(lab: Lab, see: Evidence) -> None:
    """On hundreds of tokens too: no output moves with a later token, and one without gradients is one with them.

    At the edges of blocks of 64 and 128, which code that goes by blocks or tables reaches here only.
    """
    layer = lab.layer()
    x, other = lab.tokens(1, 300), lab.tokens(1, 300, draw=1)
    calls = {how: call for how, call in _modes(lab, layer, 300).items() if how in ("plain", "mask", "key_mask")}
    for how, call in calls.items():
        with torch.no_grad():
            before = call(x)
            for j in (65, 128, 200, 257):
                after = call(torch.cat([x[:, :j], other[:, j:]], dim=1))
                see.close(
                    after[:, :j], before[:, :j], f"{how}, 300 tokens: outputs before {j}, when those from {j} on change"
                )
                see.reacts(before[:, j:], after[:, j:], f"{how}: outputs from token {j} on")
        see.close(call(x), before, f"{how}: outputs of 300 tokens with gradients, and without")


def _modes(lab: Lab, layer: Any, t: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """The ways to call a layer that must all be causal."""
    traits = lab.variant.traits
    modes: dict[str, Callable[[Tensor], Tensor]] = {"plain": layer, "train": lambda x: _in_training(layer, x, lab.seed)}
    if traits.weights:
        modes["need_weights"] = lambda x: layer(x, need_weights=True)[0]
    if traits.mask:
        full = torch.ones(t, t, dtype=torch.bool, device=lab.device)
        modes["mask"] = lambda x: layer(x, mask=full)
        modes["floating mask"] = lambda x: layer(x, mask=full.to(x.dtype) * 0.5)
    if traits.key_mask:
        modes["key_mask"] = lambda x: layer(x, key_mask=full.new_ones(x.shape[0], t) if traits.mask else _real(x))
    if traits.cache != "none":
        modes["cache"] = lambda x: layer(x, cache=layer.new_cache(x.shape[0], t))
        modes["cache in two chunks"] = lambda x: _in_chunks(layer, x)
    return modes


def _real(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)


def _in_training(layer: Any, x: Tensor, seed: int) -> Tensor:
    """The output in train mode; what dropout draws is the same each time."""
    seed_torch(seed, x.device)
    layer.train()
    try:
        y: Tensor = layer(x)
    finally:
        layer.eval()
    return y


def _in_chunks(layer: Any, x: Tensor) -> Tensor:
    cache = layer.new_cache(x.shape[0], x.shape[1])
    cut = max(1, x.shape[1] // 3)
    return torch.cat([layer(part, cache=cache) for part in (x[:, :cut], x[:, cut:]) if part.shape[1]], dim=1)


@law("causality.dependencies", "C5", needs=[sees_known], cases="all", where=lambda case: case.t < 20)
def dependencies(lab: Lab, see: Evidence) -> None:
    """Output i depends on exactly the tokens that it may see: on each of them, and on no other.

    Read from the gradient. It catches heads that were split across time, which mixes tokens, and encoders that
    became causal because no mask was passed.
    """
    layer = lab.layer()
    x = lab.tokens(b=1)
    t = x.shape[1]
    rule = lab.visible(t, t)
    allowed = torch.ones(t, t, dtype=torch.bool, device=lab.device) if rule is None else rule
    see.exactly(depends(layer, x), allowed, "which outputs (rows) depend on which tokens (columns)")


@law("causality.cross_sees_all", "C5", needs=[cross, sees_all], where=lambda case: not case.causal)
def cross_sees_all(lab: Lab, see: Evidence) -> None:
    """With `context`, every query sees every token of it, and no other token of its own sequence.

    Cross-attention has no causal order. A context as long as the sequence is the one that can be mistaken for it.
    """
    layer = lab.layer()
    t = lab.case.t
    for s in (t + 4, t):
        x, context = lab.tokens(b=1, t=t), lab.tokens(b=1, t=s, draw=1)
        everything = torch.ones(t, s, dtype=torch.bool, device=lab.device)
        heard = depends(partial(layer, x), context)
        see.exactly(heard, everything, f"which outputs depend on which of {s} context tokens")
        own = torch.eye(t, dtype=torch.bool, device=lab.device)
        asked = depends(partial(layer, context=context), x)
        see.exactly(asked & ~own, own & ~own, f"which outputs depend on another token that asks, beside {s} of context")


def depends(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(t, s): whether output i moves with token j. A gradient of exactly zero means: no."""
    leaf = x.detach().requires_grad_()
    y = call(leaf)
    pull = torch.linspace(0.5, 1.5, y.shape[-1], dtype=y.dtype, device=y.device)
    rows = [
        torch.autograd.grad((y[0, i] * pull).sum(), leaf, retain_graph=True)[0][0].abs().amax(-1)
        for i in range(y.shape[1])
    ]
    return torch.stack(rows) > 0


@law("causality.weights", "C5", needs=[causal, weights], cases="all", where=is_causal)
def triangle(lab: Lab, see: Evidence) -> None:
    """Above the diagonal the returned weights are exactly zero, not merely small."""
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        w = layer(lab.tokens(dtype=dtype), need_weights=True)[1]
        t = w.shape[-1]
        later = ~reference.causal(t, t, lab.device)
        see.exactly(w.masked_select(later), w.new_zeros(int(later.sum()) * w.shape[0] * w.shape[1]), "later weights")
        see.reacts(torch.zeros_like(w), w, "the weights as a whole")


@law("causality.first_token", "C5", needs=[causal], cases="all", where=is_causal)
def first_token(lab: Lab, see: Evidence) -> None:
    """The first token sees only itself: its output is what it would be alone, and its own value where rows sum to 1."""
    layer = lab.layer()
    x = lab.tokens()
    see.close(layer(x)[:, :1], layer(x[:, :1]), "the first output, in company and alone")
    if plain(lab.variant) is None and staged(lab.variant) is None:
        q, k, v = layer.project(x[:, :1])
        group = q.shape[1] // k.shape[1]
        see.close(layer(x)[:, :1], layer.merge(v.repeat_interleave(group, dim=1)), "the first output and its own value")


@law("causality.bottom_right", "C5", needs=[causal, staged], where=is_causal)
def bottom_right(lab: Lab, see: Evidence) -> None:
    """With fewer queries than keys, the queries are the newest tokens: the triangle sits at the bottom right.

    torch's `is_causal` flag anchors it at the top left, so that the newest token would lose its history.
    """
    layer = lab.layer()
    q, k, v = layer.project(lab.tokens())
    whole = layer.attend(q, k, v)
    for last in (1, 3, q.shape[2] - 1):
        see.close(layer.attend(q[:, :, -last:], k, v), whole[:, :, -last:], f"the last {last} queries on all keys")
