"""Laws of the ring: a cache that holds a window of the newest tokens, and decodes as if it held them all.

Most of them decode without gradients: there the keys may be read as they lie.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Case, Lab
from attnzoo.checks.engine.law import ROOT, croppable, law, masked, padded, ring, staged, weights
from attnzoo.checks.laws.caches import fed
from attnzoo.errors import InputError

# Several times longer than the windows that are tried.
LENGTH = 23
WINDOWS = (1, 4, 5)
STEPS = (0, 9, 10, 11, 14, *range(15, LENGTH + 1))  # a prompt, tokens one by one, and a chunk among them


def causal(case: Case) -> bool:
    """Cases built causal: no other has a cache."""
    return case.causal


@law("ring.equals_whole", "C8", needs=[ring], where=causal)
def equals_whole(lab: Lab, see: Evidence) -> None:
    """Far beyond the window, cached steps and chunks give what the whole sequence gives at once.

    Token by token, in chunks shorter than the window, as long, longer, and with everything in one call; with gradients
    and without.
    """
    for window, graph in [*((window, False) for window in WINDOWS), (4, True)]:
        layer = lab.layer(window=window)
        x = lab.tokens(t=LENGTH)
        whole = layer(x)
        chunk = {
            size: [size] * (LENGTH // size) for size in (window - 1, window, window + 1, 2 * window + 1) if size > 1
        }
        cuts = {
            "token by token": [],
            "at once": [LENGTH],
            **{f"in chunks of {size}": cut for size, cut in chunk.items()},
        }
        for how, sizes in cuts.items():
            with torch.set_grad_enabled(graph):
                y = fed(layer, layer.new_cache(x.shape[0], LENGTH), x, *sizes)
            order = 8 * torch.finfo(x.dtype).eps
            what = f"outputs with a ring of {window}, {how}, {'with' if graph else 'without'} gradients"
            see.close(y, whole, what, plain=order)
        if window > 1:
            see.reacts(whole[:, 2 * window :], layer(x[:, 2 * window :]), "outputs when the window before is forgotten")


@law("ring.counts", "C13", needs=[ring, staged], where=causal)
def counts(lab: Lab, see: Evidence) -> None:
    """A ring never holds more than its window, and `length` counts every token seen.

    Its bytes are 2 · b · kv_heads · min(length, window) · head_dim · itemsize, after each step and each chunk.
    """
    for window in WINDOWS:
        for dtype in (torch.float64, torch.bfloat16):
            layer = lab.layer(dtype, window=window)
            x = lab.tokens(t=LENGTH, dtype=dtype)
            k, v = layer.project(x)[1:]
            each = (math.prod(k.shape) + math.prod(v.shape)) // LENGTH * x.element_size()
            cache, length = layer.new_cache(x.shape[0], LENGTH), 0
            for size in (1, 1, window, 1, 2 * window + 1, 1):
                layer(x[:, length : length + size], cache=cache)
                length += size
                see.holds(cache.length == length, f"after {length} tokens length is {length}, not {cache.length}")
                due = each * min(length, window)
                what = f"{length} tokens in a window of {window} take {due} bytes in {dtype}, not {cache.nbytes}"
                see.holds(cache.nbytes == due, what)


@law("ring.padded", "C4", needs=[ring, padded], where=causal, after=(ROOT, "ring.equals_whole"))
@torch.no_grad()
def left_padded(lab: Lab, see: Evidence) -> None:
    """A left-padded batch decodes beyond the window as each sample would alone; the key_mask counts all tokens seen."""
    layer = lab.layer(window=4)
    b = 3
    x = lab.tokens(b, LENGTH)
    lengths = [LENGTH, LENGTH - 3, LENGTH - 9]
    real = lab.padding(lengths, LENGTH, left=True)
    cache, outputs = layer.new_cache(b, LENGTH), []
    edges = [0, 1, 8, 10, 11, *range(12, LENGTH + 1)]
    for start, end in pairwise(edges):
        outputs.append(layer(x[:, start:end], cache=cache, key_mask=real[:, :end]))
    y = torch.cat(outputs, dim=1)
    for i in range(b):
        alone = layer(x[i : i + 1, real[i]])
        see.close(y[i : i + 1, real[i]], alone, f"a sample of {lengths[i]} tokens decoded in a padded batch, and alone")
    see.reacts(y, layer(x), "outputs when the padding is not masked")


@law("ring.masked", "C4", needs=[ring, masked], where=causal, after=(ROOT, "ring.equals_whole"))
@torch.no_grad()
def masked_steps(lab: Lab, see: Evidence) -> None:
    """Beyond the window too, a mask has a column for every token seen, and goes by their order, not by where they lie.

    A ring may hold its keys in any order, and a lone token that sees them all does not tell; under a mask it does.
    """
    layer = lab.layer(window=4)
    x = lab.tokens(t=LENGTH)
    b = x.shape[0]
    allowed = lab.mask(b, 1, LENGTH, LENGTH)
    for kind, mask in (("boolean", allowed), ("floating", 2 * lab.normal(b, 1, LENGTH, LENGTH, draw=3))):
        whole = layer(x, mask=mask)
        cache = layer.new_cache(b, LENGTH)
        steps = [layer(x[:, i:k], cache=cache, mask=mask[:, :, i:k, :k]) for i, k in pairwise(STEPS)]
        see.close(torch.cat(steps, dim=1), whole, f"outputs of a ring under a {kind} mask, and of the whole")
        if not lab.case.solitary:
            see.reacts(layer(x), whole, f"the output under a {kind} mask")


@law("ring.weights", "C12", needs=[ring, weights], where=causal, after=(ROOT, "ring.equals_whole"))
@torch.no_grad()
def returned_weights(lab: Lab, see: Evidence) -> None:
    """Beyond the window too, the weights have a column for every token seen, in their order: zero for those let go."""
    layer = lab.layer(window=4)
    x = lab.tokens(t=LENGTH)
    whole = layer(x, need_weights=True)[1]
    cache = layer.new_cache(x.shape[0], LENGTH)
    for start, end in pairwise(STEPS):
        w = layer(x[:, start:end], cache=cache, need_weights=True)[1]
        due = whole[:, :, start:end, :end]
        see.close(w, due, f"the weights of tokens {start} to {end - 1}, decoded with a ring of 4, and of the whole")


@law("ring.crop", "C13", needs=[ring, croppable], where=causal, after=(ROOT, "ring.equals_whole"))
@torch.no_grad()
def crop(lab: Lab, see: Evidence) -> None:
    """With rollback=r the last r tokens can be taken back after the window is full; more is refused with both numbers.

    What was overwritten is gone: a ring that crops without a look decodes on with holes.
    """
    window, back = 4, 3
    layer = lab.layer(window=window)
    x, guess = lab.tokens(t=LENGTH), lab.tokens(t=LENGTH, draw=1)
    b, whole = x.shape[0], layer(x)
    for kept in (2, window, 11):
        for how, sizes in (("token by token", []), ("as a chunk", [kept, back])):
            cache = layer.new_cache(b, LENGTH + back, rollback=back)
            fed(layer, cache, torch.cat([x[:, :kept], guess[:, kept : kept + back]], dim=1), *sizes)
            cache.crop(kept)
            see.holds(cache.length == kept, f"after crop({kept}) length is {kept}, not {cache.length}")
            y = fed(layer, cache, x[:, kept:])
            see.close(y, whole[:, kept:], f"outputs after {back} tokens, fed {how}, were taken back to {kept}")
    cache = layer.new_cache(b, LENGTH, rollback=back)
    fed(layer, cache, x[:, :15])
    most = _bytes(layer, x, window + back)
    see.holds(
        most is None or cache.nbytes <= most, f"{window} + {back} tokens are held at most, not {cache.nbytes} bytes"
    )
    far = 15 - back - 2
    _refused(see, cache, far, (15 - back, 15 - back - 1))
    see.raises(InputError, lambda: cache.crop(16), "crop(16) of 15 tokens", words=(16, 15))
    see.close(fed(layer, cache, x[:, 15:]), whole[:, 15:], "outputs after refused crops")


def _bytes(layer: Any, x: Tensor, tokens: int) -> int | None:
    """The bytes of so many tokens, where the layer shows its stages."""
    if not hasattr(layer, "project"):
        return None
    k, v = layer.project(x)[1:]
    return int((math.prod(k.shape) + math.prod(v.shape)) // x.shape[1] * tokens * x.element_size())


def _refused(see: Evidence, cache: Any, n: int, oldest: tuple[int, ...]) -> None:
    """crop(n) is refused; the error names n and the oldest length there is, which depends on how much is held."""
    try:
        cache.crop(n)
    except InputError as refusal:
        said = str(refusal)
        named = str(n) in said and any(str(length) in said for length in oldest)
        see.holds(named, f"crop({n}): the error must name {n} and the oldest length, {oldest[0]}; it says: {said}")
    else:
        see.holds(False, f"crop({n}) beyond the rollback must be refused, but was accepted")


@law("ring.reorder", "C13", needs=[ring], where=causal, after=(ROOT, "ring.equals_whole"))
@torch.no_grad()
def reorder(lab: Lab, see: Evidence) -> None:
    """`reorder` and `reset` act on a full ring as on a new one: keys and values alike, and the place to go on from."""
    layer = lab.layer(window=4)
    x, other = lab.tokens(3, LENGTH), lab.tokens(3, LENGTH, draw=1)
    index = torch.tensor([2, 0, 0], device=lab.device)
    cache = layer.new_cache(3, LENGTH)
    fed(layer, cache, x[:, :10])
    cache.reorder(index)
    see.holds(cache.length == 10, f"reorder keeps the length, 10, not {cache.length}")
    beams = torch.cat([x[index, :10], other[:, 10:]], dim=1)
    see.close(fed(layer, cache, beams[:, 10:]), layer(beams)[:, 10:], "outputs of the reordered beams")
    see.reacts(layer(beams)[:, 10], layer(torch.cat([x[:, :10], other[:, 10:]], dim=1))[:, 10], "without reorder")
    cache.reset()
    see.holds((cache.length, cache.nbytes) == (0, 0), "a reset ring holds nothing")
    see.close(fed(layer, cache, x, 3), layer(x), "outputs after reset")
