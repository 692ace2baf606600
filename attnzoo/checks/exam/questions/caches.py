"""Questions about the cache; most steps are decoded without gradients, as text is generated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import law
from attnzoo.checks.exam.questions.witness import Witness, question, taken


@question(law.cached)
@torch.no_grad()
def steps(w: Witness) -> Any:
    return fed(w, w.layer().new_cache(3, 7), w.tokens(), [3, 1, 1, 1, 1])


@question(law.cached)
def chunks(w: Witness) -> Any:
    return fed(w, w.layer().new_cache(3, 7), w.tokens(), [3, 4])


@question(law.cached)
@torch.no_grad()
def steps_after_reset(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 7)
    fed(w, cache, w.tokens(draw=1), [4, 1])
    cache.reset()
    return fed(w, cache, w.tokens(), [3, 1, 3])


@question(law.cached)
@torch.no_grad()
def steps_after_crop(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 9)
    fed(w, cache, torch.cat([w.tokens()[:, :3], w.tokens(draw=1)[:, 3:6]], dim=1), [6])
    cache.crop(3)
    return fed(w, cache, w.tokens()[:, 3:], [1, 3])


@question(law.cached)
def steps_after_reorder(w: Witness) -> Any:
    return _reordered(w, [2, 0, 0])


@question(law.cached)
@torch.no_grad()
def steps_in_turn(w: Witness) -> Any:
    one, two = w.layer().new_cache(3, 7), w.layer().new_cache(3, 7)
    x, other = w.tokens(), w.tokens(draw=1)
    turns = [w.layer()(part[:, i : i + 1], cache=cache) for i in range(3) for part, cache in ((x, one), (other, two))]
    return torch.cat(turns, dim=1)


@question(law.cached, law.padded)
@torch.no_grad()
def steps_padded(w: Witness) -> Any:
    return fed_padded(w)


@question(law.cached, law.weights)
@torch.no_grad()
def step_weights(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 7)
    w.layer()(w.tokens()[:, :5], cache=cache)
    return w.layer()(w.tokens()[:, 5:], cache=cache, need_weights=True)[1]


@question(law.cached, law.padded, law.weights)
@torch.no_grad()
def step_weights_padded(w: Witness) -> Any:
    real, cache = w.lab.padding([7, 5, 4], 7, left=True), w.layer().new_cache(3, 7)
    w.layer()(w.tokens()[:, :5], cache=cache, key_mask=real[:, :5])
    return w.layer()(w.tokens()[:, 5:], cache=cache, key_mask=real, need_weights=True)[1]


@question(law.cached)
def step_gradient(w: Witness) -> Any:
    cache, x = w.layer().new_cache(3, 7), w.tokens().requires_grad_()
    w.layer()(x[:, :3], cache=cache)
    return torch.autograd.grad(w.layer()(x[:, 3:], cache=cache).sum(), x)[0]


@question(law.cached)
def cache_bytes(w: Witness) -> Any:
    cache = w.layer(torch.bfloat16).new_cache(3, 9)
    w.layer(torch.bfloat16)(w.tokens(t=4, dtype=torch.bfloat16), cache=cache)
    return f"{cache.length} tokens, {cache.nbytes} bytes"


@question(law.cached)
def cache_overflow(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 5)
    return taken(lambda: w.layer()(w.tokens(), cache=cache))


@question(law.cached, law.padded)
def cache_refusal(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 9)
    w.layer()(w.tokens()[:, :4], cache=cache)
    taken(lambda: w.layer()(w.tokens()[:, 4:5], cache=cache, key_mask=torch.ones(3, 99, dtype=torch.bool)))
    return f"{cache.length} tokens"


@torch.no_grad()
def _reordered(w: Witness, rows: list[int]) -> Tensor:
    """The next token's outputs, of a cache whose rows were put in this order."""
    cache = w.layer().new_cache(3, 7)
    fed(w, cache, w.tokens()[:, :6], [6])
    cache.reorder(torch.tensor(rows, device=w.lab.device))
    return fed(w, cache, w.tokens()[:, 6:], [1])


def fed(w: Witness, cache: Any, x: Tensor, sizes: list[int], **options: Any) -> Tensor:
    """The outputs of the layer with these options, fed in chunks of these sizes."""
    outputs, start = [], 0
    for size in sizes:
        outputs.append(w.layer(**options)(x[:, start : start + size], cache=cache))
        start += size
    return torch.cat(outputs, dim=1)


def fed_padded(w: Witness, **options: Any) -> Tensor:
    """The outputs of the layer with these options, of a padded batch in a prompt, a step and a chunk."""
    real, layer, x = w.lab.padding([7, 5, 4], 7, left=True), w.layer(**options), w.tokens()
    cache, parts = layer.new_cache(3, 7), [(0, 4), (4, 5), (5, 7)]
    return torch.cat([layer(x[:, a:e], cache=cache, key_mask=real[:, :e]) for a, e in parts], dim=1)


@question(law.cached, law.positional)
@torch.no_grad()
def steps_at_places(w: Witness) -> Any:
    cache, x, places = w.layer().new_cache(3, 7), w.tokens(), 3 * torch.arange(7, device=w.lab.device)
    parts = [(0, 4), (4, 5), (5, 7)]
    return torch.cat([w.layer()(x[:, a:e], cache=cache, positions=places[a:e]) for a, e in parts], dim=1)


@question(law.cached)
def steps_after_turn(w: Witness) -> Any:
    return _reordered(w, [2, 0, 1])


@question(law.cached, law.masked)
def cache_refused_mask(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 9)
    w.layer()(w.tokens()[:, :4], cache=cache)
    taken(lambda: w.layer()(w.tokens()[:, 4:5], cache=cache, mask=torch.ones(1, 99, dtype=torch.bool)))
    return f"{cache.length} tokens"
