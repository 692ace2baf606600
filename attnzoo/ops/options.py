"""The build options that layers share, each with its type. What they are by default stands in the constructors."""

from __future__ import annotations

from typing_extensions import TypedDict

from attnzoo.ops.rope import Layout


class Conduct(TypedDict, total=False):
    """How a layer attends, and by what; `AttentionLayer` takes these."""

    causal: bool
    scale: float | None
    dropout: float
    max_seq_len: int | None
    backend: str


class Projections(TypedDict, total=False):
    """What the projections of a `GroupedLayer` are like."""

    head_dim: int | None
    bias: bool


class Rotation(TypedDict, total=False):
    """How a `RotaryLayer` turns its queries and keys."""

    theta: float
    layout: Layout
    rotary_dim: int | None


class Options(Projections, Conduct, total=False):
    """All that a `GroupedLayer` takes besides its sizes: `**options: Unpack[ops.Options]`."""


class RotaryOptions(Rotation, Options, total=False):
    """All that a `RotaryLayer` takes besides its sizes: `**options: Unpack[ops.RotaryOptions]`."""
