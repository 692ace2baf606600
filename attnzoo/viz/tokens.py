"""Tokens of a text: split, embedded without a model, and made fit to be seen."""

from __future__ import annotations

import re
import unicodedata
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
    """A token as it can be read: no padding blanks, and spelled out what has no shape or would turn the text around.

    >>> print(*map(shown, [" cat", "\\n", " ", "", "\\u202eevil"]))
    cat \\n ␣ ∅ \\u202eevil
    """
    text = token.strip(" ") or "␣" * len(token) or "∅"
    return "".join(spelled(letter) if is_formless(letter) else letter for letter in text)


def is_formless(letter: str) -> bool:
    """A control character, half a surrogate pair, or a mark that overrides the direction of writing."""
    overrides = unicodedata.bidirectional(letter) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return overrides or unicodedata.category(letter) in {"Cc", "Cs"}


def spelled(letter: str) -> str:
    """A character by its code, as Python writes it.

    >>> print(spelled("\\n"), spelled("日"))
    \\n \\u65e5
    """
    return letter.encode("unicode_escape").decode("ascii")


def shortened(text: str, most: int = 14) -> str:
    """
    >>> shortened("internationalisation")
    'internationali…'
    """
    return text if len(text) <= most else text[:most] + "…"
