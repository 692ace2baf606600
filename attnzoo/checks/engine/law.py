"""A law: a plain documented function with an id, the clause it guards, and what a variant needs to be held to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from attnzoo.errors import Unsupported
from attnzoo.protocol import Staged
from attnzoo.variant import Variant

if TYPE_CHECKING:
    from attnzoo.checks.engine.evidence import Evidence
    from attnzoo.checks.engine.lab import Case, Lab

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


def normalised(variant: Variant) -> str | None:
    """Its rows sum to one, so that a softmax over the keys is all there is."""
    rows = variant.traits.rows
    return None if rows == "one" else f"declares rows {rows!r}, not 'one'"


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
    """It takes positions."""
    if variant.traits.takes_positions:
        return None
    return "knows no positions" if variant.traits.positions == "none" else "takes no positions"


def plain(variant: Variant) -> str | None:
    """Its attention is the plain one, so that torch's SDPA is its truth."""
    if not variant.traits.plain:
        return "declares that its attention is more than SDPA"
    return sees_known(variant)


def sees_known(variant: Variant) -> str | None:
    """Which keys a query may see can be told from outside: all of them, or those of its window."""
    return None if option("window")(variant) is None else sees_all(variant)


def sees_all(variant: Variant) -> str | None:
    """Every allowed key has a say."""
    return None if variant.traits.sees == "all" else "declares that it sees only some of the keys"


def staged(variant: Variant) -> str | None:
    """Its layers show their stages."""
    if isinstance(variant.build(**variant.cases[0]), Staged):
        return None
    return "shows no stages (project, attend, merge)"


def documents(variant: Variant) -> str | None:
    """It takes the ids of packed documents."""
    return None if variant.traits.document else "declares that it takes no document"


def ring(variant: Variant) -> str | None:
    """Its cache holds a window only, whose length its options tell."""
    kind = variant.traits.cache
    return option("window")(variant) if kind == "ring" else f"declares cache {kind!r}, not 'ring'"


def takes_in_cache(variant: Variant, word: str) -> bool:
    """Whether `new_cache` has a parameter of this name that may be left out."""
    layer: Any = variant.build(**variant.cases[0])
    known = inspect.signature(layer.new_cache).parameters
    return word in known and known[word].default is not known[word].empty


def growing(variant: Variant) -> str | None:
    """Its cache grows when no length is set."""
    if reason := cached(variant):
        return reason
    try:
        return None if takes_in_cache(variant, "max_len") else "has caches of a given length only (max_len)"
    except Unsupported:
        return "gives no cache for its first case"


def croppable(variant: Variant) -> str | None:
    """What its cache was told can be taken back; a ring must be told beforehand how far."""
    if variant.traits.cache != "ring" or takes_in_cache(variant, "rollback"):
        return cached(variant)
    return "has a ring that takes nothing back (new_cache has no rollback)"


def with_oracle(variant: Variant) -> str | None:
    """It brings an oracle."""
    return None if variant.oracle else "brings no oracle"
