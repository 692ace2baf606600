"""A layer under questioning, and how its answers are taken down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine.lab import Lab, Switches, seed_torch
from attnzoo.checks.engine.law import Need
from attnzoo.variant import Variant

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
        """A new layer."""
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


@dataclass(frozen=True)
class Question:
    """What a layer is asked. `asks` returns a tensor or a string; `needs` say which variants are asked."""

    asks: Callable[[Witness], Any]
    needs: Sequence[Need]

    @property
    def name(self) -> str:
        """What it asks for, in a word."""
        return self.asks.__name__

    def applies(self, variant: Variant) -> bool:
        """Whether a layer of this variant is asked; one that breaks when its claims are looked at is."""
        try:
            return not any(need(variant) for need in self.needs)
        except Exception:
            return True

    def __call__(self, witness: Witness) -> Answer:
        """The answer; a refusal or a breakdown is one too, named by its kind."""
        seed_torch(0, witness.lab.device)
        switches = Switches()
        try:
            answer = self.asks(witness)
        except Exception as error:
            return type(error).__name__
        finally:
            switches.restore()
        if isinstance(answer, Tensor):
            return answer.detach()
        return answer if isinstance(answer, str) else type(answer).__name__


def question(*needs: Need) -> Callable[[Callable[[Witness], Any]], Question]:
    """Make a function a question to the variants that meet these needs."""
    return lambda asks: Question(asks, needs)


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
