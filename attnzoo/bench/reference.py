"""The answer that every contender is held to: the formula, step by step, in float64, a few queries at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnzoo.bench.problem import Given, Problem, angles, slopes

ROWS = 256  # queries at a time: all of t = 8192 at once would take gigabytes


def reference(problem: Problem, given: Given, x: Tensor, *, first: int = 0) -> Tensor:
    """The layer's output for the queries from `first` on. x: (b, t, c), float64    returns: (b, t - first, c)"""
    p = problem
    rows = (x @ given.qkv.double().T).reshape(p.b, p.t, -1, p.head_dim).transpose(1, 2)
    q, k, v = rows.split_with_sizes([p.heads, p.kv_heads, p.kv_heads], dim=1)
    if p.rope:
        q, k = turn(p, q), turn(p, k)
    k, v = k.repeat_interleave(p.group, dim=1), v.repeat_interleave(p.group, dim=1)
    mixed = torch.cat([attend(p, given, q, k, v, start) for start in range(first, p.t, ROWS)], dim=2)
    return mixed.transpose(1, 2).flatten(2) @ given.out.double().T


def turn(problem: Problem, x: Tensor) -> Tensor:
    """Channel i turns with channel i + d / 2. x: (b, h, t, d)"""
    angle = angles(problem).to(x.device)
    one, other = x.chunk(2, dim=-1)
    return torch.cat([one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()], dim=-1)


def attend(problem: Problem, given: Given, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
    """ROWS queries from `start` on, over the keys up to their own. q, k, v: (b, h, t, d)

    Checkpointed: the backward pass computes the weights again, so that memory stays that of one chunk.
    """
    end = min(start + ROWS, problem.t)
    seen = q[:, :, start:end], k[:, :, :end], v[:, :, :end]
    mixed: Tensor = checkpoint(chunk, problem, given, *seen, use_reentrant=False)
    return mixed


def chunk(problem: Problem, given: Given, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """C2's order: scale, softcap, bias, visibility, softmax, in which a sink is one more logit."""
    p, s = problem, k.shape[2]
    logits = p.head_dim**-0.5 * q @ k.mT  # (b, h, q, s)
    if p.softcap:
        logits = p.softcap * (logits / p.softcap).tanh()
    i, j = torch.arange(s - q.shape[2], s, device=q.device)[:, None], torch.arange(s, device=q.device)
    if p.alibi:
        logits = logits - slopes(p).to(logits)[:, None, None] * (i - j)
    visible = j <= i
    if p.window:
        visible = visible & (i - j < p.window)
    if p.documents:
        visible = visible & (given.document[0, i] == given.document[0, j])
    logits = logits.masked_fill(~visible, float("-inf"))
    if p.sinks:
        sink = given.sinks.double()[:, None, None].expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, sink], dim=-1)
    return torch.matmul(logits.softmax(dim=-1)[..., :s], v)
