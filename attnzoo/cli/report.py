"""`attnzoo report`: what can be told from the documents that `attnzoo check --json` writes."""

from __future__ import annotations

import json as json_format
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import attnzoo
from attnzoo.checks import LAWS
from attnzoo.checks.engine.report import RED, SCHEMA
from attnzoo.cli.screen import print_json, print_table
from attnzoo.errors import ConfigError

app = typer.Typer(help="Compare reports, or make a badge line of one.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="Written by `attnzoo check --json FILE`.", show_default=False)]

# From the best outcome to the worst. What is red is as bad as red gets. "" is a law that was not tried.
RANK = {"passed": 0, "not-applicable": 1, "known": 2, "blocked": 3, **dict.fromkeys(RED, 4)}


@dataclass(frozen=True)
class Change:
    """A law that came out otherwise. before, after: the outcome, "" where it was not tried"""

    variant: str
    law: str
    before: str
    after: str

    @property
    def worse(self) -> bool:
        """It fell in rank; it passed and is gone, for a run that leaves laws out proves less; or it is new and red."""
        if not self.before:
            return self.after in RED
        if not self.after:
            return self.before == "passed"
        return RANK[self.after] > RANK[self.before]

    @property
    def told(self) -> str:
        """In one word."""
        if not self.before:
            return "new, and red" if self.worse else "new"
        if not self.after:
            return "gone, and it passed" if self.worse else "gone"
        if self.worse:
            return "worse"
        return "better" if RANK[self.after] < RANK[self.before] else "changed"


@app.command("diff", epilog="Example: attnzoo report diff before.json after.json")
def diff(
    before: File,
    after: File,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Compare two runs: the laws whose outcome changed, those that are new, and those that are gone.

    Exits with 0 when nothing got worse, 1 when something did, 2 for a file that is no report.
    """
    changes = list(changed(outcomes(read(before)), outcomes(read(after))))
    worse = [change for change in changes if change.worse]
    if json:
        print_json(
            {"worse": bool(worse), "changes": [{**asdict(c), "worse": c.worse, "told": c.told} for c in changes]}
        )
    else:
        if changes:
            rows = [(c.variant, c.law, c.before or "-", c.after or "-", c.told) for c in changes]
            print_table(["variant", "law", "before", "after", ""], rows)
        verdict = f"{len(worse)} got worse" if worse else "nothing got worse"
        console = Console()
        console.print(f"{len(changes)} laws changed, {verdict}", style="red" if worse else "green", highlight=False)
    raise typer.Exit(1 if worse else 0)


@app.command("badge", epilog="Example: attnzoo check gqa --json report.json; attnzoo report badge report.json")
def badge(file: File) -> None:
    """Print what a report proves, in a line: how many of all laws passed, and by which attnzoo and protocol.

    A report on several variants gets a line each. A law that does not apply counts among all, and not as passed.
    """
    for line in badges(read(file), str(file)):
        print(line)


def badges(reports: Sequence[dict[str, Any]], where: str) -> Iterator[str]:
    """The lines. Raises `ConfigError` for a run of some laws only, as far as this attnzoo knows which there are."""
    for report in reports:
        missing = {law.id for law in LAWS} - {result["law"] for result in report["results"]}
        if missing and report["version"] == attnzoo.__version__:
            raise ConfigError(
                f"{where}: {report['variant']} was held to {len(report['results'])} of {len(LAWS)} laws; a badge needs "
                f"them all: attnzoo check {report['variant']} --json FILE, without --only"
            )
        counts = Counter(result["outcome"] for result in report["results"])
        name = f"{report['variant']}: " if len(reports) > 1 else ""
        yield (
            f"{name}{counts['passed']} of {counts.total()} laws, attnzoo {report['version']}, "
            f"protocol {report['schema']}"
        )


def outcomes(reports: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """(variant, law) -> outcome"""
    return {(report["variant"], result["law"]): result["outcome"] for report in reports for result in report["results"]}


def changed(before: dict[tuple[str, str], str], after: dict[tuple[str, str], str]) -> Iterator[Change]:
    """Every law that came out otherwise, in the order of the runs."""
    for variant, law in {**before, **after}:
        change = Change(variant, law, before.get((variant, law), ""), after.get((variant, law), ""))
        if change.before != change.after:
            yield change


def read(path: Path) -> list[dict[str, Any]]:
    """The reports in a document of `attnzoo check --json`, or the one of `Report.to_json`.

    Raises `ConfigError` for a file that holds anything else.
    """
    try:
        document = json_format.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    if not isinstance(document, dict) or "schema" not in document:
        raise ConfigError(f"{path} is no report; write one with: attnzoo check NAME --json {path.name}")
    reports = document.get("reports", [document])
    for part in [document, *(reports if isinstance(reports, list) else [])]:
        if isinstance(part, dict) and part.get("schema") != SCHEMA:
            raise ConfigError(f"{path} has schema {part.get('schema')!r}; this attnzoo reads schema {SCHEMA}")
    if problem := unlike_reports(reports):
        raise ConfigError(f"{path} is no report: {problem}")
    return list(reports)


def unlike_reports(reports: Any) -> str:
    """What is wrong with the reports of a document, or nothing."""
    if not isinstance(reports, list) or not reports or not all(isinstance(report, dict) for report in reports):
        return "it lists no reports"
    for report in reports:
        name, results = report.get("variant"), report.get("results")
        if not isinstance(name, str) or not isinstance(report.get("version"), str) or not isinstance(results, list):
            return "a report needs variant, version and results"
        if not all(isinstance(r, dict) and isinstance(r.get("law"), str) and r.get("outcome") in RANK for r in results):
            return f"{name}: a result needs a law, and one of the outcomes {', '.join(RANK)}"
        counts = Counter(result["outcome"] for result in results)
        if report.get("counts") != counts:
            return f"{name}: its counts are not those of its results"
        if report.get("passed") != (counts["passed"] > 0 and not any(counts[red] for red in RED)):
            return f"{name}: its verdict does not follow from its results"
    return ""
