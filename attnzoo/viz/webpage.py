"""Attention as one HTML file that needs nothing else: pick heads, hover tokens, search by measures."""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnzoo.viz.matrices import Maps
from attnzoo.viz.sources import maps

LEVELS = 254  # of a byte; 255 marks a masked cell
MASKED = 255

Bytes = NDArray[np.uint8]


def page(source: Any, given: Tensor | str | None = None, **how: Any) -> str:
    """An interactive page of attention, as the text of one HTML file. It loads nothing, and is ASCII throughout.

    >>> text = page(np.eye(2), queries=["<I>", "am"])
    >>> "<I>" in text, "http://" in text
    (False, False)

    source, given, how: what to show, as for `attnzoo.viz.maps`

    Weights are kept in 8 bits, on a square-root scale up to the largest; the page says how far off that is at most.
    Token texts are data to the page, never markup.    Raises as `attnzoo.viz.maps` does.
    """
    shown = maps(source, given, **how)
    most = float(np.abs(shown.weights).max()) or 1.0
    codes = quantised(shown, most)
    data = {
        "name": shown.name,
        "queries": list(shown.queries),
        "keys": list(shown.keys),
        "same": list(shown.queries) == list(shown.keys),
        "shape": shown.weights.shape,
        "signed": shown.signed,
        "most": most,
        "error": float(np.abs(restored(codes, most, shown.signed) - shown.weights).max()),
        "measures": {name: np.round(values, 4).tolist() for name, values in measures(shown).items()},
        "weights": base64.b64encode(codes.tobytes()).decode("ascii"),
    }
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    parts = {"{{title}}": html.escape(shown.name or "attention"), "{{data}}": embedded(data)}
    filled = re.sub("|".join(parts), lambda found: parts[found.group()], template)
    return filled.encode("ascii", "xmlcharrefreplace").decode("ascii")


def quantised(shown: Maps, most: float) -> Bytes:
    """One byte a weight: the square root of its share of the largest, in 254 steps; signed ones in 127 each way."""
    root = np.sqrt(np.abs(shown.weights) / most)
    codes = np.rint(127 + 127 * np.sign(shown.weights) * root if shown.signed else LEVELS * root)
    return np.where(shown.visible, codes, MASKED).astype(np.uint8)


def restored(codes: Bytes, most: float, signed: bool) -> NDArray[np.float64]:
    """The weights that the page reads out of the bytes; masked ones are zero."""
    root = (codes - 127.0) / 127.0 if signed else codes / float(LEVELS)
    return np.where(codes == MASKED, 0.0, np.sign(root) * root**2 * most)


def measures(shown: Maps) -> dict[str, NDArray[np.float64]]:
    """Simple numbers to tell heads apart by, each the mean over the queries that see anything: (layers, h).

    entropy: in bits, 0 where each query looks at one key only    distance: in tokens, from query to key
    first: the share of the first key, over the queries for which that is not all there is
    """
    size = np.abs(shown.weights.astype(np.float64))
    total = size.sum(axis=-1, keepdims=True)
    share = np.divide(size, total, out=np.zeros_like(size), where=total > 0)
    bits = -(share * np.log2(share, out=np.zeros_like(share), where=share > 0)).sum(axis=-1)
    t, s = share.shape[-2:]
    apart = np.abs(np.arange(s - t, s)[:, None] - np.arange(s))  # the t queries are the last of the s tokens (C5)
    sees = total[..., 0] > 0
    chooses = sees & (shown.visible.sum(axis=-1) > 1)
    return {
        "entropy": mean(bits, sees),
        "distance": mean((share * apart).sum(axis=-1), sees),
        "first": mean(share[..., 0], chooses),
    }


def mean(values: NDArray[np.float64], counted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Over the last axis, of the counted entries only; 0 where there are none."""
    number = np.maximum(counted.sum(axis=-1), 1)
    return np.where(counted, values, 0.0).sum(axis=-1) / number  # type: ignore[no-any-return]


def embedded(data: Any) -> str:
    """JSON that no token can break out of: inside a script element even `<` is written by its code."""
    text = json.dumps(data, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
