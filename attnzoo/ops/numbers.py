"""Whole numbers that are whole: a length of 2.5 tokens, or of True, is nobody's wish."""

from __future__ import annotations

import operator
from typing import Any

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
