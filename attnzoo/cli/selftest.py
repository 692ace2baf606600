"""`attnzoo selftest`: the suite's own exam."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from attnzoo.checks import LAWS
from attnzoo.checks.exam.faults import FAULTS
from attnzoo.checks.exam.selftest import Exam, kill_table, selftest
from attnzoo.cli.screen import print_json, print_table, progress_bar, quiet_zoo
from attnzoo.cli.streams import writing


def selftest_(
    depth: Annotated[str, typer.Option(help="quick, or full: 20 seeds, and every fault diagnosed.")] = "quick",
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    table: Annotated[
        Path | None, typer.Option(help="Write the table of faults and the laws that kill them here.", metavar="FILE.md")
    ] = None,
) -> None:
    """Examine the suite: planted faults must be killed by their law, sound variants spared, blind laws noticed, and
    the right fault named.

    Exits with 0 when nothing is missed, 1 otherwise.
    """
    with quiet_zoo() as zoo, progress_bar() as advance:
        built_in = [zoo[name] for name in zoo.names() if zoo.origin(name) == "attnzoo"]
        exam = selftest(LAWS, built_in, depth=depth, progress=advance)
        if table is not None:
            write_table(table, kill_table(LAWS, advance))
    if json:
        print_json(exam.to_dict())
    else:
        show(exam)
    raise typer.Exit(0 if exam.passed else 1)


def show(exam: Exam) -> None:
    """A row a question, and what was missed."""
    rows = [
        (answer.question, str(answer.tried), str(len(answer.misses)), "passed" if answer.passed else "failed")
        for answer in exam.answers
    ]
    print_table(["the suite", "tried", "missed", ""], rows)
    console = Console()
    for answer in exam.answers:
        for miss in answer.misses:
            console.print(f"missed: {miss}", style="red", markup=False, highlight=False)
    verdict = "nothing missed" if exam.passed else "the exam failed"
    verdict = f"{len(FAULTS)} planted faults, {len(LAWS)} laws: {verdict}"
    console.print(verdict, style="green" if exam.passed else "red", highlight=False)


def write_table(path: Path, kills: dict[str, list[str]]) -> None:
    """The page of the documentation: a row a fault."""
    lines = [
        "# What the suite catches",
        "",
        "Each planted fault is a small change to a sound layer. The law in bold is the one that must find it; the",
        "others find it too. A thread is one where a fault of the kind was really reported; ours were thought up. Made",
        "by `attnzoo selftest --table docs/kill-table.md`.",
        "",
        f"{len(FAULTS)} faults, {len(LAWS)} laws.",
        "",
        "| fault | what is wrong | clause | reported as | killed by |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        others = [law for law in kills[fault.id] if law != fault.killed_by]
        by = ", ".join([f"**{fault.killed_by}**", *others])
        reported = fault.reported or "ours"
        lines.append(f"| `{fault.id}` | {fault.truth} | {fault.clause} | {reported} | {by} |")
    with writing("--table", path):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
