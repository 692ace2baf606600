"""Laws of shapes and types: what goes in, what comes out, and what is refused at the door."""

from __future__ import annotations

from functools import partial

import torch

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import law, masked, padded, positional, staged, weights
from attnzoo.checks.laws.truth import questions
from attnzoo.errors import InputError

HALF = (torch.bfloat16, torch.float16)


@law("shape.output", "C1")
def output(lab: Lab, see: Evidence) -> None:
    """The output has the input's shape, dtype and device, for one token, many, and several batches."""
    for dtype in (*lab.dtypes(), *HALF):
        layer = lab.layer(dtype)
        for b, t in ((1, 1), (3, 17), (2, 70)):
            x = lab.tokens(b, t, dtype)
            y = layer(x)
            same = (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
            see.holds(
                same,
                f"an input of {tuple(x.shape)} {x.dtype} on {x.device} gives the same, not {tuple(y.shape)} {y.dtype} "
                f"on {y.device}",
            )


@law("shape.empty", "C1")
def empty(lab: Lab, see: Evidence) -> None:
    """No batch or no tokens gives an empty output, no error; and an empty gradient; with weights asked for as well."""
    layer = lab.layer(torch.float32)
    for b, t in ((0, 5), (2, 0)):
        x = lab.tokens(b, t, torch.float32).requires_grad_()
        y = layer(x)
        y.sum().backward()
        see.holds(y.shape == x.shape, f"an input of {tuple(x.shape)} gives the same shape, not {tuple(y.shape)}")
        see.holds(x.grad is not None and x.grad.shape == x.shape, f"an input of {tuple(x.shape)} gets a gradient")
        if lab.variant.traits.weights:
            asked = f"with weights asked for, an input of {tuple(x.shape)}"
            pair = layer(x, need_weights=True)
            see.holds(isinstance(pair, tuple), f"{asked} gives a pair (y, weights), not a {type(pair).__name__}")
            y, w = pair
            see.holds(y.shape == x.shape, f"{asked} gives the same shape, not {tuple(y.shape)}")
            see.holds(w.numel() == 0, f"{asked} gives no weights, not {tuple(w.shape)}")


@law("shape.weights", "C1", needs=[weights], cases="all")
def weights_shape(lab: Lab, see: Evidence) -> None:
    """With need_weights=True a layer returns (y, weights), the weights (b, h, t, s), per head and in its dtype."""
    for dtype in (*lab.dtypes(), *HALF):
        x = lab.tokens(dtype=dtype)
        y, w = lab.layer(dtype)(x, need_weights=True)
        b, t = x.shape[:2]
        heads = int(lab.case.options.get("heads", w.shape[1]))
        see.holds(
            tuple(w.shape) == (b, heads, t, t), f"the weights are {(b, heads, t, t)} (b, h, t, s), not {tuple(w.shape)}"
        )
        see.holds(w.dtype == dtype, f"the weights are {dtype}, not {w.dtype}")
        see.holds(y.shape == x.shape, f"the output beside the weights is {tuple(x.shape)}, not {tuple(y.shape)}")


@law("shape.stages", "C1", needs=[staged])
def stages(lab: Lab, see: Evidence) -> None:
    """The stages have the shapes of C1, and the layer is nothing but its stages one after another."""
    layer = lab.layer()
    x = lab.tokens()
    q, k, v = layer.project(x)
    b, t, _ = x.shape
    h, g, d = q.shape[1], k.shape[1], q.shape[3]
    options = lab.case.options
    see.holds(tuple(q.shape) == (b, int(options.get("heads", h)), t, d), f"q is (b, h, t, d), not {tuple(q.shape)}")
    see.holds(d == int(options.get("head_dim") or d), f"q has the head_dim that was asked for, not {d}")
    see.holds(tuple(k.shape) == (b, int(options.get("kv_heads", g)), t, d), f"k is (b, g, s, d), not {tuple(k.shape)}")
    see.holds(v.shape[:3] == k.shape[:3], f"v is (b, g, s, ..) with k's b, g and s, not {tuple(v.shape)}")
    mixed = layer.attend(q, k, v)
    see.holds(mixed.shape[:3] == q.shape[:3], f"the mixed values are (b, h, t, ..), not {tuple(mixed.shape)}")
    see.close(layer.merge(mixed), layer(x), "merge(attend(project(x))) and the layer")


@law("shape.non_contiguous", "C1", cases="all")
def non_contiguous(lab: Lab, see: Evidence) -> None:
    """How the input lies in memory does not matter, forward or backward; nor how masks and positions lie there.

    Code that calls `view`, or reads memory in order, mixes up transposed, sliced or expanded tensors.
    """
    layer = lab.layer()
    x = lab.tokens()
    b, t, c = x.shape
    wide = lab.normal(b, t, 2 * c, draw=3)
    wide[..., ::2] = x
    shifted = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(b, t, c)
    forms = {
        "transposed in memory": x.transpose(0, 1).contiguous().transpose(0, 1),
        "channels first in memory": x.transpose(1, 2).contiguous().transpose(1, 2),
        "every second channel of a wider tensor": wide[..., ::2],
        "at an odd place in memory": shifted,
    }
    dy = lab.normal(b, t, c, draw=5)
    y, dx = _forward_backward(layer, x, dy)
    for form, same in forms.items():
        y_form, dx_form = _forward_backward(layer, same, dy)
        see.close(y_form, y, f"the output of the same input {form}")
        see.close(dx_form, dx, f"the gradient of the same input {form}")
    for how, asked in questions(lab, x).items():
        strewn = {word: torch.stack([values, values.flip(-1)], dim=-1)[..., 0] for word, values in asked.items()}
        see.close(layer(x, **strewn), layer(x, **asked), f"the output of the same {how}, strewn in memory")
    alike = x[:1].expand(b, t, c)
    see.close(layer(alike), layer(alike.contiguous()), "the output of a batch made by expand")
    _, dx = _forward_backward(layer, x, torch.ones(()).to(x).expand(b, t, c))
    see.close(dx, _forward_backward(layer, x, torch.ones_like(x))[1], "the gradient under an expanded output gradient")
    turned = dy.transpose(1, 2).contiguous().transpose(1, 2)
    see.close(
        _forward_backward(layer, x, turned)[1],
        _forward_backward(layer, x, dy)[1],
        "the gradient under a transposed output gradient",
    )


@law("shape.refuses_tokens", "C19", cases="default")
def refuses_tokens(lab: Lab, see: Evidence) -> None:
    """Input of the wrong rank, width, dtype or device is an InputError that says what came and what is due."""
    layer = lab.layer(torch.float32)
    c = lab.width
    x = lab.tokens(dtype=torch.float32)
    see.raises(InputError, lambda: layer(x[0]), "an input without a batch axis", words=(tuple(x[0].shape), c))
    see.raises(InputError, lambda: layer(x[..., :-1]), "an input one channel short", words=(c - 1, c))
    for given, own in (
        ("float64", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float64"),
        ("float32", "bfloat16"),
    ):
        of, tokens = lab.layer(getattr(torch, own)), x.to(getattr(torch, given))
        see.raises(InputError, partial(of, tokens), f"a {given} input to a {own} layer", words=(given, own))
    see.raises(InputError, lambda: layer(x.to("meta")), "an input on another device", words=("meta", lab.device.type))


@law("shape.refuses_mask", "C4", needs=[masked], cases="default")
def refuses_mask(lab: Lab, see: Evidence) -> None:
    """A mask of integers, of 3 axes, or of a shape that does not fit is refused with the way out.

    Three axes could mean a mask per sample or per head; integers would be added to the logits and block nothing.
    """
    layer = lab.layer(torch.float32)
    x = lab.tokens(dtype=torch.float32)
    b, t, _ = x.shape
    full = torch.ones(t, t, dtype=torch.bool, device=lab.device)
    for dtype in (torch.int64, torch.uint8):
        words = (str(dtype).removeprefix("torch."), "bool")
        see.raises(InputError, partial(layer, x, mask=full.to(dtype)), f"a mask of {dtype}", words=words)
    see.raises(
        InputError,
        lambda: layer(x, mask=full.expand(b, t, t)),
        "a mask of 3 axes",
        words=("mask[:, None]", "mask[None]"),
    )
    see.raises(InputError, lambda: layer(x, mask=full[:1]), "a mask (1, s)", words=((1, t), (t, t)))
    see.raises(InputError, lambda: layer(x, mask=full[:, :-1]), "a mask one key short", words=((t, t - 1), (t, t)))
    see.raises(
        InputError, lambda: layer(x, mask=full.expand(b + 1, 1, t, t)), "a mask of another batch", words=(b + 1,)
    )
    see.raises(InputError, lambda: layer(x, mask=full.to("meta")), "a mask on another device", words=("meta",))


@law("shape.refuses_key_mask", "C4", needs=[padded], cases="default")
def refuses_key_mask(lab: Lab, see: Evidence) -> None:
    """Padding goes in as booleans of (b, s); anything else is refused."""
    layer = lab.layer(torch.float32)
    x = lab.tokens(dtype=torch.float32)
    b, t, _ = x.shape
    full = torch.ones(b, t, dtype=torch.bool, device=lab.device)
    see.raises(InputError, lambda: layer(x, key_mask=full.long()), "a key_mask of integers", words=("int64", "bool"))
    see.raises(InputError, lambda: layer(x, key_mask=full.float()), "a key_mask of floats", words=("float32", "bool"))
    see.raises(InputError, lambda: layer(x, key_mask=full[:, :-1]), "a key_mask one key short", words=((b, t - 1), t))
    see.raises(InputError, lambda: layer(x, key_mask=full[0]), "a key_mask without a batch axis", words=((t,), b))


@law("shape.refuses_positions", "C5", needs=[positional], cases="default")
def refuses_positions(lab: Lab, see: Evidence) -> None:
    """Positions are integers of (t,) or (b, t); anything else is refused."""
    layer = lab.layer(torch.float32)
    x = lab.tokens(dtype=torch.float32)
    index = torch.arange(x.shape[1], device=lab.device)
    see.exactly(
        layer(x, positions=index.int()), layer(x, positions=index), "the output with positions of int32 and int64"
    )
    see.raises(InputError, lambda: layer(x, positions=index.float()), "positions of floats", words=("float32",))
    see.raises(InputError, lambda: layer(x, positions=index[:-1]), "positions one short", words=(x.shape[1],))


def _forward_backward(layer: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.detach().requires_grad_()
    y = layer(leaf)
    (dx,) = torch.autograd.grad(y, leaf, dy)
    return y.detach(), dx
