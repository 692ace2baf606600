"""What is computed: one attention layer as numbers, the same for everyone who computes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A whole causal layer, projections included; axes as in `attnzoo.protocol`.

    rope: rotary positions, layout "half", base 10000    window, softcap: None where there is none
    alibi: a penalty by distance    sinks: a learned logit per head    documents: their lengths, where t is packed
    """

    t: int
    d_model: int
    heads: int
    kv_heads: int
    b: int = 1
    rope: bool = True
    window: int | None = None
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False
    documents: tuple[int, ...] = ()

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads

    @property
    def group(self) -> int:
        """How many query heads read one key-value head."""
        return self.heads // self.kv_heads

    def at(self, t: int) -> Problem:
        """The same with t tokens; documents shrink or grow alike."""
        return replace(self, t=t, documents=tuple(n * t // self.t for n in self.documents))

    def __str__(self) -> str:
        sizes = [f"b {self.b}", f"t {self.t}", f"d_model {self.d_model}", f"heads {self.heads}"]
        sizes += [f"kv_heads {self.kv_heads}"] if self.kv_heads != self.heads else []
        sizes += ["RoPE"] if self.rope else []
        sizes += [f"window {self.window}"] if self.window else []
        sizes += [f"softcap {self.softcap:g}"] if self.softcap else []
        return ", ".join(sizes)


@dataclass(frozen=True)
class Given:
    """The numbers that every contender gets.

    qkv: ((h + 2 g) d, c), its rows [all q | all k | all v]    out: (c, h d)    sinks: (h,)
    x, dy: (b, t, c), what goes in, and what comes back in the backward pass    document: (b, t), integers
    """

    qkv: Tensor
    out: Tensor
    sinks: Tensor
    x: Tensor
    dy: Tensor
    document: Tensor


def draw(problem: Problem, *, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> Given:
    """Drawn on the CPU, so that a seed means the same numbers on every device.

    Logits spread by about 2 and a sink weighs as much as some fifty keys: with flat weights, wrong code would pass.
    """
    p, chance = problem, torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=chance)

    q_and_k = (p.heads + p.kv_heads) * p.head_dim
    qkv = normal(q_and_k + p.kv_heads * p.head_dim, p.d_model) * p.d_model**-0.5
    qkv[:q_and_k] *= 2**0.5
    numbers = [
        qkv,
        normal(p.d_model, p.heads * p.head_dim) * p.d_model**-0.5,
        normal(p.heads) + 4,
        normal(p.b, p.t, p.d_model),
        normal(p.b, p.t, p.d_model),
    ]
    ids = torch.repeat_interleave(torch.tensor(p.documents or (p.t,)))
    weights, out, sinks, x, dy = (n.to(device, dtype) for n in numbers)
    return Given(weights, out, sinks, x, dy, ids.expand(p.b, p.t).to(device))


def slopes(problem: Problem) -> Tensor:
    """ALiBi's penalty for each step of distance, by head (arXiv:2108.12409, section 3), h a power of two: (h,)"""
    return 2.0 ** (-8.0 * torch.arange(1, problem.heads + 1) / problem.heads)


def angles(problem: Problem) -> Tensor:
    """RoPE's angle of each position and channel pair, in float64: (t, d / 2)"""
    d = problem.head_dim
    frequency = 10000.0 ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)
    return torch.arange(problem.t, dtype=torch.float64)[:, None] * frequency
