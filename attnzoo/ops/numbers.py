"""Whole numbers that are whole: a length of 2.5 tokens, or of True, is nobody's wish, nor are ids of halves."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from attnzoo.errors import InputError


def whole(number: Any, needs: str, *, least: int | None = None) -> int:
    """The number as an `int`, of whatever integer type it came. Raises `InputError` with `needs` for any other.

    >>> whole(3, "a length counts tokens")
    3
    >>> whole(2.5, "a length counts tokens; got 2.5")
    Traceback (most recent call last):
    attnzoo.errors.InputError: a length counts tokens; got 2.5
    """
    try:
        value = operator.index(number)
    except TypeError as error:
        raise InputError(needs) from error
    if isinstance(number, bool) or (least is not None and value < least):
        raise InputError(needs)
    return value


def holds_integers(x: Tensor) -> bool:
    """Whether a tensor is of an integer type, of whatever width; booleans are none."""
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
