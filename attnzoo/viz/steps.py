"""A trace: what each step on the way through a layer made, and how that is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from attnzoo.viz.scale import rendered


@dataclass(frozen=True)
class Step:
    """One tensor on the way.

    axes: its symbolic shape in the alphabet of `attnzoo.protocol`    shape: the real one
    strides: only where the tensor is not contiguous    mean, spread: over the entries that are not masked
    parameters: of the module that made it    flops: 2 for each multiply-add of a matrix product, 1 an entry for the
        scale, 3 for softmax; masked entries are counted too    where: the line of the code
    """

    name: str
    axes: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    mean: float | None
    spread: float | None
    parameters: int
    flops: int
    where: str


@dataclass(frozen=True)
class Trace:
    """The way through a layer, from x to y. `print(trace)` shows a table, `to_dict()` is for programs.

    sizes: what b, t, s, h, g, d and c are here    proven: from scores to weighted sum, the steps give the real output
    error: how far off they are at most    note: the same in words
    """

    layer: str
    sizes: Mapping[str, int]
    steps: Sequence[Step]
    parameters: int
    proven: bool
    error: float
    note: str

    @property
    def flops(self) -> int:
        """Of all steps."""
        return sum(step.flops for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain data."""
        return {**asdict(self), "sizes": dict(self.sizes), "flops": self.flops}

    def table(self) -> Table:
        """A row a step."""
        sizes = ", ".join(f"{letter}={size}" for letter, size in self.sizes.items())
        table = Table(title=f"{self.layer}: {sizes}", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in ("step", "shape", "here"):
            table.add_column(column, overflow="fold")
        for column in ("mean", "spread", "params", "FLOPs"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("code", no_wrap=True)
        for step in self.steps:
            here = " ".join(map(str, step.shape))
            strides = f"\nstrides {' '.join(map(str, step.strides))}" if step.strides else ""
            numbers = signed(step.mean), signed(step.spread), counted(step.parameters), counted(step.flops)
            table.add_row(*map(Text, (step.name, step.axes, here + strides, *numbers, step.where.rpartition("/")[2])))
        table.add_section()
        table.add_row("in all", "", "", "", "", counted(self.parameters), counted(self.flops), "")
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()
        yield Text(self.note)

    def __str__(self) -> str:
        return rendered(self)


def counted(number: int) -> str:
    """
    >>> counted(0), counted(12288), counted(2_457_600)
    ('', '12 288', '2 457 600')
    """
    return f"{number:,}".replace(",", " ") if number else ""


def signed(number: float | None) -> str:
    return "" if number is None else f"{number:.3f}"
