"""The learn pages and the gallery are scripts, which the build of the documentation runs.

Here they run without Sphinx and with warnings as errors. Then the learn pages run with something broken in attnzoo,
which they must notice.
"""

from __future__ import annotations

import ast
import importlib
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from torch import Tensor

import attnzoo
from attnzoo import ops
from attnzoo.oracle import SelfAttention

DOCS = Path(__file__).parents[2] / "docs"
LEARN = sorted((DOCS / "learn").glob("*.py"))
GALLERY = sorted((DOCS / "gallery").glob("*.py"))

HIDDEN = re.compile(r"# sphinx_gallery_start_ignore\n.*?# sphinx_gallery_end_ignore\n", re.DOTALL)
DRAWING = {"heatmap", "mask", "subplots"}
CLAIMS = {"assert_close", "agree"}

Break = Callable[[pytest.MonkeyPatch], None]


def name_of(value: object) -> str:
    return value.stem if isinstance(value, Path) else ""


def blocks(page: Path) -> list[tuple[str, str]]:
    """The text and the code of each block. The text of the first one is the docstring."""
    source = page.read_text(encoding="utf-8")
    first, *others = re.split(r"^# %%\n", source, flags=re.MULTILINE)
    told = ast.get_docstring(ast.parse(first)) or ""
    found = [(told, first.split('"""\n', 2)[-1])]
    for other in others:
        lines = other.splitlines(keepends=True)
        end = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
        found.append(("".join(line.removeprefix("# ") for line in lines[:end]), "".join(lines[end:])))
    return found


def calls(page: Path) -> list[str]:
    """The last name of everything that is called."""
    tree = ast.parse(page.read_text(encoding="utf-8"))
    return [ast.unparse(node.func).split(".")[-1] for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.fixture
def run() -> Iterator[Callable[[Path], int]]:
    """Runs a page and tells how many figures pyplot then holds.

    It leaves no figure and no random state behind.
    """
    backend, before = matplotlib.get_backend(), np.random.get_state()

    def run(page: Path) -> int:
        runpy.run_path(str(page), run_name="__main__")
        return len(plt.get_fignums())

    matplotlib.use("agg")
    try:
        with torch.random.fork_rng(devices=[]):
            yield run
    finally:
        plt.close("all")
        matplotlib.use(backend)
        np.random.set_state(before)


# The form of both


@pytest.mark.parametrize("folder", ["learn", "gallery"])
def test_pages_are_numbered_in_order_and_have_a_header(folder: str) -> None:
    pages = sorted((DOCS / folder).glob("*.py"))
    assert [re.sub(r"[a-z_]*\.py$", "", page.name.removeprefix("plot_")) for page in pages] == [
        str(number) for number in range(1, len(pages) + 1)
    ]
    title, underline, *_ = (DOCS / folder / "GALLERY_HEADER.rst").read_text(encoding="utf-8").splitlines()
    assert underline == "=" * len(title)


@pytest.mark.parametrize("page", [*LEARN, *GALLERY], ids=name_of)
def test_a_page_has_a_title_and_a_picture(page: Path) -> None:
    title, underline, *told = blocks(page)[0][0].splitlines()
    assert underline == "=" * len(title)
    assert len("".join(told)) > 100, "a page says first what it is about"
    assert DRAWING & set(calls(page))


@pytest.mark.parametrize("page", [*LEARN, *GALLERY], ids=name_of)
def test_a_block_shows_some_of_its_code(page: Path) -> None:
    """Drawing may be hidden. A block of which all is hidden would leave an empty box, and so would one without code."""
    for told, code in blocks(page):
        assert "sphinx_gallery" not in told, "hidden lines need an empty line before them, else they are text"
        assert told.strip()
        left = HIDDEN.sub("", code)
        assert "sphinx_gallery" not in left, "hidden lines end in the block in which they began"
        assert ast.parse(left).body or not code.strip(), f"nothing is left of the block on {told[:60]!r}"


@pytest.mark.parametrize("page", [*LEARN, *GALLERY], ids=name_of)
def test_code_fits_the_column_of_a_page(page: Path) -> None:
    for _, code in blocks(page):
        for line in HIDDEN.sub("", code).splitlines():
            assert len(line) <= 92, line


# What the learn pages claim


def test_there_are_five_learn_pages_and_their_titles_count() -> None:
    titles = [blocks(page)[0][0].splitlines()[0] for page in LEARN]
    assert [title.split()[0] for title in titles] == ["1.", "2.", "3.", "4.", "5."]


@pytest.mark.parametrize("page", LEARN, ids=name_of)
def test_a_learn_page_claims_something_in_most_blocks(page: Path) -> None:
    with_code = [code for _, code in blocks(page)[1:] if code.strip()]
    claims = [code for code in with_code if "assert " in code or any(f"{word}(" in code for word in CLAIMS)]
    assert len(claims) > len(with_code) / 2


@pytest.mark.parametrize("page", LEARN, ids=name_of)
def test_a_learn_page_says_the_same_each_time(
    page: Path, run: Callable[[Path], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(page) >= 2
    first = capsys.readouterr().out
    assert len(first.splitlines()) >= 5
    run(page)
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("page", GALLERY, ids=name_of)
def test_a_gallery_page_runs(page: Path, run: Callable[[Path], int]) -> None:
    run(page)


def attend_forgets_the_scale(patch: pytest.MonkeyPatch) -> None:
    attend: Any = ops.attend
    patch.setattr(ops, "attend", lambda q, k, v, **how: attend(q, k, v, **{**how, "scale": 1.0}))


def attend_sees_the_future(patch: pytest.MonkeyPatch) -> None:
    attend: Any = ops.attend
    patch.setattr(ops, "attend", lambda q, k, v, **how: attend(q, k, v, **{**how, "causal": False}))


def blind_rows_are_nan(patch: pytest.MonkeyPatch) -> None:
    def plain(logits: Tensor, visible: Tensor | None, sinks: Tensor | None) -> Tensor:
        assert visible is not None
        return logits.masked_fill(~visible, float("-inf")).softmax(dim=-1)

    patch.setattr(importlib.import_module("attnzoo.ops.eager"), "softmax", plain)


def heads_are_cut_by_view(patch: pytest.MonkeyPatch) -> None:
    def cut(x: Tensor, heads: int) -> Tensor:
        return x.reshape(x.shape[0], heads, x.shape[1], -1)

    patch.setattr(ops, "split_heads", cut)


def heads_are_merged_without_the_swap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ops, "merge_heads", lambda x: x.reshape(x.shape[0], x.shape[2], -1))


def backward_forgets_the_scale(patch: pytest.MonkeyPatch) -> None:
    backward = SelfAttention.backward

    def without(layer: SelfAttention, dout: Any) -> Any:
        kept, layer.scale = layer.scale, 1.0
        dX = backward(layer, dout)
        layer.scale = kept
        return dX

    patch.setattr(SelfAttention, "backward", without)


def gradients_pile_up(patch: pytest.MonkeyPatch) -> None:
    backward = SelfAttention.backward

    def piling(layer: SelfAttention, dout: Any) -> Any:
        before, dX = layer.dWv, backward(layer, dout)
        layer.dWv = layer.dWv if before is None or layer.dWv is None else layer.dWv + before
        return dX

    patch.setattr(SelfAttention, "backward", piling)


def positions_restart(patch: pytest.MonkeyPatch) -> None:
    layer: Any = type(attnzoo.build("rope", d_model=8, heads=2))
    project = layer.project
    patch.setattr(layer, "project", lambda self, x, context=None, *, positions=None, offset=0: project(self, x))


def half_the_cache_is_counted(patch: pytest.MonkeyPatch) -> None:
    nbytes: Any = ops.KVCache.nbytes
    patch.setattr(ops.KVCache, "nbytes", property(lambda cache: nbytes.fget(cache) // 2))


def crop_keeps_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ops.KVCache, "crop", lambda cache, n: None)


def reorder_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ops.KVCache, "reorder", lambda cache, index: None)


def kv_heads_are_tiled(patch: pytest.MonkeyPatch) -> None:
    def tiled(x: Tensor, heads: int) -> Tensor:
        return x.repeat(1, heads // x.shape[1], 1, 1)

    patch.setattr(importlib.import_module("attnzoo.ops.eager"), "share_kv", tiled)
    patch.setattr(
        importlib.import_module("attnzoo.ops.sdpa").F,
        "scaled_dot_product_attention",
        lambda q, k, v, *, enable_gqa, **how: sdpa(q, tiled(k, q.shape[1]), tiled(v, q.shape[1]), **how),
    )


sdpa = torch.nn.functional.scaled_dot_product_attention


@pytest.mark.parametrize(
    ("page", "broken"),
    [
        (1, attend_forgets_the_scale),
        (1, attend_sees_the_future),
        (2, blind_rows_are_nan),
        (2, attend_sees_the_future),
        (3, heads_are_cut_by_view),
        (3, heads_are_merged_without_the_swap),
        (4, backward_forgets_the_scale),
        (4, gradients_pile_up),
        (5, positions_restart),
        (5, half_the_cache_is_counted),
        (5, crop_keeps_all),
        (5, reorder_does_nothing),
        (5, kv_heads_are_tiled),
    ],
)
def test_a_claim_that_is_no_longer_true_stops_the_page(
    page: int, broken: Break, run: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError) as stop:
        run(LEARN[page - 1])
    assert str(LEARN[page - 1]) in [str(entry.path) for entry in stop.traceback]
