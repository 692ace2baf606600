"""For sphinx-gallery: a figure that ends a block is shown, as in a notebook.

attnzoo returns figures that pyplot does not know of, so that no window and no global state belongs to them.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

DPI = 150


def figures(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """The reStructuredText that shows the figure which the last line of a block gave, or nothing."""
    figure = block_vars["example_globals"].get("___")  # the name that sphinx-gallery gives to that value
    if not isinstance(figure, Figure):
        return ""
    path = next(block_vars["image_path_iterator"])
    figure.savefig(path, dpi=DPI)
    return str(figure_rst([path], gallery_conf["src_dir"]))
