"""Small problems, and results that nobody measured."""

from __future__ import annotations

import pytest

from attnzoo.bench.results import Result, Row
from attnzoo.bench.works import Target


@pytest.fixture
def result() -> Result:
    """attnzoo at 1.5 times the better of two by hand, and four times as fast as the dense one; one peer is missing."""

    def rows(t: int, unit: float) -> list[Row]:
        return [
            Row("attnzoo x", "attnzoo", t, seconds=[3 * unit, 6 * unit, 3 * unit]),
            Row("clever", "by hand", t, seconds=[2 * unit, 4 * unit, 2 * unit]),
            Row("cleverer not", "by hand", t, seconds=[3 * unit, 9 * unit, 9 * unit]),
            Row("dense", "plain", t, seconds=[12 * unit, 24 * unit, 12 * unit]),
            Row("peer", "peer", t, "skipped", "peer is not installed"),
        ]

    targets = [Target(1.6), Target(1 / 5, "dense"), Target(1.0, "peer"), Target(2.2, "attnzoo x", times=0.5)]
    measured = [row for t in (1024, 2048, 4096) for row in rows(t, t / 1024 * 1e-3)]
    return Result("x", "An x, forward", "b 1, t 4096", measured, targets)
