"""See attention: trace every shape through a layer, and draw who attends to whom.

    print(attnzoo.viz.trace(layer, x))
    attnzoo.viz.heatmap(layer, x, head=0).savefig("head.png")
    attnzoo.viz.page(model, "The cat sat.", tokenizer=tokenizer)        # one HTML file, as a string

Pictures need matplotlib (`pip install "attnzoo[viz]"`); traces and pages do not.
"""

from __future__ import annotations

from attnzoo.viz.figure import heatmap, mask
from attnzoo.viz.matrices import Maps
from attnzoo.viz.scale import ScaleLesson, scale_lesson
from attnzoo.viz.sources import maps
from attnzoo.viz.steps import Step, Trace
from attnzoo.viz.tracing import trace
from attnzoo.viz.webpage import page

__all__ = [
    "Maps",
    "ScaleLesson",
    "Step",
    "Trace",
    "heatmap",
    "maps",
    "mask",
    "page",
    "scale_lesson",
    "trace",
]
