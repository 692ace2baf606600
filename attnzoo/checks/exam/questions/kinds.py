"""Questions about windows, rings, documents, scores, kernels and costs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import law
from attnzoo.checks.exam.questions.caches import fed, fed_padded
from attnzoo.checks.exam.questions.witness import Witness, fact, question, taken
from attnzoo.checks.laws import costs, places, scores
from attnzoo.errors import ConfigError, Unsupported

# Windows and rings.


@question(law.option("window"), law.weights)
def window_of_one(w: Witness) -> Any:
    return w.layer(window=1)(w.tokens(), need_weights=True)[1]


@question(law.option("window"))
def window_of_two(w: Witness) -> Any:
    return w.layer(window=2)(w.tokens())


@question(law.option("window"))
def window_of_all(w: Witness) -> Any:
    return w.layer(window=7)(w.tokens())


@question(law.option("window"))
def window_far(w: Witness) -> Any:
    return w.layer(window=1000)(w.tokens())


@question(law.option("window"), law.option("causal"))
def window_both_ways(w: Witness) -> Any:
    return w.layer(window=3, causal=False)(w.tokens())


@question(law.option("window"))
def window_by_place(w: Witness) -> Any:
    return w.layer(window=3)(w.tokens(), positions=torch.arange(7, device=w.lab.device) * 5)


@question(law.option("window"))
def window_of_none(w: Witness) -> Any:
    return taken(lambda: w.make(torch.float64, redrawn=False, window=0))


@question(law.ring)
@torch.no_grad()
def ring_steps(w: Witness) -> Any:
    return fed(w, w.layer(window=4).new_cache(2, 17), w.tokens(t=17, b=2), [6] + 11 * [1], window=4)


@question(law.ring)
def ring_chunks(w: Witness) -> Any:
    return fed(w, w.layer(window=4).new_cache(2, 17), w.tokens(t=17, b=2), [3, 3, 8, 1, 2], window=4)


@question(law.ring)
def ring_bytes(w: Witness) -> Any:
    layer, told = w.layer(window=4), []
    cache, x = layer.new_cache(2, 17), w.tokens(t=17, b=2)
    for start, end in ((0, 3), (3, 4), (4, 12), (12, 13)):
        layer(x[:, start:end], cache=cache)
        told.append(f"{cache.length} tokens, {cache.nbytes} bytes")
    return "; ".join(told)


@question(law.ring, law.padded)
@torch.no_grad()
def ring_padded(w: Witness) -> Any:
    layer, real = w.layer(window=4), w.lab.padding([12, 9, 5], 12, left=True)
    cache, x = layer.new_cache(3, 12), w.tokens(t=12)
    parts = [(0, 5), (5, 6), (6, 10), *((i, i + 1) for i in (10, 11))]
    return torch.cat([layer(x[:, a:e], cache=cache, key_mask=real[:, :e]) for a, e in parts], dim=1)


@question(law.ring, law.masked)
@torch.no_grad()
def ring_masked(w: Witness) -> Any:
    layer, allowed = w.layer(window=4), w.lab.mask(3, 1, 12, 12)
    cache, x = layer.new_cache(3, 12), w.tokens(t=12)
    parts = [(0, 5), (5, 8), *((i, i + 1) for i in range(8, 12))]
    return torch.cat([layer(x[:, a:e], cache=cache, mask=allowed[:, :, a:e, :e]) for a, e in parts], dim=1)


@question(law.ring, law.weights)
@torch.no_grad()
def ring_weights(w: Witness) -> Any:
    layer = w.layer(window=4)
    cache, x = layer.new_cache(3, 12), w.tokens(t=12)
    fed(w, cache, x[:, :9], [9], window=4)
    weights = [layer(x[:, i : i + 1], cache=cache, need_weights=True)[1].flatten() for i in range(9, 12)]
    return torch.cat(weights)


@question(law.ring, law.croppable)
@torch.no_grad()
def ring_crop(w: Witness) -> Any:
    layer, x = w.layer(window=4), w.tokens(t=12)
    cache = layer.new_cache(3, 15, rollback=3)
    fed(w, cache, torch.cat([x[:, :9], w.tokens(t=12, draw=1)[:, 9:12]], dim=1), [9, 1, 1, 1], window=4)
    cache.crop(9)
    return fed(w, cache, x[:, 9:], [1, 2], window=4)


@question(law.ring)
def ring_crop_far(w: Witness) -> Any:
    cache = w.layer(window=4).new_cache(3, 15)
    fed(w, cache, w.tokens(t=12), [12], window=4)
    return taken(lambda: cache.crop(3))


@question(law.ring)
@torch.no_grad()
def ring_reorder(w: Witness) -> Any:
    cache, x = w.layer(window=4).new_cache(3, 12), w.tokens(t=12)
    fed(w, cache, x[:, :9], [9], window=4)
    cache.reorder(torch.tensor([2, 0, 0], device=w.lab.device))
    return fed(w, cache, x[:, 9:], [1, 2], window=4)


@question(law.ring)
def ring_reset(w: Witness) -> Any:
    cache = w.layer(window=4).new_cache(3, 12)
    fed(w, cache, w.tokens(t=12), [12], window=4)
    cache.reset()
    return f"{cache.length} tokens, {cache.nbytes} bytes"


@question(law.growing)
def grown(w: Witness) -> Any:
    cache = w.layer().new_cache(1)
    y = fed(w, cache, w.tokens(t=70, b=1), [3, 20, *[1] * 20, 21, *[1] * 6])
    return y if cache.nbytes else "nothing held"


@question(law.growing)
def grown_bytes(w: Witness) -> Any:
    cache = w.layer().new_cache(1)
    fed(w, cache, w.tokens(t=9, b=1), [9])
    return f"{cache.length} tokens, {cache.nbytes} bytes"


@question(law.cached, law.masked)
@torch.no_grad()
def steps_masked(w: Witness) -> Any:
    layer, rows = w.layer(), w.lab.mask(7, 7)
    cache, x = layer.new_cache(3, 7), w.tokens()
    parts = [(0, 4), (4, 5), (5, 7)]
    return torch.cat([layer(x[:, a:e], cache=cache, mask=rows[a:e, :e]) for a, e in parts], dim=1)


# Documents.


@question(law.documents)
def documents(w: Witness) -> Any:
    return w.layer()(w.tokens(t=17), document=w.lab.documents(3, 17))


@question(law.documents)
def documents_of_two_halves(w: Witness) -> Any:
    halves = torch.tensor([4, 4, 4, 9, 9, 9, 9], device=w.lab.device).expand(3, 7)
    return w.layer()(w.tokens(), document=halves)


@question(law.documents)
def documents_of_one(w: Witness) -> Any:
    return w.layer()(w.tokens(), document=torch.ones(3, 7, dtype=torch.long, device=w.lab.device))


@question(law.documents)
def documents_below_zero(w: Witness) -> Any:
    return w.layer()(w.tokens(), document=-w.lab.documents(3, 7) - 1)


@question(law.documents, law.masked)
def documents_masked(w: Witness) -> Any:
    return w.layer()(w.tokens(t=17), document=w.lab.documents(3, 17), mask=w.lab.mask(17, 17))


@question(law.documents, law.weights)
def documents_weights(w: Witness) -> Any:
    return w.layer()(w.tokens(t=17), document=w.lab.documents(3, 17), need_weights=True)[1]


@question(law.documents)
def documents_of_floats(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), document=w.lab.documents(3, 7).double()))


# Scores.


@question(law.option("softcap"), law.weights)
def small_cap(w: Witness) -> Any:
    return w.layer(softcap=0.5)(w.tokens(), need_weights=True)[1]


@question(law.option("softcap"), law.masked)
def small_cap_masked(w: Witness) -> Any:
    return w.layer(softcap=0.5)(w.tokens(), mask=w.lab.mask(7, 7))


@question(law.option("softcap"))
def small_cap_gradient(w: Witness) -> Any:
    x = w.tokens().requires_grad_()
    return torch.autograd.grad(w.layer(softcap=0.5)(x), x, w.tokens(draw=2))[0]


@question(law.option("softcap"))
def far_cap(w: Witness) -> Any:
    return w.layer(softcap=1e6)(w.tokens())


@question(law.option("softcap"))
def cap_of_none(w: Witness) -> Any:
    return taken(lambda: w.make(torch.float64, redrawn=False, softcap=0.0))


@question(scores.sunk)
def sinks_gradient(w: Witness) -> Any:
    layer = w.make(torch.float64)
    return torch.autograd.grad((layer(w.tokens()) * w.tokens(draw=2)).sum(), layer.sinks)[0]


@question(scores.sunk)
def sinks_gradient_with_weights(w: Witness) -> Any:
    layer = w.make(torch.float64)
    y = layer(w.tokens(), need_weights=True)[0]
    return torch.autograd.grad((y * w.tokens(draw=2)).sum(), layer.sinks)[0]


@question(scores.sunk)
def sinks_of_three(w: Witness) -> Any:
    """Under a small cap too, where the layer takes one."""
    more: dict[str, Any] = {"softcap": 1.0} if "softcap" in (w.lab.variant.options or {}) else {}
    layer = w.make(torch.float64, **more)
    with torch.no_grad():
        layer.sinks.fill_(3.0)
    return layer(w.tokens())


@question(places.indexed, law.weights, law.option("heads"), law.option("head_dim"))
def equal_tokens(w: Witness) -> Any:
    """The weights among equal tokens, of 12 heads: what the order of the tokens adds shows, and no parameter does."""
    shared = {"kv_heads": 2} if "kv_heads" in (w.lab.variant.options or {}) else {}
    layer = w.make(torch.float64, redrawn=False, heads=12, head_dim=4, **shared)
    return layer(w.tokens(t=1, b=1).expand(1, 6, -1), need_weights=True)[1]


# Kernels and costs.


@question(law.option("backend"), law.masked, law.padded)
def kernels(w: Witness) -> Any:
    """Whether the kernels that the layer offers agree with its definition, and name themselves where they refuse."""
    more = {} if w.lab.window is None else {"window": 4}
    said = []
    for how, asked in {"plain": {}, "padded": {"key_mask": w.lab.padding([17, 11], 17, left=True)}}.items():
        due, slope = _with_gradient(w.layer(**more, backend=_definition(w)), w, asked)
        for word in ("auto", "sdpa", "banded", "blocks"):
            try:
                got, got_slope = _with_gradient(w.layer(**more, backend=word), w, asked)
            except ConfigError:
                continue
            except Unsupported as refusal:
                said += [] if word in str(refusal) else [f"{how}: a refusal without a name"]
            else:
                said += [] if torch.allclose(got, due) else [f"{how}: another output"]
                said += [] if torch.allclose(got_slope, slope) else [f"{how}: another gradient"]
    masked = {"mask": w.lab.mask(17, 17)}
    for word in ("sdpa", "banded", "blocks"):
        try:
            _with_gradient(w.layer(**more, backend=word), w, masked)
        except ConfigError:
            continue
        except Unsupported as refusal:
            said += [] if word in str(refusal) else ["masked: a refusal without a name"]
    return ", ".join(sorted(set(said))) or "all agree"


@question(law.option("backend"), law.option("dropout"))
def kernels_that_drop(w: Witness) -> Any:
    """The backends that drop nothing in training."""
    keeping = []
    for word in ("auto", "eager", "sdpa", "banded", "blocks"):
        try:
            layer = w.make(torch.float64, dropout=0.5, backend=word).train()
            same = torch.allclose(layer(w.tokens()), layer(w.tokens()))
        except (ConfigError, Unsupported):
            continue
        keeping += [word] if same else []
    return ", ".join(keeping) or "all drop"


@question(law.option("backend"), law.padded)
def kernels_padded(w: Witness) -> Any:
    """Whether the kernels agree with the definition in a padded batch: in cached steps, and on a context."""
    traits, said = w.lab.variant.traits, []
    for word in ("auto", "sdpa", "blocks"):
        try:
            if traits.cache != "none":
                same = torch.allclose(fed_padded(w, backend=word), fed_padded(w, backend=_definition(w)))
                said += [] if same else ["other steps"]
            if traits.cross:
                real, context = w.lab.padding([3, 5, 4], 5, left=False), w.tokens(t=5, draw=1)
                one, due = (
                    w.layer(causal=False, backend=name)(w.tokens(), context, key_mask=real)
                    for name in (word, _definition(w))
                )
                said += [] if torch.allclose(one, due) else ["another output of a context"]
        except (ConfigError, Unsupported):
            continue
    return ", ".join(sorted(set(said))) or "all agree"


def _definition(w: Witness) -> str:
    try:
        w.make(torch.float64, redrawn=False, backend="eager")
    except ConfigError:
        return "auto"
    return "eager"


def _with_gradient(layer: Any, w: Witness, asked: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    x = w.tokens(t=17, b=2).requires_grad_()
    y = layer(x, **asked)
    return y.detach(), torch.autograd.grad(y, x, w.tokens(t=17, b=2, draw=2))[0]


@question(law.staged)
def fewer_queries(w: Witness) -> Any:
    more = {} if w.lab.window is None else {"window": 4}
    layer = w.layer(**more)
    q, k, v = layer.project(w.tokens(t=17, b=1))
    return layer.attend(q[:, :, -5:], k, v)


@question(law.option("backend"), law.staged)
def half_kernels(w: Witness) -> Any:
    """Whether the layer's own choice errs more than its definition in a half type."""
    more = {} if w.lab.window is None else {"window": 16}
    fast, plain = (w.layer(torch.bfloat16, **more, backend=word) for word in ("auto", _definition(w)))
    q, k, v = (stage.detach() for stage in plain.project((6 * w.tokens(t=129, b=1)).bfloat16()))
    v = v / 6
    due = w.layer(**more, backend=_definition(w)).attend(q.double(), k.double(), v.double())
    off, allowed = (float((layer.attend(q, k, v).double() - due).detach().abs().mean()) for layer in (fast, plain))
    return fact(off <= 2 * allowed + 1e-3)


@question(law.option("window"), costs.linear_memory)
def memory(w: Witness) -> Any:
    """Whether twice the tokens keep about twice the bytes, asked of windows that promise it."""
    layer = w.layer(torch.float32, window=16)
    half, whole = (costs.kept(layer, w.tokens(t, 1, torch.float32))[0] for t in (512, 1024))
    return fact(whole <= 2.2 * half)


@question(law.option("window"), costs.linear_work)
def work(w: Witness) -> Any:
    """Whether twice the tokens take about twice the operations, asked of windows that promise it."""
    layer = w.layer(torch.float32, window=16)
    half, whole = (costs.flops(layer, w.tokens(t, 1, torch.float32)) for t in (256, 512))
    return fact(whole <= 2.2 * half)


@question(law.cached)
def work_of_a_step(w: Witness) -> Any:
    layer, steps = w.layer(torch.float32), []
    for t in (64, 128):
        x, cache = w.tokens(t + 1, 1, torch.float32), layer.new_cache(1, t + 1)
        layer(x[:, :t], cache=cache)
        steps.append(costs.flops(layer, x[:, t:], cache=cache))
    return fact(steps[1] <= 2.2 * steps[0])
