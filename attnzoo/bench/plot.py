"""The picture: cost against the number of tokens, both by powers of two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnzoo.bench.results import Result
from attnzoo.errors import ConfigError, MissingPackage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg")

# Okabe and Ito's colours, told apart by the colour-blind, and a mark each for print without colour.
LOOKS = (("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "^"), ("#cc79a7", "D"), ("#e69f00", "v"), ("#56b4e9", "P"))


def check_file(path: Path, option: str) -> None:
    """Before any work is done. Raises `ConfigError` for an ending or a folder that will not do."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{option} {path}: the ending must be {' or '.join(ENDINGS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingPackage('pictures need matplotlib; try: pip install "attnzoo[viz]"') from error


def draw_lines(results: Sequence[Result], path: Path) -> None:
    """One panel for each work that was timed at several t. Raises `ConfigError` where it cannot be written."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "attnzoo", "svg.fonttype": "none"}):  # the same run gives the same file
        try:
            metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
            figure([result for result in results if result.lines]).savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def figure(results: Sequence[Result]) -> Figure:
    """A line for each contender; its legend tells the slope, 1 where twice the tokens cost twice the time."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    drawing = Figure(figsize=(6.0 * max(len(results), 1), 4.5), layout="constrained")
    for panel, result in zip(drawing.subplots(1, len(results), squeeze=False)[0], results, strict=True):
        for (colour, mark), (name, rows) in zip(LOOKS, result.lines.items(), strict=False):
            label = f"{name}: slope {result.slope(name):.2f}"
            ts, times = [row.t for row in rows], [1e3 * row.median for row in rows]
            panel.plot(ts, times, color=colour, marker=mark, markersize=5, label=label)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xticks(sorted({row.t for row in result.rows}))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t:g}"))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t:g}"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set(title=result.title, xlabel="tokens", ylabel="median time, ms")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    return drawing
