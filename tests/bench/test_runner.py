"""A run: who is right is timed, who is not is told, and the words of what cannot be run."""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from typing import Any

import pytest
import torch

import attnzoo
from attnzoo.bench.contender import Contender, Skip
from attnzoo.bench.problem import Given, Problem
from attnzoo.bench.runner import check_place, chosen, clock, machine, run, threads
from attnzoo.bench.works import BY_HAND, WINDOW, Target, Work, all_works
from attnzoo.errors import ConfigError

PROBLEM = Problem(t=8, d_model=8, heads=2, kv_heads=1)
WORKS = all_works(attnzoo.build)


def absent(problem: Problem, given: Given) -> Any:
    raise Skip("not today")


def straight(problem: Problem, given: Given) -> Any:
    return BY_HAND.build(replace(problem, rope=False), given)


WORK = Work(
    "some",
    "Some work",
    "forward",
    PROBLEM,
    [BY_HAND, Contender("absent", "peer", absent), Contender("wrong", "peer", straight)],
    [Target(1.0, "absent")],
    ts=(4, 8),
)


def test_who_is_right_is_timed_and_who_is_not_is_told() -> None:
    heard: list[tuple[float, str]] = []
    (result,) = run([WORK], seconds=0.0, least=3, tell=lambda share, what: heard.append((share, what)))
    assert [(row.contender, row.t, row.outcome, len(row.seconds)) for row in result.rows] == [
        ("by hand", 4, "timed", 3),
        ("absent", 4, "skipped", 0),
        ("wrong", 4, "wrong", 0),
        ("by hand", 8, "timed", 3),
        ("absent", 8, "skipped", 0),
        ("wrong", 8, "wrong", 0),
    ]
    assert all(second > 0 for row in result.rows for second in row.seconds)
    assert [trouble.split(":")[:2] for trouble in result.errors] == [
        ["some", " wrong at t 4"],
        ["some", " wrong at t 8"],
    ]
    assert [verdict.met for verdict in result.verdicts] == [None]
    shares = [share for share, _ in heard]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] < 1
    assert any("round 2 of 3, by hand at t 8" in what for _, what in heard)


def test_half_types_run_too() -> None:
    (result,) = run([replace(WORK, motion="train", ts=())], dtype="bfloat16", seconds=0.0, least=1)
    assert [row.outcome for row in result.rows] == ["timed", "skipped", "wrong"]


def test_a_target_speaks_of_contenders_that_there_are() -> None:
    for work in WORKS:
        assert work.contenders[0].kind == "attnzoo"
        names = {contender.name for contender in work.contenders}
        assert len(names) == len(work.contenders)
        assert len({contender.name for contender in work.contenders if contender.kind == "by hand"}) <= 1
        for target in work.targets:
            assert target.against in {*names, *(contender.kind for contender in work.contenders)}, (work.id, target)
            if target.times != 1:
                assert work.ts[-1] * target.times in work.ts


def test_the_works_have_ids_of_their_own_and_rising_sizes() -> None:
    assert len({work.id for work in WORKS}) == len(WORKS) >= 12
    for work in WORKS:
        assert list(work.ts) == sorted(work.ts)
        assert not work.ts or work.ts[-1] == work.problem.t
        for problem in (*work.problems, *work.quick().problems):
            assert sum(problem.documents) in (0, problem.t)
            assert problem.t >= 16


def test_a_quick_look_is_a_quarter_and_judges_nothing() -> None:
    window = next(work for work in WORKS if work.id == "window")
    assert [problem.t for problem in window.quick().problems] == [256, 512, 1024, 2048]
    assert (window.quick().problem.window, window.quick().targets) == (WINDOW.window, ())


@pytest.mark.parametrize("only", [["window"], ["window*"], ["*-train", "decode"]])
def test_works_are_chosen_by_id_or_glob(only: list[str]) -> None:
    expected = [work.id for work in WORKS if any(fnmatch.fnmatch(work.id, pattern) for pattern in only)]
    assert expected
    assert [work.id for work in chosen(WORKS, only)] == expected
    assert chosen(WORKS, []) == WORKS


def test_a_work_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"no work matches 'decod'; did you mean 'decode'\?; there are forward, "):
        chosen(WORKS, ["window", "decod"])


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("cpu", "float", r"unknown dtype 'float'; it takes float32 or bfloat16; did you mean 'float32'\?"),
        ("gpu", "float32", r"device 'gpu' cannot be used here: "),
        ("meta", "float32", r"device 'meta' has no clock here; it takes cpu or cuda"),
    ],
)
def test_a_place_that_cannot_be_had(device: str, dtype: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_place(device, dtype)


def test_the_clock_of_a_gpu_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock("cpu")()
    assert waited == []
    clock("cuda:1")()
    assert waited == ["cuda:1"]


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert machine("cpu", "float32")["threads"] == before + 1
    assert torch.get_num_threads() == before
    with threads(None):
        assert torch.get_num_threads() == before


def test_the_machine_is_told_without_its_name() -> None:
    facts = machine("cpu", "bfloat16")
    assert {"cores", "threads", "processor", "torch", "python", "dtype"} <= set(facts)
    assert facts["dtype"] == "bfloat16"
