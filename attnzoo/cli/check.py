"""`attnzoo check`: hold variants to the laws."""

from __future__ import annotations

import functools
import json as json_format
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attnzoo import checks
from attnzoo.checks.engine.parallel import cores, spread
from attnzoo.checks.engine.report import SCHEMA, Report, Result
from attnzoo.checks.engine.runner import devices
from attnzoo.cli.screen import print_table, progress_bar, quiet_zoo
from attnzoo.cli.streams import writing
from attnzoo.errors import ConfigError
from attnzoo.registry import Registry

# What `--script` writes: the shortest way to see one failure without the suite around it.
SCRIPT = """\
# {told}
import attnzoo, torch
from attnzoo.checks import LAWS
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab, find_case, option_cases, size_cases

variant = attnzoo.describe({name!r})
law = next(law for law in LAWS if law.id == {law!r})
case = find_case({case!r}, [*option_cases(variant), *size_cases(variant)])
torch.set_num_threads(1)
torch.manual_seed({seed})
try:
    law.run(Lab(variant, case, torch.device({device!r}), seed={seed}{depth}), see := Evidence())
    assert see.comparisons, "compared nothing"
except Exception as failure:
    raise SystemExit(f"{{law.id}} ({{law.clause}}), case {{case.words}}: {{type(failure).__name__}}: {{failure}}")
print(f"{{law.id}} holds")
"""

SHOWN = ("passed", "failed", "error", "vacuous", "unexpected-pass", "known", "blocked", "not-applicable")


def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Variants to check, by name or glob.", metavar="NAME…")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every installed variant.")] = False,
    device: Annotated[
        str, typer.Option(help="Where to run: cpu, cuda, cuda:1, …; without it the CPU, and a GPU where there is one.")
    ] = "",
    depth: Annotated[str, typer.Option(help="quick, or full or soak for more seeds and examples.")] = "quick",
    only: Annotated[list[str] | None, typer.Option(help="Only these laws, by id or glob; may be repeated.")] = None,
    case: Annotated[
        str, typer.Option(help="Only this case, and what is to differ in it: options-0,b=1,t=2.", metavar="CASE")
    ] = "",
    seed: Annotated[int, typer.Option(help="Where the random draws start.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(help="How many processes share the variants; without it one a core.", min=1, show_default=False),
    ] = None,
    json: Annotated[
        str, typer.Option(help="Write the reports as JSON to this file; - for stdout.", metavar="FILE")
    ] = "",
    script: Annotated[
        str, typer.Option(help="Write the first failure as a Python script to run or debug.", metavar="FILE.py")
    ] = "",
) -> None:
    """Hold variants to the laws of attention, and tell which one is broken, where, and by how much.

    One variant gets a row for each law, several get a row each. Exits with 0 when all conform, 1 when one does not, 2
    when the request cannot be served.
    """
    with quiet_zoo() as zoo:
        chosen = choose(zoo, names or [], every)
        places = [(name, place) for name in chosen for place in devices(device)]
        asked: dict[str, Any] = {"depth": depth, "only": only or [], "case": case, "seed": seed}
        processes = share(places, jobs, few=bool(only or case))
        reports = run(zoo, places, asked) if processes == 1 else run_apart(places, asked, processes)
    if json:
        write(reports, json)
    if json != "-":
        show(reports)
    if script:
        write_script([(name, report) for (name, _), report in zip(places, reports, strict=True)], script)
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


def share(places: Sequence[tuple[str, str]], jobs: int | None, *, few: bool) -> int:
    """How many processes to use, one for this one alone. few: of the laws or cases only some were asked for

    For one variant, or few laws, a process takes longer to start than its work does.
    """
    elsewhere = sorted({device for _, device in places if not device.startswith("cpu")})
    if jobs is None:
        return 1 if elsewhere or few else min(cores(), len(places))
    if elsewhere and jobs > 1:
        raise ConfigError(
            f"--jobs {jobs}: processes that share {', '.join(elsewhere)} only wait for each other; say --jobs 1, or "
            "--device cpu"
        )
    return min(jobs, len(places))


def run(zoo: Registry, places: Sequence[tuple[str, str]], asked: Mapping[str, Any]) -> list[Report]:
    """Check one variant on one device after another, under a progress bar."""
    reports = []
    with progress_bar() as advance:
        for position, (name, device) in enumerate(places):

            def law_done(done: int, laws: int, law: str, name: str = name, position: int = position) -> None:
                advance(laws * position + done, laws * len(places), f"{name} {law}")

            reports.append(checks.check(zoo[name], device=device, **asked, progress=law_done))
    return reports


def run_apart(places: Sequence[tuple[str, str]], asked: Mapping[str, Any], processes: int) -> list[Report]:
    """The same by several processes; the bar moves with each variant."""
    with progress_bar() as advance:
        advance(0, len(places), f"{processes} processes")
        return spread(
            functools.partial(check_by_name, asked=asked),
            places,
            processes,
            lambda done, place: advance(done, len(places), place[0]),
        )


def check_by_name(place: tuple[str, str], asked: Mapping[str, Any]) -> Report:
    """One variant on one device, in a process that has yet to load the plugins."""
    name, device = place
    with quiet_zoo() as zoo:
        return checks.check(zoo[name], device=device, **asked)


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
    bad = [report.label for report in reports if not report.passed]
    many = len({report.variant for report in reports})
    verdict = f"{', '.join(bad)} did not conform" if bad else f"all {many} variants conform"
    console.print(verdict, style="red" if bad else "green", highlight=False)


def row(report: Report, outcomes: Iterable[str]) -> list[str]:
    """One variant in the table of several."""
    counts = [str(report.counts[outcome]) for outcome in outcomes]
    return [report.label, *counts, f"{report.seconds:.1f}", "conforms" if report.passed else "does not conform"]


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
    with writing("--json", where):
        Path(where).write_text(text, encoding="utf-8")


def write_script(reports: Sequence[tuple[str, Report]], where: str) -> None:
    """The first failure of the first variant that has one, as a script; says on stderr what was written, or why not."""
    console = Console(stderr=True, markup=False, highlight=False)
    failures = (
        (name, report, result)
        for name, report in reports
        for result in report.results
        if result.outcome in ("failed", "error", "vacuous") and result.reproduce
    )
    first = next(failures, None)
    if first is None:
        console.print(
            f"--script: no law failed on a case, so that there is nothing to write to {where}", soft_wrap=True
        )
        return
    name, report, failure = first
    with writing("--script", where):
        Path(where).write_text(script_of(name, report, failure), encoding="utf-8")
    console.print(f"--script: `python {where}` shows {failure.law}", soft_wrap=True)


def script_of(name: str, report: Report, failure: Result) -> str:
    """A script that exits with 1 and the failure, as long as there is one."""
    words = shlex.split(failure.reproduce)
    told = f"{name} breaks {failure.law} ({failure.clause}): {failure.title}"
    return SCRIPT.format(
        told=told,
        name=name,
        law=failure.law,
        case=failure.smallest or failure.case,
        device=report.device,
        seed=words[words.index("--seed") + 1],
        depth="" if report.depth == "quick" else f", depth={report.depth!r}",
    )
