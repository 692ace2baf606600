"""A page for each installed variant: what the registry, its file and its own forward pass tell."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from itertools import takewhile
from typing import TypeVar

from torch import nn

import attnzoo
from attnzoo.checks import LAWS
from attnzoo.cli.describe import call
from attnzoo.errors import AttnZooError
from attnzoo.options import SPELLINGS
from attnzoo.registry import zoo
from attnzoo.variant import Traits, Variant
from zoodocs.docstrings import blocks, entries
from zoodocs.pages import Page, render
from zoodocs.pictures import Sample, draw, emblem, sample
from zoodocs.source import code_of, docstrings, methods, paragraphs

T = TypeVar("T")

STAGES = ("forward", "project", "attend", "merge")

# The words of `attnzoo.build`, for the layers whose docstrings do not say more.
WORDS = {
    "d_model": "the width of a token (C1)",
    "heads": "how many query heads",
    "kv_heads": "how many key-value heads; groups of query heads share them (C7)",
    "head_dim": "the width of a head; `d_model / heads` where not given",
    "v_head_dim": "the width of a head's values; `head_dim` where not given",
    "bias": "whether the projections add a bias",
    "causal": "no token sees a later one (C5)",
    "window": "how many keys a query sees, its own included (C8)",
    "scale": "what q·k is multiplied by; `head_dim ** -0.5` where not given (C2)",
    "softcap": "bends the logits, so that they stay between minus and plus this (C2)",
    "dropout": "the share of the weights that is dropped in training (C11)",
    "max_seq_len": "longer input is refused",
    "backend": "the kernel; `auto` takes the fastest that does what was asked (C12)",
}


@dataclass(frozen=True)
class Option:
    """A build option. meaning: "" where no docstring tells"""

    name: str
    default: str
    meaning: str


def pages() -> dict[str, Page]:
    """The overview, and a page for each variant that is installed or registered."""
    names = attnzoo.variants()
    return {"variants/index": overview(names)} | {f"variants/{name}": page(name) for name in names}


def cards() -> str:
    """Each variant with its emblem and its summary, as they stand on the first page of the site too."""
    return render("cards.md", variants={name: attnzoo.describe(name) for name in attnzoo.variants()})


def overview(names: list[str]) -> Page:
    """All variants side by side, and the words that `build` understands."""
    found = {name: attnzoo.describe(name) for name in names}
    words: dict[str, str] = {}
    takers: dict[str, list[str]] = {}
    for name, variant in found.items():
        for option in options(variant, layer_class(variant)):
            words[option.name] = words.get(option.name) or option.meaning
            takers.setdefault(option.name, []).append(name)
    text = render(
        "variants.md",
        variants=found,
        traits=[trait.name for trait in fields(Traits)],
        claims={name: list(asdict(variant.traits).values()) for name, variant in found.items()},
        words=words,
        takers=takers,
        spellings=SPELLINGS,
    )
    return Page(text)


def page(name: str) -> Page:
    """All that is known about one variant."""
    variant, cls = attnzoo.describe(name), layer_class(attnzoo.describe(name))
    module = inspect.getmodule(cls)
    file = code_of(module) if module else ""
    lead, *formula = blocks((module and module.__doc__) or cls.__doc__ or variant.summary)
    given = sample(variant)
    drawn, no_picture = attempt(lambda: draw(given, name))
    trace, _ = attempt(lambda: shapes(given, name))
    text = render(
        "variant.md",
        name=name,
        variant=variant,
        provider=zoo().provider(name),
        cases=[call(name, case) for case in variant.cases],
        shape=tuple(given.x.shape),
        lead=lead,
        formula=formula,
        about=[block for block in blocks(cls.__doc__ or "") if not block.startswith("Differs: ")],
        cls=cls,
        factory=factory_code(variant),
        code=methods(cls),
        shared=shared_stages(cls),
        file=file,
        drawn=drawn,
        no_picture=no_picture,
        trace=trace,
        options=options(variant, cls),
        traits=asdict(variant.traits),
        trait_meanings=entries(Traits.__doc__),
        laws=LAWS,
        exempt={law.id: reason for law in LAWS if (reason := law.not_applicable(variant))},
        differs=paragraphs(file, "Differs: "),
        papers=papers(variant, file),
    )
    return Page(text, drawn or {name: emblem(None)})


def shapes(given: Sample, name: str) -> str:
    """The trace of its forward pass, as it is printed."""
    lines = str(attnzoo.viz.trace(given.layer, given.x, document=given.document, name=name)).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def layer_class(variant: Variant) -> type[nn.Module]:
    return type(variant.build(**variant.cases[0]))


def attempt(ask: Callable[[], T]) -> tuple[T | None, str]:
    """What was asked for, or why it cannot be had."""
    try:
        return ask(), ""
    except AttnZooError as error:
        return None, str(error)


def factory_code(variant: Variant) -> str:
    """The function that builds the layer, where it is not the layer's class itself."""
    factory = variant.build
    while isinstance(factory, functools.partial):
        factory = factory.func
    return "" if isinstance(factory, type) else code_of(factory)


def shared_stages(cls: type[nn.Module]) -> dict[str, str]:
    """The steps of the forward pass that a layer takes from another class, by their full names."""
    shared = {}
    for stage in STAGES:
        owner = next((base for base in cls.__mro__ if stage in vars(base)), nn.Module)
        if owner not in (cls, nn.Module):
            shared[f"{owner.__name__}.{stage}"] = code_of(vars(owner)[stage])
    return shared


def options(variant: Variant, cls: type[nn.Module]) -> list[Option]:
    """What `build` takes; where it takes any keyword, what its cases show."""
    ours = list(takewhile(lambda base: base is not nn.Module, cls.__mro__))
    told = dict(WORDS)
    for documented in (*reversed(ours), variant.build):
        told |= entries(documented.__doc__)
    if variant.options is None:
        return [Option(name, "", told.get(name, "")) for name in dict.fromkeys(w for c in variant.cases for w in c)]
    return [
        Option(name, "required" if option.default is option.empty else repr(option.default), told.get(name, ""))
        for name, option in variant.options.items()
    ]


def papers(variant: Variant, file: str) -> list[str]:
    """The paper it names, and those its docstrings name."""
    named = re.findall(r"arXiv:\d{4}\.\d{4,5}", "\n".join(docstrings(file)))
    return [paper for paper in dict.fromkeys([variant.paper, *named]) if paper]
