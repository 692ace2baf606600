"""The zoo: variants by name, who provides them, and the one way to build a layer from a name."""

from __future__ import annotations

import fnmatch
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from torch import nn

from attnzoo.errors import AmbiguousVariant, AttnZooError, ConfigError, UnknownVariant, did_you_mean
from attnzoo.loading import Plugin, a_kind_of, canonical, given_plugin, installed_plugins, told
from attnzoo.options import check_options
from attnzoo.variant import Variant

SESSION = "session"

_loading: ContextVar[bool] = ContextVar("loading", default=False)


@functools.cache
def zoo() -> Registry:
    """The zoo that the face of attnzoo speaks for: everything installed, loaded on first use."""
    return Registry.installed()


class Registry:
    """Variants by name: bare (`gqa`), or qualified by the distribution that offers it (`attnzoo/gqa`).

    A plugin is a module or object with the hook, or a bare `Variant`. One that is broken costs only itself: it stands
    in `failures`.

    >>> from torch import nn
    >>> plain = Variant(name="plain", build=nn.Linear, summary="", cases=[{"in_features": 2, "out_features": 3}])
    >>> zoo = Registry([plain])
    >>> zoo.names(), zoo.origin("plain"), zoo.build("plain", in_features=2, out_features=3, bias=False)
    (['plain'], 'given', Linear(in_features=2, out_features=3, bias=False))
    """

    def __init__(self, plugins: Iterable[object] = (), *, limit: str = "") -> None:
        self.limit = limit
        self.plugins = one_name_per_origin(p if isinstance(p, Plugin) else given_plugin(p) for p in plugins)
        self._session: dict[str, Variant] = {}

    @classmethod
    def installed(cls) -> Registry:
        """A zoo of the installed plugins, within the limits of the environment variable ATTNZOO_PLUGINS.

        Raises `ConfigError` in a plugin that asks for the zoo while the zoo is loading that plugin.
        """
        if _loading.get():
            raise ConfigError(
                "a plugin may not ask for the zoo while it is being loaded; return variants from the hook"
            )
        loading = _loading.set(True)
        try:
            limit = os.environ.get("ATTNZOO_PLUGINS", "")
            return cls(installed_plugins(limit), limit=limit)
        finally:
            _loading.reset(loading)

    @property
    def failures(self) -> Mapping[str, str]:
        """Plugin key -> what was wrong with it, for each plugin that could not be taken."""
        return {plugin.key: plugin.problem for plugin in self.plugins if plugin.problem}

    def names(self) -> list[str]:
        """Every name that `build` understands, sorted: bare where that is clear, qualified where it is not."""
        return sorted(
            bare if len(plugins) == 1 else f"{plugin.origin}/{bare}"
            for bare, plugins in self._offers().items()
            for plugin in plugins
        )

    def ambiguous(self) -> Mapping[str, list[str]]:
        """Bare name -> the qualified ones, for each name that several distributions offer."""
        return {bare: qualified(bare, plugins) for bare, plugins in self._offers().items() if len(plugins) > 1}

    def __getitem__(self, name: str) -> Variant:
        """The variant of this name.

        Raises `UnknownVariant`, with the nearest name, or `AmbiguousVariant`, with the qualified ones.
        """
        return self.provider(name).variants[name.rpartition("/")[2]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def describe(self, name: str) -> Variant:
        """The variant of this name, as `zoo[name]` gives it and with the same errors."""
        return self[name]

    def origin(self, name: str) -> str:
        """The distribution that offers a name; "session" if it was registered by hand. Raises as `zoo[name]` does."""
        return self.provider(name).origin

    def provider(self, name: str) -> Plugin:
        """The plugin that offers a name. Raises as `zoo[name]` does."""
        offers = self._offers()
        origin, slash, bare = str(name).rpartition("/")
        offering = offers.get(bare, [])
        candidates = [plugin for plugin in offering if not slash or canonical(plugin.origin) == canonical(origin)]
        if len(candidates) > 1:
            choices = " or ".join(map(repr, qualified(bare, candidates)))
            raise AmbiguousVariant(f"several distributions offer a variant {name!r}; ask for {choices}")
        if not candidates:
            raise UnknownVariant(self._unknown(str(name), qualified(bare, offering)))
        return candidates[0]

    def has_installed(self, variant: Variant) -> bool:
        """Whether a bare name means this very variant, and not in this session only: so the shell finds it too."""
        offering = self._offers().get(variant.name, [])
        return [plugin.variants[variant.name] for plugin in offering] == [variant] and offering[0].origin != SESSION

    def matching(self, pattern: str) -> list[str]:
        """The names that a glob names, or the one name that it is. Raises as `zoo[name]` does; never returns none."""
        if pattern in self.names() or not set(pattern) & set("*?["):
            self.provider(pattern)
            return [pattern]
        found = fnmatch.filter(self.names(), pattern)
        if not found:
            raise UnknownVariant(f"no variant matches {pattern!r}. Installed: {', '.join(self.names()) or 'none'}.")
        return found

    def takers(self, option: str) -> list[str]:
        """The names of the variants that take a build option."""
        return [name for name in self.names() if option in (self[name].options or ())]

    def build(self, name: str, /, **options: Any) -> nn.Module:
        """A new layer of the variant of this name.

        Raises `UnknownVariant`, `AmbiguousVariant`, and `ConfigError` for options that are wrong, missing or unknown,
        and for a factory that fails.
        """
        variant, origin = self[name], self.origin(name)
        check_options(variant, options, self.takers)
        try:
            layer = variant.build(**options)
        except AttnZooError as error:
            if not str(error).startswith(f"{variant.name}: "):
                error.args = (f"{variant.name}: {error}",)
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{origin}/{variant.name}: its factory raised {told(error)}") from error
        if not isinstance(layer, nn.Module):
            raise ConfigError(
                f"{origin}/{variant.name}: its factory must return a torch.nn.Module; it returned {a_kind_of(layer)}"
            )
        return layer

    def register(self, variant: Variant, *, replace: bool = False) -> None:
        """Add a variant for this session; `replace` lets it take the place of one registered before.

        Raises `ConfigError` for a name that is taken.
        """
        if not isinstance(variant, Variant):
            raise ConfigError(f"register takes an attnzoo.Variant, not {a_kind_of(variant)}")
        name = variant.name
        owners = [plugin.origin for plugin in self._offers().get(name, ()) if plugin.origin != SESSION]
        if owners:
            raise ConfigError(f"the name {name!r} is taken by {' and '.join(owners)}; give your variant another")
        if name in self._session and not replace:
            raise ConfigError(
                f"{name!r} is already registered in this session; pass replace=True to put this one in its place, "
                f"or use `with attnzoo.temporary(variant):`, which removes it again"
            )
        self._session[name] = variant

    @contextmanager
    def temporary(self, variant: Variant) -> Iterator[Variant]:
        """Register a variant for the length of a `with` block. Raises as `register` does."""
        self.register(variant)
        try:
            yield variant
        finally:
            self._session.pop(variant.name, None)

    def _offers(self) -> dict[str, list[Plugin]]:
        """Bare name -> the plugins that offer it."""
        offers: dict[str, list[Plugin]] = {}
        for plugin in (*self.plugins, Plugin(SESSION, SESSION, variants=self._session)):
            for name in plugin.variants:
                offers.setdefault(name, []).append(plugin)
        return offers

    def _unknown(self, name: str, elsewhere: list[str]) -> str:
        """The answer to a name that nobody offers; `elsewhere` are the qualified names with the same second half."""
        hint = f"; did you mean {' or '.join(map(repr, elsewhere))}?" if elsewhere else did_you_mean(name, self.names())
        words = f"unknown variant {name!r}{hint or '.'} Installed: {', '.join(self.names()) or 'none'}."
        if self.failures:
            words += f" It may be in a plugin that failed to load: {', '.join(self.failures)} (see `attnzoo doctor`)."
        if self.limit:
            words += f" ATTNZOO_PLUGINS={self.limit} limits what is loaded."
        return words


def qualified(bare: str, plugins: Iterable[Plugin]) -> list[str]:
    return sorted(f"{plugin.origin}/{bare}" for plugin in plugins)


def one_name_per_origin(plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """Refuse a plugin that offers a name which another one of its distribution has: nothing could tell them apart."""
    kept: list[Plugin] = []
    owners: dict[str, str] = {}
    for plugin in plugins:
        names = [f"{plugin.origin}/{name}" for name in plugin.variants]
        clash = [name for name in names if name in owners]
        if clash:
            kept.append(replace(plugin, variants={}, problem=f"{owners[clash[0]]} already offers {clash[0]!r}"))
        else:
            kept.append(plugin)
            owners |= dict.fromkeys(names, plugin.key)
    return tuple(kept)
