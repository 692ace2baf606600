"""The shell around every verb: a full disk, a closed pipe, a terminal of few letters or of no width.

Only here is it known what to do about them; a verb prints as if all were well.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from attnzoo.errors import ConfigError

NARROWEST = 60  # columns; in fewer, the tables of rich leave letters out, and in few enough all of them
CLOSED_PIPE = 128 + 13  # as the shell tells of a program that SIGPIPE ended


class Unwritable(Exception):
    """Standard output takes no more. Not an `OSError`: those of its output typer and rich would take for their own."""


class Stream:
    """A standard stream; what cannot be written raises `Unwritable`, or, if it is no loss, is dropped."""

    def __init__(self, stream: TextIO | None, droppable: bool) -> None:
        self.stream = io.StringIO() if stream is None and droppable else stream
        self.droppable = droppable

    def write(self, text: str) -> int:
        try:
            if self.stream is None:
                raise OSError("it is closed")
            return self.stream.write(text)
        except OSError as error:
            self.give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            if self.stream is not None:
                self.stream.flush()
        except OSError as error:
            self.give_up(error)

    def give_up(self, error: OSError) -> None:
        forget(self.stream)
        if not self.droppable:
            raise Unwritable from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def forget(stream: TextIO | None) -> None:
    """What is still in the buffer goes nowhere, or Python would try once more at its exit, and complain."""
    with contextlib.suppress(OSError, AttributeError), open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), stream.fileno())  # type: ignore[union-attr]


@contextlib.contextmanager
def watched_streams() -> Iterator[None]:
    """What is printed inside is drawn as well as the terminal can; what cannot be printed ends the command.

    Exits with 2 and a line on stderr where stdout takes no more, and with 141 where its reader went away. What stderr
    does not take is dropped, and changes no exit code.
    """
    out, err = sys.stdout, sys.stderr
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")
    sys.stdout, sys.stderr = Stream(out, droppable=False), Stream(err, droppable=True)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except Unwritable as trouble:
        if isinstance(trouble.__cause__, BrokenPipeError):
            raise SystemExit(CLOSED_PIPE) from None
        print(f"attnzoo: cannot write to standard output: {words(trouble.__cause__)}", file=sys.stderr)
        raise SystemExit(2) from None
    finally:
        sys.stdout, sys.stderr = out, err


@contextlib.contextmanager
def wide_screen() -> Iterator[None]:
    """Whoever draws inside reads of a width that tables fit in; what the terminal cannot hold of a line it wraps."""
    before, columns = os.environ.get("COLUMNS"), shutil.get_terminal_size().columns
    if before is not None or columns < NARROWEST:
        os.environ["COLUMNS"] = str(max(columns, NARROWEST))
    try:
        yield
    finally:
        os.environ.pop("COLUMNS", None)
        os.environ.update({} if before is None else {"COLUMNS": before})


@contextlib.contextmanager
def writing(option: str, path: object) -> Iterator[None]:
    """Around the writing of a file that an option asks for. Raises `ConfigError` where it cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option}: cannot write {path}: {words(error)}") from error


def words(error: BaseException | None) -> str:
    """Libraries raise some `OSError`s of their own, without an errno."""
    return str(getattr(error, "strerror", None) or error)
