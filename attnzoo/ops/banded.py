"""Windows and packed documents as blocks over torch's fused kernel: work and memory grow with t, not with t²."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.ops import sdpa
from attnzoo.ops.rules import FAR
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
    apart = rule.behind + rule.ahead
    return near.stop - near.start > 2 * (apart + block_size(apart + 1))


def run(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
    """q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)    returns: (b, h, t, e)"""
    if terms.document is not None:
        return by_document(run, q, k, v, terms)
    if is_band(terms) and pays(q, k, terms):
        return band(q, k, v, terms)
    return sdpa.run(q, k, v, terms)


def band(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
    """Each block of queries with the keys around it, all blocks in one call, as if they were samples.

    With `behind` tokens to look back and `ahead` to look forward, a block of n queries reads behind + n + ahead keys.
    """
    b, t, s = q.shape[0], q.shape[2], k.shape[2]
    rule = terms.rule
    assert rule is not None
    behind, ahead = rule.behind, rule.ahead
    n = block_size(behind + ahead + 1)
    blocks = -(-t // n)
    reach = behind + n + ahead

    keys = terms.span(t, s)
    terms, k, v = terms.part(slice(0, t), keys), k[:, :, keys], v[:, :, keys]
    before = behind - (terms.first_query - terms.first_key)  # the first block looks back beyond the first key
    after = behind + blocks * n + ahead - before - k.shape[2]
    real = terms.key_mask
    if real is not None:
        k, v = k.masked_fill(~real[:, None, :, None], 0.0), v.masked_fill(~real[:, None, :, None], 0.0)
    elif before or after:
        real = torch.ones(1, k.shape[2], dtype=torch.bool, device=q.device)
    query, key = torch.arange(n, device=q.device)[:, None], torch.arange(reach, device=q.device)
    visible = (key >= query) & (key <= query + behind + ahead)  # (n, reach), the same for every block
    if real is not None:
        real = F.pad(real, (before, after)).unfold(1, reach, n)[:, :, None, None]  # (b or 1, blocks, 1, 1, reach)
        visible = (visible & real).expand(b, blocks, 1, n, reach).reshape(b * blocks, 1, n, reach)

    q = F.pad(q, (0, 0, 0, blocks * n - t)).unflatten(2, (blocks, n)).transpose(1, 2).flatten(0, 1)
    k, v = (
        F.pad(x, (0, 0, before, after)).unfold(2, reach, n).permute(0, 2, 1, 4, 3).flatten(0, 1) for x in (k, v)
    )  # (b * blocks, g, reach, d)
    width, scale = v.shape[-1], terms.scale
    if terms.sinks is not None:
        q, k, v, scale = sdpa.with_sink(q, k, v, terms.sinks, scale)
        visible = F.pad(visible, (1, 0), value=True)
    mixed = sdpa.fused(q, k, v, visible=visible, triangle=False, scale=scale, dropout=terms.dropout)[..., :width]
    return mixed.unflatten(0, (b, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :t]


def block_size(width: int) -> int:
    """How many queries make a block, for windows of so many keys: a quarter of the keys, since the rest is overlap."""
    return min(256, max(64, 2 ** ((width // 4).bit_length() - 1) if width >= 8 else 0))
