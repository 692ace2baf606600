"""The `attnzoo` command: one file a verb."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import attnzoo
from attnzoo.cli import bench, check, describe, doctor, explain, heatmap, new, report, selftest, trace
from attnzoo.cli import list as listing
from attnzoo.cli.given import BUILD_OPTIONS
from attnzoo.cli.streams import watched_streams, wide_screen
from attnzoo.errors import AttnZooError

app = typer.Typer(
    name="attnzoo",
    help="Every kind of attention behind one door, and one suite of laws that holds them all.",
    epilog="Start with: attnzoo list",
    no_args_is_help=True,
    add_completion=False,
)
app.command("list", epilog="Example: attnzoo list --json")(listing.list_)
app.command("describe", epilog="Example: attnzoo describe gqa")(describe.describe)
app.command("check", epilog="Example: attnzoo check gqa --only 'causality.*'")(check.check)
app.command("trace", epilog=trace.EXAMPLE, context_settings=BUILD_OPTIONS)(trace.trace)
app.command("heatmap", epilog=heatmap.EXAMPLE, context_settings=BUILD_OPTIONS)(heatmap.heatmap)
app.command("explain", epilog=explain.EXAMPLE, context_settings=BUILD_OPTIONS)(explain.explain)
app.command("bench", epilog=bench.EXAMPLE)(bench.bench)
app.command("selftest", epilog="Example: attnzoo selftest --depth full --table kill-table.md")(selftest.selftest_)
app.command("new", epilog=new.EXAMPLE)(new.new)
app.add_typer(report.app, name="report")
app.command("doctor", epilog="Example: ATTNZOO_PLUGINS=attnzoo attnzoo doctor")(doctor.doctor)


def show_version(asked: bool) -> None:
    if asked:
        print(f"attnzoo {attnzoo.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=show_version)
    ] = False,
) -> None:
    """Options of `attnzoo` itself. The text of `attnzoo --help` stands above, in `app`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit: 0 all is well, 1 something is wrong, 2 the request can not be served, 141 nobody
    reads the answer."""
    with wide_screen(), watched_streams():
        try:
            app(arguments)
        except AttnZooError as error:
            print(f"attnzoo: {error}", file=sys.stderr)
            raise SystemExit(2) from None
