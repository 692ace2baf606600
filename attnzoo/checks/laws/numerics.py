"""Laws of precision: large logits, half types, wide types."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import reference, tolerance
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import ROOT, cached, law, normalised, plain, staged, weights
from attnzoo.checks.laws.truth import gradients, questions

HALF = (torch.bfloat16, torch.float16)


@law("numerics.large_logits", "C10")
def large_logits(lab: Lab, see: Evidence) -> None:
    """Logits of ten thousand overflow nothing: output and gradients stay finite, and the winner takes all.

    In half types as well, where sums to 1 tell of a softmax: their products are beyond what float16 can hold.
    """
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x = (100 * lab.tokens(dtype=dtype)).requires_grad_()
        y = layer(x)
        see.finite(y, f"the output under large logits, {dtype}")
        see.finite(torch.autograd.grad(y.sum(), x)[0], f"the gradient under large logits, {dtype}")
        if lab.variant.traits.weights and lab.variant.traits.rows == "one":
            w = layer(x, need_weights=True)[1]
            see.close(w.sum(-1), torch.ones_like(w.sum(-1)), f"row sums under large logits, {dtype}")
    if lab.variant.traits.rows == "one":
        for dtype in HALF:
            y = lab.layer(dtype)(100 * lab.tokens(dtype=dtype))
            see.finite(y, f"the output under large logits, {dtype}")


@law("numerics.nan", "C1", cases="default", where=lambda case: case.b > 1)
def nan_shows(lab: Lab, see: Evidence) -> None:
    """A token that is NaN makes its own output NaN, and none of another sample: errors show, and do not spread.

    Hidden, they would come out as a wrong answer of a model that has long diverged.
    """
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        y, broken = layer(x), x.clone()
        broken[0, -1] = float("nan")
        got = layer(broken)
        see.holds(bool(got[0, -1].isnan().any()), f"the output of a token that is NaN is NaN, {dtype}")
        see.close(got[1:], y[1:], f"outputs of samples beside one that holds NaN, {dtype}")


@law("numerics.zeros", "C6")
def zeros(lab: Lab, see: Evidence) -> None:
    """Tokens of zeros, as padding often is, give finite outputs and gradients, even where nothing else is given.

    A length that is divided by is zero there, and the slope of a root infinite: NaN, behind a mask too.
    """
    for dtype in lab.dtypes():
        x = lab.tokens(dtype=dtype)
        b, t, _ = x.shape
        real = lab.padding([max(1, t - 2 * i) for i in range(b)], t, left=False)
        asked = {"key_mask": real} if lab.variant.traits.key_mask else {}
        for what, tokens, more in (
            ("padding of zeros", x * real[..., None], asked),
            ("zeros alone", torch.zeros_like(x), {}),
        ):
            layer, leaf = lab.layer(dtype), tokens.requires_grad_()
            y = layer(leaf, **more)
            see.finite(y, f"the output of {what}, {dtype}")
            learned = [parameter for parameter in layer.parameters() if parameter.requires_grad]
            slopes = torch.autograd.grad(y.sum(), [leaf, *learned], allow_unused=True)
            for slope in slopes:
                if slope is not None:
                    see.finite(slope, f"the gradients of {what}, {dtype}")


@law("numerics.half_sdpa", "C17", needs=[plain, staged], cases="all")
def half_sdpa(lab: Lab, see: Evidence) -> None:
    """In half types the weighted sum errs at most twice as much as torch's SDPA fed the same rounded q, k and v.

    The mean error against float64, plus a floor. A softmax taken in the half type itself loses far more.
    """
    for dtype in HALF:
        layer = lab.layer(dtype)
        q, k, v = layer.project((3 * lab.tokens()).to(dtype))
        t, s = q.shape[2], k.shape[2]
        visible = lab.visible(t, s)
        scale = lab.scale(q)
        due = reference.attention(q.double(), k.double(), v.double(), visible=visible, scale=scale)
        peer = reference.attention(q, k, v, visible=visible, scale=scale)
        no_worse(see, layer.attend(q, k, v), peer, due, f"the weighted sum, {dtype}")
        if lab.variant.traits.weights:
            mixed, _ = layer.attend(q, k, v, need_weights=True)
            no_worse(see, mixed, peer, due, f"the weighted sum with weights asked for, {dtype}")


@law("numerics.half_layer", "C17", needs=[plain, staged], cases="all")
def half_layer(lab: Lab, see: Evidence) -> None:
    """A whole layer in a half type errs at most twice as much as the plain layer in that type.

    Plain: the layer's own projections around torch's SDPA. The truth is the same layer in float64, against which the
    projections are held by themselves, to a rounding of the type in the mean.
    """
    for dtype in HALF:
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        truth = _twin(lab, layer)
        q, k, v = layer.project(x)
        visible = lab.visible(q.shape[2], k.shape[2])
        peer = layer.merge(reference.attention(q, k, v, visible=visible, scale=lab.scale(q)))
        no_worse(see, layer(x), peer, truth(x.double()), f"the layer, {dtype}")
        mixed = layer.attend(q, k, v)
        _rounded_once(see, layer.merge(mixed), truth.merge(mixed.double()), f"the merged output, {dtype}")
        for name, got, due in zip("qkv", (q, k, v), truth.project(x.double()), strict=True):
            _rounded_once(see, got, due, f"{name}, {dtype}")


@law("numerics.half_long", "C17", needs=[normalised], cases="default")
def half_long(lab: Lab, see: Evidence) -> None:
    """On hundreds of tokens too, a half layer is its float64 twin within four roundings of its type, in the mean.

    Places and distances of hundreds are no numbers of bfloat16, and sums over hundreds of keys none to take in it.
    """
    for dtype in HALF:
        layer, x = lab.layer(dtype), lab.tokens(1, 600, dtype)
        with torch.no_grad():
            _near_in_the_mean(see, layer(x), _twin(lab, layer)(x.double()), f"600 tokens, {dtype}")


@law("numerics.half_asked", "C17", needs=[normalised], cases="default")
def half_asked(lab: Lab, see: Evidence) -> None:
    """However a half layer is asked, masked or padded, its output, weights and gradient are those of its float64 twin.

    Within four roundings of its type, in the mean.
    """
    for dtype in HALF:
        layer, x, dy = lab.layer(dtype), lab.tokens(dtype=dtype), lab.tokens(dtype=dtype, draw=2)
        twin = _twin(lab, layer)
        for how, asked in questions(lab, x).items():
            exact = {word: values.double() if values.is_floating_point() else values for word, values in asked.items()}
            what = f"{how}, {dtype}"
            _near_in_the_mean(see, layer(x, **asked), twin(x.double(), **exact), f"outputs, {what}")
            due = gradients(twin, x.double(), dy.double(), exact)["the input"]
            _near_in_the_mean(see, gradients(layer, x, dy, asked)["the input"], due, f"gradients, {what}")
            if lab.variant.traits.weights:
                w = layer(x, **asked, need_weights=True)[1]
                _near_in_the_mean(see, w, twin(x.double(), **exact, need_weights=True)[1], f"weights, {what}")


@law(
    "numerics.half_steps",
    "C17",
    needs=[normalised, cached],
    cases="default",
    where=lambda case: case.causal,
    after=(ROOT, "cache.equals_whole"),
)
@torch.no_grad()
def half_steps(lab: Lab, see: Evidence) -> None:
    """Far into a text a half layer decodes as its float64 twin does, within four roundings of its type, in the mean.

    A place of hundreds is no number of bfloat16, where steps count on from the length of the cache.
    """
    real = lab.padding([300, 281], 300, left=True)
    padded = lab.variant.traits.key_mask and lab.variant.traits.positions != "absolute"
    for dtype in HALF:
        layer, x = lab.layer(dtype), lab.tokens(2, 300, dtype)
        due = _twin(lab, layer)(x.double(), **({"key_mask": real} if padded else {}))[:, 290:]
        cache, steps = layer.new_cache(2, 300), []
        for start, end in pairwise((0, *range(290, 301))):
            asked = {"key_mask": real[:, :end]} if padded else {}
            steps.append(layer(x[:, start:end], cache=cache, **asked))
        _near_in_the_mean(see, torch.cat(steps[1:], dim=1), due, f"tokens 290 to 299, decoded with a cache, {dtype}")


def _twin(lab: Lab, layer: Any) -> Any:
    """The same layer in float64."""
    twin: Any = lab.layer()
    twin.load_state_dict({name: values.double() for name, values in layer.state_dict().items()})
    return twin


def _near_in_the_mean(see: Evidence, got: Tensor, due: Tensor, what: str) -> None:
    off = float((got.double() - due).detach().abs().mean() / due.detach().abs().mean())
    allowed = 4 * tolerance.FLOOR[got.dtype]  # where all is taken in the wide type, half a rounding to one
    see.holds(off <= allowed, f"{what}, err by {off:.1e} of their mean, at most {allowed:.1e}")


@law("numerics.half_weights", "C17", needs=[weights], cases="options")
def half_weights(lab: Lab, see: Evidence) -> None:
    """The weights of a half layer are those of its float64 twin, within the type's own rounding."""
    for dtype in HALF:
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        truth = _twin(lab, layer)
        got, due = layer(x, need_weights=True)[1].double(), truth(x.double(), need_weights=True)[1]
        mean, allowed = float((got - due).detach().abs().mean()), 4 * tolerance.FLOOR[dtype]
        see.holds(mean <= allowed, f"the weights err by {mean:.1e} in the mean, at most {allowed:.1e}, {dtype}")


def no_worse(see: Evidence, got: Tensor, peer: Tensor, due: Tensor, what: str, roundings: float = 1 / 2) -> None:
    """The mean error is at most twice the peer's, plus a floor of half a rounding of the type, or as many as told."""
    ours, theirs = (float((values.double() - due).detach().abs().mean()) for values in (got, peer))
    floor = tolerance.FLOOR[got.dtype] * roundings * max(1.0, float(due.detach().abs().mean()))
    see.finite(got, what)
    see.holds(ours <= 2 * theirs + floor, f"{what} errs by {ours:.1e} in the mean, what is plain by {theirs:.1e}")


def _rounded_once(see: Evidence, got: Tensor, due: Tensor, what: str) -> None:
    """The mean error is that of a result rounded to its type."""
    mean = float((got.double() - due).detach().abs().mean())
    allowed = tolerance.FLOOR[got.dtype] * max(1.0, float(due.detach().abs().mean()))
    see.holds(mean <= allowed, f"{what} errs by {mean:.1e} in the mean, at most {allowed:.1e}")
