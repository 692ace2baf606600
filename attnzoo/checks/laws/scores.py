"""Laws of scores that are more than a scaled product: softcaps, sinks, linear biases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnzoo import oracle
from attnzoo.checks.engine import reference, tolerance
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab, tensor
from attnzoo.checks.engine.law import law, masked, normalised, option, sees_known, staged, weights
from attnzoo.checks.laws.caches import fed
from attnzoo.checks.laws.masks import floating
from attnzoo.variant import Variant


def unbiased(variant: Variant) -> str | None:
    """Nothing is added to its logits by the order of the tokens."""
    return "adds a bias by the order of the tokens" if variant.traits.positions == "index" else None


def sunk(variant: Variant) -> str | None:
    """It learns a sink for each head."""
    names = {name for name, _ in variant.build(**variant.cases[0]).named_parameters()}
    return None if "sinks" in names else "has no parameter named sinks"


def linear_biases(variant: Variant) -> str | None:
    """It is attention with linear biases, as its oracle says."""
    if variant.oracle is None:
        return "brings no oracle, which would tell whether it has linear biases"
    try:
        definition = variant.oracle(variant.build(**variant.cases[0]))
    except Exception:  # truth.oracle tells what is wrong with it
        return "has an oracle that does not read it"
    alibi = isinstance(definition, oracle.Layer) and definition.alibi
    return None if alibi else "has no linear biases by its oracle"


@law("softcap.bends", "C2", needs=[option("softcap"), staged, sees_known, unbiased, normalised], cases="default")
def bends(lab: Lab, see: Evidence) -> None:
    """The scaled logits z become c · tanh(z / c), forward and backward; a cap far off is none.

    Compared with SDPA by a bias of c · tanh(z / c) - z, from the layer's own queries, keys and values.
    """
    for cap in (0.7, 3.0, 1e8):
        layer = lab.layer(softcap=cap)
        q, k, v = (stage.detach().requires_grad_() for stage in layer.project(lab.tokens()))
        t, s = q.shape[2], k.shape[2]
        raw = lab.scale(q) * q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT
        bias = cap * torch.tanh(raw / cap) - raw
        visible, scale = lab.visible(t, s), lab.scale(q)
        due = reference.attention(q, k, v, visible=visible, bias=bias, scale=scale)
        got = layer.attend(q, k, v)
        # A far cap divides and multiplies by a large number, which costs each logit a rounding.
        order = tolerance.rounding(q.dtype)
        see.close(got, due, f"the weighted sum under a softcap of {cap:g}", plain=order)
        pull = lab.normal(*got.shape, draw=2)
        gradients = (torch.autograd.grad(mixed, (q, k, v), pull, retain_graph=True) for mixed in (got, due))
        for name, one, other in zip("qkv", *gradients, strict=True):
            see.close(one, other, f"the gradient of {name} under a softcap of {cap:g}", plain=order)
    x = lab.tokens()
    see.reacts(lab.layer(softcap=1e8)(x), lab.layer(softcap=0.7)(x), "the output under a small softcap")


@law("softcap.bounds", "C2", needs=[option("softcap"), weights, sees_known, unbiased], cases="default")
def bounds(lab: Lab, see: Evidence) -> None:
    """No key can win by more than twice the cap, however loud: among seen keys, weights differ by exp(2 c) at most."""
    for cap in (0.5, 2.0):
        layer = lab.layer(softcap=cap)
        x = 20 * lab.tokens()
        t = x.shape[1]
        rule = lab.visible(t, t)
        w = layer(x, need_weights=True)[1].detach()
        seen = torch.ones(t, t, dtype=torch.bool, device=w.device) if rule is None else rule
        most = w.masked_fill(~seen, 0.0).amax(-1)
        least = w.masked_fill(~seen, math.inf).amin(-1)
        ratio = float((most / least).max())
        what = (
            f"the largest weight is at most exp(2 · {cap:g}) = {math.exp(2 * cap):.4g} times the least, not {ratio:.4g}"
        )
        see.holds(ratio <= math.exp(2 * cap) * (1 + 1e-9), what)
        see.reacts(lab.layer(softcap=1e6)(x, need_weights=True)[1], w, "the weights without a near cap")


@law("softcap.blocked", "C2", needs=[option("softcap"), masked, weights], cases="default")
def blocked(lab: Lab, see: Evidence) -> None:
    """What is blocked stays blocked under a softcap: the mask comes after it.

    The other way round minus infinity becomes minus the cap, and the future is heard: by e^-50 under the usual cap,
    which no tolerance shows, and loudly under a small one.
    """
    layer = lab.layer(softcap=0.5)
    x, other = lab.tokens(), lab.tokens(draw=1)
    t = x.shape[1]
    mask = lab.mask(t, t)
    for form, given in {
        "boolean": mask,
        "floating": floating(mask, x.dtype),
    }.items():
        w = layer(x, mask=given, need_weights=True)[1]
        behind = w.masked_select(~mask)
        see.exactly(behind, torch.zeros_like(behind), f"weights behind a {form} mask under a softcap of 0.5")
        changed = x.clone()
        changed[:, 0] = other[:, 0]
        deaf = ~mask[:, 0]
        see.close(layer(changed, mask=given)[:, deaf], layer(x, mask=given)[:, deaf], f"behind a {form} mask")
    see.reacts(layer(x), layer(x, mask=mask), "the output under a mask")


def with_sinks(layer: Any, sinks: Tensor) -> Any:
    """The layer, its sinks set to these."""
    with torch.no_grad():
        layer.sinks.copy_(sinks)
    return layer


@law("sinks.share", "C2", needs=[sunk, weights, staged, unbiased])
def share(lab: Lab, see: Evidence) -> None:
    """A sink is one more logit, neither scaled nor capped: beside n logits of zero the keys get n / (n + e^sink).

    From zero queries, whose logits are zero under any scale and any cap.
    """
    takes = lab.variant.options or {}
    more = {word: value for word, value in (("scale", 0.25), ("softcap", 1.0)) if word in takes}
    for how, options in {"under a scale and a softcap of its own": more, "as built": {}}.items():
        layer = lab.layer(**options)
        q, k, v = layer.project(lab.tokens())
        sinks = 2 * lab.normal(q.shape[1], draw=5)
        mixed, w = with_sinks(layer, sinks).attend(torch.zeros_like(q), k, v, need_weights=True)
        seen = (w > 0).sum(-1, dtype=w.dtype)
        due = seen / (seen + sinks.exp()[:, None])
        see.close(w.sum(-1), due, f"the sums of equal weights beside sinks, {how}")
        group = q.shape[1] // k.shape[1]
        see.close(
            mixed, w @ v.repeat_interleave(group, dim=1), f"what the keys give, and the sink gives nothing, {how}"
        )
        see.reacts(torch.ones_like(due), due, "the sums beside sinks")
    if "softcap" not in takes and sees_known(lab.variant) is None:
        rule = lab.visible(q.shape[2], k.shape[2])
        logits = lab.scale(q) * q @ k.repeat_interleave(group, dim=1).mT
        lse = (logits if rule is None else logits.masked_fill(~rule, -math.inf)).logsumexp(-1)
        w = with_sinks(lab.layer(), sinks).attend(q, k, v, need_weights=True)[1]
        see.close(w.sum(-1), torch.sigmoid(lse - sinks[:, None]), "the sums, and sigmoid(lse - sink)")


@law("sinks.alike", "C15", needs=[sunk, weights])
def alike(lab: Lab, see: Evidence) -> None:
    """A sink takes from all keys of its own head alike: rows sum to sigmoid(lse - sink), and a sink far below is none.

    Raised by one, it divides the odds of the sum by e, which needs no logit to be known.
    """
    layer = lab.layer()
    x = lab.tokens()
    heads = layer.sinks.numel()
    sinks = lab.normal(heads, draw=5)
    plain = with_sinks(layer, torch.full_like(sinks, -1e4))(x, need_weights=True)[1]
    total = plain.sum(-1)
    see.close(total, torch.ones_like(total), "the sums of the weights beside sinks of -10000")
    w = with_sinks(layer, sinks)(x, need_weights=True)[1]
    y = layer(x)
    total = w.sum(-1, keepdim=True)
    see.holds(bool((total < 1).all()), "the sums of the weights beside a sink are below one")
    see.close(w, plain * total, "the weights beside a sink, and the plain ones times their sum")
    raised = with_sinks(layer, sinks + 1)(x, need_weights=True)[1].sum(-1, keepdim=True)
    see.close(raised, total / (total + math.e * (1 - total)), "the sums when each sink is raised by one")
    see.reacts(y, layer(x), "the output when each sink is raised by one")
    one = torch.full_like(sinks, -1e4)
    one[-1] = 1e4
    only = with_sinks(layer, one)(x, need_weights=True)[1]
    see.close(only[:, :-1], plain[:, :-1], "the other heads beside a sink that takes all of the last one")
    see.exactly(only[:, -1], torch.zeros_like(only[:, -1]), "the head whose sink takes all")


@law("sinks.gradient", "C2", needs=[sunk], cases="default")
def sinks_gradient(lab: Lab, see: Evidence) -> None:
    """Each sink gets the slope of the output by it, whichever way the layer is called: measured in float64."""
    layer = lab.layer()
    x, dy = lab.tokens(), lab.tokens(draw=2)
    sinks = layer.sinks.detach().clone()
    for how, call in _calls(lab, layer, x).items():
        (found,) = torch.autograd.grad((call(x) * dy).sum(), layer.sinks, allow_unused=True)
        got = torch.zeros_like(sinks) if found is None else found
        slopes = torch.zeros_like(sinks)
        for head in range(sinks.numel()):
            values = []
            for step in (1e-5, -1e-5):
                moved = sinks.clone()
                moved[head] += step
                with_sinks(layer, moved)
                with torch.no_grad():
                    values.append(float((call(x) * dy).sum()))
            slopes[head] = (values[0] - values[1]) / 2e-5
        with_sinks(layer, sinks)
        worst = float((got - slopes).abs().max()) / max(1.0, float(slopes.abs().max()))
        see.holds(worst < 1e-7, f"{how}: slopes by the sinks agree with their gradient to 1e-7, not {worst:.1e}")
        see.reacts(torch.zeros_like(slopes), slopes, f"{how}: the output when a sink moves")


def _calls(lab: Lab, layer: Any, x: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    traits, t = lab.variant.traits, x.shape[1]
    calls: dict[str, Callable[[Tensor], Tensor]] = {"plain": layer}
    if traits.weights:
        calls["need_weights"] = lambda x: layer(x, need_weights=True)[0]
    if traits.mask:
        calls["mask"] = lambda x: layer(x, mask=lab.mask(t, t))
        calls["floating mask"] = lambda x: layer(x, mask=lab.normal(t, t, draw=3))
    if traits.key_mask:
        calls["key_mask"] = lambda x: layer(x, key_mask=lab.padding([t - 1] * x.shape[0], t, left=True))
    return calls


@law("alibi.slopes", "C2", needs=[linear_biases, weights, option("heads"), option("head_dim")], cases="default")
def slopes(lab: Lab, see: Evidence) -> None:
    """Nearer keys are heard more: from one key to the next the logit rises by the head's slope, exactly.

    Among equal tokens, whose weights differ by the biases alone. For powers of two the slopes are 2^(-8 h / H); other
    numbers of heads take those of the next lower power, then every second one of twice that power. Whole and cached.
    """
    for heads in (1, 2, 3, 4, 5, 6, 8, 12):
        shared = {"kv_heads": 1} if "kv_heads" in (lab.variant.options or {}) else {}
        layer = lab.layer(heads=heads, head_dim=4, **shared)
        x = lab.tokens(b=1, t=1).expand(1, 6, -1)
        due = tensor(oracle.alibi_slopes(heads)).to(x.device)[:, None]
        w = layer(x, need_weights=True)[1][0]
        last = w[:, -1]
        see.close(last[:, 1:].log() - last[:, :-1].log(), due.expand(-1, 5), f"steps of the logits, {heads} heads")
        if not lab.causal:
            first = w[:, 0]
            see.close(first[:, :-1].log() - first[:, 1:].log(), due.expand(-1, 5), f"steps ahead, {heads} heads")
        elif lab.variant.traits.cache != "none":
            cache = layer.new_cache(1, 6)
            fed(layer, cache, x[:, :5])
            step = layer(x[:, 5:], cache=cache, need_weights=True)[1][0]
            see.close(step[:, 0], last, f"the weights of a cached step, {heads} heads")
        see.reacts(torch.full_like(last, 1 / 6), last, "weights of equal keys")
