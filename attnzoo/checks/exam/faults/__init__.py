"""Planted faults: what the suite must find, each a small change to a sound layer."""

from __future__ import annotations

from attnzoo.checks.exam.faults import (
    biases,
    blind,
    caches,
    conduct,
    dropout,
    graphs,
    heads,
    kernels,
    masks,
    memory,
    packed,
    places,
    rings,
    scores,
    sizes,
    time,
    windows,
)
from attnzoo.checks.exam.faults.fault import SOUND, Fault, faults_in

__all__ = ["FAULTS", "SOUND", "Fault"]

FAULTS = faults_in(
    scores,
    masks,
    blind,
    time,
    heads,
    places,
    caches,
    dropout,
    conduct,
    memory,
    graphs,
    sizes,
    windows,
    kernels,
    rings,
    biases,
    packed,
)
