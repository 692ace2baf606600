"""The errors attnzoo raises: each says what was asked, what came, and what would work."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AttnZooError(Exception):
    """Any error that attnzoo raises on purpose."""


class UnknownVariant(AttnZooError, LookupError):
    """No installed variant has this name."""


class AmbiguousVariant(AttnZooError, LookupError):
    """Two distributions offer this bare name; the qualified names tell them apart."""


class ConfigError(AttnZooError, ValueError):
    """An option given to `build` is wrong, missing or unknown."""


class InputError(AttnZooError, ValueError):
    """An argument of a call has the wrong rank, width, length, dtype or device."""


class Unsupported(AttnZooError, NotImplementedError):
    """A variant was asked for something that it does not do."""


class MissingPackage(AttnZooError, ImportError):
    """A package that this needs is not installed; the message has the line that installs it."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A closing clause that offers the nearest choice, or nothing.

    >>> did_you_mean("gqua", ["mha", "gqa"])
    "; did you mean 'gqa'?"
    >>> did_you_mean("mah", ["mqa", "mha"])
    "; did you mean 'mha'?"
    """
    near = difflib.get_close_matches(word, list(choices))
    best = max(near, key=lambda choice: sorted(choice) == sorted(word), default="")  # swapped letters come first
    return f"; did you mean {best!r}?" if best else ""
