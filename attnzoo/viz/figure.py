"""Attention drawn by matplotlib: one head, a grid of heads, layers by heads, and the picture of a mask."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from attnzoo.errors import AttnZooError, InputError
from attnzoo.viz.matrices import Maps, maps, pick
from attnzoo.viz.tokens import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure, SubFigure

MASKED = "#c9c9c9"  # a grey that neither viridis nor the diverging map holds
FONT = 7.0
NUMBERED = 10  # up to so many tokens a single map shows its numbers


class MissingPackage(AttnZooError, ImportError):
    """A package that a picture needs is not installed; the message holds the line that installs it."""


@dataclass(frozen=True)
class Look:
    """How numbers become colours, and what the colour bar says about it."""

    cmap: Colormap
    norm: Normalize
    label: str
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None
    numbers: bool = True


def heatmap(
    source: Any,
    given: Tensor | str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    ax: Axes | None = None,
    **how: Any,
) -> Figure:
    """Draw attention: queries down the side, keys along the top, masked cells in grey.

    >>> figure = heatmap(np.eye(2), queries=["I", "am"])
    >>> figure.axes[0].get_ylabel(), figure.axes[0].get_xlabel()
    ('query', 'key')

    source, given, how: what to draw, as for `attnzoo.viz.maps`: weights; or a layer and its input; or a model and a
        text, with `tokenizer`    layer, head: only this one, numbered from 0    ax: draw here; one map only

    Colours are viridis, by the square root of the weight, so that small ones are told apart; where weights are
    negative, a diverging map centred at zero. One scale serves all heads of a figure.

    Raises `InputError` for what does not fit, `MissingPackage` without matplotlib, and as `attnzoo.viz.maps` does.
    """
    require_matplotlib()
    chosen = maps(source, given, **how).only(layer, head)
    return compose(chosen, look_for(chosen), ax)


def mask(layer: nn.Module, x: Tensor, *, head: int | None = None, ax: Axes | None = None, **how: Any) -> Figure:
    """Draw who may see whom under a layer's own rules; heads that share one rule are drawn once.

        attnzoo.viz.mask(attnzoo.build("gqa", d_model=24, heads=4, kv_heads=2), torch.randn(1, 8, 24))

    x: (b, t, c); its values do not matter    head, ax, how: as for `heatmap`    Raises as `heatmap` does.
    """
    require_matplotlib()
    from matplotlib.colors import BoundaryNorm, ListedColormap

    found = maps(layer, x, **how)
    if head is None and bool((found.visible == found.visible[:, :1]).all()):
        head = 0
    rule = found.only(None, head)
    rule = Maps(rule.visible.astype(np.float32), rule.visible, rule.queries, rule.keys, f"{found.name}: who may see whom")
    cmap = ListedColormap([MASKED, "#21918c"])
    return compose(rule, Look(cmap, BoundaryNorm([-0.5, 0.5, 1.5], 2), "", [0, 1], ["masked", "may see"], False), ax)


def look_for(chosen: Maps) -> Look:
    """Square-root viridis from 0 to the largest weight; diverging and linear where weights are negative."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize, PowerNorm

    most = float(np.abs(chosen.weights).max()) or 1.0
    cmap = colormaps["PuOr" if chosen.signed else "viridis"].with_extremes(bad=MASKED)
    if chosen.signed:
        return Look(cmap, Normalize(-most, most), "weight")
    ticks = [share * most for share in (0, 0.01, 0.05, 0.2, 0.5, 1)]
    names = [f"{tick:.2g}" for tick in ticks]
    return Look(cmap, PowerNorm(0.5, 0, most), "weight (colours by its square root)", ticks, names)


def compose(chosen: Maps, look: Look, ax: Axes | None) -> Figure:
    """One map with all labels; or a grid, its rows layers where there are several, else just wrapped."""
    layers, heads = chosen.weights.shape[:2]
    if layers == heads == 1:
        return single(chosen, look, ax)
    if ax is not None:
        raise InputError(f"one axes holds one map, but there are {layers} x {heads}; say which: layer=0, head=0")
    return grid(chosen, look)


def single(chosen: Maps, look: Look, ax: Axes | None) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    t, s = chosen.weights.shape[2:]
    if ax is None:
        width, height = (min(max(0.26 * n, 2.4), 9.0) for n in (s, t))
        ax = Figure(figsize=(width + 2.4, height + 1.4), layout="constrained").add_subplot()
    figure = root(ax.figure)
    image = draw(ax, chosen, look, 0, 0)
    if max(t, s) <= NUMBERED and look.numbers:
        write_numbers(ax, chosen, look)
    across, down = (72 * side / (FONT + 2) for side in size_in_inches(ax))
    name_tokens(ax.xaxis, "key", chosen.keys, across)
    name_tokens(ax.yaxis, "query", chosen.queries, down)
    ax.set_title(plain(chosen.name), fontsize=9, parse_math=False)
    if not chosen.visible.all() and look.numbers:
        legend = [Patch(facecolor=MASKED, label="masked: may not be seen")]
        ax.legend(handles=legend, loc="upper left", bbox_to_anchor=(0, -0.01), frameon=False, fontsize=FONT)
    name_colours(figure.colorbar(image, ax=ax, fraction=0.05, pad=0.03), look)
    return figure


def grid(chosen: Maps, look: Look) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    layers, heads, t, s = chosen.weights.shape
    rows, columns = (layers, heads) if layers > 1 and heads > 1 else wrap(layers * heads)
    side = 2.6 if rows * columns <= 16 else 0.95
    figure = Figure(figsize=(columns * side + 1.6, rows * side * min(max(t / s, 0.3), 3) + 1.2), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03)  # type: ignore[union-attr, call-arg]
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, ax in enumerate(panels.flat):
        if number >= layers * heads:
            ax.set_axis_off()
            continue
        layer, head = divmod(number, heads)
        image = draw(ax, chosen, look, layer, head)
        name = f"head {head}" if layers == 1 else f"layer {layer}" if heads == 1 else f"{layer}·{head}"
        ax.set_title(name, fontsize=FONT if side > 1 else 5, pad=2)
        room = 72 * side * 0.8 / (FONT + 2) if side > 1 else 0
        first_row, first_column = number < columns, number % columns == 0
        name_tokens(ax.xaxis, "key" if first_row and side > 1 else "", chosen.keys, room, first_row)
        name_tokens(ax.yaxis, "query" if first_column and side > 1 else "", chosen.queries, room, first_column)
    what = "layer·head; " if layers > 1 and heads > 1 else ""
    tokens = "" if side > 1 else f"; {what}queries run down ({t}), keys run right ({s})"
    figure.suptitle(plain(chosen.name + tokens), fontsize=9, parse_math=False)
    name_colours(figure.colorbar(image, ax=panels, fraction=0.04, pad=0.02, aspect=30, shrink=min(1, 6 / (rows * side))), look)
    if not chosen.visible.all() and look.numbers:
        legend = [Patch(facecolor=MASKED, label="masked: may not be seen")]
        figure.legend(handles=legend, loc="outside lower left", frameon=False, fontsize=FONT)
    return figure


def draw(ax: Axes, chosen: Maps, look: Look, layer: int, head: int) -> Any:
    """One map, row 0 on top, every cell as wide as high."""
    visible = chosen.visible[layer, head] if look.numbers else True
    cells = np.ma.masked_where(~np.broadcast_to(visible, chosen.weights.shape[2:]), chosen.weights[layer, head])
    return ax.imshow(cells, cmap=look.cmap, norm=look.norm, aspect="equal", interpolation="nearest", origin="upper")


def write_numbers(ax: Axes, chosen: Maps, look: Look) -> None:
    """Each weight in its cell, in black or white, whichever is farther from the colour."""
    for i, j in np.argwhere(chosen.visible[0, 0]):
        weight = float(chosen.weights[0, 0, i, j])
        red, green, blue, _ = look.cmap(float(look.norm(weight)))
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        text = f"{weight:.2f}".replace("0.", ".", 1)
        ax.text(j, i, text, ha="center", va="center", fontsize=FONT - 1, color="white" if dark else "black")


def name_tokens(axis: Any, title: str, tokens: Sequence[str], room: float, outer: bool = True) -> None:
    """Put the tokens to an axis, every n-th where they would run into each other, and say so."""
    step = math.ceil(len(tokens) / room) if room >= 1 else 0
    on_top = axis.axis_name == "x"
    if on_top:
        axis.tick_top()
        axis.set_label_position("top")
    if step:
        labels = [plain(shortened(token)) for token in tokens[::step]]
        axis.set_ticks(range(0, len(tokens), step), labels, fontsize=FONT, parse_math=False, rotation=90 if on_top else 0)
    else:
        axis.set_ticks([])
    axis.set_tick_params(length=2, labeltop=on_top and outer, labelbottom=False, labelleft=outer)
    nth = f" (each {ordinal(step)} is named)" if step > 1 else ""
    axis.set_label_text(f"{title}{nth}" if title else "", fontsize=8)


def ordinal(number: int) -> str:
    """
    >>> ordinal(2), ordinal(3), ordinal(4)
    ('2nd', '3rd', '4th')
    """
    return f"{number}{ {2: 'nd', 3: 'rd'}.get(number, 'th') }"


def name_colours(bar: Any, look: Look) -> None:
    bar.set_label(look.label, fontsize=8)
    if look.ticks is not None:
        bar.set_ticks(look.ticks, labels=look.names)
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=FONT)


def wrap(count: int) -> tuple[int, int]:
    """Rows and columns for so many maps.

    >>> wrap(8), wrap(9), wrap(3)
    ((2, 4), (3, 3), (1, 3))
    """
    columns = count if count <= 3 else math.ceil(math.sqrt(count)) if count != 8 else 4
    return math.ceil(count / columns), columns


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
    return figure  # type: ignore[return-value]


def plain(text: str) -> str:
    """Text as the figure's font can draw it; characters that it lacks are written by their code."""
    has = glyphs()
    return "".join(letter if letter == "\n" or has(ord(letter)) else f"<{ord(letter):x}>" for letter in text)


def glyphs() -> Callable[[int], int]:
    """The number of a character's glyph in the font that figures use, 0 where it has none."""
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    return FT2Font(findfont(FontProperties())).get_char_index  # type: ignore[no-any-return]


def require_matplotlib() -> None:
    """Raises `MissingPackage` with the install line."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise MissingPackage('pictures need matplotlib; try: pip install "attnzoo[viz]"') from error
