"""What can be counted instead of timed: the same numbers on every machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo import counting
from attnzoo.bench.contender import Contender, Kind, Skip
from attnzoo.bench.ours import Make, ours
from attnzoo.bench.problem import Problem, draw
from attnzoo.bench.works import BAND, BIAS, BLOCK_MASK, BLOCKS, BY_HAND, CAP_STEPS, LOOP, PACKED, SINK_KEY

GROWS_AT_MOST = 2.2  # what twice the tokens may do to the bytes kept: linear, and a little to spare

SIZE = Problem(t=2048, d_model=128, heads=2, kv_heads=1)


@dataclass(frozen=True)
class Count:
    """One contender at `problem`, and what becomes of it at twice the tokens.

    flops: of one forward pass, two a multiplication with its addition; a fused kernel counts as the whole (t, s)
    kept: bytes held for the backward pass, each storage once, parameters not counted    growth: kept at 2 t / kept
    cache: bytes of the cache after t tokens, over t; None without a cache    skipped: why nothing was counted
    """

    formula: str
    problem: str
    contender: str
    kind: Kind
    flops: int = 0
    kept: int = 0
    growth: float = 0.0
    cache: float | None = None
    parameters: int = 0
    skipped: str = ""

    @property
    def met(self) -> bool | None:
        """Whether what is kept grows linearly; asked of attnzoo alone."""
        return None if self.skipped or self.kind != "attnzoo" else self.growth <= GROWS_AT_MOST

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def formulas(make: Make) -> Iterator[tuple[str, Problem, list[Contender]]]:
    """What is counted: a variant, its problem, and who computes it."""
    plain = replace(SIZE, rope=False)
    yield "mha", replace(plain, kv_heads=SIZE.heads), [ours(make, "mha"), BY_HAND]
    yield "gqa", plain, [ours(make, "gqa"), BY_HAND]
    yield "rope", SIZE, [ours(make, "rope"), BY_HAND]
    yield "sliding_window", replace(SIZE, window=256), [ours(make, "sliding_window"), BLOCKS, BAND]
    yield "softcap", replace(SIZE, softcap=5.0), [ours(make, "softcap"), CAP_STEPS]
    yield "alibi", replace(plain, alibi=True), [ours(make, "alibi"), BIAS]
    yield "sinks", replace(SIZE, sinks=True), [ours(make, "sinks"), SINK_KEY]
    documents = PACKED.at(SIZE.t).documents
    yield "packed", replace(SIZE, documents=documents), [ours(make, "packed"), LOOP, BLOCK_MASK]


def count_all(make: Make, tell: Callable[[int, int, str], None] = lambda done, total, what: None) -> list[Count]:
    """Every contender of every formula, on the CPU in float32."""
    jobs = [(name, problem, contender) for name, problem, contenders in formulas(make) for contender in contenders]
    counts = []
    for done, (name, problem, contender) in enumerate(jobs):
        tell(done, len(jobs), f"count {name}, {contender.name}")
        counts.append(count(name, problem, contender))
    return counts


def count(formula: str, problem: Problem, contender: Contender) -> Count:
    known = formula, str(problem), contender.name, contender.kind
    twice = problem.at(2 * problem.t)
    given, more = draw(problem), draw(twice)
    try:
        layer, longer = contender.build(problem, given), contender.build(twice, more)
    except Skip as reason:
        return Count(*known, skipped=str(reason))
    kept = kept_bytes(layer, given.x)
    return Count(
        *known,
        flops=flops(layer, given.x),
        kept=kept,
        growth=kept_bytes(longer, more.x) / kept,
        cache=cache_bytes(layer, given.x),
        parameters=sum(weight.numel() for weight in layer.parameters()),
    )


def flops(layer: nn.Module, x: Tensor) -> int:
    """Of one forward pass."""
    return counting.flops(lambda: layer(x))


def kept_bytes(layer: nn.Module, x: Tensor) -> int:
    """What autograd holds after a forward pass that wants all gradients."""
    return counting.kept(lambda: layer(x.clone().requires_grad_()), beside=layer.parameters())


def cache_bytes(layer: Any, x: Tensor) -> float | None:
    """A token's share of the cache that holds x."""
    if not hasattr(layer, "new_cache"):
        return None
    cache = layer.new_cache(x.shape[0], x.shape[1])
    with torch.no_grad():
        layer(x, cache=cache)
    return float(cache.nbytes / x.shape[1])


def table(counts: Sequence[Count]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, for a person."""
    headings = ["formula", "contender", "MFLOPs", "kept, kB", "kept at 2 t", "cache, bytes a token", "parameters"]
    body = []
    for c in counts:
        if c.skipped:
            body.append([c.formula, c.contender, f"skipped: {c.skipped}", "", "", "", ""])
            continue
        grown = f"{c.growth:.2f} times{', more than ' + format(GROWS_AT_MOST, 'g') if c.met is False else ''}"
        cache = "" if c.cache is None else f"{c.cache:g}"
        figures = [f"{c.flops / 1e6:,.1f}", f"{c.kept / 1e3:,.1f}", grown, cache, f"{c.parameters:,}"]
        body.append([c.formula, c.contender, *figures])
    return headings, body
