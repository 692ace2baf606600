"""Reads the variants out of a plugin. Whatever a plugin does wrong becomes words in its record and harms no other."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pluggy

from attnzoo import hooks
from attnzoo.errors import did_you_mean
from attnzoo.variant import Variant

GROUP = "attnzoo"
BYSTANDERS = ("<", f"{Path(importlib.__file__).parent}{os.sep}", f"{Path(__file__).parent}{os.sep}")
HOOK = hooks.attnzoo_variants.__name__


@dataclass(frozen=True)
class Plugin:
    """One plugin as it was found: its variants, or the problem for which none of them was taken.

    key: "distribution:entry point".    origin: the distribution, the first half of a qualified name.
    variants: by bare name.
    """

    key: str
    origin: str
    version: str = ""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.origin} {self.version}".strip()


class PluginError(Exception):
    """What is wrong with a plugin, in words for its author."""


def installed_plugins(limit: str = "") -> Iterator[Plugin]:
    """Every plugin of the entry-point group `attnzoo`, by key; of these distributions alone where `limit` names some.

    limit: "" for all, "none", or distributions separated by commas, as in ATTNZOO_PLUGINS.
    """
    entries = [entry for entry in entry_points(group=GROUP) if entry.dist and entry.dist.name]  # no name: debris of pip
    found = {f"{canonical(entry.dist.name)}:{entry.name}": entry for entry in entries if entry.dist}
    origins = {key: key.partition(":")[0] for key in sorted(found)}
    wanted = set(origins.values()) if not limit else set(distributions_in(limit))
    for key, origin in origins.items():
        if origin in wanted:
            entry = found[key]
            version = entry.dist.version if entry.dist else ""
            try:
                with blaming("import failed:"):
                    module = entry.load()
                yield Plugin(key, origin, version, variants=read_variants(module))
            except PluginError as error:
                yield Plugin(key, origin, version, problem=str(error))
    for stranger in sorted(wanted.difference(origins.values())):
        hint = did_you_mean(stranger, origins.values()) or f"; there are: {', '.join(sorted({*origins.values()}))}"
        problem = f"named in ATTNZOO_PLUGINS, but no installed distribution of this name has attnzoo plugins{hint}"
        yield Plugin(stranger, stranger, problem=problem)


def given_plugin(given: object) -> Plugin:
    """A plugin handed over in Python: a module or object with the hook, called by its name, or a bare `Variant`."""
    if isinstance(given, Variant):
        return Plugin(f"given:{given.name}", "given", variants={given.name: given})
    origin = getattr(given, "__name__", type(given).__name__)
    try:
        return Plugin(origin, origin, variants=read_variants(given))
    except PluginError as error:
        return Plugin(origin, origin, problem=str(error))


def read_variants(plugin: object) -> dict[str, Variant]:
    """Name -> variant, for all that a plugin's hook returns.

    Raises `PluginError` for a hook that is missing, misspelt or unmarked, takes arguments, raises, or returns anything
    but variants with different names.
    """
    # One manager per plugin: one that pluggy stumbles over must not be in the way of the next.
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    with blaming("its hook can not be read:"):
        refuse_misspelt_hooks(plugin, manager)
        try:
            manager.register(plugin)
        except pluggy.PluginValidationError as error:
            signature = inspect.signature(getattr(plugin, HOOK))
            raise PluginError(f"{HOOK} is called without arguments, but is defined as {HOOK}{signature}") from error
        if not manager.hook.attnzoo_variants.get_hookimpls():
            raise PluginError(missing_hook_complaint(plugin))
    with blaming(f"{HOOK} raised"):
        results = manager.hook.attnzoo_variants()  # pluggy leaves out a result that is None
        variants = [variant for result in results or [None] for variant in listed(result)]
    twice = [name for name, count in Counter(variant.name for variant in variants).items() if count > 1]
    if twice:
        raise PluginError(f"{HOOK} returned {twice[0]!r} more than once; a plugin offers a name once")
    return {variant.name: variant for variant in variants}


def listed(result: Any) -> list[Variant]:
    """What a hook returned, as a list of variants. Raises `PluginError` if it is anything else."""
    if isinstance(result, str | bytes | Mapping | Variant) or not isinstance(result, Iterable):
        raise PluginError(f"{HOOK} must return a list of attnzoo.Variant; it returned {a_kind_of(result)}")
    items = list(result)
    for index, item in enumerate(items):
        if not isinstance(item, Variant):
            raise PluginError(
                f"{HOOK} must return a list of attnzoo.Variant; item {index} is {a_kind_of(item)}: {item!r}"
            )
    return items


def refuse_misspelt_hooks(plugin: object, manager: pluggy.PluginManager) -> None:
    """A marked function, and any whose name starts with `attnzoo_`, is meant for a hook: tell it if there is none.

    One marked `optionalhook=True` is for another version of attnzoo, and is let be.
    """
    for name in dir(plugin):
        mark = manager.parse_hookimpl_opts(plugin, name)
        if mark is None:
            meant = name.startswith(f"{hooks.PROJECT}_") and inspect.isroutine(getattr(plugin, name))
        else:
            meant = not mark["optionalhook"]
            name = mark["specname"] or name
        if meant and name != HOOK:
            raise PluginError(f"there is no hook {name!r}; did you mean {HOOK!r}?")


def missing_hook_complaint(plugin: object) -> str:
    if hasattr(plugin, HOOK):
        return f"{HOOK} lacks its mark; write @attnzoo.hookimpl above it"
    near = difflib.get_close_matches(HOOK, dir(plugin), n=1)
    slip = f"; is {near[0]!r} meant to be it?" if near else ""
    return f"no hook: it defines no {HOOK} under @attnzoo.hookimpl{slip}"


@contextmanager
def blaming(deed: str) -> Iterator[None]:
    """Turn whatever a plugin raises, `SystemExit` too, into a `PluginError`. Only Ctrl-C passes."""
    try:
        yield
    except (PluginError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"{deed} {told(error)}") from error


def told(error: BaseException) -> str:
    """An error in one line: its kind, its words, and the last place in code that is neither ours nor the importer's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(BYSTANDERS)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def a_kind_of(thing: object) -> str:
    return "None" if thing is None else f"a {type(thing).__name__}"


def distributions_in(limit: str) -> list[str]:
    """The distributions that ATTNZOO_PLUGINS names.

    >>> distributions_in("My_Zoo, attnzoo"), distributions_in("none")
    (['my-zoo', 'attnzoo'], [])
    """
    return [] if limit.strip() == "none" else [canonical(word) for word in limit.split(",") if word.strip()]


def canonical(distribution: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()
