"""The strokes of a heatmap: cells, lines, numbers, and tokens on the right axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnzoo.errors import InputError
from attnzoo.viz.colours import FONT, Look
from attnzoo.viz.matrices import Maps
from attnzoo.viz.tokens import shortened, spelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


def draw(
    ax: Axes, chosen: Maps, look: Look, layer: int = 0, head: int = 0, corner: tuple[float, float] = (0, 0)
) -> Any:
    """One map, its first query on top, its first key on the left, from a corner (down, right) on."""
    (t, s), (down, right) = chosen.weights.shape[2:], corner
    cells = chosen.weights[layer, head]
    if look.numbers:
        cells = np.ma.masked_where(~chosen.visible[layer, head], cells)
    extent = (right - 0.5, right + s - 0.5, down + t - 0.5, down - 0.5)
    return ax.imshow(cells, cmap=look.cmap, norm=look.norm, extent=extent, aspect="equal", interpolation="nearest")


def draw_lines(ax: Axes, t: int, s: int) -> None:
    """Between the cells, so that they can be counted."""
    ax.set_xticks(np.arange(0.5, s - 1), minor=True)
    ax.set_yticks(np.arange(0.5, t - 1), minor=True)
    ax.grid(which="minor", color="white", linewidth=0.6)
    ax.tick_params(which="minor", length=0)


def write_numbers(ax: Axes, chosen: Maps, look: Look) -> None:
    """Each weight in its cell, in black or white, whichever is farther from the colour."""
    for i, j in np.argwhere(chosen.visible[0, 0]):
        weight = float(chosen.weights[0, 0, i, j])
        red, green, blue, _ = look.cmap(float(look.norm(weight)))
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        text = f"{round(weight, 2) + 0.0:.2f}".replace("0.", ".", 1)  # + 0.0 makes -0.0 plain
        ax.text(j, i, text, ha="center", va="center", fontsize=FONT - 1, color="white" if dark else "black")


def name_tokens(axis: Any, title: str, tokens: Sequence[str], room: float, *, outer: bool = True) -> None:
    """Put the tokens to an axis, every n-th where they would run into each other, and say so; inner ones stay bare."""
    step = math.ceil(len(tokens) / room) if room > 1 else len(tokens)
    nth = "" if step == 1 else f" (each {ordinal(step)} is named)"
    on_top = axis.axis_name == "x"
    if on_top:
        axis.tick_top()
        axis.set_label_position("top")
    labels = [plain(shortened(token)) for token in tokens[::step]]
    turned = 90 if on_top else 0
    axis.set_ticks(range(0, len(tokens), step), labels, fontsize=FONT, parse_math=False, rotation=turned)
    axis.set_tick_params(length=2 if outer else 0, **{"labeltop" if on_top else "labelleft": outer})
    axis.set_label_text(title + nth if outer else "", fontsize=8)


def ordinal(number: int) -> str:
    """
    >>> ordinal(2), ordinal(3), ordinal(4)
    ('2nd', '3rd', '4th')
    """
    return f"{number}{ {2: 'nd', 3: 'rd'}.get(number, 'th') }"


def size_in_inches(ax: Axes) -> tuple[float, float]:
    width, height = root(ax.figure).get_size_inches()
    box = ax.get_position()
    return box.width * width, box.height * height


def root(figure: Figure | SubFigure | None) -> Figure:
    """The figure that is saved, for an axes in a part of it."""
    while figure is not None and figure is not figure.figure:
        figure = figure.figure
    if figure is None:
        raise InputError("the axes handed in belongs to no figure")
    return figure


def plain(text: str) -> str:
    """Text as the figure's font can draw it: characters that it lacks are spelled out.

    >>> print(plain("cat 日"))
    cat \\u65e5
    """
    has = glyphs()
    return "".join(letter if has(ord(letter)) else spelled(letter) for letter in text)


def glyphs() -> Callable[[int], int]:
    """The number of a character's glyph in the font that figures use, 0 where it has none."""
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    return FT2Font(findfont(FontProperties())).get_char_index
