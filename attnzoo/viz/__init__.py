"""See attention: trace every shape through a layer, and draw who attends to whom.

    print(attnzoo.viz.trace(layer, x))
    attnzoo.viz.heatmap(layer, x, head=0).savefig("head.png")
    attnzoo.viz.page(model, "The cat sat.", tokenizer=tokenizer)        # one HTML file, as a string

Pictures need matplotlib (`pip install "attnzoo[viz]"`); traces and pages do not.
"""

from __future__ import annotations

from attnzoo.viz.figure import MissingPackage, heatmap, mask
from attnzoo.viz.matrices import Maps, maps
from attnzoo.viz.webpage import page
from attnzoo.viz.scale import ScaleLesson, scale_lesson
from attnzoo.viz.tracing import Step, Trace, trace

__all__ = [
    "Maps",
    "MissingPackage",
    "ScaleLesson",
    "Step",
    "Trace",
    "heatmap",
    "mask",
    "maps",
    "page",
    "scale_lesson",
    "trace",
]
