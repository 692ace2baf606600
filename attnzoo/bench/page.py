"""The page of the documentation, in Markdown: how it was made, and what came out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnzoo.bench import counts as counting
from attnzoo.bench import results as timing
from attnzoo.bench.counts import Count
from attnzoo.bench.results import Result, Verdict, as_asked

HOW = """\
All contenders of a work compute the same numbers from the same weights, whole layers with their projections, and each
was held to a float64 reference before it was timed. They ran in turn, round after round; a time is the median of the
rounds, and a ratio the median of the ratios within each round, so that a slow spell of the machine cancels out. "By
hand" is the best that an expert writes for that one job in torch (`attnzoo/bench/handwritten.py`); "dense", "step by
step" and "eager" are what most would write. The process keeps the memory that it frees, as one does that runs long."""

COUNTS = """\
These are counted, not timed, and the same on every machine: {size}. FLOPs of one forward pass, two for a
multiplication with its addition; a fused kernel counts as the whole matrix of tokens by tokens. Kept for the backward
pass: every storage once, parameters not counted; and how much more that is for twice the tokens. A token's share of
the cache that holds them all."""


def page(
    command: str,
    machine: Mapping[str, Any],
    results: Sequence[Result],
    counts: Sequence[Count],
    picture: str = "",
) -> str:
    """command: what made it    picture: the file beside the page"""
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None)
    dtype = machine.get("dtype")
    title = "# How fast" if dtype in (None, "float32") else f"# How fast, in {dtype}"
    parts = [title, f"Made by `{command}`.", f"The machine: {facts}.", HOW]
    judged = [(result, verdict) for result in results for verdict in result.verdicts]
    if judged:
        parts += ["## Targets", markdown(["work", "attnzoo has to be", "measured", ""], map(target_row, judged))]
    for result in results:
        parts += [f"## {result.title}", f"`{result.id}`: {result.problem}.", markdown(*timing.table(result))]
        parts += [f"{note}." for note in result.notes]
    drawn = [result for result in results if result.lines]
    if picture and drawn:
        shown = "; ".join(f"{r.title}: {', '.join(f'{n} {r.slope(n):.2f}' for n in r.lines)}" for r in drawn)
        words = f"Time against tokens. The slope is the power of the tokens that the time grows with. {shown}."
        parts += ["## Growth", f"![Time against tokens, on logarithmic axes]({picture})", words]
    if counts:
        parts += ["## Counts", COUNTS.format(size=counting.SIZE), markdown(*counting.table(counts))]
    return "\n\n".join(parts) + "\n"


def target_row(judged: tuple[Result, Verdict]) -> list[str]:
    result, verdict = judged
    if verdict.ratio is None:
        return [result.title, str(verdict.target), "", "not measured"]
    measured = as_asked(verdict.target, verdict.ratio)
    return [result.title, str(verdict.target), measured, "met" if verdict.met else "missed"]


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar within a cell is text."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
