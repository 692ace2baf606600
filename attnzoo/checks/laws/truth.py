"""Laws of truth: the layer against the NumPy oracle, against torch's SDPA, and against finite differences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import reference, tolerance
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab, array, tensor
from attnzoo.checks.engine.law import ROOT, cross, law, option, plain, positional, staged, with_oracle


def questions(lab: Lab, x: Tensor) -> dict[str, dict[str, Tensor]]:
    """The ways to ask that the variant claims to answer."""
    b, t, _ = x.shape
    traits = lab.variant.traits
    asked: dict[str, dict[str, Tensor]] = {"plain": {}}
    if traits.mask:
        asked["mask per head"] = {"mask": lab.mask(b, int(lab.case.options.get("heads", 1)), t, t)}
        asked["floating mask"] = {"mask": 2 * lab.normal(b, 1, t, t, draw=3).to(x.dtype)}
    if traits.key_mask:
        asked["key_mask"] = {"key_mask": lab.padding([max(1, t - 2 * i) for i in range(b)], t, left=True)}
    if traits.takes_positions:
        index = torch.arange(t, device=lab.device)
        first = -20 if traits.positions == "relative" else 5  # a table of places has none below zero
        asked["positions"] = {"positions": index * 3 + first}
        asked["positions per sample"] = {"positions": torch.arange(1, b + 1, device=lab.device)[:, None] * index}
    if traits.document:
        asked["documents"] = {"document": lab.documents(b, t)}
        if traits.mask:
            asked["documents and floating mask"] = {**asked["documents"], **asked["floating mask"]}
    return asked


# The questions about hundreds of tokens that a quick run has the time for.
MANY = ("plain", "mask per head", "key_mask", "documents")


def _questions_in_time(lab: Lab, x: Tensor, quick: Sequence[str]) -> dict[str, dict[str, Tensor]]:
    """All questions; in a quick run those of these names."""
    return {how: asked for how, asked in questions(lab, x).items() if how in quick or lab.depth != "quick"}


@law("truth.oracle", "C2", needs=[with_oracle], cases="all")
def oracle(lab: Lab, see: Evidence) -> None:
    """Output and weights are those of the variant's definition in NumPy float64, from the layer's raw weights.

    For every way to ask: plain, masked, padded, with positions. In float64 to 1e-12 at unit scale; in float32 to as
    many roundings as the largest logits of all cases take, of which the weights are exponentials.
    """
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        order = tolerance.rounding(dtype, tolerance.ROUNDINGS_OF_OUTPUT)
        for how, asked in questions(lab, x).items():
            y, w = oracle_of(lab, layer).forward(array(x), **{word: array(value) for word, value in asked.items()})
            see.close(layer(x, **asked), tensor(y), f"the output, {how}, {dtype}", plain=order, dtype=dtype)
            if lab.variant.traits.weights:
                got = layer(x, **asked, need_weights=True)[1]
                see.close(got, tensor(w), f"the weights, {how}, {dtype}", plain=order, dtype=dtype)


@law("truth.large", "C2", needs=[with_oracle], cases="default", after=(ROOT, "truth.oracle"))
def large(lab: Lab, see: Evidence) -> None:
    """At the sizes of real models too, without gradients: wide heads, many of them, many samples, many or loud tokens.

    What is right on small tensors may take another path, or a constant that was meant for one size, on larger ones; or
    a limit, which is no part of the definition.
    """
    takes = lab.variant.options or {}
    sizes = {"head_dim": 80, "heads": 14, "kv_heads": 7, "rotary_dim": 32} if "head_dim" in takes else {}
    wide = {word: value for word, value in {**sizes, "window": 20}.items() if word in takes}
    both_ways = [True, False] if lab.variant.traits.causal == "optional" else [lab.case.causal]
    for causal in both_ways:
        wanted = {**wide, **({"causal": causal} if len(both_ways) > 1 else {})}
        changed = wanted if lab.builds(**wanted) else {}  # sizes that a variant refuses are not among its kinds
        layer, x = lab.layer(**changed), lab.tokens(9, 33)
        padded = lab.variant.traits.key_mask
        asked = {"key_mask": lab.padding([33 - 3 * i for i in range(9)], 33, left=True)} if padded else {}
        options = "".join(f", {word}={value}" for word, value in changed.items())
        what = f"9 samples of 33 tokens{options}"
        _as_defined(lab, see, layer, x, asked, what)
    many = lab.tokens(1, 520)
    for how, asked in _questions_in_time(lab, many, MANY).items():
        _as_defined(lab, see, lab.layer(), many, asked, f"520 tokens, {how}")
    rounding = (
        1e5 * torch.finfo(torch.float64).eps
    )  # of logits of ten thousands, of which each weight is an exponential
    _as_defined(lab, see, lab.layer(), 100 * lab.tokens(), {}, "tokens a hundred times as loud", rounding)


def _as_defined(
    lab: Lab, see: Evidence, layer: Any, x: Tensor, asked: dict[str, Tensor], what: str, rounding: float = 0.0
) -> None:
    due, w = oracle_of(lab, layer).forward(array(x), **{word: array(value) for word, value in asked.items()})
    with torch.no_grad():
        see.close(layer(x, **asked), tensor(due), f"the output of {what}", plain=rounding)
        if lab.variant.traits.weights:
            shown = layer(x, **asked, need_weights=True)[1]
            see.close(shown, tensor(w), f"the weights of {what}", plain=rounding)


@law("truth.second_derivative", "C2", cases="default")
def second_derivative(lab: Lab, see: Evidence) -> None:
    """The gradient can be differentiated again, or says that it cannot: its own slope is never wrong.

    A backward pass written by hand, on numbers that autograd does not follow, gives second derivatives in silence; or a
    gradient that is a constant, where one to differentiate was asked for.
    """
    layer = lab.layer()
    x, dy, along = lab.tokens(), lab.tokens(draw=2), lab.tokens(draw=5)

    def gradient(at: Tensor, graph: bool) -> Tensor:
        leaf = at if graph else at.detach().requires_grad_()
        (found,) = torch.autograd.grad((layer(leaf) * dy).square().sum(), leaf, create_graph=graph)
        return found

    step = 1e-5
    due = (gradient(x + step * along, False) - gradient(x - step * along, False)) / (2 * step)
    see.reacts(torch.zeros_like(due), due, "the slope of the input's gradient")
    try:
        leaf = x.clone().requires_grad_()
        first = gradient(leaf, True)
        see.holds(first.requires_grad, "a gradient taken with create_graph=True carries a graph, or is refused")
        (slope,) = torch.autograd.grad((first * along).sum(), leaf, allow_unused=True)
    except RuntimeError as error:
        see.holds(bool(str(error)), "a gradient that cannot be differentiated says why")
        return
    got = torch.zeros_like(due) if slope is None else slope
    off = float((got - due).abs().max()) / max(1.0, float(due.abs().max()))
    see.holds(off < 1e-6, f"the slope of the gradient is its derivative to 1e-6; it is off by {off:.1e}")


@law("truth.large_gradients", "C2", needs=[with_oracle], cases="default", after=(ROOT, "truth.oracle"))
def large_gradients(lab: Lab, see: Evidence) -> None:
    """The gradients over hundreds of tokens are those of the definition too, where a backward pass may go by blocks."""
    layer, x, dy = lab.layer(), lab.tokens(1, 260), lab.tokens(1, 260, draw=2)
    for how, asked in _questions_in_time(lab, x, MANY).items():
        truth = oracle_of(lab, layer)
        truth.forward(array(x), **{word: array(value) for word, value in asked.items()})
        dx, _ = truth.backward(array(dy))
        due = {"the input": dx, **truth.grads}
        for name, got in gradients(layer, x, dy, asked).items():
            see.close(got, tensor(due[name]), f"the gradient of {name}, 260 tokens, {how}")


@law("truth.oracle_gradients", "C2", needs=[with_oracle], cases="all", after=(ROOT, "truth.oracle"))
def oraclegradients(lab: Lab, see: Evidence) -> None:
    """The gradients of the input and of every parameter are those of the definition, derived by hand."""
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x, dy = lab.tokens(dtype=dtype), lab.tokens(dtype=dtype, draw=2)
        asks = questions(lab, x) if dtype == torch.float64 else _questions_in_time(lab, x, ("plain",))
        for how, asked in asks.items():
            truth = oracle_of(lab, layer)
            truth.forward(array(x), **{word: array(value) for word, value in asked.items()})
            dx, _ = truth.backward(array(dy))
            found = gradients(layer, x, dy, asked)
            due = {"the input": dx, **truth.grads}
            missing = [name for name in found if name not in due]
            see.holds(not missing, f"the oracle gives a gradient for every parameter; it lacks {', '.join(missing)}")
            for name, got in found.items():
                slack = tolerance.summed(dtype, dy.numel() / max(1, got.numel()))
                see.close(got, tensor(due[name]), f"the gradient of {name}, {how}, {dtype}", plain=slack)


@law(
    "truth.oracle_cross",
    "C5",
    needs=[with_oracle, cross],
    where=lambda case: not case.causal,
    after=(ROOT, "truth.oracle"),
)
def oracle_cross(lab: Lab, see: Evidence) -> None:
    """With `context`, keys and values come from it: output, weights and all gradients are those of the definition.

    Of a longer context and of a shorter one; plain, padded, and under masks of queries by tokens of the context.
    """
    for dtype, s in product(lab.dtypes(), (lab.case.t + 4, max(1, lab.case.t - 2))):
        layer = lab.layer(dtype)
        x, dy, context = lab.tokens(dtype=dtype), lab.tokens(dtype=dtype, draw=2), lab.tokens(t=s, dtype=dtype, draw=1)
        for how, asked in _asked_of_context(lab, s, dtype).items():
            what = f"a context of {s}, {how}, {dtype}"
            truth = oracle_of(lab, layer)
            due, w = truth.forward(array(x), array(context), **{word: array(value) for word, value in asked.items()})
            slopes = dict(zip(("the input", "the context"), truth.backward(array(dy)), strict=True)) | truth.grads
            leaves = {"the input": x.clone().requires_grad_(), "the context": context.clone().requires_grad_()}
            y, order = layer(*leaves.values(), **asked), tolerance.rounding(dtype, tolerance.ROUNDINGS_OF_OUTPUT)
            see.close(y, tensor(due), f"the output of {what}", plain=order, dtype=dtype)
            leaves |= dict(layer.named_parameters())
            found = torch.autograd.grad(y, list(leaves.values()), dy, allow_unused=True)
            for (name, leaf), slope in zip(leaves.items(), found, strict=True):
                got = torch.zeros_like(leaf) if slope is None else slope
                slack = tolerance.summed(dtype, dy.numel() / max(1, got.numel()))
                see.close(got, tensor(slopes[name]), f"the gradient of {name}, {what}", plain=slack)
            if lab.variant.traits.weights:
                shown = layer(x, context, **asked, need_weights=True)[1]
                see.close(shown, tensor(w), f"the weights of {what}", plain=order, dtype=dtype)
        see.reacts(y, layer(x, lab.tokens(t=s, dtype=dtype, draw=6), **asked), "the output, another context")


def _asked_of_context(lab: Lab, s: int, dtype: torch.dtype) -> dict[str, dict[str, Tensor]]:
    """The ways to ask of a context of s tokens that the variant claims to answer."""
    b, t, traits = lab.case.b, lab.case.t, lab.variant.traits
    asked: dict[str, dict[str, Tensor]] = {"plain": {}}
    if traits.key_mask:
        asked["key_mask"] = {"key_mask": lab.padding([max(1, s - i) for i in range(b)], s, left=False)}
    if traits.mask:
        mask = lab.mask(b, int(lab.case.options.get("heads", 1)), t, s)
        mask[..., 0] = True  # a query further on than the context has no token of its own index there
        asked["mask per head"] = {"mask": mask}
        asked["floating mask"] = {"mask": 2 * lab.normal(b, 1, t, s, draw=3).to(dtype)}
    return asked


def oracle_of(lab: Lab, layer: Any) -> Any:
    """The layer's definition, made anew from its raw weights."""
    make = lab.variant.oracle
    assert make is not None  # the law needs it
    return make(layer)


@law("truth.sdpa", "C2", needs=[plain, staged], cases="all")
def sdpa(lab: Lab, see: Evidence) -> None:
    """From the variant's own q, k and v, the weighted sum and its three gradients are those of torch's SDPA.

    SDPA gets an explicit mask and written-out key-value heads, so that its own conventions do not enter, and float64;
    what it errs by itself in the layer's type is allowed twice.
    """
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        q, k, v = (stage.detach().requires_grad_() for stage in layer.project(lab.tokens(dtype=dtype)))
        t, s = q.shape[2], k.shape[2]
        visible = lab.visible(t, s)
        mixed = layer.attend(q, k, v)
        peer = reference.attention(q, k, v, visible=visible, scale=lab.scale(q))
        exact = [stage.detach().double().requires_grad_() for stage in (q, k, v)]
        due = reference.attention(*exact, visible=visible, scale=lab.scale(q))
        see.close(mixed, due, f"the weighted sum, {dtype}", plain=tolerance.error(peer, due)[0], dtype=dtype)
        pull = lab.normal(*mixed.shape, draw=2).to(dtype)
        got, want = torch.autograd.grad(mixed, (q, k, v), pull), torch.autograd.grad(due, exact, pull.double())
        for name, one, other in zip("qkv", got, want, strict=True):
            see.close(one, other, f"the gradient of {name}, {dtype}", plain=tolerance.rounding(dtype), dtype=dtype)


@law("truth.finite_differences", "C2", cases="default")
def finite_differences(lab: Lab, see: Evidence) -> None:
    """The gradients of the input and of every parameter are the slopes of the output, measured in float64.

    Central differences with a step of 1e-5, along 6 drawn entries of each tensor and one direction through all of it;
    relative to the largest slope, since slopes near zero are drowned by rounding.
    """
    layer = lab.layer()
    x, dy = lab.tokens(), lab.tokens(draw=2)
    slopes = gradients(layer, x, dy, {})
    tensors = {"the input": x, **dict(layer.named_parameters())}
    for name, gradient in slopes.items():
        if gradient.numel() == 0:
            continue
        directions = _directions(lab, gradient)
        measured = torch.stack([_slope(layer, x, dy, tensors[name], along) for along in directions])
        due = torch.stack([(gradient * along).sum() for along in directions])
        scale = max(1.0, float(gradient.abs().max()))
        worst = float((measured - due).abs().max()) / scale
        see.holds(worst < 1e-7, f"slopes of {name} agree with its gradient to 1e-7; the worst is off by {worst:.1e}")
    see.reacts(torch.zeros_like(slopes["the input"]), slopes["the input"], "the input's gradient")


def _directions(lab: Lab, gradient: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(lab.seed)
    picked = torch.randperm(gradient.numel(), generator=generator)[:6]
    entries = [
        torch.zeros_like(gradient).flatten().index_fill(0, i.reshape(1).to(gradient.device), 1.0) for i in picked
    ]
    whole = lab.normal(*gradient.shape, draw=8)
    return [*(entry.view_as(gradient) for entry in entries), whole / whole.norm()]


def _slope(layer: Any, x: Tensor, dy: Tensor, moved: Tensor, along: Tensor, step: float = 1e-5) -> Tensor:
    """How fast sum(y * dy) grows as `moved`, the input or a parameter, goes `along`."""
    values: list[Tensor] = []
    with torch.no_grad():
        for sign in (1, -1):
            moved.add_(along, alpha=sign * step)
            values.append((layer(x) * dy).sum())
            moved.add_(along, alpha=-sign * step)
    return (values[0] - values[1]) / (2 * step)


def gradients(layer: Any, x: Tensor, dy: Tensor, asked: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of the input and of every parameter, by name; zero where nothing depends on one."""
    leaf = x.clone().requires_grad_()
    named = {"the input": leaf, **dict(layer.named_parameters())}
    found = torch.autograd.grad(layer(leaf, **asked), list(named.values()), dy, allow_unused=True)
    return {
        name: torch.zeros_like(values) if gradient is None else gradient
        for (name, values), gradient in zip(named.items(), found, strict=True)
    }


@law(
    "truth.scale",
    "C2",
    needs=[plain, staged, option("scale")],
    cases="default",
    where=lambda case: not case.solitary,
)
def scale(lab: Lab, see: Evidence) -> None:
    """The scale, where not given, is head_dim to the power -1/2; a given one is taken as it is, zero too.

    A truth test (`scale or default`) turns an explicit 0 into the default.
    """
    x = lab.tokens()
    layer = lab.layer(scale=None)
    q = layer.project(x)[0]
    see.close(layer(x), lab.layer(scale=q.shape[-1] ** -0.5)(x), "no scale, and head_dim ** -0.5")
    if option("head_dim")(lab.variant) is None and lab.builds(head_dim=80):
        one, other = (lab.layer(head_dim=80, scale=scale)(x) for scale in (None, 80**-0.5))
        see.close(one, other, "no scale, and 80 ** -0.5, for heads 80 wide")
    q, k, v = lab.layer(scale=0.0).project(x)
    if lab.variant.traits.causal == "optional":
        flat = lab.layer(scale=0.0, causal=False)
        t, s = q.shape[2], k.shape[2]
        rule = reference.visible(t, s, lab.device, causal=False, window=lab.window)
        share = torch.ones(t, s, dtype=v.dtype, device=v.device) if rule is None else rule.to(v.dtype)
        mean = (share / share.sum(-1, keepdim=True)) @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        see.close(flat.attend(q, k, v), mean, "under scale=0 every query takes the mean of the values it sees")
    see.reacts(layer(x), lab.layer(scale=0.0)(x), "the output under scale=0")


@law("truth.grouping", "C7", needs=[option("kv_heads"), staged], where=lambda case: "kv_heads" in case.options)
def grouping(lab: Lab, see: Evidence) -> None:
    """Query head h reads key-value head h // (heads // kv_heads): groups lie side by side.

    Tiling them trains just as well, and turns every loaded checkpoint to noise.
    """
    layer = lab.layer()
    q, k, v = layer.project(lab.tokens())
    h, g = q.shape[1], k.shape[1]
    constant = torch.arange(1.0, g + 1, dtype=v.dtype, device=v.device)[None, :, None, None].expand(v.shape)
    mixed, sums = layer.attend(q, k, constant), layer.attend(q, k, torch.ones_like(v))
    due = torch.arange(h, device=v.device).div(h // g, rounding_mode="floor") + 1
    see.close(mixed, sums * due[None, :, None, None], "values that name their key-value head")
    see.reacts(torch.zeros_like(sums), sums, "the weighted sum of ones")


@law("truth.default_positions", "C5", needs=[positional])
def default_positions(lab: Lab, see: Evidence) -> None:
    """Positions that are not given count the tokens from 0."""
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        index = torch.arange(x.shape[1], device=lab.device)
        see.close(layer(x, positions=index), layer(x), "the output with positions 0, 1, 2, …")
        see.close(layer(x, positions=index.expand(x.shape[0], -1)), layer(x), "the same, written out per sample")
        if staged(lab.variant) is None:
            for name, got, due in zip("qkv", layer.project(x), layer.project(x, positions=index), strict=True):
                see.close(got, due, f"{name} with positions left out, and given as 0, 1, 2, …")
