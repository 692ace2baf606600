"""What came of a run: one result a law, and the report that holds them."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from attnzoo.checks.engine.clauses import CLAUSES
from attnzoo.checks.engine.law import ROOT

Outcome = Literal["passed", "failed", "error", "known", "unexpected-pass", "not-applicable", "blocked", "vacuous"]

RED = frozenset({"failed", "error", "unexpected-pass", "vacuous"})

SCHEMA = 1

# So many blocked laws are named one by one, even where nothing else is left.
FEW = 20

# By these an output is judged as a whole: the one needs an oracle, the other stages and plain attention.
TRUTHS = ("truth.oracle", "truth.sdpa")

# What is said beside a failure of the law that every other one stands on.
MUST = "every layer answers y = layer(x), (b, t, d_model) -> the same; given no context, x is its own"

STYLE = {"passed": "green", "known": "yellow", "not-applicable": "dim", "blocked": "magenta"}


@dataclass(frozen=True)
class Result:
    """How one law came out.

    message: why, for any outcome but a pass    cases, comparisons: how much was tried
    case: the case it failed on    smallest: the smallest case, made from it, on which it still fails
    worst: the largest error over its budget, and `worst_of` what it was    seconds: time spent
    reproduce: the command, or the line of Python, that shows it again
    """

    law: str
    clause: str
    title: str
    outcome: Outcome
    message: str = ""
    case: str = ""
    smallest: str = ""
    cases: int = 0
    comparisons: int = 0
    worst: float = 0.0
    worst_of: str = ""
    seconds: float = 0.0
    reproduce: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The planted fault that a layer looks like most.

    fault: its id, "" where none is near enough    truth: what is wrong, in one line
    residual: the mean difference over all it is asked, 0 for the very fault, 1 for nothing in common
    runner_up, runner_up_residual: the next one    reason: why no fault is named, where none is
    """

    fault: str = ""
    truth: str = ""
    residual: float = 0.0
    runner_up: str = ""
    runner_up_residual: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        if not self.fault:
            return f"no known fault: {self.reason}"
        told = f"likely fault: {self.fault}. {self.truth} (residual {self.residual:.4f}"
        return told + (f"; next {self.runner_up}, {self.runner_up_residual:.4f})" if self.runner_up else ")")


@dataclass(frozen=True)
class Report:
    """All results for one variant. `passed` means: something ran, and nothing is red.

    `str(report)` is a table with the failures told below it; `to_json()` is for programs.
    """

    variant: str
    version: str
    device: str
    depth: str
    seed: int
    results: Sequence[Result]
    diagnosis: Diagnosis | None = None

    @property
    def passed(self) -> bool:
        """At least one law passed, and none failed, erred, passed unexpectedly or was vacuous."""
        outcomes = self.counts
        return outcomes["passed"] > 0 and not any(outcomes[red] for red in RED)

    @property
    def counts(self) -> Counter[str]:
        """How many laws had each outcome."""
        return Counter(result.outcome for result in self.results)

    @property
    def label(self) -> str:
        """The variant, and the device where that is not the CPU."""
        return self.variant if self.device == "cpu" else f"{self.variant} on {self.device}"

    @property
    def seconds(self) -> float:
        """Time spent in all laws."""
        return sum(result.seconds for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "schema": SCHEMA,
            "variant": self.variant,
            "version": self.version,
            "device": self.device,
            "depth": self.depth,
            "seed": self.seed,
            "passed": self.passed,
            "counts": dict(self.counts),
            "seconds": round(self.seconds, 3),
            "diagnosis": None if self.diagnosis is None else asdict(self.diagnosis),
            "results": [_plain(result) for result in self.results],
        }

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    @property
    def summary(self) -> str:
        """One line: the verdict and the counts."""
        told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(self.counts.items()))
        return f"{self.label}: {'conforms' if self.passed else 'does not conform'} ({told}; {self.seconds:.1f} s)"

    def print(self, console: Console) -> None:
        """The table, then what needs words, then the verdict."""
        console.print(self.table())
        self.print_exemptions(console)
        self.print_troubles(console)
        if self.unjudged:
            _say(console, f"\n{self.unjudged}", "dim")
        console.print(
            f"\n{self.summary}", style="green" if self.passed else "red", markup=False, highlight=False, soft_wrap=True
        )

    def print_exemptions(self, console: Console) -> None:
        """The laws that do not apply, by the reason why."""
        for reason, laws in self._by_message("not-applicable").items():
            _say(console, f"\nnot applicable, because {self.variant} {reason}: {', '.join(laws)}", "dim")

    def print_troubles(self, console: Console) -> None:
        """Every outcome that is no plain pass, in full; blocked laws by what blocks them."""
        for result in self.results:
            if result.outcome in (*RED, "known"):
                _say(console, f"\n{self.variant}: {tell(result)}", STYLE.get(result.outcome, "red"))
        for reason, laws in self._by_message("blocked").items():
            others = len(self.results) - 1
            named = f"all other {others} laws" if len(laws) == others > FEW else ", ".join(laws)
            _say(console, f"\n{self.variant}: BLOCKED {named}: {reason}", STYLE["blocked"])
        if self.diagnosis is not None:
            _say(console, f"\n{self.variant}: {self.diagnosis}", "bold")
            _say(console, f"{self.variant}: {self.holding}", "dim")

    def _by_message(self, outcome: Outcome) -> dict[str, list[str]]:
        """Message -> the laws that came out so."""
        laws: dict[str, list[str]] = {}
        for result in self.results:
            if result.outcome == outcome:
                laws.setdefault(result.message, []).append(result.law)
        return laws

    @property
    def holding(self) -> str:
        """What still holds, by theme; a theme of which no law applies is not told."""
        themes: dict[str, set[Outcome]] = {}
        for result in self.results:
            themes.setdefault(result.law.partition(".")[0], set()).add(result.outcome)
        whole = [theme for theme, outcomes in themes.items() if outcomes - {"not-applicable", "known"} == {"passed"}]
        passed = self.counts["passed"]
        return f"what still holds: {passed} law{'s' * (passed != 1)}, all of {', '.join(whole) or 'no theme'}"

    @property
    def unjudged(self) -> str:
        """What no law could judge, where neither of the truths of what is computed applies; "" where one does."""
        spared = {result.law: result.message for result in self.results if result.outcome == "not-applicable"}
        if not spared.keys() >= set(TRUTHS):
            return ""
        reasons = [spared[law] for law in TRUTHS]
        grouping = " and the grouping of heads" if spared.get("truth.grouping") in reasons else ""
        return f"not judged: the numbers, such as the scale{grouping}; {self.variant} {' and '.join(reasons)}"

    def table(self) -> Table:
        """A row a law: outcome, how much was tried, and how close it came to its budget."""
        table = Table(title=f"{self.variant} on {self.device}", title_justify="left", box=SIMPLE_HEAD)
        for column in ("law", "clause", "outcome"):
            table.add_column(column, no_wrap=True)
        for column in ("cases", "compared", "error/budget"):
            table.add_column(column, justify="right")
        for result in self.results:
            table.add_row(
                result.law,
                result.clause,
                f"[{STYLE.get(result.outcome, 'red')}]{result.outcome}[/]",
                str(result.cases or ""),
                str(result.comparisons or ""),
                _ratio(result.worst),
            )
        return table

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=110)
        self.print(console)
        written = console.file
        assert isinstance(written, io.StringIO)
        return written.getvalue()


def _ratio(worst: float) -> str:
    """An error over its budget, for a table."""
    return "" if not worst else f"{worst:.2f}" if worst < 1000 else f"{worst:.0e}"


def _plain(result: Result) -> dict[str, Any]:
    """A result as plain data; JSON knows no infinity, so that an error beyond every budget is None."""
    return {**asdict(result), "worst": result.worst if math.isfinite(result.worst) else None}


def _say(console: Console, text: str, style: str) -> None:
    """A line as it is: no markup is read in it, and it is not broken, so that commands can be copied."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def tell(result: Result) -> str:
    """A result in words that can be read alone."""
    lines = [f"{result.outcome.upper()} {result.law} ({result.clause}): {result.title}"]
    lines.append(f"  clause {result.clause}: {CLAUSES[result.clause]}")
    if result.case:
        lines.append(f"  case {result.case}: {result.message}")
    elif result.message:
        lines.append(f"  {result.message}")
    if result.law == ROOT and result.outcome in RED:
        lines.append(f"  {MUST}")
    if result.smallest != result.case:
        lines.append(f"  smallest case that fails: {result.smallest}")
    if result.reproduce:
        lines.append(f"  again: {result.reproduce}")
    return "\n".join(lines)
