"""Laws of the cache: decoding step by step is the whole sequence, and a cache does what its owner says.

Most of them decode without gradients, as all do who generate text: there a layer may take another way.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import tolerance
from attnzoo.checks.engine.evidence import REACTION, Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import ROOT, cached, croppable, growing, law, masked, padded, positional, staged, weights
from attnzoo.errors import InputError, Unsupported
from attnzoo.variant import Variant


def key_value(variant: Variant) -> str | None:
    """Its cache holds keys and values."""
    kind = variant.traits.cache
    return None if kind == "kv" else f"declares cache {kind!r}, not 'kv'"


def fed(layer: Any, cache: Any, x: Tensor, *sizes: int, **asked: Any) -> Tensor:
    """The outputs of x, fed to the layer in chunks of these sizes, the rest token by token."""
    t = x.shape[1]
    sizes = (*sizes, *[1] * (t - sum(sizes)))
    outputs, start = [], 0
    for size in sizes:
        outputs.append(layer(x[:, start : start + size], cache=cache, **asked))
        start += size
    return torch.cat(outputs, dim=1)


@law("cache.equals_whole", "C12", needs=[cached], cases="all", where=lambda case: case.causal)
def equals_whole(lab: Lab, see: Evidence) -> None:
    """Cached steps, and uneven chunks, give what the whole sequence gives at once, with gradients and without.

    A prompt and then single tokens; chunk after chunk; everything at once. Here a wrong offset shows, of positions or
    of the triangle.
    """
    for dtype, graph in [*((dtype, False) for dtype in lab.dtypes()), (torch.float64, True)]:
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        t = x.shape[1]
        whole = layer(x)
        cuts = {"token by token": (), "at once": (t,), "a prompt of half": (max(1, t // 2),)}
        if t > 4:
            cuts["chunks of 3, 1 and the rest"] = (3, 1, t - 4)
            cuts["chunks of 3, none and the rest"] = (3, 0, t - 3)
        for how, sizes in cuts.items():
            with torch.set_grad_enabled(graph):
                stepped = fed(layer, layer.new_cache(x.shape[0], t), x, *sizes)
            # One query is summed by other kernels than many; without a softmax the sums may be large.
            order = tolerance.rounding(dtype, 64 if lab.variant.traits.rows == "free" else 8)
            what = f"outputs with a cache, {how}, {'with' if graph else 'without'} gradients, {dtype}"
            see.close(stepped, whole, what, plain=order)
    if t > 1 and not lab.case.solitary:
        forgotten = torch.cat([layer(x[:, i : i + 1]) for i in range(t)], dim=1)
        see.reacts(whole, forgotten, "outputs when nothing is remembered")


@law(
    "cache.padded",
    "C4",
    needs=[cached, padded],
    where=lambda case: case.causal and case.b > 1,
    after=(ROOT, "cache.equals_whole"),
)
@torch.no_grad()
def left_padded(lab: Lab, see: Evidence) -> None:
    """A left-padded batch decodes as each sample would alone; the key_mask counts the cached tokens."""
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    lengths = [max(2, t - 5 * i) for i in range(b)]  # the first chunk is nothing but padding to some
    real = lab.padding(lengths, t, left=True)
    absolute = lab.variant.traits.positions == "absolute"
    places = (real.long().cumsum(1) - 1).clamp(min=0)
    cache, outputs = layer.new_cache(b, t), []
    for start, end in [(0, t - 3), *((i, i + 1) for i in range(t - 3, t))]:
        more = {"positions": places[:, start:end]} if absolute else {}
        outputs.append(layer(x[:, start:end], cache=cache, key_mask=real[:, :end], **more))
    y = torch.cat(outputs, dim=1)
    see.finite(y, "outputs of a padded batch with a cache, the padded places too")
    for i in range(b):
        see.close(y[i : i + 1, real[i]], layer(x[i : i + 1, real[i]]), f"a sample of {lengths[i]} decoded in a batch")
    see.reacts(y, layer(x), "outputs when the padding is not masked")


@law(
    "cache.weights", "C12", needs=[cached, weights], where=lambda case: case.causal, after=(ROOT, "cache.equals_whole")
)
@torch.no_grad()
def cached_weights(lab: Lab, see: Evidence) -> None:
    """The weights of a cached step are the last rows of the whole, its keys the cached ones too; padded as well."""
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    asks: dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]] = {"plain": ({}, {})}
    if lab.variant.traits.key_mask:
        real = lab.padding([max(2, t - 2 * i) for i in range(b)], t, left=True)
        asks["padded"] = {"key_mask": real[:, :-2]}, {"key_mask": real}
    for how, (before, now) in asks.items():
        cache = layer.new_cache(b, t)
        layer(x[:, :-2], cache=cache, **before)
        w = layer(x[:, -2:], cache=cache, **now, need_weights=True)[1]
        due = layer(x, **now, need_weights=True)[1][:, :, -2:]
        see.close(w, due, f"the weights of the last two tokens, cached and whole, {how}")


@law(
    "cache.positions",
    "C12",
    needs=[cached, positional],
    where=lambda case: case.causal and not case.flat and not case.solitary,
    after=(ROOT, "cache.equals_whole"),
)
@torch.no_grad()
def given_positions(lab: Lab, see: Evidence) -> None:
    """Cached steps take the positions that they are given: in a prompt, in chunks and token by token, as in the whole.

    As a left-padded batch needs, or a prompt with gaps: counted on by themselves they would be others. A layer that
    cannot do both must refuse positions beside a cache.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    index = torch.arange(t, device=lab.device)
    step = torch.arange(1, b + 1, device=lab.device)[:, None]
    try:
        layer(x[:, :3], cache=layer.new_cache(b, t), positions=index[:3])
    except Unsupported as refusal:
        see.holds(
            "positions" in str(refusal), f"positions with a cache: the error must name positions; it says: {refusal}"
        )
        return
    for how, places in {"one for all": 3 * index + 2, "per sample": step * (index + 1)}.items():
        whole = layer(x, positions=places)
        for sizes in ([1] * t, [3, 1, t - 4]):
            cache, start, outputs = layer.new_cache(b, t), 0, []
            for size in sizes:
                end = start + size
                outputs.append(layer(x[:, start:end], cache=cache, positions=places[..., start:end]))
                start = end
            see.close(torch.cat(outputs, dim=1), whole, f"outputs of cached steps at positions {how}, and of the whole")
        see.reacts(layer(x), whole, f"the output at positions {how}")


@law(
    "cache.long",
    "C12",
    needs=[cached],
    cases="default",
    where=lambda case: case.causal and not case.solitary,
    after=(ROOT, "cache.equals_whole"),
)
def long(lab: Lab, see: Evidence) -> None:
    """Hundreds of tokens decode as the whole: with a cache that grows, where it can, and a padded batch, where it may.

    Beyond the sizes of rooms, blocks and tables: 250 tokens at once, then two chunks, then one by one.
    """
    layer = lab.layer()
    x = lab.tokens(2, 300)
    absolute = lab.variant.traits.positions == "absolute"
    padded_too = lab.variant.traits.key_mask and not absolute
    real = lab.padding([300, 281], 300, left=True)
    with torch.no_grad():
        whole = layer(x, **({"key_mask": real} if padded_too else {}))
        cache = layer.new_cache(2) if growing(lab.variant) is None else layer.new_cache(2, 300)
        start = 0
        for size in (250, 20, 18, *[1] * 12):
            end = start + size
            y = layer(x[:, start:end], cache=cache, **({"key_mask": real[:, :end]} if padded_too else {}))
            see.close(y, whole[:, start:end], f"tokens {start} to {end} of 300, with a cache", plain=1e-12)
            start = end
        see.reacts(whole[:, 250:], layer(x[:, 250:]), "the last outputs when what came before is forgotten")
    see.holds(cache.length == 300, f"after 300 tokens length is 300, not {cache.length}")


@law("cache.counts", "C13", needs=[cached, key_value, staged], where=lambda case: case.causal)
def counts(lab: Lab, see: Evidence) -> None:
    """`length` counts the tokens held and `nbytes` their bytes: as many for each token, and no more than its keys and
    values have, 2 · b · kv_heads · length · head_dim · itemsize.

    Less where a cache holds something smaller, from which it makes them.
    """
    for dtype in (*lab.dtypes(), torch.bfloat16):
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        k, v = layer.project(x)[1:]
        cache = layer.new_cache(x.shape[0], x.shape[1] + 3)
        see.holds(cache.length == 0 and cache.nbytes == 0, "a new cache holds nothing")
        bytes_of = {}
        for length, size in ((3, 3), (4, 1)):
            layer(x[:, length - size : length], cache=cache)
            see.holds(cache.length == length, f"after {length} tokens length is {length}, not {cache.length}")
            most = (math.prod(k.shape) + math.prod(v.shape)) // x.shape[1] * length * x.element_size()
            see.holds(
                0 < cache.nbytes <= most, f"{length} tokens take at most {most} bytes in {dtype}, not {cache.nbytes}"
            )
            bytes_of[length] = cache.nbytes
        due = bytes_of[3] * 4 // 3
        see.holds(bytes_of[4] == due, f"4 tokens take {due} bytes, since 3 take {bytes_of[3]}; not {bytes_of[4]}")


@law("cache.reset", "C13", needs=[cached], where=lambda case: case.causal, after=(ROOT, "cache.equals_whole"))
@torch.no_grad()
def reset(lab: Lab, see: Evidence) -> None:
    """After `reset` a cache is as good as new: nothing of the sequence before is left."""
    layer = lab.layer()
    x, other = lab.tokens(), lab.tokens(draw=1)
    t = x.shape[1]
    cache = layer.new_cache(x.shape[0], t)
    fed(layer, cache, other, 2)
    cache.reset()
    see.holds(cache.length == 0 and cache.nbytes == 0, "a reset cache holds nothing")
    see.close(fed(layer, cache, x, 3), layer(x), "outputs of another sequence after reset")
    see.reacts(layer(x), layer(other), "the other sequence's output")


@law("cache.crop", "C13", needs=[cached, croppable], where=lambda case: case.causal, after=(ROOT, "cache.equals_whole"))
@torch.no_grad()
def crop(lab: Lab, see: Evidence) -> None:
    """`crop(n)` keeps the first n tokens: tokens rejected after a guess leave no trace."""
    layer = lab.layer()
    x, guess = lab.tokens(), lab.tokens(draw=1)
    b, t, _ = x.shape
    far = {"rollback": t} if lab.variant.traits.cache == "ring" else {}
    cache = layer.new_cache(b, t, **far)
    layer(torch.cat([x[:, :3], guess[:, 3:]], dim=1), cache=cache)
    cache.crop(3)
    see.holds(cache.length == 3, f"after crop(3) length is 3, not {cache.length}")
    see.close(fed(layer, cache, x[:, 3:]), layer(x)[:, 3:], "outputs after a rejected guess")
    see.raises(InputError, lambda: cache.crop(t + 1), f"crop({t + 1}) of {t} tokens", words=(t + 1, t))


@law("cache.reorder", "C13", needs=[cached], where=lambda case: case.causal, after=(ROOT, "cache.equals_whole"))
@torch.no_grad()
def reorder(lab: Lab, see: Evidence) -> None:
    """`reorder(index)` makes row i what row index[i] was, keys and values alike, as beam search needs.

    With an index that names one row twice, since a permutation would hide that only half of the cache was moved; and
    with a permutation, which may be done in place, row after row, and go wrong. At the longest length at which the
    next token hears any before it: the first of a chunk hears itself only.
    """
    layer = lab.layer()
    x = lab.tokens(b=3)
    if not lab.case.solitary:
        x = x[:, : _with_a_past(layer, x)]
    t = x.shape[1]
    for rows in ([2, 0, 0], [2, 0, 1], [1, 2, 0]):
        index = torch.tensor(rows, device=lab.device)
        cache = layer.new_cache(3, t)
        layer(x[:, :-1], cache=cache)
        held = cache.length, cache.nbytes
        cache.reorder(index)
        see.holds((cache.length, cache.nbytes) == held, "reorder keeps length and bytes")
        beams = torch.cat([x[index, :-1], x[:, -1:]], dim=1)
        see.close(layer(x[:, -1:], cache=cache), layer(beams)[:, -1:], f"the next output of beams reordered by {rows}")
        if not lab.case.solitary:
            see.reacts(layer(beams)[:, -1:], layer(x)[:, -1:], "the next output without reorder")


def _with_a_past(layer: Any, x: Tensor) -> int:
    """The longest length of x whose last output hears earlier tokens; all of it where none does."""
    other = x.flip(0)
    for t in range(x.shape[1], 1, -1):
        moved = torch.cat([other[:, : t - 1], x[:, t - 1 : t]], dim=1)
        if tolerance.error(layer(moved)[:, -1], layer(x[:, :t])[:, -1])[0] > REACTION:
            return t
    return x.shape[1]


@law("cache.masked", "C4", needs=[cached, masked], where=lambda case: case.causal, after=(ROOT, "cache.equals_whole"))
@torch.no_grad()
def masked_steps(lab: Lab, see: Evidence) -> None:
    """The mask of a cached step has a column for every token so far: its outputs are those rows of the whole."""
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    allowed = lab.mask(b, 1, t, t)
    for kind, mask in (("boolean", allowed), ("floating", 2 * lab.normal(b, 1, t, t, draw=3))):
        whole = layer(x, mask=mask)
        cache, start, outputs = layer.new_cache(b, t), 0, []
        for size in (t - 4, 1, 3):
            end = start + size
            outputs.append(layer(x[:, start:end], cache=cache, mask=mask[:, :, start:end, :end]))
            start = end
        see.close(torch.cat(outputs, dim=1), whole, f"outputs of cached steps under a {kind} mask, and of the whole")
        if not lab.case.solitary:
            see.reacts(layer(x), whole, f"the output under a {kind} mask")
    see.holds(cache.length == t, f"after {t} tokens under a mask length is {t}, not {cache.length}")


@law("cache.grows", "C13", needs=[growing], where=lambda case: case.causal, after=(ROOT, "cache.equals_whole"))
def grows(lab: Lab, see: Evidence) -> None:
    """Without a length, a cache grows as it must: never too full, nothing lost, and as many bytes as of a given length.

    Through the sizes at which rooms are doubled, token by token and in a chunk that is longer than all before it.
    """
    layer = lab.layer()
    x = lab.tokens(t=70)
    b, t, _ = x.shape
    whole = layer(x)
    order = 8 * torch.finfo(x.dtype).eps
    for how, sizes in {"token by token": [1] * t, "in uneven chunks": [3, 1, 1, 40, 1, 24]}.items():
        cache, given, start = layer.new_cache(b), layer.new_cache(b, t), 0
        for size in sizes:
            end = start + size
            y = layer(x[:, start:end], cache=cache)
            see.close(y, whole[:, start:end], f"tokens {start} to {end}, with a growing cache, {how}", plain=order)
            if start % 16 == 0 or size > 1:
                layer(x[:, given.length : end], cache=given)
                seen = (cache.length, cache.nbytes)
                due = (given.length, given.nbytes)
                see.holds(
                    seen == due, f"length and bytes of a growing cache are those of a given room, {due}, not {seen}"
                )
            start = end


@law("cache.overflow", "C13", needs=[cached], where=lambda case: case.causal)
def overflow(lab: Lab, see: Evidence) -> None:
    """More tokens than fit are refused, with both numbers, and the refused call changes nothing.

    Refused for any other reason too: a cache is not changed at all by a call that fails.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    cache = layer.new_cache(b, t - 1)
    layer(x[:, : t - 2], cache=cache)
    held = cache.length, cache.nbytes
    see.raises(InputError, lambda: layer(x[:, -2:], cache=cache), "2 tokens where 1 fits", words=(t - 1, t - 2))
    see.raises(InputError, lambda: layer(x[:, -1:, :-1], cache=cache), "a token one channel short", words=(lab.width,))
    see.raises(
        InputError, lambda: layer(x[:1, -1:].expand(b + 1, 1, -1), cache=cache), "another batch", words=(b, b + 1)
    )
    if lab.variant.traits.key_mask:
        wrong = torch.ones(b, t + 5, dtype=torch.bool, device=lab.device)
        see.raises(
            InputError, lambda: layer(x[:, -1:], cache=cache, key_mask=wrong), "a key_mask too long", words=(t + 5,)
        )
    if lab.variant.traits.mask:
        full = torch.ones(1, t - 1, dtype=torch.bool, device=lab.device)
        for what, mask in {"a mask of integers": full.long(), "a mask too long": full.new_ones(1, t + 5)}.items():
            see.raises(InputError, partial(layer, x[:, -1:], cache=cache, mask=mask), what, words=("mask",))
    if lab.variant.traits.takes_positions:
        wrong_places = torch.zeros(3, dtype=torch.long, device=lab.device)
        call = partial(layer, x[:, -1:], cache=cache, positions=wrong_places)
        see.raises((InputError, Unsupported), call, "3 positions for a token", words=("positions",))
    see.holds((cache.length, cache.nbytes) == held, "refused calls leave the cache as it was")
    untroubled = layer.new_cache(b, t - 1)
    layer(x[:, : t - 2], cache=untroubled)
    token = x[:, t - 2 : t - 1]
    due = layer(token, cache=untroubled)
    see.close(layer(token, cache=cache), due, "the token that fits, after refusals and without")


@law("cache.gradients", "C13", needs=[cached], where=lambda case: case.causal, after=(ROOT, "cache.equals_whole"))
def gradients(lab: Lab, see: Evidence) -> None:
    """Cached tokens are detached, and the newest ones get the gradient they get in the whole sequence.

    A cache that holds the graph grows without end; one that hands out its own copy loses the gradient in silence.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    first, last = x[:, :3].clone().requires_grad_(), x[:, 3:].clone().requires_grad_()
    cache = layer.new_cache(b, t)
    layer(first, cache=cache)
    y = layer(last, cache=cache)
    dy = lab.tokens(draw=2)[:, 3:]
    got, none = torch.autograd.grad(y, [last, first], dy, allow_unused=True)
    (due,) = torch.autograd.grad(layer(torch.cat([x[:, :3], last], dim=1))[:, 3:], last, dy)
    see.holds(none is None, "no gradient reaches the cached tokens")
    see.close(got, due, "the newest tokens' gradient, with a cache and in the whole")
    again = layer.new_cache(b, t)
    for _ in range(2):
        again.reset()
        layer(x, cache=again).sum().backward()
    see.holds(True, "two training steps with one cache, reset between, run")


@law("cache.apart", "C18", needs=[cached], where=lambda case: case.causal, after=(ROOT, "cache.equals_whole"))
@torch.no_grad()
def apart(lab: Lab, see: Evidence) -> None:
    """Two caches of one layer do not meet, and a call without a cache remembers nothing."""
    layer = lab.layer()
    x, other = lab.tokens(), lab.tokens(draw=1)
    b, t, _ = x.shape
    one, two = layer.new_cache(b, t), layer.new_cache(b, t)
    whole, whole_other = layer(x), layer(other)
    for i in range(t):
        see.close(layer(x[:, i : i + 1], cache=one), whole[:, i : i + 1], f"token {i} of one sequence")
        see.close(layer(other[:, i : i + 1], cache=two), whole_other[:, i : i + 1], f"token {i} of another, in turn")
    see.exactly(layer(x), whole, "a call without a cache, after calls with one")


@law("cache.needs_causality", "C13", needs=[cached], cases="all", where=lambda case: not case.causal)
def needs_causality(lab: Lab, see: Evidence) -> None:
    """A layer with causal=False takes no growing cache: a new token would change the outputs already given."""
    layer = lab.layer()
    causal = lab.layer(causal=True)
    x = lab.tokens()
    see.raises(Unsupported, lambda: layer.new_cache(x.shape[0], 9), "new_cache with causal=False", words=("causal",))
    see.raises(
        Unsupported,
        lambda: layer(x, cache=causal.new_cache(x.shape[0], 99)),
        "a cache with causal=False",
        words=("cache",),
    )
