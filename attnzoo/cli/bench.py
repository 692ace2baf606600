"""`attnzoo bench`: how fast, against hand-written torch and other libraries; and what can be counted."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from attnzoo.bench import counts as counting
from attnzoo.bench import plot as picture
from attnzoo.bench import results as timing
from attnzoo.bench.counts import Count, count_all
from attnzoo.bench.page import page as page_of
from attnzoo.bench.results import Result
from attnzoo.bench.runner import check_place, chosen, keep_memory, machine, run, threads
from attnzoo.bench.works import Work, all_works
from attnzoo.cli.screen import print_json, print_table, progress, quiet_zoo
from attnzoo.cli.streams import writing
from attnzoo.errors import ConfigError

REDRAW = 0.1  # seconds between two pictures of the progress bar

JUDGED = "float32"  # the type that the targets are set in

EXAMPLE = "Example: attnzoo bench --only 'window*' --plot window.svg"


def bench(
    only: Annotated[list[str] | None, typer.Option(help="Only these works, by id or glob; may be repeated.")] = None,
    counts: Annotated[
        bool, typer.Option("--counts", help="Count and do not time: FLOPs, bytes kept, cache, parameters.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A quarter of the tokens and few rounds: a look, not a measurement.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where a target is missed.")] = False,
    dtype: Annotated[str, typer.Option(help="float32, or bfloat16, which has no targets.")] = "float32",
    device: Annotated[str, typer.Option(help="Where to run: cpu, cuda, cuda:1, …")] = "cpu",
    threads_: Annotated[
        int | None, typer.Option("--threads", min=1, help="How many threads torch may use; its own choice without.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time against tokens here.", metavar="FILE.png|svg", show_default=False)
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            help="Write the documentation's page here, its picture beside it.",
            metavar="FILE.md",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Time attnzoo's layers against hand-written torch and other libraries, all in turn; count what can be counted.

    Whoever computes other numbers than the reference is told by name and not timed, and the exit code is then 1. It is
    0 when all is well, 2 when the request cannot be served.
    """
    check_place(device, dtype)
    if strict and (quick or dtype != JUDGED):
        raise ConfigError(f"--strict judges the full sizes in {JUDGED}; leave out {'--quick' if quick else '--dtype'}")
    if counts:
        refuse_with_counts(only=only, quick=quick, plot=plot, dtype=dtype != "float32", device=device != "cpu")
    if page is not None:
        check_page(page)
    if plot is not None:
        picture.check_file(plot, "--plot")
    with quiet_zoo() as zoo:
        todo = [] if counts else chosen(all_works(zoo.build), only or [])
        if plot is not None:
            check_lines(todo, all_works(zoo.build))
        with threads(threads_), bar() as tell:
            facts = machine(device, dtype)
            keep_memory()
            results = time_all(todo, quick, dtype, device, tell)
            every = counts or not (only or quick or dtype != JUDGED)
            counted = count_all(zoo.build, lambda done, total, what: tell(done / total, what)) if every else []
    if page is not None:
        command = told_command(only or [], counts, quick, threads_, dtype, device, page)
        plot = plot or page.with_suffix(".svg")
        drawn = os.path.relpath(plot, page.parent) if any(result.lines for result in results) else ""
        save(page, page_of(command, facts, results, counted, drawn))
    if plot is not None and any(result.lines for result in results):
        picture.draw_lines(results, plot)
    if json:
        print_json(timing.document(facts, results, [one.to_dict() for one in counted]))
    else:
        show(results, counted)
    raise typer.Exit(exit_code(results, counted, strict))


def refuse_with_counts(**wishes: object) -> None:
    """Raises `ConfigError` for an option that says how or what to time."""
    useless = [f"--{option}" for option, wish in wishes.items() if wish]
    if useless:
        raise ConfigError(f"--counts times nothing and counts the same everywhere; leave out {' and '.join(useless)}")


def check_page(page: Path) -> None:
    """Before any work is done."""
    if page.suffix.lower() != ".md":
        raise ConfigError(f"--page {page}: the ending must be .md")
    if not page.parent.is_dir():
        raise ConfigError(f"--page {page}: there is no folder {page.parent}")
    picture.check_file(page.with_suffix(".svg"), "--page's picture")


def check_lines(todo: Sequence[Work], works: Sequence[Work]) -> None:
    """Raises `ConfigError` where a picture would hold no line."""
    growing = [work.id for work in works if len(work.ts) >= timing.SLOPE_OVER]
    if not any(work.id in growing for work in todo):
        raise ConfigError(f"--plot has no work with several t to draw; take in {' or '.join(growing)}")


def time_all(
    todo: Sequence[Work], quick: bool, dtype: str, device: str, tell: Callable[[float, str], None]
) -> list[Result]:
    """Full sizes, or a quarter of the tokens and half a second for each work. Targets are for one type only."""
    if dtype != JUDGED:
        todo = [replace(work, targets=()) for work in todo]
    if quick:
        return run([work.quick() for work in todo], dtype=dtype, device=device, seconds=0.5, least=3, tell=tell)
    return run(todo, dtype=dtype, device=device, tell=tell)


def show(results: Sequence[Result], counted: Sequence[Count]) -> None:
    """A table for each work with what became of its targets, one for the counts, and what went wrong."""
    console = Console(markup=False, highlight=False)
    for result in results:
        console.print(f"\n{result.id}: {result.title} ({result.problem})", style="bold")
        print_table(*timing.table(result))
        for note in result.notes:
            console.print(note, style="yellow")
        for name in result.lines:
            console.print(f"{name}: time grows with t to the power of {result.slope(name):.2f}")
        for verdict in result.verdicts:
            colour = {True: "green", False: "red", None: "yellow"}[verdict.met]
            console.print(f"target: {verdict}", style=colour)
    if counted:
        console.print(f"\ncounts, the same on every machine ({counting.SIZE})", style="bold")
        print_table(*counting.table(counted))
    for trouble in (trouble for result in results for trouble in result.errors):
        console.print(f"error: {trouble}", style="red")


def exit_code(results: Sequence[Result], counted: Sequence[Count], strict: bool) -> int:
    """1 for a contender that failed or computed other numbers; if strict, also where a target was missed, or none was
    measured at all."""
    if any(result.errors for result in results):
        return 1
    met = [verdict.met for result in results for verdict in result.verdicts] + [one.met for one in counted]
    judged = [one for one in met if one is not None]
    return 1 if strict and not (judged and all(judged)) else 0


def told_command(
    only: Sequence[str], counts: bool, quick: bool, threads: int | None, dtype: str, device: str, page: Path
) -> str:
    """The command that makes a page again, without the folders of this machine."""
    words = ["attnzoo", "bench", *(word for pattern in only for word in ("--only", pattern))]
    words += ["--counts"] * counts + ["--quick"] * quick
    words += ["--threads", str(threads)] if threads else []
    words += ["--dtype", dtype] if dtype != "float32" else []
    words += ["--device", device] if device != "cpu" else []
    return shlex.join([*words, "--page", page.name if page.is_absolute() else page.as_posix()])


def save(page: Path, text: str) -> None:
    with writing("--page", page):
        page.write_text(text, encoding="utf-8")


@contextmanager
def bar() -> Iterator[Callable[[float, str], None]]:
    """A progress bar on stderr; yields the function that moves it: the share that is done, and what is going on.

    It is drawn when it is told, which is never while something is timed, and not by a thread of its own.
    """
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    with progress(*columns, auto_refresh=False) as drawing:
        task, drawn = drawing.add_task("", total=1.0), 0.0

        def tell(share: float, what: str) -> None:
            nonlocal drawn
            due = time.monotonic() > drawn + REDRAW
            drawn = time.monotonic() if due else drawn
            drawing.update(task, description=what, completed=share, refresh=due)

        yield tell
