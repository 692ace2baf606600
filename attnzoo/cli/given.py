"""What is given on the command line to try a variant with: build options, and tokens."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.errors import ConfigError
from attnzoo.registry import Registry
from attnzoo.viz.tokens import embed, words

# Words that the verb does not know are build options, which the variant knows: --kv-heads 2 is kv_heads=2.
BUILD_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


def build(zoo: Registry, name: str, arguments: Sequence[str], seed: int) -> tuple[nn.Module, int]:
    """A layer and its width, from the options on the command line; the first case helps out where they do not do."""
    if name.startswith("--"):
        raise ConfigError(f"name the variant first, then its options; {name} came before it")
    variant, options = zoo[name], build_options(arguments)
    takes = variant.options or {}
    if not options or any(option.default is option.empty and word not in options for word, option in takes.items()):
        options = {**variant.cases[0], **options}
    torch.manual_seed(seed)
    layer = zoo.build(name, **options)
    if not isinstance(options.get("d_model"), int):
        raise ConfigError(f"{name}: say how wide its tokens are: --d-model 64")
    return layer, int(options["d_model"])


def build_options(arguments: Sequence[str]) -> dict[str, Any]:
    """
    >>> build_options(["--d-model", "64", "--causal=False", "--layout", "half"])
    {'d_model': 64, 'causal': False, 'layout': 'half'}
    """
    options: dict[str, Any] = {}
    rest = [part for argument in arguments for part in (argument.split("=", 1) if argument[:2] == "--" else [argument])]
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} belongs to no option; build options are written as --heads 8")
        if not rest or rest[0].startswith("--"):
            raise ConfigError(f"{word} needs a value, as in {word} 8 or {word} False")
        options[word[2:].replace("-", "_")] = value_of(rest.pop(0))
    return options


def value_of(text: str) -> Any:
    """
    >>> value_of("2"), value_of("half"), value_of("none"), value_of("true")
    (2, 'half', None, True)
    """
    plain = {"true": True, "false": False, "none": None}
    if text.lower() in plain:
        return plain[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def tokens_in(
    width: int, seq: int | None, batch: int, text: str, seed: int, spread: float = 1.0
) -> tuple[Tensor, list[str]]:
    """Vectors to send through a layer, and what to call them.    returns: x (b, t, c), t labels"""
    if seq is not None and text:
        raise ConfigError("--seq and --text both say how many tokens there are; give one of them")
    if text:
        tokens = words(text)
        return embed(tokens, width, spread=spread, seed=seed), tokens
    seq = 10 if seq is None else seq
    for word, number in (("--seq", seq), ("--batch", batch)):
        if number < 1:
            raise ConfigError(f"{word} must be at least 1; got {number}")
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(batch, seq, width, generator=generator), [str(i) for i in range(seq)]
