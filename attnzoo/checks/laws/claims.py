"""Laws of honesty: what is not claimed is refused, by name, and never ignored."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import cross, law
from attnzoo.errors import AttnZooError, ConfigError, Unsupported


@law("claims.unclaimed", "C14")
def unclaimed(lab: Lab, see: Evidence) -> None:
    """An argument that a variant does not honour raises Unsupported, naming the argument; it is never ignored."""
    layer = lab.layer()
    traits = lab.variant.traits
    x = lab.tokens()
    b, t, _ = x.shape
    arguments: dict[str, tuple[bool, Any]] = {
        "context": (traits.cross, x),
        "mask": (traits.mask, torch.ones(t, t, dtype=torch.bool, device=lab.device)),
        "key_mask": (traits.key_mask, torch.ones(b, t, dtype=torch.bool, device=lab.device)),
        "positions": (traits.takes_positions, torch.arange(t, device=lab.device)),
        "need_weights": (traits.weights, True),
    }
    for word, (claimed, value) in arguments.items():
        if not claimed:
            see.raises(Unsupported, partial(layer, x, **{word: value}), f"{word}, not claimed", words=(word,))
    if not traits.document:  # only a variant over packed sequences has the argument at all
        refusals = (Unsupported, TypeError)
        call = partial(layer, x, document=torch.zeros(b, t, dtype=torch.long, device=lab.device))
        see.raises(refusals, call, "document, not claimed", words=("document",))
    if traits.cache == "none":
        see.raises(Unsupported, lambda: layer(x, cache=_AnyCache()), "cache, not claimed", words=("cache",))
    see.holds(layer(x).shape == x.shape, "a call that asks for nothing answers")


class _AnyCache:
    """A stand-in: an honest layer refuses it before it looks inside."""

    length = 0


@law("claims.claimed", "C14")
def claimed(lab: Lab, see: Evidence) -> None:
    """Every argument that a variant claims to honour is accepted, and answered with a finite output."""
    layer = lab.layer()
    traits = lab.variant.traits
    x = lab.tokens()
    b, t, _ = x.shape
    arguments: dict[str, tuple[bool, Any]] = {
        "mask": (traits.mask, lab.mask(t, t)),
        "key_mask": (traits.key_mask, lab.padding([t - 1] * b, t, left=True)),
        "positions": (traits.takes_positions, torch.arange(t, device=lab.device) + 3),
        "document": (traits.document, lab.documents(b, t)),
    }
    for word, (claim, value) in arguments.items():
        if claim:
            see.finite(layer(x, **{word: value}), f"the output under {word}, which is claimed")
    if traits.weights:
        see.holds(len(layer(x, need_weights=True)) == 2, "need_weights, which is claimed, returns (y, weights)")
    if traits.cache != "none" and lab.causal:
        see.finite(layer(x, cache=layer.new_cache(b, t)), "the output with a cache, which is claimed")
    see.finite(layer(x), "the output of a call that asks for nothing")


@law("claims.causal", "C14", cases="default", where=lambda case: not case.solitary)
def causal_option(lab: Lab, see: Evidence) -> None:
    """Causality is an option exactly where the variant says so."""
    kind = lab.variant.traits.causal
    takes = lab.variant.options
    if takes is not None:
        see.holds(
            ("causal" in takes) == (kind == "optional"),
            f"a variant that is {kind} causal {'takes' if kind == 'optional' else 'takes no'} option causal",
        )
    x = lab.tokens()
    if kind == "optional":
        see.differs(lab.layer(causal=True)(x), lab.layer(causal=False)(x), "the outputs with causal=True and False")
    else:
        refused = kind != "always"
        see.raises(
            AttnZooError, lambda: _build(lab, causal=refused), f"causal={refused} for a variant that is {kind} causal"
        )


def _build(lab: Lab, **options: Any) -> None:
    """Build as the registry does, for which an unknown option is a ConfigError."""
    unknown = [word for word in options if lab.variant.options is not None and word not in lab.variant.options]
    if unknown:
        raise ConfigError(f"no option {unknown[0]}")
    lab.fresh(**options)


@law("claims.cross_alone", "C5", needs=[cross], where=lambda case: case.causal)
def cross_alone(lab: Lab, see: Evidence) -> None:
    """`context` has no causal order with the queries: asking a causal layer for it is refused."""
    layer = lab.layer()
    if not lab.causal:
        see.holds(layer(lab.tokens(), lab.tokens(t=5)).shape[1] == lab.case.t, "context is answered")
        return
    see.raises(
        Unsupported,
        lambda: layer(lab.tokens(), lab.tokens(t=5)),
        "context in a causal layer",
        words=("context", "causal"),
    )


@law("claims.cross_cache", "C14", needs=[cross], where=lambda case: not case.causal)
def cross_cache(lab: Lab, see: Evidence) -> None:
    """A layer reads `context` of any length, and one that differs in batch or width is refused."""
    layer = lab.layer()
    x = lab.tokens()
    for s in (1, 4, 19):
        see.holds(layer(x, lab.tokens(t=s, draw=1)).shape == x.shape, f"{s} context tokens give an output of x's shape")
    see.raises(
        AttnZooError, lambda: layer(x, lab.tokens(b=x.shape[0] + 1)), "context of another batch", words=(x.shape[0],)
    )
    see.raises(AttnZooError, lambda: layer(x, lab.tokens()[..., :-1]), "context one channel short", words=(lab.width,))
