"""Laws of conduct: train and eval, dropout, and that a call leaves no trace."""

from __future__ import annotations

import copy

import torch

from attnzoo.checks.evidence import Evidence
from attnzoo.checks.lab import Lab, Randomness
from attnzoo.checks.law import law, option, weights
from attnzoo.checks.truth import questions


@law("mode.inputs_untouched", "C13")
def inputs_untouched(lab: Lab, see: Evidence) -> None:
    """A call changes none of its inputs: tokens, masks, positions, context."""
    layer = lab.layer()
    x = lab.tokens()
    for how, asked in questions(lab, x).items():
        given = {"x": x, **asked}
        before = {word: values.clone() for word, values in given.items()}
        layer(x, **asked)
        for word, values in given.items():
            see.exactly(values, before[word], f"{word} after a call, {how}")
    if lab.variant.traits.cross and not lab.case.causal:
        context = lab.tokens(t=5, draw=1)
        before_context = context.clone()
        layer(x, context)
        see.exactly(context, before_context, "context after a call")


@law("mode.repeatable", "C18")
def repeatable(lab: Lab, see: Evidence) -> None:
    """In eval the same input gives the same bits twice, whatever was called between; nothing random is touched."""
    layer = lab.layer()
    x = lab.tokens()
    stored = copy.deepcopy(layer.state_dict())
    buffers = {name: values.clone() for name, values in layer.named_buffers()}
    before = Randomness()
    y = layer(x)
    longer = lab.tokens(b=x.shape[0] + 1, t=2 * x.shape[1] + 3, draw=1)
    layer(longer)
    if lab.variant.traits.weights:
        layer(longer, need_weights=True)
    again = layer(x)
    moved = before.moved()
    see.holds(not moved, f"a call in eval touches no random state, not {', '.join(moved)}")
    see.exactly(again, y, "the output of a second call, after other inputs")
    for name, values in layer.state_dict().items():
        see.exactly(values, stored[name], f"{name} after calls")
    for name, values in layer.named_buffers():
        if name in buffers and buffers[name].shape == values.shape:
            see.exactly(values, buffers[name], f"the buffer {name} after calls")


@law("mode.train_is_eval", "C12", cases="all")
def train_is_eval(lab: Lab, see: Evidence) -> None:
    """Without dropout training gives what eval gives, forward and backward."""
    layer = lab.layer(**({"dropout": 0.0} if _takes_dropout(lab) else {}))
    x, dy = lab.tokens().requires_grad_(), lab.tokens(draw=2)
    y = layer(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    layer.train()
    trained = layer(x)
    see.close(trained, y, "the output in train mode and in eval")
    see.close(torch.autograd.grad(trained, x, dy)[0], dx, "the input's gradient in train mode and in eval")
    with torch.no_grad():
        see.close(layer(x), y, "the output without gradients")


@law("mode.dropout", "C11", needs=[option("dropout")], cases="default")
def dropout(lab: Lab, see: Evidence) -> None:
    """Dropout acts on the weights in training only; in eval it is off, and dropout=0 is bitwise the same as none.

    torch's fused kernel drops whenever it is told a probability, whatever the mode.
    """
    x = lab.tokens()
    without, with_zero, with_half = lab.layer(), lab.layer(dropout=0.0), lab.layer(dropout=0.5)
    y = without(x)
    see.exactly(with_half(x), y, "the output in eval with dropout=0.5 and with none")
    for layer in (without, with_zero, with_half):
        layer.train()
    see.exactly(with_zero(x), without(x), "the output in training with dropout=0 and with none")
    torch.manual_seed(1)
    first, second = with_half(x), with_half(x)
    see.differs(y, first, "the outputs in eval and in training with dropout=0.5")
    see.differs(first, second, "two outputs in training with dropout=0.5")
    torch.manual_seed(1)
    see.exactly(with_half(x), first, "the output in training under the same seed")


@law("mode.dropout_mean", "C11", needs=[option("dropout")], cases="default")
def dropout_mean(lab: Lab, see: Evidence) -> None:
    """Dropout keeps the mean: over many draws the output in training is the output in eval, within 7 standard errors.

    Kept weights are scaled up by 1 / (1 - p); forgetting that, or doing it twice, changes what the next layer expects.
    Beyond 7 a sound layer strays with one number in some 10^11; beyond 5 with one in a million, which happens.
    """
    layer = lab.layer(dropout=0.4)
    x = lab.tokens(b=1)
    torch.manual_seed(lab.seed)
    with torch.no_grad():
        y = layer(x)
        layer.train()
        draws = torch.cat([layer(x.expand(400, -1, -1)) for _ in range(10)])
    error = draws.std(dim=0) / len(draws) ** 0.5
    off = float(((draws.mean(dim=0) - y[0]).abs() / error.clamp(min=1e-12)).max())
    see.holds(
        off < 7, f"the mean of {len(draws)} draws lies within 7 standard errors of eval; the worst is {off:.1f} off"
    )
    see.reacts(y.expand(2, -1, -1), draws[:2], "outputs in training")


@law("mode.dropout_weights", "C12", needs=[option("dropout"), weights], cases="default")
def dropout_weights(lab: Lab, see: Evidence) -> None:
    """The returned weights are those before dropout: in training as in eval."""
    layer = lab.layer(dropout=0.5)
    x = lab.tokens()
    w = layer(x, need_weights=True)[1]
    layer.train()
    y, trained = layer(x, need_weights=True)
    see.close(trained, w, "the weights in training with dropout=0.5 and in eval")
    see.reacts(layer.eval()(x), y, "the output in training")


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


def _has_own_parameters(module: torch.nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _takes_dropout(lab: Lab) -> bool:
    return lab.variant.options is not None and "dropout" in lab.variant.options
