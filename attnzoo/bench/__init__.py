"""Timing and counting: attnzoo's layers against hand-written torch, and against other libraries.

A work is a problem and those who compute it (`works`); each is held to a float64 reference and then timed in turn with
the others (`runner`, `timing`). What does not depend on a clock is counted (`counts`).
"""

from __future__ import annotations

from attnzoo.bench.counts import Count, count_all
from attnzoo.bench.results import Result, Row, Verdict
from attnzoo.bench.runner import run
from attnzoo.bench.works import Target, Work, works

__all__ = ["Count", "Result", "Row", "Target", "Verdict", "Work", "count_all", "run", "works"]
