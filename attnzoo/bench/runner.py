"""A run: build every contender of a work, hold it to the answer, and time those that are right, in turn."""

from __future__ import annotations

import ctypes
import fnmatch
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attnzoo.bench.contender import Contender, Skip
from attnzoo.bench.motion import Call, answer, complaint, motions
from attnzoo.bench.problem import Given, Problem, draw
from attnzoo.bench.results import Outcome, Result, Row
from attnzoo.bench.timing import in_turn
from attnzoo.bench.works import Work
from attnzoo.errors import ConfigError, did_you_mean

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # the names of malloc.h

Tell = Callable[[float, str], None]  # hears how much of the run is done, from 0 to 1, and what is going on


def run(
    works: Sequence[Work],
    *,
    dtype: str = "float32",
    device: str = "cpu",
    seconds: float = 12.0,
    least: int = 5,
    tell: Tell = lambda share, what: None,
) -> list[Result]:
    """Time the works one after another. seconds: of timing, for each work    least: rounds at least"""
    results = []
    for done, work in enumerate(works):

        def progress(share: float, what: str, done: int = done, work: Work = work) -> None:
            tell((done + share) / len(works), f"{work.id}: {what}")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other libraries' words on how they are used
            results.append(run_one(work, DTYPES[dtype], device, seconds, least, progress))
    return results


def run_one(work: Work, dtype: torch.dtype, device: str, seconds: float, least: int, tell: Tell) -> Result:
    """A third of the bar for checks, the rest for the rounds."""
    rows: list[Row] = []
    calls: dict[str, Call] = {}
    entries = len(work.problems) * len(work.contenders)
    for problem in work.problems:
        given = draw(problem, dtype=dtype, device=device)
        tell(len(rows) / entries / 3, f"the answer at t {problem.t}")
        expected = answer(work.motion, problem, given)
        for contender in work.contenders:
            tell(len(rows) / entries / 3, f"check {contender.name} at t {problem.t}")
            row, call = check(work, contender, problem, given, expected)
            rows.append(row)
            if row.outcome == "timed":
                calls[name_of(row)] = call

    def hear(turn: int, rounds: int, name: str) -> None:
        tell((1 + 2 * turn / rounds) / 3, f"round {turn + 1} of {rounds}, {name}")

    found = in_turn(calls, seconds=seconds, least=least, clock=clock(device), tell=hear)
    for row in rows:
        row.seconds = found.get(name_of(row), [])
    return Result(work.id, work.title, str(work.problem), rows, work.targets)


def name_of(row: Row) -> str:
    return f"{row.contender} at t {row.t}"


def check(
    work: Work, contender: Contender, problem: Problem, given: Given, expected: Mapping[str, Tensor]
) -> tuple[Row, Call]:
    """Build a contender and hold it to the answer; its call is good for timing where the row says "timed"."""

    def told(outcome: Outcome, note: object) -> tuple[Row, Call]:
        return Row(contender.name, contender.kind, problem.t, outcome, str(note)), dict

    try:
        call = motions(work.motion, contender.build(problem, given), given)
        wrong = complaint(call(), expected, given.x.dtype)
    except Skip as reason:
        return told("skipped", reason)
    except Exception as error:  # of another library's, say; the others still run, and this one is told by name
        return told("failed", f"{type(error).__name__}: {' '.join(str(error).split())}")
    if wrong:
        return told("wrong", wrong)
    return Row(contender.name, contender.kind, problem.t), call


def clock(device: str) -> Callable[[], float]:
    """Reads the time; on a GPU, once all work that was asked for is done."""
    if torch.device(device).type != "cuda":
        return time.perf_counter

    def wait_and_read() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return wait_and_read


def chosen(works: Sequence[Work], only: Sequence[str]) -> list[Work]:
    """The works that ids or globs name; all for none. Raises `ConfigError` for one that names nothing."""
    ids = [work.id for work in works]
    for pattern in only:
        if not fnmatch.filter(ids, pattern):
            raise ConfigError(f"no work matches {pattern!r}{did_you_mean(pattern, ids)}; there are {', '.join(ids)}")
    return [work for work in works if not only or any(fnmatch.fnmatch(work.id, pattern) for pattern in only)]


def check_place(device: str, dtype: str) -> None:
    """Raises `ConfigError` for a device or a type that cannot be had."""
    if dtype not in DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}; it takes {' or '.join(DTYPES)}{did_you_mean(dtype, DTYPES)}")
    try:
        kind = torch.device(device).type
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"device {device!r} cannot be used here: {first}") from error
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} has no clock here; it takes cpu or cuda")


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Let torch use so many threads, and as many as before afterwards; None leaves it as it is."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_memory() -> None:
    """Let the process keep what it frees, where the C library can be told so; nothing else in it changes.

    Otherwise large blocks go back to the system and come anew, page by page, for whoever happens to be next: a lottery
    that costs some contenders a tenth of their time, and that a process which has run for a while no longer draws in.
    """
    if platform.system() == "Linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
            mallopt(M_MMAP_THRESHOLD, 2**25)  # the most that it takes


def machine(device: str, dtype: str) -> dict[str, Any]:
    """What a reader must know about where the times come from."""
    facts: dict[str, Any] = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    facts |= {"processor": torch.backends.cpu.get_cpu_capability(), "system": platform.system()}
    if torch.device(device).type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
    return facts | {"torch": torch.__version__, "python": platform.python_version(), "dtype": dtype}
