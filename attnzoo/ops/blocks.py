"""Scores that no fused kernel knows, one block of queries at a time, and recomputed in the backward pass.

What is kept for the backward pass are q, k and v alone, so that it grows with t, not with t².
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attnzoo.ops.eager import softmax
from attnzoo.ops.heads import join_tokens
from attnzoo.ops.masks import hide, wide_type
from attnzoo.ops.segments import by_document, scattered
from attnzoo.ops.terms import Terms

ROOM = 2**21  # numbers in the logits of one block: they should stay in the cache


def run(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
    """q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)    returns: (b, h, t, e)"""
    t, s = q.shape[2], k.shape[2]
    if terms.document is not None and scattered(terms.document, t, s) is None:
        return by_document(run, q, k, v, terms)
    n = block_size(q, k, terms)
    pieces = [torch.split(x, n, dim=2) for x in (k, v)]
    mixed = []
    for start, queries in zip(range(0, max(t, 1), n), torch.split(q, n, dim=2), strict=True):
        here = slice(start, start + queries.shape[2])
        reach = terms.part(here, slice(0, s)).span(queries.shape[2], s)
        # Whole pieces go in, and are joined inside: their gradients come back piece by piece, not in the size of k.
        first = min(reach.start, max(s - 1, 0)) // n  # a query beyond the last key reaches none
        last = max(first + 1, -(-reach.stop // n))
        cut = slice(reach.start - first * n, reach.stop - first * n)
        near = [piece for part in pieces for piece in part[first:last]]
        mixed.append(recomputed(block, queries, terms.part(here, reach), cut, *near))
    return join_tokens(mixed)


def block(q: Tensor, terms: Terms, cut: slice, *pieces: Tensor) -> Tensor:
    """One block of queries with the keys in its reach.

    q: (b, h, n, d)    pieces: keys (b, g, n, d), then as many of values (b, g, n, e)    cut: the reach, within them
    returns: (b, h, n, e)

    The queries of a group stand as more queries of one head, which spares copies of its keys.
    """
    half = len(pieces) // 2
    k, v = (torch.cat(part, dim=2)[:, :, cut] for part in (pieces[:half], pieces[half:]))
    (b, h, n, d), (g, s) = q.shape, k.shape[1:3]
    wide = wide_type(q.dtype)
    edge = terms.edge(n, s)
    visible = terms.visible(n, s, q.device) if edge is None else None
    hidden = None if edge is None or edge == s else ~terms.part(slice(0, n), slice(edge, s)).seen(n, s - edge, q.device)
    if visible is not None and terms.has_holes:
        k, v = hide(k, visible), hide(v, visible)
    grouped = (q.to(wide) * terms.scale).reshape(b, g, h // g * n, d)
    logits = (grouped @ k.to(wide).mT).reshape(b * h, n, s)
    if terms.softcap is not None:
        logits = Cap.apply(logits, terms.softcap, hidden)  # type: ignore[no-untyped-call]
    logits = logits.view(b, h, n, s)
    added = terms.added(h, n, s, like=q)
    if added is not None:
        logits = logits.add_(added) if terms.softcap is None else logits + added
    if terms.softcap is None and hidden is not None:
        logits[..., -hidden.shape[-1] :].masked_fill_(hidden, float("-inf"))
    weights = F.dropout(softmax(logits, visible, terms.sinks).to(v.dtype), terms.dropout)
    mixed: Tensor = (weights.reshape(b, g, h // g * n, s) @ v).reshape(b, h, n, v.shape[-1])
    return mixed


class Cap(torch.autograd.Function):
    """c tanh(x / c), in place, and -inf for the last keys where they are hidden.

    x: (.., n, s)    hidden: (n, m), for the last m keys; None where all are seen

    Only the result is kept: the slope is 1 - (result / c)², and none where a key is hidden.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, c: float, hidden: Tensor | None = None) -> Tensor:
        # tanh(y) = z / (z + 2) with z = exp(2 y) - 1: exact near zero, and many times as fast as torch.tanh on a CPU.
        # Beyond y = 20 tanh is 1 to the last digit of float64, and z may overflow.
        z = x.mul_(2 / c).clamp_(max=40.0).expm1_()
        capped = z.div_(z + 2).mul_(c)
        if hidden is not None:
            capped[..., -hidden.shape[-1] :].masked_fill_(hidden, float("-inf"))
        ctx.mark_dirty(x)
        ctx.save_for_backward(capped)
        ctx.c = c
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (capped,) = ctx.saved_tensors
        return gradients[0] * (1 - (capped / ctx.c) ** 2).clamp_(min=0.0), None, None


def recomputed(function: Any, q: Tensor, terms: Terms, cut: slice, *pieces: Tensor) -> Tensor:
    """Call a function, and again in the backward pass instead of keeping what is in between."""
    if not torch.is_grad_enabled():
        mixed: Tensor = function(q, terms, cut, *pieces)
    else:
        mixed = checkpoint(function, q, terms, cut, *pieces, use_reentrant=False, preserve_rng_state=terms.dropout > 0)
    return mixed


def block_size(q: Tensor, k: Tensor, terms: Terms) -> int:
    """How many queries make a block."""
    b, h = q.shape[:2]
    s = k.shape[2]
    reach = s if terms.rule is None else min(s, terms.rule.behind + terms.rule.ahead + 1)
    return max(16, min(256, ROOM // max(1, b * h * reach)))
