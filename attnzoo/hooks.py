"""The one hook a plugin answers."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from attnzoo.variant import Variant

PROJECT = "attnzoo"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def attnzoo_variants() -> Iterable[Variant]:  # type: ignore[empty-body]
    """Return the variants this plugin provides. Return data only: the registry validates it before it commits any."""
