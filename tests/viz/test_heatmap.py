"""Heatmaps, by the objects in the figure: which number stands where, and what the axes call it."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from typing import Any
from xml.dom import minidom

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import attnzoo
from attnzoo import viz
from attnzoo.errors import InputError, MissingPackage


def maps_of(axes: Axes) -> list[Any]:
    """The numbers of each image on an axes, first row on top as drawn."""
    arrays = []
    for image in axes.images:
        left, right, bottom, top = image.get_extent()
        assert left < right
        assert bottom > top
        assert image.origin == "upper"
        arrays.append(image.get_array())
    return arrays


def labels(axes: Axes, axis: str) -> list[str]:
    """The tick labels that are seen, first to last, each standing at its own token."""
    found = axes.xaxis if axis == "x" else axes.yaxis
    side = "label2" if axis == "x" else "label1"  # keys on top, queries on the left
    return [getattr(tick, side).get_text() for tick in found.get_major_ticks() if getattr(tick, side).get_visible()]


def layer_and_input(**options: Any) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    return attnzoo.build("gqa", d_model=24, heads=6, kv_heads=3, **options), 3 * torch.randn(1, 7, 24)


def test_queries_run_down_and_keys_along_the_top() -> None:
    """The weight of the last key for the first query is at the top right, under its own two names."""
    weights = np.zeros((2, 3))
    weights[0, 2] = 1
    axes = viz.heatmap(weights, queries=["I", "am"], keys=["je", "suis", "là"]).axes[0]
    (drawn,) = maps_of(axes)
    assert drawn[0, 2] == 1
    assert drawn.sum() == 1
    assert tuple(axes.images[0].get_extent()) == (-0.5, 2.5, 1.5, -0.5)
    assert axes.get_ylim() == (1.5, -0.5)  # row 0 on top
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("query", "key")
    assert (labels(axes, "y"), labels(axes, "x")) == (["I", "am"], ["je", "suis", "là"])
    assert (list(axes.get_yticks()), list(axes.get_xticks())) == ([0, 1], [0, 1, 2])
    assert axes.xaxis.get_label_position() == "top"


def test_a_layer_draws_the_weights_that_it_used() -> None:
    layer, x = layer_and_input()
    weights = layer(x, need_weights=True)[1].detach().numpy()
    figure = viz.heatmap(layer, x)
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == [f"head {head}" for head in range(6)]
    for head, axes in enumerate(panels):
        np.testing.assert_allclose(maps_of(axes)[0].filled(0), weights[0, head], atol=1e-7)
    assert labels(panels[0], "x") == labels(panels[0], "y") == [str(i) for i in range(7)]
    assert (labels(panels[5], "x"), labels(panels[5], "y")) == ([], [])  # inner panels stay bare
    one = viz.heatmap(layer, x, head=4).axes[0]
    np.testing.assert_allclose(maps_of(one)[0].filled(0), weights[0, 4], atol=1e-7)


def test_masked_is_not_zero() -> None:
    """Zeros get the colour of 0, masked cells a grey that no weight has; a legend says what it means."""
    weights, visible = np.array([[0.0, 0.0], [1.0, 0.0]]), np.tril(np.ones((2, 2), dtype=bool))
    axes = viz.heatmap(weights, visible=visible).axes[0]
    (drawn,) = maps_of(axes)
    assert np.ma.getmaskarray(drawn).tolist() == [[False, True], [False, False]]
    image = axes.images[0]
    grey, *others = (tuple(image.to_rgba(drawn)[cell]) for cell in ((0, 1), (0, 0), (1, 0)))
    assert grey not in others
    assert not any(np.allclose(colour, grey, atol=0.05) for colour in image.get_cmap()(np.linspace(0, 1, 256)))
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_texts()[0].get_text() == "masked: may not be seen"


def test_a_weight_that_underflows_is_not_masked() -> None:
    layer, x = layer_and_input(scale=1e3)
    drawn = maps_of(viz.heatmap(layer, x, head=0).axes[0])[0]
    assert (np.ma.getmaskarray(drawn) == ~np.tri(7, dtype=bool)).all()
    assert (drawn.compressed() == 0).any()


def test_the_colour_scale_is_stated() -> None:
    figure = viz.heatmap(np.array([[0.0, 0.5], [0.2, 0.3]]))
    bar = figure.axes[1]
    assert bar.get_ylabel() == "weight (colours by its square root)"
    norm: Any = figure.axes[0].images[0].norm
    assert (norm.vmin, norm.vmax) == (0, 0.5)
    assert norm(0.125) == pytest.approx(0.5)
    told = {tick.get_text(): place for tick, place in zip(bar.get_yticklabels(), bar.get_yticks(), strict=True)}
    assert {float(text): float(text) for text in told} == pytest.approx({float(t): p for t, p in told.items()})


def test_negative_weights_get_a_map_that_is_neutral_at_zero() -> None:
    image: Any = viz.heatmap(np.array([[-0.2, 0.0], [0.7, 0.1]])).axes[0].images[0]
    assert (image.norm.vmin, image.norm.vmax) == (pytest.approx(-0.7), pytest.approx(0.7))
    red, green, blue, _ = image.to_rgba(np.array([0.0]))[0]
    assert min(red, green, blue) > 0.95
    assert image.get_cmap().name == "PuOr"


def test_brightness_alone_tells_weights_apart() -> None:
    """What someone blind to a colour sees: lightness rises all the way."""
    cmap = viz.heatmap(np.eye(3)).axes[0].images[0].get_cmap()
    assert cmap.name == colormaps["viridis"].name
    brightness = cmap(np.linspace(0, 1, 64))[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(brightness) > 0).all()


@pytest.mark.parametrize("tokens", [8, 31, 128])
@pytest.mark.parametrize("heads", [1, 9])
def test_labels_never_run_into_each_other(tokens: int, heads: int) -> None:
    names = [f"token{i}" for i in range(tokens)]
    figure = viz.heatmap(np.ones((heads, tokens, tokens)), queries=names)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    for axis, side in (("x", "label2"), ("y", "label1")):
        found = axes.xaxis if axis == "x" else axes.yaxis
        ticks = found.get_major_ticks()
        step = -(-tokens // len(ticks))
        assert labels(axes, axis) == names[::step]
        title = found.get_label_text()
        assert ("is named" in title) == (step > 1)
        boxes = [getattr(tick, side).get_window_extent() for tick in ticks]
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes)), f"every {step}th of {tokens} on {axis}"
    assert len(axes.get_xticks()) >= (8 if heads == 1 or tokens > 8 else 4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 30, 30), (1, 64, 64), (1, 5, 90), (9, 12, 12), (30, 7, 7)])
def test_nothing_is_cut_off_at_the_edge(shape: tuple[int, int, int]) -> None:
    t, s = shape[1:]
    keys = [f"longer{j}" for j in range(s)]
    figure = viz.heatmap(
        np.ones(shape), visible=np.tri(t, s, dtype=bool), queries=[f"q{i}" for i in range(t)], keys=keys
    )
    figure.draw_without_rendering()
    page = figure.bbox.padded(1)
    for axes in figure.axes:
        for text in (axes.xaxis.label, axes.yaxis.label, axes.title, *axes.get_xticklabels(), *axes.get_yticklabels()):
            box = text.get_window_extent()
            inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
            assert inside or not (text.get_text() and text.get_visible()), text


def test_an_axes_handed_in_is_drawn_on() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert viz.heatmap(np.eye(3), ax=right) is figure
    assert len(right.images) == 1
    assert not left.images
    with pytest.raises(InputError, match="one axes holds one map, but there are 1 x 2; say which: layer=0, head=0"):
        viz.heatmap(np.ones((2, 3, 3)), ax=left)
    viz.heatmap(np.ones((2, 3, 3)), ax=left, head=1)
    assert left.get_title() == "head 1"


def test_layers_by_heads_share_one_field() -> None:
    weights = np.random.default_rng(0).random((3, 2, 4, 5))
    figure = viz.heatmap([layer[None] for layer in weights])
    axes = figure.axes[0]
    assert len(axes.images) == 6
    centres = {}
    for image, drawn in zip(axes.images, maps_of(axes), strict=True):
        left, right, bottom, top = image.get_extent()
        centres[(top + bottom) / 2, (left + right) / 2] = drawn
    for layer, head in itertools.product(range(3), range(2)):
        at = axes.get_yticks()[layer], axes.get_xticks()[head]
        np.testing.assert_allclose(centres[at], weights[layer, head].astype(np.float32))
    assert (labels(axes, "y"), labels(axes, "x")) == (["0", "1", "2"], ["0", "1"])
    assert axes.get_xlabel() == "head; in each map 5 keys run right"
    assert axes.get_ylabel() == "layer; in each map 4 queries run down"


def test_a_mask_shows_who_may_see_whom() -> None:
    layer, x = layer_and_input()
    padding = torch.tensor([[True] * 5 + [False] * 2])
    axes = viz.mask(layer, x, key_mask=padding).axes[0]
    (drawn,) = maps_of(axes)
    assert (drawn == np.tri(7) * padding.numpy()).all()
    assert [text.get_text() for text in axes.figure.axes[1].get_yticklabels()] == ["masked", "may see"]
    open_layer, _ = layer_and_input(causal=False)
    assert maps_of(viz.mask(open_layer, x).axes[0])[0].all()


def test_heads_with_rules_of_their_own_get_a_panel_each() -> None:
    layer, x = layer_and_input(causal=False)
    mask = torch.rand(1, 6, 7, 7) < 0.5
    panels = [axes for axes in viz.mask(layer, x, mask=mask).axes if axes.images]
    assert len(panels) == 6
    for head, axes in enumerate(panels):
        assert (maps_of(axes)[0] == mask[0, head].numpy()).all()


def test_any_token_can_be_drawn() -> None:
    """No mathematics, no missing glyph (a warning, so an error here), no broken file."""
    nasty = ["$x^2$", "<b>&amp;", "日本", "שלום", "a\0b", "\ud800", "$\\frac$", "\u202eevil"]
    figure = viz.heatmap(np.eye(8), queries=nasty, name="$ & <")
    axes = figure.axes[0]
    assert labels(axes, "x")[:3] == ["$x^2$", "<b>&amp;", "\\u65e5\\u672c"]
    assert labels(axes, "x")[4:] == ["a\\x00b", "\\ud800", "$\\frac$", "\\u202eevil"]
    for form in ("svg", "png"):
        figure.savefig(written := io.BytesIO(), format=form)
        if form == "svg":
            minidom.parseString(written.getvalue())
        assert len(written.getvalue()) > 1000


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="queries are 2, but 3 labels came for them"):
        viz.heatmap(np.eye(2), queries=["a", "b", "c"])
    with pytest.raises(InputError, match="2 queries see 3 other keys; give keys=, their 3 labels"):
        viz.heatmap(np.ones((2, 3)), queries=["a", "b"])
    with pytest.raises(InputError, match="there is no head 2; it has 2, numbered from 0 to 1"):
        viz.heatmap(np.ones((2, 3, 3)), head=2)


def test_without_matplotlib_there_is_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackage, match=r'pip install "attnzoo\[viz\]"'):
        viz.heatmap(np.eye(2))
    assert "<canvas" in viz.page(np.eye(2))  # a page needs none


def test_attnzoo_does_not_load_matplotlib() -> None:
    script = "import sys, attnzoo; attnzoo.viz.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
