"""A planted fault: one step of a sound layer changed, with the law that must find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from attnzoo.checks.exam.faults.kinds import (
    AbsoluteSpecimen,
    AlibiSpecimen,
    CappedSpecimen,
    PackedSpecimen,
    RotarySpecimen,
    RotaryWindowSpecimen,
    SunkSpecimen,
    WindowSpecimen,
    as_oracle,
)
from attnzoo.checks.exam.faults.reported import REPORTED
from attnzoo.checks.exam.faults.specimen import Specimen
from attnzoo.variant import Traits, Variant

Layer = TypeVar("Layer", bound=Specimen)

HEADS: dict[str, Any] = {"d_model": 24, "heads": 6, "kv_heads": 3, "head_dim": 10}
OTHER: dict[str, Any] = {"d_model": 24, "heads": 4, "kv_heads": 2, "bias": True, "scale": 0.5}


@dataclass(frozen=True)
class Kind:
    """A kind of specimen: what a sound one claims, the option sets it is judged with, and what sets it apart."""

    name: str
    apart: str
    traits: Traits
    cases: Sequence[Mapping[str, Any]]


KINDS: dict[type[Specimen], Kind] = {
    Specimen: Kind("plain", "", Traits(cache="kv", cross=True), [HEADS, OTHER]),
    RotarySpecimen: Kind(
        "rotary",
        "rotary positions",
        Traits(cache="kv", positions="relative"),
        [
            HEADS,
            {"d_model": 24, "heads": 4, "kv_heads": 2, "head_dim": 10, "theta": 500.0, "layout": "interleaved"},
            {"d_model": 24, "heads": 4, "kv_heads": 2, "head_dim": 10, "rotary_dim": 4, "bias": True},
        ],
    ),
    AbsoluteSpecimen: Kind("absolute", "absolute positions", Traits(cache="kv", positions="absolute"), [HEADS, OTHER]),
    WindowSpecimen: Kind(
        "window",
        "a window",
        Traits(cache="ring", sees="some", memory="linear", work="linear"),
        [{**HEADS, "window": 4}, {**OTHER, "window": 5}],
    ),
    RotaryWindowSpecimen: Kind(
        "rotary_window",
        "a window and rotary positions",
        Traits(cache="ring", sees="some", positions="relative", memory="linear", work="linear"),
        [{**HEADS, "window": 4}],
    ),
    CappedSpecimen: Kind(
        "capped",
        "a softcap",
        Traits(cache="kv", cross=True, plain=False),
        [{**HEADS, "softcap": 5.0}, {**OTHER, "softcap": 1.5}],
    ),
    AlibiSpecimen: Kind("alibi", "linear biases", Traits(cache="kv", positions="index", plain=False), [HEADS, OTHER]),
    SunkSpecimen: Kind(
        "sunk", "sinks", Traits(cache="kv", cross=True, rows="at_most_one", plain=False), [HEADS, OTHER]
    ),
    PackedSpecimen: Kind("packed", "document ids", Traits(document=True), [HEADS, OTHER]),
}


def kind_of(layer: type[Specimen]) -> Kind:
    """The kind of the sound specimen that this one is a change of."""
    return next(KINDS[base] for base in layer.__mro__ if base in KINDS)


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    id: theme and name    source: the kind of fault that was really made (see `reported.py`), or "ours", thought up here
    clause: the convention it breaks    killed_by: the law that must find it    layer: the specimen with the fault in it
    """

    id: str
    source: str
    clause: str
    killed_by: str
    layer: type[Specimen]

    @property
    def truth(self) -> str:
        """What is wrong, in one line."""
        return (self.layer.__doc__ or "").strip().splitlines()[0]

    @property
    def reported(self) -> str:
        """A public thread on a fault of this kind; "" for one that was thought up here."""
        return REPORTED.get(self.source, "")

    @property
    def needs(self) -> str:
        """What a layer must have for the fault to be possible in it."""
        return kind_of(self.layer).apart

    @property
    def variant(self) -> Variant:
        """The faulty layer as a variant that claims to be sound."""
        return specimen_variant(self.id.replace(".", "_"), self.layer, self.truth)


def specimen_variant(name: str, layer: type[Specimen], summary: str) -> Variant:
    """A specimen, sound or not, with the claims of a sound one."""
    kind = kind_of(layer)
    return Variant(
        name=name,
        build=layer,
        summary=summary,
        traits=kind.traits,
        oracle=None if layer.places == "absolute" else as_oracle,
        cases=kind.cases,
    )


SOUND = [
    specimen_variant(f"sound_{kind.name}", layer, f"The specimen with {kind.apart or 'nothing added'}.")
    for layer, kind in KINDS.items()
]


def fault(id: str, source: str, clause: str, killed_by: str) -> Callable[[type[Layer]], type[Layer]]:
    """Make a changed specimen a planted fault; its docstring says what is wrong."""

    def plant(layer: type[Layer]) -> type[Layer]:
        layer.fault = Fault(id, source, clause, killed_by, layer)
        return layer

    return plant


def faults_in(*modules: ModuleType) -> list[Fault]:
    """The faults that these modules plant, in the order in which they stand there."""
    planted = (
        vars(value).get("fault") for module in modules for value in vars(module).values() if isinstance(value, type)
    )
    return [fault for fault in planted if isinstance(fault, Fault)]
