"""A planted fault: one step of a sound layer changed, with the law that must find it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from attnzoo.checks.faults.reported import REPORTED
from attnzoo.checks.faults.specimen import AbsoluteSpecimen, RotarySpecimen, Specimen, as_oracle
from attnzoo.variant import Traits, Variant

Layer = TypeVar("Layer", bound=Specimen)

PLAIN: list[dict[str, Any]] = [
    {"d_model": 24, "heads": 6, "kv_heads": 3, "head_dim": 10},
    {"d_model": 24, "heads": 4, "kv_heads": 2, "bias": True, "scale": 0.5},
]
ROTARY: list[dict[str, Any]] = [
    {"d_model": 24, "heads": 6, "kv_heads": 3, "head_dim": 10},
    {"d_model": 24, "heads": 4, "kv_heads": 2, "head_dim": 10, "theta": 500.0, "layout": "interleaved"},
    {"d_model": 24, "heads": 4, "kv_heads": 2, "head_dim": 10, "rotary_dim": 4, "bias": True},
]


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
        return {"none": "", "rotary": "rotary positions", "absolute": "absolute positions"}[self.layer.places]

    @property
    def variant(self) -> Variant:
        """The faulty layer as a variant that claims to be sound."""
        return specimen_variant(self.id.replace(".", "_"), self.layer, self.truth)


def specimen_variant(name: str, layer: type[Specimen], summary: str) -> Variant:
    """A specimen, sound or not, with the claims of a sound one."""
    positions = {"none": "none", "rotary": "relative", "absolute": "absolute"}[layer.places]
    return Variant(
        name=name,
        build=layer,
        summary=summary,
        traits=Traits(cache="kv", cross=layer.places == "none", positions=positions),  # type: ignore[arg-type]
        oracle=None if layer.places == "absolute" else as_oracle,
        cases=ROTARY if layer.places == "rotary" else PLAIN,
    )


SOUND = [
    specimen_variant("sound_plain", Specimen, "The specimen without positions."),
    specimen_variant("sound_rotary", RotarySpecimen, "The specimen with rotary positions."),
    specimen_variant("sound_absolute", AbsoluteSpecimen, "The specimen with absolute positions."),
]


def fault(id: str, source: str, clause: str, killed_by: str) -> Callable[[type[Layer]], type[Layer]]:
    """Make a changed specimen a planted fault; its docstring says what is wrong."""

    def plant(layer: type[Layer]) -> type[Layer]:
        layer.fault = Fault(id, source, clause, killed_by, layer)
        # A constructor written with *args takes the options of the sound specimen all the same.
        sound = RotarySpecimen if issubclass(layer, RotarySpecimen) else Specimen
        layer.__signature__ = inspect.signature(sound)  # type: ignore[attr-defined]
        return layer

    return plant


def faults_in(*modules: ModuleType) -> list[Fault]:
    """The faults that these modules plant, in the order in which they stand there."""
    planted = (
        vars(value).get("fault") for module in modules for value in vars(module).values() if isinstance(value, type)
    )
    return [fault for fault in planted if isinstance(fault, Fault)]
