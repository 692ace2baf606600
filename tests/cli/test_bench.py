"""`attnzoo bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnzoo.bench import counts as counting
from attnzoo.bench.contender import Contender
from attnzoo.bench.ours import Make, ours
from attnzoo.bench.problem import Given, Problem
from attnzoo.bench.results import Result
from attnzoo.bench.runner import run
from attnzoo.bench.works import BY_HAND, Target, Work
from attnzoo.cli import main

PROBLEM = Problem(t=64, d_model=8, heads=2, kv_heads=1)


def straight(problem: Problem, given: Given) -> Any:
    return BY_HAND.build(replace(problem, rope=False), given)


def few_works(make: Make) -> list[Work]:
    """Of each kind one, done in a blink: a target that is met, one that is missed, one of a contender that is wrong."""
    both = [ours(make, "rope"), BY_HAND]
    return [
        Work("easy", "Easy", "forward", PROBLEM, both, [Target(1e9)]),
        Work("hard", "Hard", "forward", PROBLEM, both, [Target(1e-9)]),
        Work("grows", "Grows", "train", PROBLEM, both, ts=(16, 32, 64)),
        Work("wrong", "Wrong", "forward", PROBLEM, [*both, Contender("straight", "peer", straight)]),
        Work("absent", "Absent", "forward", PROBLEM, [ours(make, "no_such"), BY_HAND], [Target(1.0)]),
    ]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_briefly(works: Sequence[Work], **how: Any) -> list[Result]:
        return run(works, **{**how, "seconds": 0.0, "least": 2})

    monkeypatch.setattr("attnzoo.cli.bench.run", run_briefly)
    monkeypatch.setattr("attnzoo.cli.bench.all_works", few_works)
    monkeypatch.setattr(counting, "SIZE", replace(counting.SIZE, t=512))
    monkeypatch.setenv("COLUMNS", "120")


def bench(*arguments: str) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as stop:
        main(["bench", *arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_a_table_for_each_work_and_what_became_of_its_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--only", "easy", "--only", "hard", "--only", "absent") == 0
    out = capsys.readouterr().out
    assert "easy: Easy (b 1, t 64, d_model 8, heads 2, kv_heads 1, RoPE)" in out
    assert "│ attnzoo rope" in out
    assert "target: at most 1e+09 times the best by hand: met, with " in out
    assert "target: at least 1e+09 times as fast as the best by hand: missed, with " in out
    assert "attnzoo no_such was not timed; skipped: not installed" in out
    assert "target: no slower than the best by hand: not measured" in out
    assert "counts" not in out


def test_strict_wants_every_target_met_and_one_at_least(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--only", "easy", "--strict") == 0
    assert bench("--only", "easy", "--only", "hard", "--strict") == 1
    assert bench("--only", "easy", "--only", "absent", "--strict") == 0
    assert bench("--only", "absent", "--strict") == 1
    assert bench("--only", "grows", "--strict") == 1
    capsys.readouterr()


def test_wrong_numbers_are_an_error_told_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--only", "wrong") == 1
    assert "error: wrong: straight at t 64: y is off by " in capsys.readouterr().out


def test_json_is_all_of_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--only", "easy", "--json", "--dtype", "bfloat16", "--threads", "1") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "attnzoo-bench/1"
    assert (found["machine"]["dtype"], found["machine"]["threads"]) == ("bfloat16", 1)
    (work,) = found["works"]
    assert [row["contender"] for row in work["rows"]] == ["attnzoo rope", "by hand"]
    assert [len(row["seconds"]) for row in work["rows"]] == [2, 2]
    assert found["counts"] == []


def test_counts_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--counts", "--strict") == 0
    out = capsys.readouterr().out
    assert "counts, the same on every machine (b 1, t 512, " in out
    assert "│ attnzoo gqa" in out
    assert bench("--counts", "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert bench("--counts", "--json") == 0
    assert json.loads(capsys.readouterr().out) == first
    assert first["works"] == []
    assert next(one for one in first["counts"] if one["contender"] == "attnzoo mha")["cache"] == 2 * 128 * 4


def test_a_quick_look_judges_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--quick") == 1  # for the one that is wrong
    out = capsys.readouterr().out
    assert "t 16, d_model 8" in out
    assert "target:" not in out


def test_in_another_type_nothing_is_judged_or_counted_and_the_page_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = tmp_path / "half.md"
    assert bench("--dtype", "bfloat16", "--page", str(half)) == 1  # for the one that is wrong
    out = capsys.readouterr().out
    assert "attnzoo gqa" not in out
    assert "target:" not in out
    page = half.read_text("utf-8")
    assert page.startswith("# How fast, in bfloat16\n\nMade by `attnzoo bench --dtype bfloat16 --page half.md`.")
    assert "## Targets" not in page
    assert "## Counts" not in page


def test_the_page_and_its_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    words = ["--only", "grows", "--only", "easy", "--dtype", "float32"]
    assert bench(*words, "--page", "docs/bench.md") == 0
    page = Path("docs/bench.md").read_text("utf-8")
    assert "Made by `attnzoo bench --only grows --only easy --page docs/bench.md`.\n\nThe machine: cores " in page
    assert "](bench.svg)" in page
    assert Path("docs/bench.svg").read_text("utf-8").startswith("<?xml")
    assert bench(*words, "--page", str(tmp_path / "docs" / "bench.md"), "--plot", "grown.png") == 0
    page = Path("docs/bench.md").read_text("utf-8")
    assert str(tmp_path) not in page
    assert "](../grown.png)" in page
    assert Path("grown.png").stat().st_size > 5000
    capsys.readouterr()


def test_a_page_without_anything_to_draw_has_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--counts", "--page", str(tmp_path / "counts.md")) == 0
    assert bench("--only", "easy", "--page", str(tmp_path / "easy.md")) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts.md", "easy.md"]
    assert "](" not in (tmp_path / "easy.md").read_text("utf-8")
    assert "## Counts" in (tmp_path / "counts.md").read_text("utf-8")
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "esay"], "no work matches 'esay'; did you mean 'easy'?; there are easy, hard, "),
        (["--dtype", "float"], "unknown dtype 'float'; it takes float32 or bfloat16"),
        (["--device", "gpu"], "device 'gpu' cannot be used here: "),
        (["--quick", "--strict"], "--strict judges the full sizes in float32; leave out --quick"),
        (["--dtype", "bfloat16", "--strict"], "--strict judges the full sizes in float32; leave out --dtype"),
        (["--counts", "--quick"], "--counts times nothing and counts the same everywhere; leave out --quick"),
        (["--counts", "--only", "easy", "--plot", "x.svg"], "leave out --only and --plot"),
        (["--counts", "--dtype", "bfloat16"], "leave out --dtype"),
        (["--plot", "x.gif"], "--plot x.gif: the ending must be .png or .svg"),
        (["--plot", "no/x.svg"], "--plot no/x.svg: there is no folder no"),
        (["--only", "easy", "--plot", "x.svg"], "--plot has no work with several t to draw; take in grows"),
        (["--page", "x.html"], "--page x.html: the ending must be .md"),
        (["--page", "no/x.md"], "--page no/x.md: there is no folder no"),
    ],
)
def test_what_cannot_be_served_is_one_line_on_stderr(
    arguments: Sequence[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.startswith("attnzoo: ")
    assert printed.err.count("\n") == 1
    assert not printed.out


def test_a_thread_less_than_one_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--threads", "0") == 2
    assert "--threads" in capsys.readouterr().err
