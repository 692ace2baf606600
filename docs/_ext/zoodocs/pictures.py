"""A small layer of a variant with random weights, and what it looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from attnzoo import viz
from attnzoo.checks.engine.lab import Lab, option_cases
from attnzoo.variant import Variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOKENS = 10
DOCUMENTS = [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]  # which one each token belongs to


class Sample(NamedTuple):
    """A layer and what it reads.    x: (1, t, c)    document: (1, t), where it takes that"""

    layer: Any
    x: Tensor
    document: Tensor | None


def sample(variant: Variant) -> Sample:
    """The variant's default case as the suite tries it: with the weights of a fresh layer every picture is flat."""
    lab = Lab(variant, option_cases(variant)[0], torch.device("cpu"))
    document = torch.tensor([DOCUMENTS]) if variant.traits.document else None
    return Sample(lab.layer(torch.float32), lab.tokens(b=1, t=TOKENS, dtype=torch.float32), document)


def draw(given: Sample, name: str) -> dict[str, Figure]:
    """Who may see whom, who attends to whom, and a small picture of the first head.

    Raises `Unsupported` for a layer whose weights cannot be had.
    """
    maps = viz.maps(given.layer, given.x, document=given.document, name=name)
    return {f"{name}-mask": viz.mask(maps), f"{name}-weights": viz.heatmap(maps), name: emblem(maps)}


def emblem(maps: viz.Maps | None) -> Figure:
    """The first head alone: no axes, no words, and nothing at all where a key may not be seen, or nothing is known."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6, 1.6), facecolor="none")
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    if maps is not None:
        visible, weights = maps.visible[0, 0], maps.weights[0, 0]
        ax.imshow(abs(weights) ** 0.5, cmap="viridis", alpha=visible.astype(float), interpolation="nearest")
    return figure
