"""Laws of masks: what they block, what they add, and how they meet."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from attnzoo.checks.engine import reference
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Case, Lab
from attnzoo.checks.engine.law import (
    ROOT,
    cross,
    law,
    masked,
    normalised,
    padded,
    plain,
    sees_all,
    staged,
    weights,
)


def several(case: Case) -> bool:
    """Cases with tokens to mask, of which some see others."""
    return case.t > 2 and not case.solitary


@law("mask.all_true", "C12", needs=[masked], cases="all")
def all_true(lab: Lab, see: Evidence) -> None:
    """A mask that allows everything changes nothing: boolean, floating zeros, or padding of no length."""
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        b, t, _ = x.shape
        y = layer(x)
        full = torch.ones(t, t, dtype=torch.bool, device=lab.device)
        see.close(layer(x, mask=full), y, "the output under an all-True mask")
        see.close(layer(x, mask=full.expand(b, 1, t, t)), y, "the output under an all-True mask of 4 axes")
        see.close(
            layer(x, mask=torch.zeros(t, t, dtype=dtype, device=lab.device)), y, "the output under a mask of zeros"
        )
        if lab.variant.traits.key_mask:
            see.close(layer(x, key_mask=full.new_ones(b, t)), y, "the output under an all-True key_mask")


@law("mask.on_context", "C4", needs=[masked, cross], where=lambda case: not case.causal)
def on_context(lab: Lab, see: Evidence) -> None:
    """A mask, or padding, of a context hides its tokens, whichever it hides and however many there are.

    Its axes are queries by tokens of the context: of another length, it cannot be taken for a mask of the sequence.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    for s in (t + 3, 2):
        context, other = lab.tokens(t=s, draw=1), lab.tokens(t=s, draw=6)
        for hidden in {0, s - 1}:
            seen = torch.arange(s, device=lab.device) != hidden
            changed = torch.where(seen[:, None], context, other)
            asks: dict[str, dict[str, Tensor]] = {"a mask": {"mask": seen.expand(t, s)}}
            asks["a mask of -inf"] = {"mask": floating(seen.expand(b, 1, t, s), x.dtype)}
            if lab.variant.traits.key_mask:
                asks["a key_mask"] = {"key_mask": seen.expand(b, s)}
            for how, asked in asks.items():
                what = f"the output when token {hidden} of {s} of the context changes, hidden by {how}"
                see.close(layer(x, changed, **asked), layer(x, context, **asked), what)
            if not lab.case.solitary:
                see.reacts(
                    layer(x, context), layer(x, changed), "the output of another context, where nothing is hidden"
                )


@law("mask.blocks", "C3", needs=[masked], where=several)
def blocks(lab: Lab, see: Evidence) -> None:
    """False blocks: a key that the mask forbids reaches no query but the one at its own place; True lets through.

    Two conventions live in one framework; with the wrong one a layer attends to exactly what was forbidden. Control:
    without the mask the key is heard.
    """
    layer = lab.layer()
    x, other = lab.tokens(), lab.tokens(draw=1)
    t = x.shape[1]
    heard: list[tuple[Tensor, Tensor]] = []
    for j in (0, t // 2):
        mask = torch.ones(t, t, dtype=torch.bool, device=lab.device)
        mask[:, j] = False
        mask[j, j] = True
        changed = x.clone()
        changed[:, j] = other[:, j]
        elsewhere = [i for i in range(t) if i != j]
        for form, given in (("boolean", mask), ("-inf", floating(mask, x.dtype))):
            before, after = layer(x, mask=given)[:, elsewhere], layer(changed, mask=given)[:, elsewhere]
            see.close(after, before, f"other outputs when token {j}, blocked by a {form} mask, changes")
        heard.append((layer(x)[:, elsewhere], layer(changed)[:, elsewhere]))
    if sees_all(lab.variant) is None:
        for j, (before, after) in zip((0, t // 2), heard, strict=True):
            see.reacts(before, after, f"other outputs when token {j} is not blocked")
    before, after = (torch.cat(outputs) for outputs in zip(*heard, strict=True))
    see.reacts(before, after, "other outputs when a token is not blocked")


@law("mask.forms", "C4", needs=[masked], cases="all", where=several, after=(ROOT, "mask.all_true"))
def forms(lab: Lab, see: Evidence) -> None:
    """A mask means the same in each form: boolean or 0 and -inf, of 2 axes or 4, written out or broadcast."""
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        b, t, _ = x.shape
        heads = int(lab.case.options.get("heads", 1))
        mask = lab.mask(t, t)
        y = layer(x, mask=mask)
        see.reacts(layer(x), y, "the output under a random mask")
        see.close(layer(x, mask=floating(mask, dtype)), y, f"the output under 0 and -inf instead of booleans, {dtype}")
        see.close(layer(x, mask=mask[None, None]), y, "the output under the mask with 4 axes")
        see.close(layer(x, mask=mask.expand(b, heads, t, t)), y, "the output under the mask written out")


@law("mask.per_sample", "C4", needs=[masked], cases="all", where=several, after=(ROOT, "mask.all_true"))
def per_sample(lab: Lab, see: Evidence) -> None:
    """A mask of 4 axes belongs to its sample and its head: each sample under its own mask is as it would be alone.

    Masks repeated in the wrong order when batch and heads are flattened give a sample its neighbour's.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    heads = int(lab.case.options.get("heads", 1))
    for shape in ((b, 1, t, t), (b, heads, t, t)):
        mask = lab.mask(*shape)
        together = layer(x, mask=mask)
        alone = torch.cat([layer(x[i : i + 1], mask=mask[i : i + 1]) for i in range(b)])
        see.close(together, alone, f"samples under masks {shape}, together and alone")


@law("mask.broadcasts", "C4", needs=[masked], cases="default", where=several, after=(ROOT, "mask.all_true"))
def broadcasts(lab: Lab, see: Evidence) -> None:
    """A mask of 4 axes may be 1 along any of them, and means what it means written out: boolean or floating.

    Along the keys as well, where a floating one changes nothing, and a boolean one hides all or nothing from a query.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    heads = int(lab.case.options.get("heads", 1))
    whole, added = lab.mask(b, heads, t, t), 2 * lab.normal(b, heads, t, t, draw=3)
    for axes in itertools.product((False, True), repeat=4):
        middle = tuple(slice(size // 2, size // 2 + 1) for size in whole.shape)
        part = tuple(slice(None) if full else one for full, one in zip(axes, middle, strict=True))
        for mask in (whole[part], added[part]):
            written = mask.expand(b, heads, t, t).contiguous()
            form = f"a {mask.dtype} mask {tuple(mask.shape)}"
            see.close(
                layer(x, mask=mask), layer(x, mask=written), f"the output under {form}, broadcast and written out"
            )
    see.reacts(layer(x), layer(x, mask=added), "the output under a floating mask")


@law("mask.heads", "C4", needs=[masked, weights], where=several, after=(ROOT, "mask.all_true"))
def each_head(lab: Lab, see: Evidence) -> None:
    """A mask (b, h, t, s) blocks in each head what it says of that head: there its weight is exactly zero.

    A mask for several heads that goes through another order of axes, or is taken for none since the first head's
    allows all, reaches the wrong head.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    heads = int(lab.case.options.get("heads", 1))
    mask = lab.mask(b, heads, t, t)
    if heads > 1:
        mask[0, 0] = True
    w = layer(x, mask=mask, need_weights=True)[1]
    behind = w.masked_select(~mask)
    see.exactly(behind, torch.zeros_like(behind), "weights behind a mask for each head")
    see.reacts(torch.zeros_like(w), w, "weights before the mask")
    see.reacts(layer(x), layer(x, mask=mask), "the output under a mask for each head")


@law("mask.weighs", "C3", needs=[masked, weights, plain], where=several, after=(ROOT, "mask.all_true"))
def weighs(lab: Lab, see: Evidence) -> None:
    """A floating mask multiplies each weight by its exponential, before the row is made to sum to 1.

    In each head by its own: whatever the logits are, the weights without a mask tell those with one.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    heads = int(lab.case.options.get("heads", 1))
    bias = lab.normal(b, heads, t, t, draw=3)
    before, after = layer(x, need_weights=True)[1], layer(x, mask=bias, need_weights=True)[1]
    due = before * bias.exp()
    see.close(after, due / due.sum(-1, keepdim=True), "the weights under a floating mask")
    see.reacts(before, after, "the weights under a floating mask")


@law("mask.low", "C3", needs=[masked, normalised], where=several, after=(ROOT, "mask.all_true"))
def low(lab: Lab, see: Evidence) -> None:
    """Only -inf blocks: a row of numbers however low is a row of softmax, not one that sees nothing.

    The same number in a whole row changes nothing; the type's lowest drowns the logits, and leaves equal weights.
    """
    layer = lab.layer()
    x = lab.tokens()
    t = x.shape[1]
    y, nothing = layer(x), layer(x, mask=torch.full((t, t), float("-inf"), dtype=x.dtype, device=lab.device))
    for number in (-2e4, torch.finfo(x.dtype).min):
        mask = torch.full((t, t), number, dtype=x.dtype, device=lab.device)
        lowered = layer(x, mask=mask)
        see.finite(lowered, f"the output under a mask of {number:.3g}")
        see.differs(nothing, lowered, f"the outputs under a mask of -inf and of {number:.3g}")
        if number > -1e5:
            order = -number * torch.finfo(x.dtype).eps
            see.close(lowered, y, f"the output under a mask of {number:.3g}, and under none", plain=order)


@law("mask.learns", "C3", needs=[masked], where=several, after=(ROOT, "mask.all_true"))
def learns(lab: Lab, see: Evidence) -> None:
    """A floating mask gets its gradient, as a learned bias needs: the slope of the output along it, to 1e-7."""
    layer = lab.layer()
    x, dy = lab.tokens(), lab.tokens(draw=2)
    b, t, _ = x.shape
    for shape in ((t, t), (b, 1, t, t)):
        mask = lab.normal(*shape, draw=3).requires_grad_()
        (gradient,) = torch.autograd.grad(layer(x, mask=mask), mask, dy, allow_unused=True)
        see.holds(gradient is not None, f"a floating mask {shape} gets a gradient")
        along, step = lab.normal(*shape, draw=4), 1e-5
        with torch.no_grad():
            ends = [float((layer(x, mask=mask + sign * step * along) * dy).sum()) for sign in (1, -1)]
            due = float((gradient * along).sum())
        off = abs((ends[0] - ends[1]) / (2 * step) - due) / max(1.0, float(gradient.abs().max()))
        see.holds(
            off < 1e-7, f"the slope along a floating mask {shape} is its gradient to 1e-7; it is off by {off:.1e}"
        )
    plain, moved = layer(x), layer(x, mask=2 * lab.normal(t, t, draw=3))
    see.reacts(plain, moved, "the output under a floating mask")


@law("mask.adds", "C3", needs=[masked, plain, staged], where=several, after=(ROOT, "mask.all_true"))
def adds(lab: Lab, see: Evidence) -> None:
    """A floating mask is added to the logits after the scale, broadcasts, and gets its gradient.

    Compared with SDPA by an explicit bias, from the layer's own queries, keys and values.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    q, k, v = (stage.detach() for stage in layer.project(x))
    h = q.shape[1]
    visible = lab.visible(t, t)
    dy = lab.tokens(draw=4)
    for shape in ((t, t), (b, 1, 1, t), (1, h, t, t), (b, h, t, t)):
        bias = 2 * lab.normal(*shape, draw=3)
        given, due = bias.clone().requires_grad_(), bias.clone().requires_grad_()
        y = layer(x, mask=given)
        expected = layer.merge(reference.attention(q, k, v, visible=visible, bias=due, scale=lab.scale(q)))
        see.close(y, expected, f"the output under a floating mask {shape}")
        (got,), (want,) = torch.autograd.grad(y, given, dy), torch.autograd.grad(expected, due, dy)
        see.close(got, want, f"the gradient of a floating mask {shape}")
    see.reacts(layer(x), layer(x, mask=2 * lab.normal(t, t, draw=3)), "the output under a floating mask")


@law("mask.wide", "C3", needs=[masked], cases="default", after=(ROOT, "mask.all_true"))
def wide(lab: Lab, see: Evidence) -> None:
    """A floating mask is added in the wide type: float32 beside a half layer is neither refused nor rounded.

    Rounded to bfloat16, 256.5 and 257.25 are one number, and float32's lowest value becomes -inf. Where rows sum to 1,
    a mask moved by 256 is the same mask.
    """
    for dtype in (torch.bfloat16, torch.float16):
        layer = lab.layer(dtype)
        x = lab.tokens(dtype=dtype)
        t = x.shape[1]
        fine = 256 + lab.normal(t, t).float().abs()
        y = layer(x, mask=fine)
        see.holds(y.dtype == dtype, f"the output under a float32 mask is {dtype}, not {y.dtype}")
        if lab.variant.traits.rows == "one":
            moved, plain_error = layer(x, mask=fine - 256), torch.finfo(dtype).eps
            see.close(y, moved, f"the output under a mask moved by 256, {dtype}", plain=plain_error)
        lowest = torch.full((t, t), torch.finfo(torch.float32).min, device=lab.device)
        see.finite(layer(x, mask=lowest), f"the output under a mask of float32's lowest value, {dtype}")


@law("mask.intersect", "C3", needs=[masked, padded], cases="all", where=several, after=(ROOT, "mask.all_true"))
def intersect(lab: Lab, see: Evidence) -> None:
    """Mask, key_mask and causality meet: a key is visible where all of them allow it.

    Given both, code forgets one, or joins them by the wrong operator.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    mask, real = lab.mask(b, 1, t, t), lab.mask(b, t, draw=1)
    real[:, 0] = True
    # Whatever was drawn, key 1 is hidden by the padding alone and key 2 by the mask alone, so that each is missed.
    real[:, 1], mask[..., 2:, 1] = False, True
    real[:, 2], mask[..., 3:, 2] = True, False
    both = mask & real[:, None, None, :]
    see.close(layer(x, mask=mask, key_mask=real), layer(x, mask=both), "mask with key_mask, and their intersection")
    see.close(
        layer(x, mask=floating(mask, x.dtype), key_mask=real), layer(x, mask=both), "the same with a floating mask"
    )
    if lab.causal:
        triangle = reference.causal(t, t, lab.device)
        see.close(
            layer(x, mask=both & triangle), layer(x, mask=both), "the mask with causality written in, and without"
        )
    see.reacts(layer(x, mask=mask), layer(x, mask=both), "the output when key_mask is left out")
    see.reacts(layer(x, key_mask=real), layer(x, mask=both), "the output when mask is left out")


@law("mask.padding", "C4", needs=[padded], cases="all", where=several)
def padding(lab: Lab, see: Evidence) -> None:
    """A padded sample is as it would be alone: padded left or right, in a batch or as a batch of one.

    Left padding with causality is the hard case: with right padding, forgetting the mask changes no real token.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    lengths = [max(1, t - 2 * i) for i in range(b)]
    absolute = lab.variant.traits.positions == "absolute"
    for left in (True, False):
        real = lab.padding(lengths, t, left=left)
        index = (real.long().cumsum(1) - 1).clamp(min=0)
        for rows in [range(b), *([i] for i in range(b))]:
            rows = list(rows)
            more = {"positions": index[rows]} if absolute else {}
            y = layer(x[rows], key_mask=real[rows], **more)
            see.finite(y, "outputs of a padded batch, the padded places too")
            for row, i in enumerate(rows):
                alone = layer(x[i : i + 1, real[i]])
                see.close(y[row : row + 1, real[i]], alone, f"a sample of {lengths[i]} tokens padded to {t}, and alone")
    if b > 1:
        see.reacts(layer(x), layer(x, key_mask=lab.padding(lengths, t, left=True)), "the output without its key_mask")


def floating(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where allowed, -inf where not."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))
