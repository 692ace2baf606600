"""Masks that are handed in: what is taken, what is refused, and how what no query sees is hidden. True: seen (C3)."""

from __future__ import annotations

import torch
from torch import Tensor

from attnzoo.errors import InputError
from attnzoo.ops.numbers import holds_integers


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which logits and softmax are taken (C10): float32, or `dtype` where that is wider."""
    return torch.promote_types(dtype, torch.float32)


def hide(x: Tensor, visible: Tensor) -> Tensor:
    """Zero the keys or values that no query sees, so that not even an overflow behind a mask can reach a result (C6).

    x: (b, g, s, d)    visible: broadcastable to (b, h, t, s)
    """
    seen = visible.any(dim=-2)  # (s,), or (b, h, s) with either axis 1
    if seen.dim() > 1:
        seen = seen.any(dim=1)[:, None, :]  # (b, 1, s)
    return x.masked_fill(~seen[..., None], 0.0)


def check_mask(mask: Tensor, *, b: int, h: int, t: int, s: int, like: Tensor) -> None:
    """Hold a mask to C3 and C4. Raises `InputError`."""
    wide = wide_type(like.dtype)
    if mask.dtype != torch.bool and not (mask.is_floating_point() and torch.promote_types(mask.dtype, wide) == wide):
        raise InputError(
            f"mask is {mask.dtype}; it must be torch.bool (True = may attend) or a floating type that fits into "
            f"{wide} (added to the logits, -inf blocks); a mask of ones and zeros becomes boolean by mask.bool()"
        )
    if mask.device != like.device:
        raise InputError(f"mask is on {mask.device}, the layer's input is on {like.device}; try mask.to(x.device)")
    if mask.dim() == 3:
        raise InputError(
            f"mask has 3 axes, {tuple(mask.shape)}, which could mean a mask per sample or per head; "
            "write mask[:, None] for one per sample, mask[None] for one per head"
        )
    if mask.dim() not in (2, 4):
        raise InputError(f"mask has {mask.dim()} axes, {tuple(mask.shape)}; it takes 2, (t, s), or 4, (b, h, t, s)")
    if mask.dim() == 2 and tuple(mask.shape) != (t, s):
        raise InputError(f"mask is {tuple(mask.shape)}; with 2 axes it must be (t, s) = ({t}, {s})")
    if mask.dim() == 4 and any(size not in (1, full) for size, full in zip(mask.shape, (b, h, t, s), strict=True)):
        raise InputError(f"mask is {tuple(mask.shape)}, which does not broadcast to (b, h, t, s) = {(b, h, t, s)}")


def check_key_mask(key_mask: Tensor, *, b: int, s: int, like: Tensor) -> None:
    """Hold a padding mask to C4. Raises `InputError`."""
    if key_mask.dtype != torch.bool:
        raise InputError(
            f"key_mask is {key_mask.dtype}; it must be torch.bool, True where the token is real; try key_mask.bool()"
        )
    if tuple(key_mask.shape) != (b, s):
        raise InputError(f"key_mask is {tuple(key_mask.shape)}; it must be (b, s) = ({b}, {s}), cached tokens counted")
    if key_mask.device != like.device:
        raise InputError(f"key_mask is on {key_mask.device}, the layer's input is on {like.device}")


def check_document(document: Tensor, *, b: int, s: int, like: Tensor) -> None:
    """Hold document ids to their shape. Raises `InputError`."""
    if not holds_integers(document):
        raise InputError(f"document is {document.dtype}; it must hold integers, one id for the tokens of one document")
    if tuple(document.shape) != (b, s):
        raise InputError(f"document is {tuple(document.shape)}; it must be (b, t) = ({b}, {s}), an id for each token")
    if document.device != like.device:
        raise InputError(f"document is on {document.device}, the layer's input is on {like.device}")


def check_bias(bias: Tensor, *, b: int, h: int, t: int, s: int, like: Tensor) -> None:
    """Hold a bias to its shape and type. Raises `InputError`."""
    if not bias.is_floating_point() or bias.dtype not in (like.dtype, wide_type(like.dtype)):
        raise InputError(f"bias is {bias.dtype}; it must be {like.dtype} or {wide_type(like.dtype)}")
    shape = (b, h, t, s)
    fits = bias.dim() <= 4 and all(
        size in (1, full) for size, full in zip(reversed(bias.shape), reversed(shape), strict=False)
    )
    if not fits or bias.dim() < 2:
        raise InputError(f"bias is {tuple(bias.shape)}, which does not broadcast to (b, h, t, s) = {shape}")
    if bias.device != like.device:
        raise InputError(f"bias is on {bias.device}, the layer's input is on {like.device}")
