"""`attnzoo check`: hold variants to the laws."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from attnzoo import checks
from attnzoo.checks.report import SCHEMA, Report
from attnzoo.cli.screen import print_table, quiet_zoo
from attnzoo.errors import ConfigError
from attnzoo.registry import Registry

SHOWN = ("passed", "failed", "error", "vacuous", "unexpected-pass", "known", "blocked", "not-applicable")


def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Variants to check, by name or glob.", metavar="NAME…")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every installed variant.")] = False,
    device: Annotated[str, typer.Option(help="Where to run: cpu, cuda, cuda:1, …")] = "cpu",
    depth: Annotated[str, typer.Option(help="quick, or full for more seeds.")] = "quick",
    only: Annotated[list[str] | None, typer.Option(help="Only these laws, by id or glob; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Where the random draws start.")] = 0,
    json: Annotated[
        str, typer.Option(help="Write the reports as JSON to this file; - for stdout.", metavar="FILE")
    ] = "",
) -> None:
    """Hold variants to the laws of attention, and tell which one is broken, where, and by how much.

    One variant gets a row for each law, several get a row each. Exits with 0 when all conform, 1 when one does not, 2
    when the request cannot be served.
    """
    with quiet_zoo() as zoo:
        chosen = choose(zoo, names or [], every)
        reports = run(zoo, chosen, device=device, depth=depth, only=only or [], seed=seed)
    if json:
        write(reports, json)
    if json != "-":
        show(reports)
    raise typer.Exit(0 if all(report.passed for report in reports) else 1)


def choose(zoo: Registry, names: Sequence[str], every: bool) -> list[str]:
    """The variants that were asked for, each once."""
    if every == bool(names):
        raise ConfigError(
            f"name the variants to check, or say --all for every one; installed: {', '.join(zoo.names()) or 'none'}"
        )
    patterns = zoo.names() if every else names
    chosen = list(dict.fromkeys(name for pattern in patterns for name in zoo.matching(pattern)))
    if not chosen:
        raise ConfigError("no variant is installed, so that nothing can be checked; see `attnzoo doctor`")
    return chosen


def run(
    zoo: Registry, names: Sequence[str], *, device: str, depth: str, only: Sequence[str], seed: int
) -> list[Report]:
    """Check one after another under a progress bar, which goes to stderr."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        reports = []
        for position, name in enumerate(names):

            def advance(done: int, laws: int, law: str, name: str = name, position: int = position) -> None:
                total, so_far = laws * len(names), laws * position + done
                bar.update(task, description=f"{name} {law}", completed=so_far, total=total)

            report = checks.check(zoo[name], device=device, depth=depth, only=only, seed=seed, progress=advance)
            reports.append(report)
    return reports


def show(reports: Sequence[Report]) -> None:
    """The table of laws for one variant; for several a row each, and then what went wrong."""
    console = Console()
    if len(reports) == 1:
        reports[0].print(console)
        return
    outcomes = [outcome for outcome in SHOWN if any(report.counts[outcome] for report in reports)]
    print_table(["variant", *outcomes, "seconds", ""], (row(report, outcomes) for report in reports))
    for report in reports:
        report.print_troubles(console)
    bad = [report.variant for report in reports if not report.passed]
    verdict = f"{', '.join(bad)} did not conform" if bad else f"all {len(reports)} variants conform"
    console.print(verdict, style="red" if bad else "green", highlight=False)


def row(report: Report, outcomes: Iterable[str]) -> list[str]:
    """One variant in the table of several."""
    counts = [str(report.counts[outcome]) for outcome in outcomes]
    return [report.variant, *counts, f"{report.seconds:.1f}", "conforms" if report.passed else "does not conform"]


def write(reports: Sequence[Report], where: str) -> None:
    """All reports as one JSON document."""
    document = {
        "schema": SCHEMA,
        "passed": all(report.passed for report in reports),
        "reports": [report.to_dict() for report in reports],
    }
    text = json_format.dumps(document, indent=2) + "\n"
    if where == "-":
        sys.stdout.write(text)
        return
    try:
        Path(where).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json: cannot write {where}: {error.strerror}") from error
