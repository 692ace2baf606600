"""Laws of kernels: whichever computes, the result is that of the definition, or the call is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import tolerance
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab, seed_torch
from attnzoo.checks.engine.law import cached, cross, law, option, staged
from attnzoo.checks.laws.dropout import keeps_the_mean
from attnzoo.checks.laws.numerics import HALF, no_worse
from attnzoo.checks.laws.truth import gradients
from attnzoo.errors import ConfigError, Unsupported

PLAIN = "eager"
WORDS = ("auto", "sdpa", "banded", "blocks", "flex")
COMPILED = 129  # tokens; each other length would be compiled anew, for seconds


def offered(lab: Lab) -> tuple[str, list[str]]:
    """The definition's backend, and those to compare with it. Compiling takes seconds, so "flex" only at depth full."""
    builds = []
    for word in (PLAIN, *WORDS):
        try:
            lab.fresh(backend=word)
        except ConfigError:
            continue
        builds.append(word)
    plain = PLAIN if PLAIN in builds else "auto"
    return plain, [word for word in builds if word != PLAIN and (word != "flex" or lab.depth != "quick")]


def sizes(lab: Lab) -> list[tuple[int, dict[str, int]]]:
    """Lengths that divide no block, and where there are windows, windows that do not either."""
    if lab.window is None:
        return [(1, {}), (17, {}), (129, {}), *([(300, {})] if lab.depth != "quick" else [])]
    more = [(300, {"window": 100}), (257, {"window": 64})] if lab.depth != "quick" else []
    return [(1, {"window": 16}), (17, {"window": 1}), (129, {"window": 16}), (130, {"window": 100}), *more]


@law("backend.agrees", "C12", needs=[option("backend")], cases="default")
def agrees(lab: Lab, see: Evidence) -> None:
    """Every backend gives what "eager" gives, forward and backward, or refuses the call by its name.

    Plain, under boolean, floating and padding masks, of documents, and for tokens that lie strewn in memory; in
    training without dropout; at lengths that divide no block. Control: the masks do change the output.
    """
    plain, others = offered(lab)
    undropped = {"dropout": 0.0} if option("dropout")(lab.variant) is None else {}
    see.holds(bool(others), "the layer takes a backend, auto at least")
    for dtype in lab.dtypes():
        for t, more in sizes(lab):
            eager = lab.layer(dtype, backend=plain, **more, **undropped).train()
            layers = {word: lab.layer(dtype, backend=word, **more, **undropped).train() for word in others}
            dy = lab.tokens(2, t, dtype, draw=2)
            for how, x, asked in _asked(lab, lab.tokens(2, t, dtype)):
                y, slopes = eager(x, **asked), gradients(eager, x, dy, asked)
                for word, layer in layers.items():
                    if word == "flex" and t != COMPILED:
                        continue
                    what = f"backend={word!r}, {how}, {t} tokens, {more or 'no window'}, {dtype}"
                    got = _answer(see, layer, word, x, asked)
                    if got is None:
                        continue
                    see.close(got, y, f"the output, {what}", plain=tolerance.rounding(dtype, 16))
                    if word == "flex" and lab.device.type == "cpu":
                        continue
                    for name, slope in gradients(layer, x, dy, asked).items():
                        order = tolerance.rounding(dtype)
                        see.close(slope, slopes[name], f"the gradient of {name}, {what}", plain=order)
    if lab.variant.traits.key_mask:
        x = lab.tokens(2, 17)
        see.reacts(lab.layer()(x), lab.layer()(x, key_mask=lab.padding([15, 17], 17, left=True)), "the output padded")


def _asked(lab: Lab, x: Tensor) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
    """Calls: what is asked, in words, the tokens, and the arguments."""
    b, t, c = x.shape
    traits = lab.variant.traits
    yield "plain", x, {}
    if lab.depth == "quick" and x.dtype != torch.float64 and t > 20:
        return
    wide = x.new_zeros(b, t, 2 * c)
    wide[..., ::2] = x
    yield "tokens strewn in memory", wide[..., ::2], {}
    if traits.key_mask:
        yield "key_mask", x, {"key_mask": lab.padding([max(1, t - 2), t], t, left=True)}
    if traits.mask:
        yield "boolean mask", x, {"mask": lab.mask(t, t)}
        yield "floating mask", x, {"mask": 2 * lab.normal(b, 1, t, t, draw=3).to(x.dtype)}
    if traits.document:
        yield "documents", x, {"document": lab.documents(b, t)}


def _answer(see: Evidence, layer: Any, word: str, x: Tensor, asked: dict[str, Any]) -> Tensor | None:
    """The output, or None where the call is refused; by its name, or the layer is at fault."""
    try:
        with torch.set_grad_enabled(word != "flex" or x.device.type != "cpu"):
            y: Tensor = layer(x, **asked)
    except Unsupported as refusal:
        see.holds(word in str(refusal), f"a refusal names the backend, {word!r}; it says: {refusal}")
        return None
    return y


@law("backend.on_context", "C12", needs=[option("backend"), cross], where=lambda case: not case.causal)
def on_context(lab: Lab, see: Evidence) -> None:
    """On a context, shorter or longer than the tokens, every backend gives what "eager" gives, or refuses by name."""
    plain, others = offered(lab)
    x, traits = lab.tokens(2, 7), lab.variant.traits
    for s in (5, 11):
        asks: dict[str, dict[str, Tensor]] = {"plain": {}}
        if traits.key_mask:
            asks["key_mask"] = {"key_mask": lab.padding([s - 2, s], s, left=False)}
        if traits.mask:
            asks["boolean mask"] = {"mask": lab.mask(7, s)}
        for how, asked in asks.items():
            given = {"context": lab.tokens(2, s, draw=1), **asked}
            due = lab.layer(backend=plain)(x, **given)
            for word in others:
                got = _answer(see, lab.layer(backend=word), word, x, given)
                if got is not None:
                    see.close(got, due, f"the output, backend={word!r}, a context of {s} tokens, {how}")
    see.reacts(due, lab.layer()(x), "the output of a context")


@law("backend.in_steps", "C12", needs=[option("backend"), cached], cases="default", where=lambda case: case.causal)
@torch.no_grad()
def in_steps(lab: Lab, see: Evidence) -> None:
    """In cached steps every backend gives what "eager" gives, padded and under a mask too, or refuses by name."""
    plain, others = offered(lab)
    x, traits = lab.tokens(2, 9), lab.variant.traits
    real, allowed = lab.padding([7, 9], 9, left=True), lab.mask(2, 1, 9, 9)
    asks: dict[str, Callable[[int, int], dict[str, Tensor]]] = {"plain": lambda start, end: {}}
    if traits.key_mask:
        asks["key_mask"] = lambda start, end: {"key_mask": real[:, :end]}
    if traits.mask:
        asks["boolean mask"] = lambda start, end: {"mask": allowed[:, :, start:end, :end]}
    for how, asked in asks.items():
        due = _stepped(lab, see, plain, x, asked)
        for word in others:
            got = _stepped(lab, see, word, x, asked)
            if got is not None and due is not None:
                see.close(got, due, f"the output of cached steps, backend={word!r}, {how}")


def _stepped(
    lab: Lab, see: Evidence, word: str, x: Tensor, asked: Callable[[int, int], dict[str, Tensor]]
) -> Tensor | None:
    """The outputs of a prompt, lone tokens and a chunk, or None where the backend refuses one of them."""
    layer = lab.layer(backend=word)
    cache, outputs = layer.new_cache(*x.shape[:2]), []
    for start, end in pairwise((0, 5, 6, 7, x.shape[1])):
        y = _answer(see, layer, word, x[:, start:end], {"cache": cache, **asked(start, end)})
        if y is None:
            return None
        outputs.append(y)
    return torch.cat(outputs, dim=1)


@law("backend.dropout", "C11", needs=[option("backend"), option("dropout")], cases="default")
@torch.no_grad()
def drops(lab: Lab, see: Evidence) -> None:
    """Every backend drops weights in training, keeping the mean, and none in eval; or refuses dropout by its name."""
    plain, others = offered(lab)
    x = lab.tokens(b=1)
    due = lab.layer(backend=plain)(x)
    for word in (word for word in (plain, *others) if word != "flex"):
        layer = lab.layer(backend=word, dropout=0.4)
        y = _answer(see, layer, word, x, {})
        if y is not None:
            see.close(y, due, f"the output in eval with dropout=0.4, backend={word!r}")
        seed_torch(lab.seed, lab.device)
        draws = [_answer(see, layer.train(), word, x.expand(400, -1, -1), {}) for _ in range(5)]
        dropped = [draw for draw in draws if draw is not None]
        if dropped:
            keeps_the_mean(see, torch.cat(dropped), due, f"backend={word!r}")


@law("backend.fewer_queries", "C5", needs=[option("backend"), staged], cases="default")
def fewer_queries(lab: Lab, see: Evidence) -> None:
    """With fewer queries than keys every backend takes the queries for the newest tokens, or refuses."""
    plain, others = offered(lab)
    t, more = sizes(lab)[2]
    eager = lab.layer(backend=plain, **more)
    q, k, v = (stage.detach() for stage in eager.project(lab.tokens(2, t)))
    for last in (1, 5, t - 1):
        due = eager.attend(q[:, :, -last:], k, v)
        see.close(due, eager.attend(q, k, v)[:, :, -last:], f"the last {last} queries on all keys, backend={plain!r}")
        for word in (word for word in others if word != "flex"):
            layer = lab.layer(backend=word, **more)
            try:
                got = layer.attend(q[:, :, -last:], k, v)
            except Unsupported as refusal:
                see.holds(word in str(refusal), f"a refusal names the backend, {word!r}; it says: {refusal}")
            else:
                see.close(got, due, f"the last {last} queries on all keys, backend={word!r}")


@law("backend.half", "C17", needs=[option("backend"), staged], cases="default")
def half(lab: Lab, see: Evidence) -> None:
    """In half types every backend errs at most twice as much as "eager" does, fed the same rounded q, k and v.

    The mean error against float64, plus a floor, with and without a mask.
    """
    plain, others = offered(lab)
    t, more = sizes(lab)[2]
    for dtype in HALF:
        eager, truth = lab.layer(dtype, backend=plain, **more), lab.layer(backend=plain, **more)
        # Sharp logits and values of unit scale: there a softmax in the half type shows most.
        q, k, v = eager.project((6 * lab.tokens(2, t)).to(dtype))
        v = v / 6
        exact = [stage.double() for stage in (q, k, v)]
        asked: dict[str, dict[str, Tensor]] = {"plain": {}}
        if lab.variant.traits.key_mask:
            asked["key_mask"] = {"key_mask": lab.padding([t - 2, t], t, left=True)}
        for how, given in asked.items():
            peer, due = eager.attend(q, k, v, **given), truth.attend(*exact, **given)
            for word in (word for word in others if word != "flex"):
                try:
                    got = lab.layer(dtype, backend=word, **more).attend(q, k, v, **given)
                except Unsupported as refusal:
                    see.holds(word in str(refusal), f"a refusal names the backend, {word!r}; it says: {refusal}")
                else:
                    no_worse(see, got, peer, due, f"backend={word!r}, {how}, {dtype}", roundings=1 / 8)
