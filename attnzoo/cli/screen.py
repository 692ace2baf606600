"""What the verbs share: the zoo without noise, JSON alone on stdout, and tables that wrap rather than cut."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnzoo.registry import Registry, zoo


@contextlib.contextmanager
def quiet_zoo() -> Iterator[Registry]:
    """The zoo, with whatever plugins print sent to stderr, so that a program can read stdout."""
    with contextlib.redirect_stdout(sys.stderr):
        yield zoo()


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
