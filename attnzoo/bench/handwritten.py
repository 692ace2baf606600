"""What an expert writes by hand, in torch alone, for one job each: the mark that attnzoo is measured against.

A layer is the same for every job: one fused projection, rotation from tables, an `attend` of its own, one projection
back. Masks, biases and tables that do not depend on the input are made once, before the clock runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.bench.contender import Skip
from attnzoo.bench.problem import Given, Problem, angles, slopes

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q (b, h, t, d), k and v (b, g, t, d) -> (b, h, t, d)

BLOCK = 32  # queries in a block of a window of 256; of 32, 64, 128 and 256 the fastest measured


class ByHand(nn.Module):
    """x: (b, t, c)    y: (b, t, c)"""

    cos: Tensor
    sin: Tensor

    def __init__(self, problem: Problem, given: Given, attend: Attend) -> None:
        super().__init__()
        self.problem, self.attend = problem, attend
        self.qkv, self.out = linear(given.qkv), linear(given.out)
        angle = angles(problem)[:, None]  # (t, 1, d / 2)
        self.register_buffer("cos", angle.cos().to(given.x))
        self.register_buffer("sin", angle.sin().to(given.x))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x, self.cos, self.sin)
        return self.merge(self.attend(q, k, v))

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys turn together, before the heads are moved: one pass over memory that lies in a row."""
        p = self.problem
        rows: Tensor = self.qkv(x).view(*x.shape[:2], -1, p.head_dim)  # (b, t, h + 2 g, d)
        if not p.rope:
            q, k, v = rows.transpose(1, 2).split_with_sizes([p.heads, p.kv_heads, p.kv_heads], dim=1)
            return q, k, v
        qk, v = rows.split_with_sizes([p.heads + p.kv_heads, p.kv_heads], dim=2)
        q, k = turn(qk, cos, sin).transpose(1, 2).split_with_sizes([p.heads, p.kv_heads], dim=1)
        return q, k, v.transpose(1, 2)

    def merge(self, mixed: Tensor) -> Tensor:
        y: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y


class DecodeByHand(ByHand):
    """One token at a time, over keys and values that are set aside once."""

    def start(self, prompt: Tensor) -> None:
        p, self.held = self.problem, prompt.shape[1]
        self.keys = prompt.new_zeros(p.b, p.kv_heads, p.t, p.head_dim)
        self.values = torch.zeros_like(self.keys)
        _, self.keys[:, :, : self.held], self.values[:, :, : self.held] = self.project(
            prompt, self.cos[: self.held], self.sin[: self.held]
        )

    def forward(self, x: Tensor) -> Tensor:
        """The query heads of a group are folded into the query axis: each key is then read once, not once a head."""
        p, now, end = self.problem, self.held, self.held + 1
        q, self.keys[:, :, now:end], self.values[:, :, now:end] = self.project(x, self.cos[now:end], self.sin[now:end])
        folded = q.reshape(p.b, p.kv_heads, p.group, p.head_dim)
        mixed = F.scaled_dot_product_attention(folded, self.keys[:, :, :end], self.values[:, :, :end])
        return self.merge(mixed.reshape(p.b, p.heads, 1, p.head_dim))


def linear(weight: Tensor) -> nn.Linear:
    """A projection with this weight. weight: (out, in)"""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE, layout "half", with two temporaries where the textbook line makes six. x: (b, t, h, d)"""
    one, other = x.chunk(2, dim=-1)
    first = (one * cos).addcmul_(other, sin, value=-1)
    second = (other * cos).addcmul_(one, sin)
    return torch.cat([first, second], dim=-1)


def sdpa(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **how)


# One function a job: (problem, given) -> attend; `by_hand` makes a layer of it.


def decoding(problem: Problem, given: Given) -> nn.Module:
    """One token after another; `attend` has no part in it."""
    return DecodeByHand(problem, given, causal(problem, given))


def by_hand(job: Callable[[Problem, Given], Attend]) -> Callable[[Problem, Given], nn.Module]:
    return lambda problem, given: ByHand(problem, given, job(problem, given))


def causal(problem: Problem, given: Given) -> Attend:
    """Every earlier key: torch's fused kernel with its own flag."""
    return lambda q, k, v: sdpa(q, k, v, is_causal=True)


def band(problem: Problem, given: Given) -> Attend:
    """A window as most write it: the fused kernel and a (t, t) mask."""
    i = torch.arange(problem.t, device=given.x.device)
    distance = i[:, None] - i
    mask = (distance >= 0) & (distance < within(problem))
    return lambda q, k, v: sdpa(q, k, v, attn_mask=mask)


def band_in_blocks(problem: Problem, given: Given) -> Attend:
    """A window as blocks: BLOCK queries, the keys that they may see, and one small mask for all; linear in t.

    The first `window` queries see all before them and go apart. The keys of the blocks overlap: `unfold` is a view.
    """
    window = within(problem)
    if problem.t <= window:
        return causal(problem, given)
    assert (problem.t - window) % BLOCK == 0
    i = torch.arange(BLOCK, device=given.x.device)[:, None]
    j = torch.arange(-window, BLOCK, device=given.x.device)
    mask = (j <= i) & (i - j < window)  # (BLOCK, window + BLOCK)

    def keys(x: Tensor) -> Tensor:
        blocks = x.unfold(2, window + BLOCK, BLOCK)  # (b, g, n, d, window + BLOCK)
        return blocks.permute(0, 2, 1, 4, 3).flatten(0, 1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first = sdpa(*(x[:, :, :window] for x in (q, k, v)), is_causal=True)
        queries = (
            q[:, :, window:].reshape(*q.shape[:2], -1, BLOCK, q.shape[3]).transpose(1, 2).flatten(0, 1)
        )  # (b n, h, BLOCK, d)
        rest = sdpa(queries, keys(k), keys(v), attn_mask=mask)
        rest = rest.reshape(q.shape[0], -1, *rest.shape[1:]).transpose(1, 2).flatten(2, 3)
        return torch.cat([first, rest], dim=2)

    return attend


def capped(problem: Problem, given: Given) -> Attend:
    """A softcap, which no fused kernel of torch takes: every step by hand, on the whole (t, t) matrix."""
    cap, scale = cap_of(problem), problem.head_dim**-0.5
    later = torch.ones(problem.t, problem.t, dtype=torch.bool, device=given.x.device).triu(1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.repeat_interleave(problem.group, dim=1), v.repeat_interleave(problem.group, dim=1)
        logits = cap * ((scale * q @ k.mT).float() / cap).tanh()
        return torch.matmul(logits.masked_fill(later, float("-inf")).softmax(dim=-1).to(v.dtype), v)

    return attend


def capped_flex(problem: Problem, given: Given) -> Attend:
    """A softcap by FlexAttention, compiled: forward only on the CPU, and tens of seconds of compiling."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if given.x.device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise Skip("torch.compile needs a C++ compiler, and there is none here")
    cap = cap_of(problem)

    def earlier(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    def capped(logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return cap * torch.tanh(logit / cap)

    mask = create_block_mask(earlier, None, None, problem.t, problem.t, device=str(given.x.device))
    compiled: Any = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, score_mod=capped, block_mask=mask, enable_gqa=problem.group > 1)


def alibi(problem: Problem, given: Given) -> Attend:
    """ALiBi as a floating mask over the fused kernel: (1, h, t, t)."""
    i = torch.arange(problem.t)
    distance = i[:, None] - i
    bias = (-slopes(problem)[:, None, None] * distance).masked_fill(distance < 0, float("-inf"))[None].to(given.x)
    return lambda q, k, v: sdpa(q, k, v, attn_mask=bias)


def with_sinks(problem: Problem, given: Given) -> nn.Module:
    """A sink as one more key, of value zero, before all others: the fused kernel and its causal flag remain.

    One more channel carries the sink's logit: the queries hold it there, divided by the scale, and only the sink's key
    has a 1. A query beside the sink keeps the diagonal straight, and its output is dropped. Kernels like widths that
    are multiples of 8, hence 8 more channels in place of one.
    """
    sink, scale, d, more = nn.Parameter(given.sinks.clone()), problem.head_dim**-0.5, problem.head_dim, 8
    key = F.one_hot(torch.tensor(d), d + more).to(given.x)  # (d + 8,)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        level = (sink / scale)[None, :, None, None].expand(*q.shape[:3], 1)
        queries = F.pad(torch.cat([q, level], dim=-1), (0, more - 1, 1, 0))
        keys = torch.cat([key.expand(*k.shape[:2], 1, -1), F.pad(k, (0, more))], dim=2)
        mixed = sdpa(queries, keys, F.pad(v, (0, more, 1, 0)), is_causal=True, scale=scale)
        return mixed[:, :, 1:, :d]

    layer = ByHand(problem, given, attend)
    layer.sinks = sink
    return layer


def documents_one_by_one(problem: Problem, given: Given) -> Attend:
    """Packed documents: the fused kernel once a document."""
    lengths = list(problem.documents)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(x.split_with_sizes(lengths, dim=2) for x in (q, k, v)), strict=True)
        return torch.cat([sdpa(*part, is_causal=True) for part in parts], dim=2)

    return attend


def documents_masked(problem: Problem, given: Given) -> Attend:
    """Packed documents as most write them: the fused kernel and a (t, t) mask."""
    ids = given.document[0]
    mask = (ids[:, None] == ids).tril()
    return lambda q, k, v: sdpa(q, k, v, attn_mask=mask)


def within(problem: Problem) -> int:
    assert problem.window is not None
    return problem.window


def cap_of(problem: Problem) -> float:
    assert problem.softcap is not None
    return problem.softcap
