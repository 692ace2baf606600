"""Why attention divides by √d: the spread of the logits, and what softmax makes of it, as heads grow wider."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WIDTHS = (4, 16, 64, 256, 1024)


@dataclass(frozen=True)
class Row:
    """One head width d: the spread of q·k bare and scaled, and the mean of a row's largest weight under each."""

    d: int
    bare_spread: float
    scaled_spread: float
    bare_top: float
    scaled_top: float


@dataclass(frozen=True)
class ScaleLesson:
    """A row a head width. `print` shows a table."""

    rows: Sequence[Row]
    keys: int

    def to_dict(self) -> dict[str, Any]:
        """The lesson as plain data."""
        return {"keys": self.keys, "rows": [asdict(row) for row in self.rows]}

    def __rich__(self) -> Table:
        table = Table(
            title=f"Why the scale: queries and keys of unit spread, {self.keys} keys",
            title_justify="left",
            box=SIMPLE_HEAD,
            caption="Without it the spread grows as √d, softmax puts all weight on one key, and gradients vanish.",
            caption_justify="left",
        )
        for column in ("d", "√d", "spread of q·k", "of q·k/√d", "largest weight, bare", "scaled"):
            table.add_column(column, justify="right")
        for row in self.rows:
            spreads = f"{row.bare_spread:.2f}", f"{row.scaled_spread:.2f}"
            table.add_row(str(row.d), f"{row.d**0.5:.1f}", *spreads, f"{row.bare_top:.2f}", f"{row.scaled_top:.2f}")
        return table

    def __str__(self) -> str:
        return rendered(self)


def scale_lesson(widths: Sequence[int] = WIDTHS, *, keys: int = 16, queries: int = 512, seed: int = 0) -> ScaleLesson:
    """Draw queries and keys of unit spread, and measure their logits with and without the root of the width.

    >>> [round(row.bare_spread / row.d**0.5, 1) for row in scale_lesson((16, 256)).rows]
    [1.0, 1.0]

    widths: the d to try    keys, queries: how many are drawn for each
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for d in widths:
        q, k = (torch.randn(queries, n, d, generator=generator, dtype=torch.float64) for n in (1, keys))
        bare = (q @ k.mT).squeeze(1)  # (queries, keys)
        scaled = bare * d**-0.5
        spreads = float(bare.std(correction=0)), float(scaled.std(correction=0))
        tops = (float(logits.softmax(dim=-1).amax(dim=-1).mean()) for logits in (bare, scaled))
        rows.append(Row(d, *spreads, *tops))
    return ScaleLesson(rows, keys)


def rendered(thing: Any, width: int = 120) -> str:
    """What rich would print, as text."""
    written = io.StringIO()
    Console(file=written, width=width).print(thing)
    return written.getvalue()
