"""Who runs in a work, and how it may decline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from attnzoo.bench.problem import Given, Problem

Kind = Literal["attnzoo", "by hand", "plain", "peer"]


class Skip(Exception):
    """Raised by a builder that cannot take part here; its words are the reason that is shown."""


@dataclass(frozen=True)
class Contender:
    """One way to compute a problem.

    kind: "attnzoo"; "by hand", the best that an expert writes; "plain", what most would write; "peer", a library.
    build: makes the layer, with the given weights; its time does not count. Raises `Skip` where it cannot. To
        decode, it is started with the prompt, and is then called with the next token, again and again.
    """

    name: str
    kind: Kind
    build: Callable[[Problem, Given], Any]


class Adapted(nn.Module):
    """A layer behind the call that all contenders share. x: (b, t, c)    y: (b, t, c)"""

    def __init__(self, layer: nn.Module, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x)
