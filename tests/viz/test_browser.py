"""The page in a real browser: it loads in silence, and does what hands and keys ask of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from attnzoo import viz

if TYPE_CHECKING:
    from tests.viz.conftest import Browser

pytestmark = pytest.mark.browser

TOKENS = ["The", "cat", "sat", "on", "it"]
CHOSEN = "[+el('layer').value, +el('head').value]"
STRENGTHS = (
    "[...document.querySelectorAll('#{} button')].map(chip => +chip.style.background.split(',')[3].slice(0, -1))"
)


def model() -> viz.Maps:
    """2 layers of 3 heads: each query looks back as many tokens as its layer and head say, and a little elsewhere."""
    visible = np.tri(5, dtype=bool)
    weights = np.zeros((2, 3, 5, 5), dtype=np.float32)
    for layer, head, i in np.ndindex(2, 3, 5):
        weights[layer, head, i, : i + 1] = 0.1 / (i + 1)
        weights[layer, head, i, max(0, i - layer - head)] += 0.9
    return viz.Maps(weights, np.broadcast_to(visible, weights.shape), TOKENS, TOKENS, "looks back")


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Any:
    """The page of the model, open."""
    path = tmp_path / "page.html"
    path.write_text(viz.page(model()), encoding="utf-8")
    browser.open(path)
    yield browser
    assert not browser.complaints


def test_it_loads_and_tells_what_it_shows(page: Browser) -> None:
    assert page.run("document.title") == "looks back"
    assert page.run("el('found').textContent") == "6 of 6 heads"
    assert "off by at most 0.00" in page.run("el('precision').textContent")


def test_hovering_a_token_shows_what_it_sees_and_who_sees_it(page: Browser) -> None:
    page.press("]")  # head 1 looks at the token before
    page.hover("#keys button", 2)
    assert page.run("el('to-title').textContent") == "\u2068“sat”\u2069 attends to"
    sees, seen_by = (page.run(STRENGTHS.format(box)) for box in ("keys", "queries"))
    assert sees.index(max(sees)) == 1
    assert seen_by.index(max(seen_by)) == 3
    assert page.run("[...document.querySelectorAll('#keys .masked')].map(chip => chip.textContent)") == ["on", "it"]
    assert page.run("[...document.querySelectorAll('#queries .masked')].map(c => c.textContent)") == ["The", "cat"]
    assert page.run("el('told').textContent") == "\u2068“sat”\u2069 → \u2068“cat”\u2069: 0.93 (its strongest)"


def test_hovering_a_cell_tells_its_weight(page: Browser) -> None:
    page.run("state.head = 2; show()")
    left, top = page.run("[edge.left + 2.5 * cell, edge.top + 4.5 * cell]")
    width, height = page.run("[el('matrix').clientWidth, el('matrix').clientHeight]")
    page.hover("#matrix", at=(left / width, top / height))
    assert page.run("el('told').textContent") == "\u2068“it”\u2069 → \u2068“sat”\u2069: 0.92"
    assert page.run("[state.query, state.key]") == [4, 2]


def test_a_click_holds_a_token_until_escape(page: Browser) -> None:
    page.hover("#keys button", 1, click=True)
    page.hover("#keys button", 3)
    assert page.run("state.query") == 1
    page.press("Escape")
    page.hover("#keys button", 4)
    assert page.run("state.query") == 4


def test_heads_are_chosen_by_list_menu_and_keys(page: Browser) -> None:
    page.hover("tbody tr", 4, click=True)
    assert page.run(CHOSEN) == [1, 1]
    page.run("el('layer').value = 0, el('layer').dispatchEvent(new Event('change'))")
    assert page.run(CHOSEN) == [0, 1]
    for key, due in (("]", [0, 2]), ("]", [0, 2]), ("[", [0, 1]), ("}", [1, 1]), ("{", [0, 1])):
        page.press(key)
        assert page.run(CHOSEN) == due
    assert page.run("document.querySelector('tbody tr.chosen').dataset.head") == "1"


def test_arrows_walk_through_the_tokens(page: Browser) -> None:
    page.hover("#keys button", 0)
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.press(key)
    assert page.run("[state.query, state.key, document.activeElement.textContent]") == [1, 1, "cat"]


def test_heads_are_found_by_their_measures(page: Browser) -> None:
    page.press("/")
    assert page.run("document.activeElement.id") == "find"
    for text, due in (
        ("distance < 0.2", "1 of 6 heads"),
        ("layer=1 head>=1", "2 of 6 heads"),
        ("first>2", "0 of 6 heads"),
    ):
        page.run(f"el('find').value = {text!r}, list()")
        assert page.run("el('found').textContent") == due
    page.run("el('find').value = 'entropy ~ 2', list()")
    assert page.run("el('found').textContent").startswith("cannot read “entropy")
    page.run("el('find').value = '', list()")
    page.hover("th button", 3, click=True)
    assert page.run("document.querySelector('tbody tr').dataset.layer") == "1"  # the farthest first
    assert page.run("document.querySelector('th[aria-sort=descending]').textContent") == "distance ↓"


def test_light_and_dark_and_a_phone(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(viz.page(model()), encoding="utf-8")
    papers = []
    for dark in (False, True):
        browser.open(path, width=390, height=800, dark=dark)
        papers.append(browser.run("getComputedStyle(document.body).backgroundColor"))
        assert browser.run("document.documentElement.scrollWidth") == 390
    assert papers == ["rgb(251, 251, 250)", "rgb(22, 24, 28)"]
    assert not browser.complaints


def test_hostile_tokens_stay_text(browser: Browser, tmp_path: Path) -> None:
    tokens = [
        "<script>window.hit = 1</script>",
        "</script ><img src=x onerror='window.hit = 1'>",
        "שלום",
        "👩‍👧",
        "{{data}}",
    ]
    path = tmp_path / "page.html"
    path.write_text(viz.page(np.tri(5), queries=tokens, name="</title><script>window.hit = 1</script>"))
    browser.open(path)
    browser.hover("#keys button", 0)
    assert browser.run("[...el('keys').children].map(chip => chip.textContent)") == tokens
    assert browser.run("window.hit") is None
    assert not browser.complaints


def test_other_tokens_for_keys_are_chosen_apart(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(
        viz.page(np.array([[-0.5, 0.0, 0.2], [0.1, 0.3, 0.9]]), queries=["I", "am"], keys=["je", "suis", "là"])
    )
    browser.open(path)
    browser.hover("#queries button", 0)
    browser.hover("#keys button", 2)
    assert browser.run("el('to-title').textContent") == "\u2068“I”\u2069 attends to"
    assert browser.run("el('from-title').textContent") == "\u2068“là”\u2069 is attended to by"
    assert browser.run("el('keys').children[0].title") == "-0.50"
    assert browser.run("el('grey').hidden")
    assert not browser.complaints
