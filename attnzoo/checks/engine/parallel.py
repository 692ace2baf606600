"""Work spread over processes: each of many things is worked on somewhere, and the results come in their order."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from attnzoo.errors import AttnZooError

Thing = TypeVar("Thing")
Made = TypeVar("Made")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(
    work: Callable[[Thing], Made], things: Sequence[Thing], processes: int, done: Callable[[int, Thing], None]
) -> list[Made]:
    """What `work` makes of each thing, in their order, by this many fresh processes.

    work, things, and what is made must be picklable: a function that can be imported, and plain data.
    done: told how many are done, and which the last one was
    The first exception of a work ends all, and so does Ctrl-C; no process is left behind. A process that dies, killed
    for its memory say, is an `AttnZooError`.
    """
    before = set(multiprocessing.active_children())
    # spawn: a fork of a process that holds threads or a GPU may hang.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_leave_signals)
    try:
        with _interrupts_held():
            asked = {pool.submit(work, thing): thing for thing in things}
        for number, one in enumerate(as_completed(asked), start=1):
            one.result()
            done(number, asked[one])
        return [one.result() for one in asked]
    except BrokenProcessPool as broken:
        raise AttnZooError(f"a process died while it worked ({broken}); --jobs 1 shows by what") from broken
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A Ctrl-C waits until the end; a process that is started inside never sees one, from its first moment on."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_signals() -> None:
    """Ctrl-C reaches every process of a terminal; the first one answers it and ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
