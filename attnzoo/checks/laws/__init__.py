"""The laws of attention, one file a theme, in the order in which they are told. Imports no bricks and no registry."""

from __future__ import annotations

from attnzoo.checks.engine.law import laws_in
from attnzoo.checks.laws import (
    backends,
    batches,
    blind,
    build,
    caches,
    causality,
    claims,
    costs,
    documents,
    drawn,
    dropout,
    graphs,
    learning,
    masks,
    modes,
    numerics,
    places,
    rings,
    rows,
    scores,
    shapes,
    state,
    truth,
    windows,
)

__all__ = ["LAWS"]

LAWS = laws_in(
    build,
    shapes,
    causality,
    windows,
    rows,
    masks,
    blind,
    documents,
    truth,
    scores,
    learning,
    graphs,
    batches,
    places,
    caches,
    rings,
    numerics,
    backends,
    costs,
    modes,
    dropout,
    state,
    claims,
    drawn,
)
