"""Attention drawn by matplotlib: one head, a panel a head, layers by heads, and the picture of a mask."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from attnzoo.errors import InputError
from attnzoo.viz.colours import FONT, MASKED, Look, legend, look_for, name_colours, require_matplotlib
from attnzoo.viz.drawing import draw, draw_lines, name_tokens, plain, root, size_in_inches, write_numbers
from attnzoo.viz.matrices import Maps
from attnzoo.viz.sources import maps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUMBERED = 10  # up to so many tokens a single map shows its numbers,
LINED = 40  # and up to so many, lines between its cells


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


def mask(
    source: Any, given: Tensor | str | None = None, *, head: int | None = None, ax: Axes | None = None, **how: Any
) -> Figure:
    """Draw who may see whom under a layer's own rules; heads that share one rule are drawn once.

        attnzoo.viz.mask(attnzoo.build("gqa", d_model=24, heads=4, kv_heads=2), torch.randn(1, 8, 24))

    source, given, how: as for `heatmap`    head: only this one    ax: draw here; one map only

    Raises as `heatmap` does.
    """
    require_matplotlib()
    from matplotlib.colors import BoundaryNorm, ListedColormap

    found = maps(source, given, **how)
    if head is None and bool((found.visible == found.visible[:, :1]).all()):
        head = 0
    chosen = found.only(None, head)
    rule = replace(chosen, weights=chosen.visible.astype(np.float32), name=f"{found.name}: who may see whom")
    cmap = ListedColormap([MASKED, "#21918c"])
    return compose(rule, Look(cmap, BoundaryNorm([-0.5, 0.5, 1.5], 2), "", [0, 1], ["masked", "may see"], False), ax)


def compose(chosen: Maps, look: Look, ax: Axes | None) -> Figure:
    """One map with its tokens; or a panel a head; or, of layers by heads, one field of small maps."""
    layers, heads = chosen.weights.shape[:2]
    if layers == heads == 1:
        return single(chosen, look, ax)
    if ax is not None:
        raise InputError(f"one axes holds one map, but there are {layers} x {heads}; say which: layer=0, head=0")
    return field(chosen, look) if layers > 1 and heads > 1 else panels(chosen, look)


def single(chosen: Maps, look: Look, ax: Axes | None) -> Figure:
    """One map, on a new figure or on the axes handed in."""
    from matplotlib.figure import Figure

    t, s = chosen.weights.shape[2:]
    if ax is None:
        width, height = (min(max(0.26 * n, 2.4), 9.0) for n in (s, t))
        ax = Figure(figsize=(width + 2.4, height + 1.4), layout="compressed").add_subplot()
    figure = root(ax.figure)
    image = draw(ax, chosen, look)
    if max(t, s) <= LINED:
        draw_lines(ax, t, s)
    if max(t, s) <= NUMBERED and look.numbers:
        write_numbers(ax, chosen, look)
    across, down = (72 * side / (FONT + 2) for side in size_in_inches(ax))
    name_tokens(ax.xaxis, "key", chosen.keys, across)
    name_tokens(ax.yaxis, "query", chosen.queries, down)
    ax.set_title(plain(chosen.name), fontsize=9, parse_math=False)
    if patches := legend(chosen, look):
        ax.legend(handles=patches, loc="upper left", bbox_to_anchor=(0, -0.01), frameon=False, fontsize=FONT)
    name_colours(figure.colorbar(image, ax=ax, fraction=0.05, pad=0.03), look)
    return figure


def panels(chosen: Maps, look: Look) -> Figure:
    """A panel for each head of one layer, or for one head in each layer; tokens are named at the outer ones."""
    from matplotlib.figure import Figure

    layers, heads, t, s = chosen.weights.shape
    rows, columns = wrap(layers * heads)
    side = 2.6 if rows * columns <= 16 else 1.8
    size = columns * side + 1.6, rows * side * min(max(t / s, 0.3), 3.0) + 1.2
    figure = Figure(figsize=size, layout="compressed")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, ax in enumerate(axes.flat):
        if number >= layers * heads:
            ax.set_axis_off()
            continue
        layer, head = divmod(number, heads)
        image = draw(ax, chosen, look, layer, head)
        room = 72 * side * 0.8 / (FONT + 2)
        name_tokens(ax.xaxis, "key", chosen.keys, room, outer=number < columns)
        name_tokens(ax.yaxis, "query", chosen.queries, room, outer=number % columns == 0)
        ax.set_title(f"head {head}" if layers == 1 else f"layer {layer}", fontsize=FONT + 1, pad=4)
    finish(figure, chosen, look, figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, aspect=30))
    return figure


def field(chosen: Maps, look: Look) -> Figure:
    """Layers down, heads across, on one axes: as many axes as a model has heads would take minutes."""
    from matplotlib.figure import Figure

    layers, heads, t, s = chosen.weights.shape
    stride = 1.08 * t + 0.5, 1.08 * s + 0.5
    figure = Figure(figsize=(0.9 * heads + 2, 0.9 * layers * min(max(t / s, 0.3), 3.0) + 1.2), layout="compressed")
    ax = figure.add_subplot()
    for layer in range(layers):
        for head in range(heads):
            image = draw(ax, chosen, look, layer, head, corner=(layer * stride[0], head * stride[1]))
    ax.set(xlim=(-1, heads * stride[1] - 0.5), ylim=(layers * stride[0] - 0.5, -1))
    ax.set_xticks([head * stride[1] + (s - 1) / 2 for head in range(heads)], map(str, range(heads)), fontsize=FONT + 1)
    ax.set_yticks(
        [layer * stride[0] + (t - 1) / 2 for layer in range(layers)], map(str, range(layers)), fontsize=FONT + 1
    )
    ax.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    ax.xaxis.set_label_position("top")
    ax.set_xlabel(f"head; in each map {s} keys run right", fontsize=8)
    ax.set_ylabel(f"layer; in each map {t} queries run down", fontsize=8, loc="top")
    ax.spines[:].set_visible(False)
    bar = figure.colorbar(
        image, ax=ax, pad=0.02, aspect=30, fraction=0.04, shrink=min(1.0, 6 / (0.9 * layers)), anchor=(0, 1)
    )
    finish(figure, chosen, look, bar)
    return figure


def finish(figure: Figure, chosen: Maps, look: Look, bar: Any) -> None:
    """The title, the legend and the colour bar that many maps share."""
    figure.suptitle(plain(chosen.name), fontsize=9, parse_math=False)
    if patches := legend(chosen, look):
        figure.legend(handles=patches, loc="outside upper right", frameon=False, fontsize=FONT)
    name_colours(bar, look)


def wrap(count: int) -> tuple[int, int]:
    """Rows and columns for so many maps.

    >>> wrap(8), wrap(9), wrap(3)
    ((2, 4), (3, 3), (1, 3))
    """
    columns = count if count <= 3 else math.ceil(math.sqrt(count)) if count != 8 else 4
    return math.ceil(count / columns), columns
