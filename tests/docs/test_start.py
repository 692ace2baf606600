"""The page to start with: its Python gives what it shows, its commands run, and its install line is the README's."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from attnzoo.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/start.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"`attnzoo ([^`]+)`", PAGE)


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_give_what_they_show() -> None:
    test = doctest.DocTestParser().get_doctest("\n".join(blocks("python")), {}, "start.md", "start.md", 0)
    assert len(test.examples) > 7
    told: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=told.append).failed == 0, "".join(told)


def test_it_installs_as_the_readme_does() -> None:
    (line,) = (line for block in blocks("sh") for line in block.splitlines())
    assert line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(command))
    assert stop.value.code == 0
    assert capsys.readouterr().out


def test_there_are_commands_and_one_screen_of_them() -> None:
    assert len(COMMANDS) >= 4
    assert len(PAGE.splitlines()) < 80
