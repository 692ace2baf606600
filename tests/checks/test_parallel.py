"""Work spread over processes. What is worked with is Python's own, so that a fresh process can import it."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnzoo.checks.engine.parallel import cores, spread
from attnzoo.errors import AttnZooError


def test_results_come_in_the_order_of_the_things() -> None:
    told: list[tuple[int, int]] = []
    assert spread(abs, [-3, 2, -1], 2, lambda done, thing: told.append((done, thing))) == [3, 2, 1]
    assert [done for done, _ in told] == [1, 2, 3]
    assert sorted(thing for _, thing in told) == [-3, -1, 2]


def test_the_work_is_done_elsewhere() -> None:
    assert spread(os.getenv, ["PATH"], 1, lambda *_: None) == [os.environ["PATH"]]
    assert spread(eval, ["__import__('os').getppid()"], 1, lambda *_: None) == [os.getpid()]


def test_an_exception_ends_all() -> None:
    started = time.monotonic()
    with pytest.raises(ValueError, match="invalid literal for int"):
        spread(eval, ["__import__('time').sleep(60)", "int('x')"], 2, lambda *_: None)
    assert time.monotonic() - started < 30


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(AttnZooError, match=r"a process died while it worked .*--jobs 1"):
        spread(os._exit, [3], 1, lambda *_: None)


def test_there_is_a_core() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


def group(leader: int) -> list[int]:
    """The living processes of a group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgid = stat.read_text().rpartition(") ")[2].split()[:3]
        except OSError:
            continue
        if int(pgid) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def until(wanted: bool, leader: int, many: int) -> bool:
    """Wait until the group has so many processes at least, or no longer."""
    for _ in range(1200):
        if (len(group(leader)) >= many) is wanted:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes where Linux lists them")
def test_ctrl_c_ends_a_check_of_several_and_leaves_no_process_behind() -> None:
    command = [sys.executable, "-m", "attnzoo", "check", "mha", "gqa", "--jobs", "2"]
    ran = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert until(True, ran.pid, 4)  # itself, two workers, and Python's own keeper of their semaphores
    time.sleep(1)
    os.killpg(ran.pid, signal.SIGINT)
    out, err = ran.communicate(timeout=60)
    assert ran.returncode == 130
    assert "Traceback" not in err
    assert out == ""
    assert until(False, ran.pid, 1)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="this system cannot hold a signal back")
def test_a_worker_is_born_with_ctrl_c_held_back_and_its_starter_is_not() -> None:
    """One that heard it while it was being born printed a traceback."""
    held = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK)
    assert all(signal.SIGINT in masks for masks in spread(held, [(), ()], 2, lambda done, thing: None))
    assert signal.SIGINT not in held(())
