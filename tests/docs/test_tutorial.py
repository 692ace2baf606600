"""The tutorial runs: its files are written, its commands run, and what they print is what the page shows.

What docs/tutorial.md is made of, each in a fence of its own:

    {code-block} python              a file, written as it stands; the caption is its path (any language but these two)
    {code-block} diff                changes of a file, "…" between two: "-" lines go, "+" lines come, the others stay
    {code-block} console             commands, each after "$ ", and what they print

A caption that ends in ", continued" puts the block at the end of its file, after a blank line, or two before a function
or class of the module. In an output, a line "…" stands for lines that are left out; numbers with a decimal point are
measured and not compared, nor are line numbers; long lines are folded.

Nobody types the outputs: when they change, this writes them into the page.

    python tests/docs/test_tutorial.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial.md"
HELLO = ROOT / "docs/examples/attnzoo-hello"

FENCE = re.compile(r"^(?P<fence>`{3,})(?P<kind>.*)\n(?P<body>(?:.*\n)*?)(?P=fence)$", re.MULTILINE)
CAPTION = re.compile(r":caption: `(?P<path>\S+)`(?P<more>, continued)?\n\n")
COMMAND = re.compile(r"^\$ (?P<line>.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)
MEASURED = re.compile(r"\d+\.\d+(e[+-]\d+)?|\d+e[+-]\d+|line \d+")

WIDTH = 96
LEFT_OUT = "…"


@dataclass(frozen=True)
class Write:
    """A file, or more of one."""

    path: str
    text: str
    more: bool

    def do(self, folder: Path) -> None:
        place = folder / self.path
        place.parent.mkdir(parents=True, exist_ok=True)
        before = ""
        if self.more:
            blank = "\n\n" if self.text.startswith(("def ", "class ", "@")) else "\n"
            before = place.read_text(encoding="utf-8") + blank
        place.write_text(before + self.text, encoding="utf-8")


@dataclass(frozen=True)
class Change:
    """Lines of a file that go, come, or stay and show the place."""

    path: str
    diff: str

    def do(self, folder: Path) -> None:
        place = folder / self.path
        text = place.read_text(encoding="utf-8")
        for part in self.diff.split(f"{LEFT_OUT}\n"):
            lines = part.splitlines(keepends=True)
            old = "".join(line[1:] or "\n" for line in lines if not line.startswith("+"))
            new = "".join(line[1:] or "\n" for line in lines if not line.startswith("-"))
            assert text.count(old) == 1, f"{self.path} must hold these lines once, not {text.count(old)} times:\n{old}"
            text = text.replace(old, new)
        place.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Command:
    """A line for the shell, what the page shows under it, and where in the page that stands."""

    line: str
    shown: str
    start: int
    end: int


def steps(page: str) -> list[Write | Change | Command]:
    """What the page tells to do, in order. Raises `ValueError` for a block that tells nothing known."""
    found: list[Write | Change | Command] = []
    for block in FENCE.finditer(page):
        kind, body = block["kind"].removeprefix("{code-block} "), block["body"]
        if kind == "{math}":
            continue
        caption = CAPTION.match(body)
        if kind == "console":
            for command in COMMAND.finditer(body):
                start, end = (block.start("body") + place for place in command.span("shown"))
                found.append(Command(command["line"], command["shown"], start, end))
        elif caption and kind == "diff":
            found.append(Change(caption["path"], body[caption.end() :]))
        elif caption and kind != block["kind"]:
            found.append(Write(caption["path"], body[caption.end() :], more=bool(caption["more"])))
        else:
            raise ValueError(f"a block of the page is neither a file, a change, nor commands:\n{block[0]}")
    return found


class Desk:
    """A shell, and an environment with attnzoo as it would be published; it shares the heavy packages of this one."""

    def __init__(self, folder: Path) -> None:
        self.project, self.bin = folder / "attnzoo-hello", folder / "env/bin"
        self.project.mkdir()
        python = self.bin / Path(sys.executable).name
        venv.create(folder / "env", with_pip=False)
        for name, module in {"pip": "pip", "pytest": "pytest"}.items():
            (self.bin / name).write_text(f'#!/bin/sh\nexec "{python}" -m {module} "$@"\n')
            (self.bin / name).chmod(0o755)
        # A path in a .pth file is searched last, and .pth files that lie there are not read: the heavy packages are
        # found, and an attnzoo that is installed or linked there is not.
        (own,) = (folder / "env").glob("lib/python*/site-packages")
        shared = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (own / "shared.pth").write_text("\n".join(shared))
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
        (wheel,) = folder.glob("attnzoo-*.whl")
        assert not self.run(f"pip install --quiet --no-deps {wheel}")

    def run(self, line: str) -> str:
        """What a command prints, errors and all. No command reaches an index, or sees a GPU."""
        unwanted = ("PYTHON", "PYTEST", "ATTNZOO", "VIRTUAL_ENV", "PIP_")
        environment = {word: value for word, value in os.environ.items() if not word.startswith(unwanted)}
        environment |= {"PATH": f"{self.bin}:{os.environ['PATH']}", "COLUMNS": str(WIDTH), "CUDA_VISIBLE_DEVICES": ""}
        environment |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return done.stdout


def walk(page: str, desk: Desk, heed: Callable[[str], object] = str) -> list[str]:
    """Take all steps of the page; what each command printed."""
    told = []
    for step in steps(page):
        if isinstance(step, Command):
            heed(step.line)
            told.append(desk.run(step.line))
        else:
            step.do(desk.project)
    return told


def alike(shown: str, told: str) -> bool:
    """Whether an output is the one shown, but for what is left out, measured, or folded.

    >>> alike("off by 1.5e-02", "off by 2.5e-07"), alike("3 passed", "4 passed")
    (True, False)
    >>> alike("one\\n…\\nfour", "one two three four"), alike("one\\n…\\nfour", "one two")
    (True, False)
    """
    due, got = MEASURED.sub("", shown).split(), MEASURED.sub("", told).split()
    if LEFT_OUT not in due:
        return got == due
    head = due.index(LEFT_OUT)
    tail = len(due) - head - 1
    return len(got) >= head + tail and got[:head] == due[:head] and got[len(got) - tail :] == due[head + 1 :]


def shorten(told: str, shown: str) -> str:
    """An output as the page is to show it: folded, and with as many lines before and after "…" as there were.

    >>> shorten("a\\nb\\nc\\nd\\n", "…\\nlast\\n")
    '…\\nd\\n'
    """
    folded = [part for line in told.strip("\n").splitlines() for part in fold(line.rstrip())]
    lines = shown.splitlines()
    if LEFT_OUT in lines:
        head = lines.index(LEFT_OUT)
        tail = len(lines) - head - 1
        folded = [*folded[:head], LEFT_OUT, *folded[len(folded) - tail :]]
    return "".join(f"{line}\n" for line in folded)


def fold(line: str) -> list[str]:
    """A line as one or more that are no longer than the page is wide; a box's line is left whole."""
    if len(line) <= WIDTH or line.lstrip().startswith(("│", "├", "└", "┏", "┃", "┡")):
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def held(folder: Path) -> dict[str, bytes]:
    """The files of a project by path, without those that running it leaves behind."""
    paths = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        str(name): path.read_bytes()
        for name, path in paths.items()
        if not any(part.startswith((".", "__pycache__")) for part in name.parts)
    }


TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = [step for step in steps(TEXT) if isinstance(step, Command)]


@dataclass(frozen=True)
class Walked:
    """The project at the end of the page, and what each command printed."""

    project: Path
    told: list[str]


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    desk = Desk(tmp_path_factory.mktemp("tutorial"))
    return Walked(desk.project, walk(TEXT, desk))


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=[f"{i}-{c.line}" for i, c in enumerate(COMMANDS)])
def test_a_command_prints_what_the_page_shows(walked: Walked, number: int) -> None:
    shown, told = COMMANDS[number].shown, walked.told[number]
    again = f"if that is right: python {Path(__file__).relative_to(ROOT)}"
    assert alike(shown, told), f"the page shows\n{shown}\nand it prints\n{shorten(told, shown)}\n{again}"


def test_the_page_ends_in_the_example(walked: Walked) -> None:
    assert held(walked.project) == held(HELLO)


def test_a_block_that_tells_nothing_to_do_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a file, a change, nor commands:\n```python\nprint"):
        steps("```python\nprint()\n```\n")


def test_a_change_that_fits_nowhere_or_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x\nx\n")
    for diff, times in {"-y\n+z\n": "0", "-x\n+z\n": "2"}.items():
        with pytest.raises(AssertionError, match=f"a.py must hold these lines once, not {times} times"):
            Change("a.py", diff).do(tmp_path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        told = walk(TEXT, Desk(Path(folder)), print)
    for command, output in reversed(list(zip(COMMANDS, told, strict=True))):
        TEXT = TEXT[: command.start] + shorten(output, command.shown) + TEXT[command.end :]
    PAGE.write_text(TEXT, encoding="utf-8")
