"""Laws of packed sequences: documents in one row are strangers, as samples of a batch are."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import reference, tolerance
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import documents, law, masked, padded
from attnzoo.checks.laws.causality import depends
from attnzoo.errors import InputError

# Enough for several documents in each row, of one token and of some.
LENGTH = 17


@law("document.apart", "C5", needs=[documents])
def apart(lab: Lab, see: Evidence) -> None:
    """Packed documents are as each would be alone: outputs, and the gradients of the input and of every parameter.

    The borders differ from row to row, some documents are one token long, and the ids are no consecutive numbers.
    """
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x, dy = lab.tokens(3, LENGTH, dtype), lab.tokens(3, LENGTH, dtype, draw=2)
        ids = _blocks(lab.documents(3, LENGTH))
        leaf = x.clone().requires_grad_()
        y = _call(lab, layer, leaf, ids)
        packed = torch.autograd.grad(y, [leaf, *layer.parameters()], dy)
        alone, dx = torch.zeros_like(y), torch.zeros_like(x)
        summed = [torch.zeros_like(parameter) for parameter in layer.parameters()]
        for row in range(3):
            for name in set(ids[row].tolist()):
                places = (ids[row] == name).nonzero()[:, 0]
                own = x[row : row + 1, places].clone().requires_grad_()
                out = layer(own)
                alone[row, places] = out[0].detach()
                got, *more = torch.autograd.grad(out, [own, *layer.parameters()], dy[row : row + 1, places])
                dx[row, places] = got[0]
                summed = [total + one for total, one in zip(summed, more, strict=True)]
        see.close(y, alone, f"documents in one row, and each alone, {dtype}")
        names = ["the input", *(name for name, _ in layer.named_parameters())]
        for name, got, due in zip(names, packed, [dx, *summed], strict=True):
            see.close(got, due, f"the gradient of {name}, packed and alone, {dtype}", plain=tolerance.rounding(dtype))
        see.reacts(layer(x), y, "the output when the documents are not told apart")


def _blocks(ids: Tensor) -> Tensor:
    """The same borders under ids of which none comes twice in a row."""
    border = torch.ones_like(ids, dtype=torch.bool)
    border[:, 1:] = ids[:, 1:] != ids[:, :-1]
    return 3 * border.long().cumsum(1) ** 2 - 40


def _call(lab: Lab, layer: Any, x: Tensor, ids: Tensor) -> Tensor:
    """The packed call; where a token's place counts, it counts within its document."""
    more = {}
    if lab.variant.traits.positions == "absolute":
        more["positions"] = ((ids[:, :, None] == ids[:, None]).tril().sum(-1) - 1).to(x.device)
    y: Tensor = layer(x, document=ids, **more)
    return y


@law("document.no_leak", "C5", needs=[documents])
def no_leak(lab: Lab, see: Evidence) -> None:
    """A token hears the tokens of its own document and no other, up to the very border, whatever else is asked.

    A document is known by its id: one whose id comes again after another goes on there.
    """
    layer = lab.layer()
    traits = lab.variant.traits
    for sample in range(2):
        x, ids = lab.tokens(1, LENGTH), lab.documents(2, LENGTH)[sample : sample + 1]
        rule = reference.visible(LENGTH, LENGTH, lab.device, causal=lab.causal, window=lab.window, document=ids)
        assert rule is not None
        full = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=lab.device)
        asked: dict[str, dict[str, Any]] = {"plain": {}}
        if traits.mask:
            asked |= {"mask": {"mask": full}, "floating mask": {"mask": full.to(x.dtype)}}
        if traits.key_mask:
            asked["key_mask"] = {"key_mask": full[:1]}
        for how, more in asked.items():
            got = depends(partial(layer, document=ids, **more), x)
            see.exactly(got, rule[0, 0], f"{how}: who hears whom in a row of documents {ids[0].tolist()}")
        if traits.weights:
            y, w = layer(x, document=ids, need_weights=True)
            beyond = w.masked_select(~rule)
            see.exactly(beyond, torch.zeros_like(beyond), "weights between documents")
            see.close(y, layer(x, document=ids), "the output with weights asked for")
        see.reacts(layer(x), layer(x, document=ids), "the output when the documents are not told apart")


@law("document.names", "C5", needs=[documents])
def names(lab: Lab, see: Evidence) -> None:
    """Ids are mere names: other names, other integers, or one name for all change nothing but what they say."""
    layer = lab.layer()
    x, ids = lab.tokens(3, LENGTH), lab.documents(3, LENGTH)
    y = layer(x, document=ids)
    see.close(layer(x, document=-7 * ids + 13), y, "the output under other names")
    see.close(layer(x, document=ids.int()), y, "the output under ids of int32")
    order = torch.tensor(sorted(set(ids.flatten().tolist())), device=ids.device)
    turned = torch.searchsorted(order, ids)
    see.close(layer(x, document=len(order) - turned), y, "the output under small names in reverse order")
    see.close(layer(x, document=torch.full_like(ids, 5)), layer(x), "one document, and none told")
    see.reacts(layer(x), y, "the output when the documents are not told apart")


@law("document.intersect", "C3", needs=[documents, masked, padded])
def intersect(lab: Lab, see: Evidence) -> None:
    """Documents meet masks and padding: a key is visible where all of them allow it."""
    layer = lab.layer()
    x, ids = lab.tokens(3, LENGTH), lab.documents(3, LENGTH)
    mask, real = lab.mask(3, 1, LENGTH, LENGTH), lab.mask(3, LENGTH, draw=1)
    together = reference.visible(LENGTH, LENGTH, lab.device, causal=False, document=ids)
    assert together is not None
    both = mask & real[:, None, None] & together
    got = layer(x, document=ids, mask=mask, key_mask=real)
    see.close(got, layer(x, mask=both), "documents with mask and key_mask, and their intersection as a mask")
    added = 2 * lab.normal(3, 1, LENGTH, LENGTH, draw=3)
    due = layer(x, mask=added.masked_fill(~together, float("-inf")))
    see.close(layer(x, document=ids, mask=added), due, "documents with a floating mask, and with -inf written into it")
    see.reacts(layer(x, document=ids), got, "the output when the masks are left out")


@law("document.refuses", "C19", needs=[documents], cases="default")
def refuses(lab: Lab, see: Evidence) -> None:
    """Ids are integers (b, t), one for each token; anything else is refused."""
    layer = lab.layer()
    x = lab.tokens()
    b, t, _ = x.shape
    ids = lab.documents(b, t)
    for what, wrong, words in (
        ("floats", ids.double(), ("float64",)),
        ("booleans", ids > 0, ("bool",)),
        ("ids one short", ids[:, :-1], ((b, t - 1), t)),
        ("ids without a batch axis", ids[0], ((t,), b)),
        ("ids of another batch", ids[:1].expand(b + 1, t), (b + 1, b)),
    ):
        see.raises(InputError, partial(layer, x, document=wrong), what, words=("document", *words))
    see.holds(layer(x, document=ids).shape == x.shape, "ids (b, t) are taken")
