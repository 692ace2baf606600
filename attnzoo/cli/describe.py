"""`attnzoo describe NAME`: all that is known about one variant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from attnzoo.cli.screen import print_json, quiet_zoo
from attnzoo.variant import Traits, Variant


def describe(
    name: Annotated[str, typer.Argument(help="A variant, as `attnzoo list` names it.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Describe one variant: its options and their defaults, its traits, its cases, its paper and its file."""
    with quiet_zoo() as zoo:
        variant, plugin = zoo[name], zoo.provider(name)
    options = variant.options
    if json:
        return print_json(
            {
                "name": name,
                "summary": variant.summary,
                "provider": plugin.origin,
                "version": plugin.version,
                "paper": variant.paper,
                "file": source_file(variant),
                "options": {
                    word: {"required": True} if option.default is option.empty else {"default": option.default}
                    for word, option in (options or {}).items()
                },
                "any_option": options is None,
                "traits": asdict(variant.traits),
                "cases": [dict(case) for case in variant.cases],
                "known_failures": dict(variant.known),
            }
        )
    print(f"{name}: {variant.summary}")
    print(f"  paper     {variant.paper or 'none named'}")
    print(f"  provider  {plugin}")
    print(f"  file      {source_file(variant)}")
    print_section("options", option_lines(variant))
    print_section("traits", traits_in_words(variant.traits))
    print_section("cases", [call(name, case) for case in variant.cases])
    if variant.known:
        print_section("known failures", [f"{law}: {words}" for law, words in variant.known.items()])
    return None


def print_section(title: str, lines: Iterable[str]) -> None:
    print(f"\n{title}")
    for line in lines:
        print(f"  {line}")


def option_lines(variant: Variant) -> list[str]:
    if variant.options is None:
        return ["takes any keyword"]
    return [
        f"{name} (required)" if option.default is option.empty else f"{name}={option.default!r}"
        for name, option in variant.options.items()
    ]


def call(name: str, options: Any) -> str:
    """
    >>> call("mine", {"d_model": 24})
    "attnzoo.build('mine', d_model=24)"
    """
    return f"attnzoo.build({name!r}{''.join(f', {word}={value!r}' for word, value in options.items())})"


def traits_in_words(traits: Traits) -> list[str]:
    """One line a trait."""
    masks = [word for word, taken in (("mask", traits.mask), ("key_mask", traits.key_mask)) if taken]
    causal = {
        "optional": "causal with causal=True, looks both ways with causal=False",
        "always": "always causal",
        "never": "never causal",
    }
    rows = {
        "one": "each row of weights sums to one",
        "at_most_one": "each row of weights sums to at most one",
        "free": "rows of weights may have any sum",
    }
    cache = {
        "kv": "decodes step by step with a cache of keys and values",
        "ring": "decodes step by step with a cache that holds the newest keys and values only",
        "none": "takes no cache",
    }
    positions = {
        "none": "knows no positions",
        "relative": "sees how far apart tokens stand, not where",
        "absolute": "sees where each token stands",
        "index": "sees the order of the tokens, and takes no positions",
    }
    sees = {"all": "hears every key that the rules allow", "some": "hears only some of the keys, as in a window"}
    kept = {
        "linear": "memory for the backward pass grows in proportion to the tokens",
        "quadratic": "memory for the backward pass may grow with the square of the tokens",
    }
    work = {
        "linear": "operations grow in proportion to the tokens",
        "quadratic": "operations may grow with the square of the tokens",
    }
    return [
        causal[traits.causal],
        rows[traits.rows],
        cache[traits.cache],
        "takes a context (cross-attention)" if traits.cross else "takes no context (self-attention only)",
        positions[traits.positions],
        sees[traits.sees],
        "takes document ids: packed sequences stay apart" if traits.document else "takes no document ids",
        f"takes {' and '.join(masks)}" if masks else "takes no mask",
        "returns its weights on need_weights=True" if traits.weights else "does not return its weights",
        "torch's SDPA gives the same" if traits.plain else "is more than torch's SDPA can do alone",
        kept[traits.memory],
        work[traits.work],
    ]


def source_file(variant: Variant) -> str:
    """Where the factory is written, as far as Python can tell."""
    factory = variant.build
    while isinstance(factory, functools.partial):
        factory = factory.func
    try:
        return inspect.getsourcefile(inspect.unwrap(factory)) or "unknown"
    except TypeError:
        return "unknown"
