"""Tokens of a text: split, embedded without a model, and made fit to be seen."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from attnzoo.errors import InputError


def words(text: str) -> list[str]:
    """The words and marks of a text.

    >>> words("It sat, tired.")
    ['It', 'sat', ',', 'tired', '.']

    Raises `InputError` for a text without any.
    """
    found = re.findall(r"\w+|[^\w\s]", text)
    if not found:
        raise InputError(f"the text {text!r} holds no word")
    return found


def embed(tokens: Sequence[str], width: int, *, spread: float = 1.0, seed: int = 0) -> Tensor:
    """A random vector for each token, the same one for the same token: what an untrained embedding gives.

    returns: (1, t, c) with c = width
    """
    vectors = []
    for token in tokens:
        generator = torch.Generator().manual_seed(zlib.crc32(token.encode("utf-8", "surrogatepass")) + seed)
        vectors.append(spread * torch.randn(width, generator=generator))
    return torch.stack(vectors)[None]


def shown(token: str) -> str:
    """A token as it can be read: no padding blanks, and a sign for what has no shape.

    >>> shown(" cat"), shown("\\n"), shown(" "), shown("")
    ('cat', '␊', '␠', '∅')
    """
    text = token.strip(" ") or token
    if text.strip(" ") == "":
        return "␠" * len(text) or "∅"
    return "".join(map(picture_of, text))


def picture_of(character: str) -> str:
    """The printable stand-in of a control character or a lone surrogate; any other as it is."""
    code = ord(character)
    if code < 32:
        return chr(0x2400 + code)
    if code == 127:
        return "␡"
    if 128 <= code < 160 or 0xD800 <= code < 0xE000:
        return f"\\x{code:02x}"
    return character


def shortened(text: str, most: int = 14) -> str:
    """
    >>> shortened("internationalisation")
    'internationali…'
    """
    return text if len(text) <= most else text[:most] + "…"
