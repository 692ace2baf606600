"""The smallest case on which a law still does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attnzoo.checks.engine.lab import Case

SIZES = ("t", "b", "heads", "kv_heads", "head_dim", "d_model")
TRIES = 120


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Make one size after another as small as it goes while `fails` says that the case still does, until none goes.

    >>> small = shrink(Case("any", {"heads": 6, "d_model": 24}, b=3, t=17), lambda case: case.t > 4 and case.b > 1)
    >>> small.b, small.t, small.options
    (2, 5, {'heads': 1, 'd_model': 1})
    """
    left = TRIES
    for _ in range(3):
        before = case
        for size in SIZES:
            for smaller in _smaller(case, size):
                left -= 1
                if left < 0:
                    return case
                if fails(smaller):
                    case = smaller
                    break
        if case == before:
            break
    return case


def _smaller(case: Case, size: str) -> Iterator[Case]:
    """The case with a smaller value of this size, from 1 upwards."""
    now = {"b": case.b, "t": case.t, **case.options}.get(size)
    if isinstance(now, int):
        for value in range(1, now):
            yield case.change(**{size: value})
