"""Every verb on a full disk, into a closed pipe, on a terminal that knows ASCII only, and in no width at all."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import pytest
import typer

import attnzoo
from attnzoo.checks.exam.faults import FAULTS
from attnzoo.checks.exam.selftest import Answer, Exam
from attnzoo.cli import app, main
from attnzoo.registry import Registry

ATTNZOO = [sys.executable, "-m", "attnzoo"]
FULL = Path("/dev/full")
NO_ROOM = os.strerror(errno.ENOSPC)

FAULT = next(fault for fault in FAULTS if fault.id == "mask.replaces_causality")

VERBS = {
    "list": ["list"],
    "describe": ["describe", "gqa"],
    "check": ["check", "mha", "--only", "mask.adds"],
    "trace": ["trace", "gqa"],
    "heatmap": ["heatmap", "gqa", "--out", "drawn.html"],
    "explain": ["explain", "gqa", "--seq", "16"],
    "bench": ["bench", "--counts", "--json"],
    "selftest": ["selftest"],
    "new": ["new", "piped-attention"],
    "report diff": ["report", "diff", "report.json", "report.json"],
    "report badge": ["report", "badge", "report.json"],
    "doctor": ["doctor"],
    "--help": ["--help"],
    "--version": ["--version"],
}
DRAWN = ("list", "describe", "trace", "explain", "selftest", "report diff", "doctor", "--help")  # twice the same
WRITERS = {
    "check --json": ["check", "mha", "--only", "mask.adds", "--json", "full.json"],
    "check --script": ["check", "faulty", "--only", FAULT.killed_by, "--script", "full.py"],
    "heatmap --out png": ["heatmap", "gqa", "--out", "full.png"],
    "heatmap --out svg": ["heatmap", "gqa", "--out", "full.svg"],
    "heatmap --out html": ["heatmap", "gqa", "--out", "full.html"],
    "bench --page": ["bench", "--counts", "--page", "full.md"],
    "selftest --table": ["selftest", "--table", "full.md"],
}
needs_full = pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder but for a report; and no verb takes long."""
    result = {"law": "mask.adds", "outcome": "passed"}
    report = {"schema": 1, "variant": "mha", "version": "0", "results": [result], "counts": {"passed": 1}}
    (tmp_path / "report.json").write_text(json.dumps(report | {"passed": True}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnzoo.cli.selftest.selftest", lambda *_, **__: Exam("quick", (Answer("sees", 3, ()),)))
    monkeypatch.setattr("attnzoo.cli.selftest.kill_table", lambda laws, _: FewKills())
    faulty = replace(FAULT.variant, name="faulty", oracle=None)  # without an oracle it is not diagnosed
    installed = [attnzoo.describe(name) for name in ("mha", "gqa")]
    monkeypatch.setattr("attnzoo.cli.screen.zoo", lambda: Registry([*installed, faulty]))
    monkeypatch.setattr("attnzoo.cli.bench.count_all", lambda *_: [])


class FewKills(dict[str, list[str]]):
    def __missing__(self, fault: str) -> list[str]:
        return []


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture
def closed_pipe() -> Iterator[TextIO]:
    """A standard output whose reader went away."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield stream


@pytest.fixture
def full_disk() -> Iterator[TextIO]:
    with FULL.open("w", encoding="utf-8") as stream:
        yield stream


def test_no_verb_is_left_out() -> None:
    command: Any = typer.main.get_command(app)
    verbs = {*command.commands} - {"report"} | {f"report {name}" for name in command.commands["report"].commands}
    assert verbs == {verb for verb in VERBS if not verb.startswith("--")}


@needs_full
@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk_is_told_in_a_line(
    verb: str, full_disk: TextIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", full_disk)
    assert run(*VERBS[verb]) == 2
    assert capsys.readouterr().err == f"attnzoo: cannot write to standard output: {NO_ROOM}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_a_closed_pipe_ends_the_command_without_a_word(
    verb: str, closed_pipe: TextIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", closed_pipe)
    assert run(*VERBS[verb]) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_a_closed_output_is_told_in_a_line(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run(*VERBS[verb]) == 2
    assert capsys.readouterr().err == "attnzoo: cannot write to standard output: it is closed\n"


@needs_full
@pytest.mark.parametrize("arguments", [["doctor"], ["check", "faulty", "--only", FAULT.killed_by], ["list", "--no"]])
def test_what_stderr_does_not_take_changes_no_exit_code(
    arguments: list[str], full_disk: TextIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, expected = run(*arguments), capsys.readouterr().out
    for stream in (full_disk, None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert run(*arguments) == code
        assert len(capsys.readouterr().out) == len(expected)  # a time may stand in it


@pytest.mark.parametrize("verb", VERBS)
def test_an_ascii_terminal_sees_the_same_letters(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
        patch.setattr(sys, "stdout", plain)
        assert run(*VERBS[verb]) == 0
        plain.seek(0)
        told = plain.read()
    assert told
    assert not capsys.readouterr().err
    if verb in DRAWN:
        assert run(*VERBS[verb]) == 0
        assert letters(told) == letters(capsys.readouterr().out)


@pytest.mark.parametrize("columns", ["0", "12", "wide"])
@pytest.mark.parametrize("verb", DRAWN)
def test_no_width_takes_a_letter_away(
    verb: str, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(*VERBS[verb]) == 0
    expected = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", columns)
    assert run(*VERBS[verb]) == 0
    assert letters(capsys.readouterr().out) == letters(expected)
    assert os.environ["COLUMNS"] == columns


def letters(text: str) -> list[str]:
    """In any order, for a column that wraps mixes them with its neighbour's."""
    return sorted(letter for letter in text if letter.isascii() and letter.isalnum())


@needs_full
@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_on_a_full_disk_is_told_in_a_line(writer: str, capsys: pytest.CaptureFixture[str]) -> None:
    *_, option, name = arguments = WRITERS[writer]
    Path(name).symlink_to(FULL)
    assert run(*arguments) == 2
    assert capsys.readouterr().err == f"attnzoo: {option}: cannot write {name}: {NO_ROOM}\n"


def test_a_project_on_a_full_disk_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, NO_ROOM)

    monkeypatch.setattr(Path, "write_text", full)
    assert run("new", "piped-attention") == 2
    printed = capsys.readouterr()
    assert printed.err == f"attnzoo: --into: cannot write piped-attention: {NO_ROOM}\n"
    assert not printed.out
    assert [path.name for path in Path().iterdir()] == ["report.json"]


def test_an_error_without_a_number_is_told_by_its_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("encoder error -2 when writing image file")

    monkeypatch.setattr(Path, "write_text", broken)
    assert run("heatmap", "gqa", "--out", "map.html") == 2
    assert (
        capsys.readouterr().err == "attnzoo: --out: cannot write map.html: encoder error -2 when writing image file\n"
    )


# --- the process itself, which writes once more as it ends ---


# As a shell starts it: what is printed waits in a buffer, which must not be tried once more at the exit.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@needs_full
def test_a_process_with_a_full_disk_ends_with_one_line(full_disk: TextIO) -> None:
    done = subprocess.run(
        [*ATTNZOO, "list"], stdout=full_disk, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED
    )
    assert (done.returncode, done.stderr) == (2, f"attnzoo: cannot write to standard output: {NO_ROOM}\n")


def test_a_process_whose_reader_went_away_ends_without_a_word() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*ATTNZOO, "--version"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_process_in_the_c_locale_draws_its_table() -> None:
    plain = {**BUFFERED, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "COLUMNS": "0"}
    done = subprocess.run([*ATTNZOO, "trace", "gqa"], capture_output=True, env=plain, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii").startswith("gqa: b=2, t=10")
    assert "+-" in done.stdout.decode("ascii")
