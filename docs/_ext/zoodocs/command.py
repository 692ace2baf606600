"""The page of the command: every verb with its help, what it takes, and its examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from attnzoo.cli import app
from zoodocs.pages import Page, render


@dataclass(frozen=True)
class Verb:
    """A verb, or a group of them. takes: what may stand behind it, with what it means"""

    path: str
    help: str
    usage: str
    takes: list[tuple[str, str]]
    examples: list[str]
    is_group: bool


def pages() -> dict[str, Page]:
    """The one page."""
    return {"cli": Page(render("cli.md", verbs=list(verbs(typer.main.get_command(app), "attnzoo"))))}


def verbs(command: Any, path: str) -> Iterator[Verb]:
    """A command and all that stand below it, as typer itself would show them."""
    context = command.make_context(path, [], resilient_parsing=True)
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    below = getattr(command, "commands", {})
    yield Verb(
        path=path,
        help=command.help or "",
        usage=command.get_usage(context).removeprefix("Usage: "),
        takes=[record for record in records if record],
        examples=(command.epilog or "").partition(": ")[2].split("; "),
        is_group=bool(below),
    )
    for name, verb in below.items():
        yield from verbs(verb, f"{path} {name}")
