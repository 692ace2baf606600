"""The page as text: nothing breaks out, nothing is fetched, and what it holds is right."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from attnzoo import viz
from attnzoo.viz.webpage import measures

NASTY = [
    "<script>boom()</script>",
    "</script >",
    "a\0b",
    "שלום",
    "\u202eevil",
    "👩‍👧",
    "\ud800",
    "{{data}}",
    "&lt;",
    "\u2028",
]


class Elements(HTMLParser):
    """The elements of a page, their attributes, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.title = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and data.strip():
            self.scripts.append(data)
        if self.tags[-1:] == ["title"]:
            self.title += data.strip()


def held(page: str) -> Any:
    """What the page holds as data."""
    return json.loads(Elements(page).scripts[0])


def causal(*shape: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random weights (.., t, t) with nothing above the diagonal, and who may see whom."""
    visible = np.broadcast_to(np.tri(shape[-1], dtype=bool), shape)
    weights = np.where(visible, np.random.default_rng(0).random(shape) ** 4, 0)
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32), visible


def test_tokens_are_data_never_markup() -> None:
    page = viz.page(np.eye(10), queries=NASTY, name="</title><script>boom()</script>{{data}}")
    elements = Elements(page)
    assert elements.tags.count("script") == 2
    assert "boom" not in elements.scripts[1]
    assert elements.title == "</title><script>boom()</script>{{data}}"
    assert page.isascii()
    assert "\0" not in page
    told = held(page)["keys"]
    assert told[0] == NASTY[0]
    assert told[2:7] == ["a\\x00b", "שלום", "\\u202eevil", "👩‍👧", "\\ud800"]


def test_nothing_is_fetched() -> None:
    page = viz.page(np.eye(3))
    assert Elements(page).links == ["data:,"]
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttp|WebSocket", page)


@pytest.mark.parametrize("signed", [False, True])
def test_the_stated_precision_holds(signed: bool) -> None:
    weights, visible = causal(2, 5, 9, 9)
    weights = weights - 0.2 * visible if signed else weights
    told = held(viz.page(list(weights[:, None]), visible=visible[:1]))
    assert told["shape"] == [2, 5, 9, 9]
    codes = np.frombuffer(base64.b64decode(told["weights"]), np.uint8).reshape(2, 5, 9, 9)
    assert ((codes == 255) == ~visible).all()
    root = (codes - 127.0) / 127 if signed else codes / 254.0
    restored = np.where(codes == 255, 0, np.sign(root) * root**2 * told["most"])
    error = np.abs(restored - weights).max()
    assert error == pytest.approx(told["error"], rel=1e-3)
    assert error < (2 if signed else 1) * told["most"] / 254


def test_a_real_model_fits_into_five_megabytes() -> None:
    weights, visible = causal(30, 9, 64, 64)
    page = viz.page(list(weights[:, None]), visible=visible[:1], queries=[f"token{i}" for i in range(64)])
    assert len(page) < 5e6


def test_measures_by_hand() -> None:
    same = np.eye(4)
    first = np.zeros((4, 4))
    first[:, 0] = 1
    even = np.tri(4) / np.arange(1, 5)[:, None]
    visible = np.tri(4, dtype=bool)
    found = measures(viz.maps(np.stack([same, first, even]), visible=visible))
    assert found["entropy"][0] == pytest.approx([0, 0, (0 + 1 + np.log2(3) + 2) / 4])
    assert found["distance"][0] == pytest.approx([0, 1.5, (0 + 0.5 + 1 + 1.5) / 4])
    assert found["first"][0] == pytest.approx([0, 1, (1 / 2 + 1 / 3 + 1 / 4) / 3])


def test_measures_of_rows_that_are_blind_signed_or_do_not_sum_to_one() -> None:
    weights = np.array([[0.0, 0.0], [-0.1, 0.1]])
    found = measures(viz.maps(weights, visible=np.array([[False, False], [True, True]])))
    assert found["entropy"][0, 0] == pytest.approx(1)
    assert found["distance"][0, 0] == pytest.approx(0.5)
    assert found["first"][0, 0] == pytest.approx(0.5)


def test_two_lists_of_tokens_stay_apart() -> None:
    told = held(viz.page(np.ones((2, 3)), queries=["I", "am"], keys=["je", "suis", "là"]))
    assert (told["queries"], told["keys"], told["same"]) == (["I", "am"], ["je", "suis", "là"], False)
