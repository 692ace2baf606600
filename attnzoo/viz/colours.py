"""From numbers to colours, and what the colour bar says about it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnzoo.errors import MissingPackage
from attnzoo.viz.matrices import Maps

if TYPE_CHECKING:
    from matplotlib.colors import Colormap, Normalize

FONT = 7.0
MASKED = "#c9c9c9"  # a grey that neither viridis nor the diverging map holds


@dataclass(frozen=True)
class Look:
    """How numbers become colours, and what the colour bar says about it."""

    cmap: Colormap
    norm: Normalize
    label: str
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None
    numbers: bool = True


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


def name_colours(bar: Any, look: Look) -> None:
    bar.set_label(look.label, fontsize=8)
    if look.ticks is not None:
        bar.set_ticks(look.ticks, labels=look.names)
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=FONT)


def legend(chosen: Maps, look: Look) -> list[Any]:
    """What grey means, where there is grey and the colour bar does not tell it."""
    from matplotlib.patches import Patch

    masked = not chosen.visible.all() and look.numbers
    return [Patch(facecolor=MASKED, label="masked: may not be seen")] if masked else []


def require_matplotlib() -> None:
    """Raises `MissingPackage` with the install line."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise MissingPackage('pictures need matplotlib; try: pip install "attnzoo[viz]"') from error
