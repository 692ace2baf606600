"""Laws of conduct: train and eval, hooks, and that a call leaves no trace."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab, Randomness, Switches
from attnzoo.checks.engine.law import law
from attnzoo.checks.laws.truth import gradients, questions

# Ways to run a layer that must give what eval gives: whether in training, and what becomes of gradients.
MODES: dict[str, tuple[bool, Callable[[], Any]]] = {
    "in training": (True, torch.enable_grad),
    "in training without gradients": (True, torch.no_grad),
    "without gradients": (False, torch.no_grad),
    "in inference mode": (False, torch.inference_mode),
}


@law("mode.inputs_untouched", "C13")
def inputs_untouched(lab: Lab, see: Evidence) -> None:
    """A call changes none of its inputs: tokens, masks, positions, context; nor what they ask of autograd.

    In eval and in training, with gradients and without, where code feels free to write in place.
    """
    layer = lab.layer()
    x = lab.tokens()
    asks = questions(lab, x)
    if lab.variant.traits.mask:
        low = torch.where(lab.mask(x.shape[1], x.shape[1]), 0.0, -1e9).to(x.dtype)
        asks["a mask of 0 and -1e9"] = {"mask": low}
        asks["a mask of 2 axes"] = {"mask": lab.mask(x.shape[1], x.shape[1])}
    for how, asked in asks.items():
        given = {"x": x, **asked}
        before = {word: values.clone() for word, values in given.items()}
        for training, graph in ((False, True), (False, False), (True, True)):
            layer.train(training)
            with torch.set_grad_enabled(graph):
                layer(x, **asked)
            for word, values in given.items():
                see.exactly(values, before[word], f"{word} after a call, {how}")
                see.holds(not values.requires_grad, f"{word} asks for no gradient after a call, {how}")
    layer.eval()
    if lab.variant.traits.cross and not lab.case.causal:
        context = lab.tokens(t=5, draw=1)
        before_context = context.clone()
        layer(x, context)
        see.exactly(context, before_context, "context after a call")


@law("mode.reads_anew", "C18")
def reads_anew(lab: Lab, see: Evidence) -> None:
    """Nothing is remembered by the look of an input: a tensor that was changed in place is read again.

    A table of masks, or of a context's keys, that is kept by the identity of the tensor answers for an old one.
    """
    layer = lab.layer()
    x = lab.tokens()
    for how, asked in _ways_to_ask(lab, x).items():
        for graph in (True, False):
            given = {"x": x.clone(), **{word: values.clone() for word, values in asked.items()}}
            with torch.set_grad_enabled(graph):
                layer(**given)
                for values in given.values():
                    values.copy_(values.flip(0) if values.shape[0] > 1 else values.flip(-1))
                again, due = layer(**given), layer(**{word: values.clone() for word, values in given.items()})
                what = f"the output, {how}, when what was given is changed in place, and of a copy"
                see.exactly(again.nan_to_num(), due.nan_to_num(), what)
    see.reacts(layer(x), layer(x.flip(-1)), "the output of other tokens")


@law("mode.repeatable", "C18")
def repeatable(lab: Lab, see: Evidence) -> None:
    """In eval the same input gives the same bits twice, whatever was called between; nothing random is touched."""
    layer = lab.layer()
    x = lab.tokens()
    stored = copy.deepcopy(layer.state_dict())
    buffers = {name: values.clone() for name, values in layer.named_buffers()}
    before = Randomness.stirred()
    y = layer(x)
    longer = lab.tokens(b=x.shape[0] + 1, t=2 * x.shape[1] + 3, draw=1)
    layer(longer)
    if lab.variant.traits.weights:
        layer(longer, need_weights=True)
    again = layer(x)
    moved = before.moved()
    _results_stay(lab, see, layer, x)
    see.holds(not moved, f"a call in eval touches no random state, not {', '.join(moved)}")
    see.exactly(again, y, "the output of a second call, after other inputs")
    for name, values in layer.state_dict().items():
        see.exactly(values, stored[name], f"{name} after calls")
    for name, values in layer.named_buffers():
        if name in buffers and buffers[name].shape == values.shape:
            see.exactly(values, buffers[name], f"the buffer {name} after calls")


def _results_stay(lab: Lab, see: Evidence, layer: Any, x: torch.Tensor) -> None:
    """What a call returned is the caller's: a later call on as many tokens does not write into it."""
    other = lab.tokens(draw=3)
    for graph in (True, False):
        with torch.set_grad_enabled(graph):
            results = {"output": layer(x)}
            if lab.variant.traits.weights:
                results["output beside weights"], results["weights"] = layer(x, need_weights=True)
            kept = {name: values.clone() for name, values in results.items()}
            layer(other)
            if lab.variant.traits.weights:
                layer(other, need_weights=True)
        for name, values in results.items():
            see.exactly(values, kept[name], f"the {name} of a call, after another call")


@law("mode.keeps_nothing", "C18")
def keeps_nothing(lab: Lab, see: Evidence) -> None:
    """A call holds on to nothing: once the caller lets go of them, its input, mask and results are freed.

    What is kept in a list, or on the layer, grows, and cannot be copied.
    """
    layer = lab.layer()
    for graph in (True, False):
        with torch.set_grad_enabled(graph):
            x = lab.tokens()
            given = {"x": x, **({"mask": lab.mask(x.shape[1], x.shape[1])} if lab.variant.traits.mask else {})}
            results = {"output": layer(**given)}
            if lab.variant.traits.weights:
                results["output beside weights"], results["weights"] = layer(**given, need_weights=True)
        held = {name: weakref.ref(values) for name, values in {**given, **results}.items()}
        del x, given, results
        if any(left() is not None for left in held.values()):  # in a circle, perhaps, that nobody holds on to
            gc.collect()
        for name, left in held.items():
            see.holds(left() is None, f"the {name} of a call is freed when its caller lets go of it")


@law("mode.leaves_switches", "C18")
def leaves_switches(lab: Lab, see: Evidence) -> None:
    """A call leaves torch as it was: whether gradients flow, the default type, the precision of products.

    A refused call too: what is switched off on the way in must be switched on again on every way out.
    """
    before = Switches()
    layer = lab.layer(torch.float32)
    x = lab.tokens(dtype=torch.float32)
    calls: dict[str, Callable[[], Any]] = {
        "building": lab.fresh,
        "a call": lambda: layer(x),
        "a call in training": lambda: layer.train()(x),
        "a refused call": lambda: layer(x[..., :-1]),
    }
    if lab.variant.traits.weights:
        calls["a call for weights"] = lambda: layer.eval()(x, need_weights=True)
    if lab.variant.traits.mask:
        calls["a call with a mask that does not fit"] = lambda: layer(x, mask=torch.ones(1, 1, 1, dtype=torch.bool))
    for what, call in calls.items():
        with suppress(Exception):
            call()
        moved = before.moved()
        before.restore()
        see.holds(not moved, f"{what} leaves torch as it was, but changed {', '.join(moved)}")


@law("mode.reaches_all", "C18")
def reaches_all(lab: Lab, see: Evidence) -> None:
    """`train` and `eval` reach every module, and change nothing else: what was frozen stays frozen."""
    layer = lab.layer()
    frozen = next(iter(layer.parameters())).requires_grad_(False)
    for training in (True, False, True):
        layer.train(training)
        missed = [name or "the layer" for name, module in layer.named_modules() if module.training is not training]
        mode = "train" if training else "eval"
        see.holds(not missed, f"{mode}() puts every module in {mode} mode, but not {', '.join(missed)}")
        named = layer.named_parameters()
        changed = [name for name, parameter in named if parameter.requires_grad is (parameter is frozen)]
        see.holds(not changed, f"{mode}() leaves requires_grad as it was, but not of {', '.join(changed)}")


@law("mode.train_is_eval", "C12")
def train_is_eval(lab: Lab, see: Evidence) -> None:
    """Without dropout training gives what eval gives, forward and backward; so does a call without gradients.

    However it is asked: masked, padded, with positions, documents, a context, and for the weights.
    """
    layer = lab.layer(**({"dropout": 0.0} if _takes_dropout(lab) else {}))
    x, dy = lab.tokens(), lab.tokens(draw=2)
    for how, asked in _ways_to_ask(lab, x).items():
        due, slope = layer.eval()(x, **asked), gradients(layer, x, dy, asked)["the input"]
        trained = gradients(layer.train(), x, dy, asked)["the input"]
        see.close(trained, slope, f"the input's gradient in training and in eval, {how}")
        weights = layer.eval()(x, **asked, need_weights=True)[1] if lab.variant.traits.weights else None
        for mode, (training, recorded) in MODES.items():
            layer.train(training)
            with recorded():
                see.close(layer(x, **asked), due, f"the output {mode} and in eval, {how}")
                if weights is not None:
                    shown = layer(x, **asked, need_weights=True)[1]
                    see.close(shown, weights, f"the weights {mode} and in eval, {how}")


@law("mode.hooks", "C18", cases="default")
def hooks(lab: Lab, see: Evidence) -> None:
    """Hooks run: on the layer, and on each of its modules that a call uses."""
    layer = lab.layer()
    seen: list[str] = []
    modules = {name or "the layer": module for name, module in layer.named_modules() if _has_own_parameters(module)}
    modules["the layer"] = layer
    for name, module in modules.items():
        module.register_forward_hook(lambda *_, name=name: seen.append(name))
    layer(lab.tokens())
    for name in modules:
        see.holds(name in seen, f"a forward hook on {name} runs")


def _ways_to_ask(lab: Lab, x: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
    """The questions, padded on the right, so that every query sees something; and a context where it takes one."""
    asks = questions(lab, x)
    b, t, _ = x.shape
    if "key_mask" in asks:
        asks["key_mask"] = {"key_mask": lab.padding([max(1, t - 2 * i) for i in range(b)], t, left=False)}
    if lab.variant.traits.cross and not lab.case.causal:
        asks["context"] = {"context": lab.tokens(t=5, draw=1)}
    return asks


def _has_own_parameters(module: torch.nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _takes_dropout(lab: Lab) -> bool:
    return lab.variant.options is not None and "dropout" in lab.variant.options
