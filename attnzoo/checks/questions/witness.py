"""A layer under questioning, and how its answers are taken down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.lab import Lab

# Numbers, or a fact in words.
Answer = Tensor | str


@dataclass
class Witness:
    """A layer under questioning, and the lab that makes its inputs.

    build: (dtype, redrawn=..., **options) -> the layer
    """

    lab: Lab
    build: Callable[..., Any]
    made: dict[Any, Any] = field(default_factory=dict)

    def make(self, dtype: torch.dtype, /, *, redrawn: bool = True, **options: Any) -> Any:
        """A new layer. Options that the variant does not take are not asked for."""
        takes = self.lab.variant.options
        strange = [word for word in options if takes is not None and word not in takes]
        if strange:
            raise LookupError(f"takes no option {strange[0]}")
        return self.build(dtype, redrawn=redrawn, **options)

    def layer(self, dtype: torch.dtype = torch.float64, /, **options: Any) -> Any:
        """The layer in eval mode, made once for each set of options."""
        key = dtype, tuple(sorted(options.items()))
        if key not in self.made:
            self.made[key] = self.make(dtype, **options)
        return self.made[key]

    def tokens(self, t: int = 7, b: int = 3, dtype: torch.dtype = torch.float64, draw: int = 0) -> Tensor:
        """Random tokens (b, t, c)."""
        return self.lab.tokens(b, t, dtype, draw=draw)

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return int(self.lab.case.options.get("heads", 1))


# A question's answer is a tensor or a string; `ask` sees to it.
Question = Callable[[Witness], Any]


def ask(witness: Witness, question: Question) -> Answer:
    """The answer; a refusal or a breakdown is one too, named by its kind."""
    torch.manual_seed(0)
    try:
        answer = question(witness)
    except Exception as error:
        return type(error).__name__
    if isinstance(answer, Tensor):
        return answer.detach()
    return answer if isinstance(answer, str) else type(answer).__name__


def fact(holds: bool) -> str:
    """A fact as an answer."""
    return "yes" if holds else "no"


def taken(call: Callable[[], Any]) -> str:
    """Whether a call is accepted; if not, by which error."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "taken"
