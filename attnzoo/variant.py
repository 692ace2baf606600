"""`Variant`: one kind of attention as data, with its claims. What a plugin hands to the registry."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from attnzoo.errors import ConfigError, did_you_mean
from attnzoo.signature import options_of

if TYPE_CHECKING:
    from torch import nn

    from attnzoo.protocol import Oracle

Causal = Literal["optional", "always", "never"]
Rows = Literal["one", "at_most_one", "free"]
CacheKind = Literal["none", "kv", "ring"]
Positions = Literal["none", "relative", "absolute", "index"]
Sees = Literal["all", "some"]
Growth = Literal["linear", "quadratic"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a variant claims. Each claim is tested both ways: claimed must work, not claimed must raise `Unsupported`.

    causal: "optional" (a build option), "always" or "never".
    rows: the row sums of the weights (C15): "one", "at_most_one" or "free".
    cache: "kv" when `new_cache` gives a growing key-value cache, "ring" when that holds a window of the newest tokens
        only, "none" when there is none.
    cross: takes `context`.
    positions: "none" knows no positions, "relative" sees only distances, "absolute" sees where a token stands.
        Both take the call's `positions`. "index" knows the order of the tokens, and takes none.
    mask, key_mask, weights: takes the call's `mask`, `key_mask`, `need_weights`.
    plain: `attend` is softmax(scale * q kᵀ, masked) v and nothing else, so that torch's SDPA must agree with it; False
        for a softcap, a bias, a sink, another normalisation.
    sees: "all" when every key that the rules allow has a say; "some" for windows and other sparse patterns.
    document: takes the call's `document`, the ids of packed sequences.
    memory: "linear" when what is kept for the backward pass grows in proportion to the tokens, "quadratic" when it
        may hold a number for every pair of them.    work: the same of the operations of a forward pass.
    """

    causal: Causal = "optional"
    rows: Rows = "one"
    cache: CacheKind = "none"
    cross: bool = False
    positions: Positions = "none"
    mask: bool = True
    key_mask: bool = True
    weights: bool = True
    plain: bool = True
    sees: Sees = "all"
    document: bool = False
    memory: Growth = "quadratic"
    work: Growth = "quadratic"

    @property
    def takes_positions(self) -> bool:
        """Whether the call's `positions` are honoured."""
        return self.positions in ("relative", "absolute")

    def __post_init__(self) -> None:
        hints = get_type_hints(Traits)
        for trait in fields(self):
            value, choices = getattr(self, trait.name), get_args(hints[trait.name]) or (True, False)
            if value not in choices:
                listed = ", ".join(repr(choice) for choice in choices)
                raise ConfigError(f"trait {trait.name}={value!r} is not one of {listed}")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kind of attention: how to build it, what it claims, and the option sets it is judged with.

    name: what `attnzoo.build` is asked for: lower case letters, digits and underscores.
    build: called with keyword options, returns a `torch.nn.Module` that answers `attnzoo.protocol.Attention`.
    summary: one line.    paper: where the equations stand, such as "arXiv:2305.13245".
    traits: see `Traits`.
    cases: one or more option sets; the first is the default case of the suite.
    oracle: module -> `attnzoo.protocol.Oracle`, the same layer in NumPy float64 from the module's raw weights.
    known: law id -> words of its failure message, for laws that are known to fail. Strict: one that passes, fails
        with other words or names no law fails the report.

    Raises `ConfigError` for a value that cannot be right.
    """

    name: str
    build: Callable[..., nn.Module]
    summary: str
    cases: Sequence[Mapping[str, Any]]
    traits: Traits = field(default_factory=Traits)
    paper: str = ""
    oracle: Callable[[Any], Oracle] | None = None
    known: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ConfigError(
                f"variant name {self.name!r} must be lower case letters, digits and underscores, starting with a letter"
            )
        if not callable(self.build):
            raise ConfigError(f"{self.name}: build must be callable, got {type(self.build).__name__}")
        if not isinstance(self.traits, Traits):
            raise ConfigError(f"{self.name}: traits must be an attnzoo.Traits, got {type(self.traits).__name__}")
        if not self.cases or not all(isinstance(case, Mapping) for case in self.cases):
            raise ConfigError(f"{self.name}: cases must hold at least one dict of build options")
        for case in self.cases:
            for option in case:
                if self.options is not None and option not in self.options:
                    raise ConfigError(
                        f"{self.name}: a case uses the option {option!r}, which build does not take"
                        f"{did_you_mean(option, self.options)}"
                    )

    @property
    def options(self) -> Mapping[str, inspect.Parameter] | None:
        """The build options by name, those of an unpacked `TypedDict` too; None where `build` takes any keyword."""
        return options_of(self.build)
