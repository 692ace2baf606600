"""What came out: each contender's times, and whether attnzoo met its targets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from attnzoo.bench.contender import Kind
from attnzoo.bench.timing import median_ratio, slope
from attnzoo.bench.works import Target

SCHEMA = "attnzoo-bench/1"
SLOPE_OVER = 3  # the largest so many t: below, fixed costs hide the growth

Outcome = Literal["timed", "skipped", "failed", "wrong"]


@dataclass
class Row:
    """One contender at one t.

    outcome: "timed"; "skipped", as it cannot take part here; "failed", it raised; "wrong", it computed other numbers
    note: why it was not timed    seconds: a call's, one number a round
    """

    contender: str
    kind: Kind
    t: int
    outcome: Outcome = "timed"
    note: str = ""
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Verdict:
    """A target, and what was measured: `ratio` is None where one of the two was not timed, and `met` then too."""

    target: Target
    ratio: float | None

    @property
    def met(self) -> bool | None:
        return None if self.ratio is None else self.ratio <= self.target.at_most

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.target}: not measured"
        return f"{self.target}: {'met' if self.met else 'missed'}, with {as_asked(self.target, self.ratio)}"


def as_asked(target: Target, ratio: float) -> str:
    """A ratio in the words of its target."""
    return f"{1 / ratio:.2f} times as fast" if target.at_most < 1 else f"{ratio:.2f} times"


@dataclass
class Result:
    """One work."""

    id: str
    title: str
    problem: str
    rows: list[Row]
    targets: Sequence[Target] = ()

    @property
    def verdicts(self) -> list[Verdict]:
        """Judged on the first contender, attnzoo's, at the largest t."""
        mine = max((row for row in self.rows if row.contender == self.rows[0].contender), key=lambda row: row.t)
        return [Verdict(target, self.ratio(mine, target.against, target.times)) for target in self.targets]

    def ratio(self, mine: Row, against: str = "by hand", times: float = 1) -> float | None:
        """mine's time over another's, or over the best of a kind; None where one of the two was not timed."""
        others = [
            row
            for row in self.rows
            if against in (row.contender, row.kind) and row.t == mine.t * times and row.outcome == "timed"
        ]
        if not others or mine.outcome != "timed":
            return None
        return median_ratio(mine.seconds, min(others, key=lambda row: row.median).seconds)

    @property
    def lines(self) -> dict[str, list[Row]]:
        """The contenders that were timed at three t or more, for a picture."""
        names = dict.fromkeys(row.contender for row in self.rows)
        timed = {n: [row for row in self.rows if row.contender == n and row.outcome == "timed"] for n in names}
        return {name: rows for name, rows in timed.items() if len(rows) >= SLOPE_OVER}

    def slope(self, contender: str) -> float:
        """The power of t that its time grows with."""
        rows = self.lines[contender][-SLOPE_OVER:]
        return slope([row.t for row in rows], [row.median for row in rows])

    @property
    def notes(self) -> list[str]:
        """Why a contender was not timed; once where the reason is the same at every t."""
        silent = [row for row in self.rows if row.outcome != "timed"]
        return list(dict.fromkeys(f"{row.contender} was not timed; {row.outcome}: {row.note}" for row in silent))

    @property
    def errors(self) -> list[str]:
        """The contenders that should have run and did not, by name."""
        return [
            f"{self.id}: {row.contender} at t {row.t}: {row.note}"
            for row in self.rows
            if row.outcome in ("failed", "wrong")
        ]

    def to_dict(self) -> dict[str, Any]:
        rows = []
        for row in self.rows:
            timed = row.outcome == "timed"
            figures = {"median": row.median if timed else None, "times_best_by_hand": self.ratio(row)}
            rows.append({**asdict(row), **figures})
        verdicts = [{**asdict(v.target), "words": str(v.target), "ratio": v.ratio, "met": v.met} for v in self.verdicts]
        slopes = {name: self.slope(name) for name in self.lines}
        return {
            "id": self.id,
            "title": self.title,
            "problem": self.problem,
            "rows": rows,
            "slopes": slopes,
            "verdicts": verdicts,
        }


def duration(seconds: float) -> str:
    """
    >>> duration(0.0000421), duration(0.0234), duration(1.5)
    ('42.1 µs', '23.4 ms', '1.50 s')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, for a person."""
    several = len({row.t for row in result.rows}) > 1
    headings = ["contender", *(["t"] if several else []), "median", "times the best by hand", "slowest over fastest"]
    body = []
    for row in sorted(result.rows, key=lambda row: row.t):
        cells = [row.contender, *([str(row.t)] if several else [])]
        if row.outcome == "timed":
            ratio = result.ratio(row)
            spread = f"{max(row.seconds) / min(row.seconds):.2f}"
            cells += [duration(row.median), "" if ratio is None else f"{ratio:.2f}", spread]
        else:
            cells += [row.outcome, "", ""]
        body.append(cells)
    return headings, body


def document(
    machine: Mapping[str, Any], results: Sequence[Result], counts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """All of it, for programs."""
    works = [result.to_dict() for result in results]
    return {"schema": SCHEMA, "machine": dict(machine), "works": works, "counts": list(counts)}
