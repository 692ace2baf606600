"""Windows and packed documents as blocks over torch's fused kernel: work and memory grow with t, not with t²."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.ops import sdpa
from attnzoo.ops.heads import join_tokens
from attnzoo.ops.masks import hide
from attnzoo.ops.rules import FAR, Rule
from attnzoo.ops.segments import by_document, scattered
from attnzoo.ops.terms import Terms


def why_not(q: Tensor, k: Tensor, terms: Terms) -> str | None:
    """Why there is no band to follow, or None where there is."""
    t, s = q.shape[2], k.shape[2]
    reason = sdpa.why_not(terms)
    if reason is not None:
        return f"works by torch's kernel, which {reason}"
    if terms.mask is not None:
        return "follows rules; a mask of its own may be anything, (t, s)"
    if terms.document is not None:
        return scattered(terms.document, t, s)
    return None if is_band(terms) else "needs a window, or documents"


def is_band(terms: Terms) -> bool:
    """A query sees a bounded number of tokens around it, and all of these."""
    rule = terms.rule
    return rule is not None and rule.exact and rule.behind < FAR and rule.ahead < FAR


def pays(q: Tensor, k: Tensor, terms: Terms) -> bool:
    """There is more to leave out than the blocks cost, beyond the keys that no query sees."""
    t, s = q.shape[2], k.shape[2]
    if terms.document is not None:
        return True
    rule, near = terms.rule, terms.span(t, s)
    assert rule is not None
    n, back = block_sizes(rule)
    return bool(near.stop - near.start > 2 * (back + n + rule.ahead))


def run(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
    """q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)    returns: (b, h, t, e)"""
    if terms.document is not None:
        return by_document(run, q, k, v, terms)
    return (band if is_band(terms) and pays(q, k, terms) else sdpa.run)(q, k, v, terms)


def band(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
    """All blocks that look alike in one call; the queries near either end, which see fewer keys, go apart."""
    t, s = q.shape[2], k.shape[2]
    rule = terms.rule
    assert rule is not None
    n, back = block_sizes(rule)
    ahead = terms.first_query - terms.first_key  # of the first key, the first query is
    start = min(t, max(0, back - ahead))
    stop = max(start, min(t, s - rule.ahead - ahead))
    stop -= (stop - start) % n
    parts = [
        kernel(q[:, :, here], k, v, terms.part(here, slice(0, s)))
        for kernel, here in (
            (sdpa.run, slice(0, start)),
            (blocks, slice(start, stop)),
            (sdpa.run, slice(stop, t)),
        )
        if here.start < here.stop
    ]
    return join_tokens(parts)


def blocks(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
    """Each block of queries with the keys around it, all blocks in one call: blocks stand as samples, samples as heads.

    A block of n queries reads the n keys beside it, `back` keys behind and `ahead` keys ahead of it, all of which there
    are. Blocks overlap in memory, so that no key is copied.

    q: (b, h, count * n, d)    returns: (b, h, count * n, e)
    """
    b, h, t, d = q.shape
    if terms.key_mask is not None and b > 1:  # a mask per sample
        return torch.cat([blocks(q[i : i + 1], k[i : i + 1], v[i : i + 1], terms.row(i)) for i in range(b)])
    rule = terms.rule
    assert rule is not None
    n, back = block_sizes(rule)
    reach = back + n + rule.ahead
    first = terms.first_query - terms.first_key - back
    near = slice(first, first + t - n + reach)
    k, v = k[:, :, near], v[:, :, near]
    query = torch.arange(back, back + n, device=q.device)[:, None]
    distance = query - torch.arange(reach, device=q.device)
    visible = (distance <= rule.behind) & (distance >= -rule.ahead)  # (n, reach), the same for every block
    if terms.key_mask is not None:
        real = terms.key_mask[:, near]
        k, v = hide(k, real[:, None, None]), hide(v, real[:, None, None])
        visible = visible & real.unfold(1, reach, n).transpose(0, 1)[:, None]  # (count, 1, n, reach)
    q = q.reshape(b * h, t // n, n, d).transpose(0, 1)  # (count, b * h, n, d)
    k, v = (x.flatten(0, 1).unfold(1, reach, n).permute(1, 0, 3, 2) for x in (k, v))  # (count, b * g, reach, d)
    e, scale = v.shape[-1], terms.scale
    if terms.sinks is not None:
        q, k, v, scale = sdpa.with_sink(q, k, v, terms.sinks.repeat(b), scale)
        visible = F.pad(visible, (1, 0), value=True)
    mixed = sdpa.fused(q, k, v, visible=visible, triangle=False, scale=scale, dropout=terms.dropout)[..., :e]
    return mixed.transpose(0, 1).reshape(b, h, t, e)


def block_sizes(rule: Rule) -> tuple[int, int]:
    """How many queries make a block, and how many keys behind it are read.

    An eighth of the window, since the rest of what a block reads is overlap; and a few keys more than it needs, for
    torch's kernel is slow on a number of keys that is no multiple of 16.
    """
    eighth = 1 << ((rule.behind + rule.ahead + 1) // 8).bit_length() >> 1  # down to a power of two
    n = min(256, max(32, eighth))
    return n, rule.behind + -(rule.behind + n + rule.ahead) % 16
