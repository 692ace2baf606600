"""What the verbs share: the zoo without noise, JSON alone on stdout, and tables that wrap rather than cut."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from attnzoo.registry import Registry, zoo


@contextlib.contextmanager
def quiet_zoo() -> Iterator[Registry]:
    """The zoo, with whatever plugins print sent to stderr, so that a program can read stdout."""
    with contextlib.redirect_stdout(sys.stderr):
        yield zoo()


def progress(*columns: ProgressColumn, **more: Any) -> Progress:
    """A bar on stderr that leaves nothing behind; none at all where stderr is no terminal, but a file or a pipe."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal, **more)


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr; yields the function that moves it: how much is done, how much there is, and what it is."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with progress(*columns) as bar:
        task = bar.add_task("", total=None)

        def advance(done: int, total: int, what: str) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield advance


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, default=repr))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Cells are plain text, so that a bracket in an error message is not taken for markup."""
    table = Table(*headings, show_lines=True)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
