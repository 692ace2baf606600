"""The options of a factory, as its signature tells them: those that it names, and those of an unpacked `TypedDict`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter
from typing import Any, get_args, get_origin

import typing_extensions

UNPACKS = (typing_extensions.Unpack, getattr(typing, "Unpack", None))  # Python 3.11 has one of its own


def options_of(build: Callable[..., Any]) -> Mapping[str, Parameter] | None:
    """The options of a factory by name, or None where it takes any keyword.

    `**options: Unpack[Options]` stands for the words of the TypedDict `Options`. Their defaults are those of the first
    constructor that names them: of the class and its bases, or of the class that a function says it returns. A word
    of which none tells a default, and that is not required either, makes the factory one of any keyword.

    >>> class Options(typing_extensions.TypedDict, total=False):
    ...     size: int
    >>> class Base:
    ...     def __init__(self, *, size: int = 3): ...
    >>> class Own(Base):
    ...     def __init__(self, name: str, **options: typing_extensions.Unpack[Options]): ...
    >>> {word: option.default for word, option in options_of(Own).items()}
    {'name': <class 'inspect._empty'>, 'size': 3}
    """
    options: dict[str, Parameter] = {}
    for parameter in inspect.signature(build).parameters.values():
        if parameter.kind is not Parameter.VAR_KEYWORD:
            options |= {} if parameter.kind is Parameter.VAR_POSITIONAL else {parameter.name: parameter}
            continue
        note = _meaning(parameter.annotation, build)
        if get_origin(note) not in UNPACKS:
            return None
        (words,) = get_args(note)
        for word, kind in typing_extensions.get_type_hints(words).items():
            default = _default(word, build)
            if default is Parameter.empty and not _is_required(word, words):
                return None
            options[word] = Parameter(word, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    return options


def _is_required(word: str, words: Any) -> bool:
    """Whether a word of a TypedDict must be given. `__required_keys__` misses a mark in an annotation kept as text."""
    mark: Any = get_origin(typing_extensions.get_type_hints(words, include_extras=True)[word])
    if mark in (typing_extensions.Required, typing_extensions.NotRequired):
        return mark is typing_extensions.Required
    return word in words.__required_keys__


def _default(word: str, build: Callable[..., Any]) -> Any:
    """What an option is where it is left out; `Parameter.empty` where no signature tells."""
    if isinstance(build, partial):
        return build.keywords[word] if word in build.keywords else _default(word, build.func)
    if isinstance(build, type):
        for owner in build.__mro__:
            told = inspect.signature(vars(owner)["__init__"]).parameters if "__init__" in vars(owner) else {}
            if word in told and told[word].default is not Parameter.empty:
                return told[word].default
        return Parameter.empty
    made = _meaning(inspect.signature(build).return_annotation, build)
    return _default(word, made) if isinstance(made, type) and made is not type(build) else Parameter.empty


def _meaning(note: Any, build: Callable[..., Any]) -> Any:
    """An annotation, of which `from __future__ import annotations` leaves the text alone; None where it has none."""
    if not isinstance(note, str):
        return note
    while isinstance(build, partial):
        build = build.func
    if isinstance(build, type):
        function: Any = build.__init__  # type: ignore[misc]
    else:
        function = build if hasattr(build, "__globals__") or hasattr(build, "__func__") else type(build).__call__
    try:
        return eval(note, getattr(inspect.unwrap(function), "__globals__", {}))
    except Exception:  # a name that type checkers alone know
        return None
