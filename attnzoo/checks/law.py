"""A law: a plain documented function with an id, the clause it guards, and what a variant needs to be held to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from attnzoo.protocol import Staged
from attnzoo.variant import Variant

if TYPE_CHECKING:
    from attnzoo.checks.evidence import Evidence
    from attnzoo.checks.lab import Case, Lab

# A need answers with the reason why a variant is not held to a law, or None where it is.
Need = Callable[[Variant], "str | None"]
Cases = Literal["default", "options", "all"]

ROOT = "build.runs"


@dataclass(frozen=True)
class Law:
    """One law. `cases` says on what it runs: the default case, every option set, or also every named size."""

    id: str
    clause: str
    run: Callable[[Lab, Evidence], None]
    needs: Sequence[Need]
    cases: Cases
    where: Callable[[Case], bool]
    after: Sequence[str]

    @property
    def title(self) -> str:
        """The first paragraph of its docstring, on one line: the law in one sentence."""
        return " ".join(self.doc.partition("\n\n")[0].split())

    @property
    def doc(self) -> str:
        """Its docstring."""
        return inspect.getdoc(self.run) or ""

    def not_applicable(self, variant: Variant) -> str | None:
        """Why this variant is not held to this law, or None."""
        return next((reason for need in self.needs if (reason := need(variant))), None)


def law(
    id: str,
    clause: str,
    *,
    needs: Sequence[Need] = (),
    cases: Cases = "options",
    where: Callable[[Case], bool] = lambda case: True,
    after: Sequence[str] = (ROOT,),
) -> Callable[[Callable[[Lab, Evidence], None]], Law]:
    """Make a function a law."""

    def wrap(run: Callable[[Lab, Evidence], None]) -> Law:
        return Law(
            id=id,
            clause=clause,
            run=run,
            needs=needs,
            cases=cases,
            where=where,
            after=tuple(other for other in after if other != id),
        )

    return wrap


def laws_in(*modules: ModuleType) -> list[Law]:
    """The laws that these modules hold, in the order in which they stand there."""
    return [value for module in modules for value in vars(module).values() if isinstance(value, Law)]


def option(name: str) -> Need:
    """The variant takes this build option; where `build` takes any keyword, its cases show which it knows."""

    def need(variant: Variant) -> str | None:
        shown = {word for case in variant.cases for word in case}
        return None if name in (shown if variant.options is None else variant.options) else f"takes no option {name}"

    return need


def causal(variant: Variant) -> str | None:
    """It can be causal."""
    return "is never causal" if variant.traits.causal == "never" else None


def cached(variant: Variant) -> str | None:
    """It decodes with a cache."""
    return "declares no cache" if variant.traits.cache == "none" else None


def weights(variant: Variant) -> str | None:
    """It returns weights."""
    return None if variant.traits.weights else "declares that it returns no weights"


def masked(variant: Variant) -> str | None:
    """It takes `mask`."""
    return None if variant.traits.mask else "declares that it takes no mask"


def padded(variant: Variant) -> str | None:
    """It takes `key_mask`."""
    return None if variant.traits.key_mask else "declares that it takes no key_mask"


def cross(variant: Variant) -> str | None:
    """It takes `context`."""
    return None if variant.traits.cross else "declares no cross-attention"


def positional(variant: Variant) -> str | None:
    """It knows positions."""
    return "knows no positions" if variant.traits.positions == "none" else None


def plain(variant: Variant) -> str | None:
    """Its attention is the plain one, so that torch's SDPA is its truth."""
    if not variant.traits.plain:
        return "declares that its attention is more than SDPA"
    return sees_all(variant)


def sees_all(variant: Variant) -> str | None:
    """Every allowed key has a say."""
    return None if variant.traits.sees == "all" else "declares that it sees only some of the keys"


def staged(variant: Variant) -> str | None:
    """Its layers show their stages."""
    if isinstance(variant.build(**variant.cases[0]), Staged):
        return None
    return "shows no stages (project, attend, merge)"


def with_oracle(variant: Variant) -> str | None:
    """It brings an oracle."""
    return None if variant.oracle else "brings no oracle"
