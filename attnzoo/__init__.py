"""attnzoo: every kind of attention behind one door, and one suite of laws that holds them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from attnzoo import errors, ops, oracle, viz
from attnzoo.hooks import hookimpl
from attnzoo.registry import Registry, zoo
from attnzoo.variant import Traits, Variant

if TYPE_CHECKING:
    from torch import nn

    from attnzoo.checks import Report

__version__ = "0.1.0"

__all__ = [
    "Registry",
    "Traits",
    "Variant",
    "build",
    "check",
    "describe",
    "errors",
    "hookimpl",
    "ops",
    "oracle",
    "register",
    "temporary",
    "variants",
    "viz",
]


def build(name: str, /, **options: Any) -> nn.Module:
    """A new attention layer, by name. `describe(name).options` lists its options.

    Raises `UnknownVariant`, `AmbiguousVariant`, and `ConfigError` for options that are wrong, missing or unknown.
    """
    return zoo().build(name, **options)


def variants() -> list[str]:
    """The names that `build` understands, sorted."""
    return zoo().names()


def describe(name: str) -> Variant:
    """What a variant is, takes and claims. Raises `UnknownVariant` or `AmbiguousVariant`."""
    return zoo()[name]


def check(
    variant: str | Variant,
    *,
    device: str = "cpu",
    depth: str = "quick",
    only: Sequence[str] = (),
    case: str = "",
    seed: int = 0,
    progress: Callable[..., None] | None = None,
) -> Report:
    """Hold a variant, by name or as it is, to the laws of attention. `print(report)` tells what was found.

    Raises `UnknownVariant`, `AmbiguousVariant`, and `ConfigError` for a device, depth or law that there is not.
    """
    from attnzoo import checks

    judged, called = (variant, "variant") if isinstance(variant, Variant) else (describe(variant), repr(variant))
    called = "" if zoo().has_installed(judged) else called
    return checks.check(
        judged, device=device, depth=depth, only=only, case=case, seed=seed, progress=progress, called=called
    )


def register(variant: Variant, *, replace: bool = False) -> None:
    """Add a variant for this session, for notebooks; `replace` lets it take the place of one registered before.

    Raises `ConfigError` for a name that is taken.
    """
    zoo().register(variant, replace=replace)


def temporary(variant: Variant) -> AbstractContextManager[Variant]:
    """Add a variant for the length of a `with` block. Raises `ConfigError` for a name that is taken."""
    return zoo().temporary(variant)
