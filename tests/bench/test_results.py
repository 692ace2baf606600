"""Medians, ratios, verdicts, the page and the picture, of times that are made up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnzoo.bench import plot
from attnzoo.bench.counts import Count
from attnzoo.bench.page import markdown, page
from attnzoo.bench.results import Result, Row, Verdict, document, duration, table
from attnzoo.bench.works import Target
from attnzoo.errors import ConfigError

MACHINE = {"cores": 2, "threads": 1, "torch": "2.6", "dtype": "float32"}


def test_ours_is_judged_against_the_best_by_hand(result: Result) -> None:
    assert [(verdict.ratio, verdict.met) for verdict in result.verdicts] == [
        (pytest.approx(1.5), True),
        (pytest.approx(0.25), False),
        (None, None),
        (pytest.approx(2.0), True),
    ]


def test_a_verdict_in_words(result: Result) -> None:
    assert [str(verdict) for verdict in result.verdicts] == [
        "at most 1.6 times the best by hand: met, with 1.50 times",
        "at least 5 times as fast as dense: missed, with 4.00 times as fast",
        "no slower than peer: not measured",
        "at most 2.2 times attnzoo x at 0.5 t: met, with 2.00 times",
    ]
    assert Verdict(Target(1.0), 1.0).met
    assert not Verdict(Target(1.0), 1.0001).met


def test_a_table_for_a_person(result: Result) -> None:
    headings, rows = table(result)
    assert headings[:4] == ["contender", "t", "median", "times the best by hand"]
    assert rows[0] == ["attnzoo x", "1024", "3.0 ms", "1.50", "2.00"]
    assert rows[4] == ["peer", "1024", "skipped", "", ""]
    assert [row[1] for row in rows] == ["1024"] * 5 + ["2048"] * 5 + ["4096"] * 5
    once = Result("y", "", "", [Row("a", "attnzoo", 8, seconds=[1.0])])
    assert table(once) == (["contender", *headings[2:]], [["a", "1.00 s", "", "1.00"]])


def test_what_was_not_timed_is_told_once_and_what_is_wrong_every_time(result: Result) -> None:
    assert result.notes == ["peer was not timed; skipped: peer is not installed"]
    assert result.errors == []
    result.rows.append(Row("bad", "peer", 1024, "wrong", "y is off"))
    assert result.errors == ["x: bad at t 1024: y is off"]


def test_slopes_of_those_with_three_points(result: Result) -> None:
    assert list(result.lines) == ["attnzoo x", "clever", "cleverer not", "dense"]
    assert result.slope("dense") == pytest.approx(1.0)
    result.rows = [row for row in result.rows if row.t < 4096]
    assert result.lines == {}


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(s) for s in (9.99e-4, 1e-3, 0.9994, 1.0)] == ["999.0 µs", "1.0 ms", "999.4 ms", "1.00 s"]


def test_a_document_for_programs(result: Result) -> None:
    found = json.loads(json.dumps(document(MACHINE, [result], [])))
    assert found["machine"]["cores"] == 2
    (work,) = found["works"]
    assert work["rows"][0]["median"] == 3e-3
    assert work["rows"][0]["times_best_by_hand"] == pytest.approx(1.5)
    assert work["rows"][4]["median"] is None
    assert [verdict["met"] for verdict in work["verdicts"]] == [True, False, None, True]
    assert work["verdicts"][0]["words"] == "at most 1.6 times the best by hand"


def test_the_page(result: Result) -> None:
    counted = Count("mha", "", "attnzoo mha", "attnzoo", 1_000_000, 1000, 2.0, 512.0, 64)
    text = page("attnzoo bench --page docs/bench.md", MACHINE, [result], [counted], "bench.svg")
    assert text.startswith("# How fast\n\nMade by `attnzoo bench --page docs/bench.md`.\n\nThe machine: cores 2, ")
    assert "| An x, forward | at most 1.6 times the best by hand | 1.50 times | met |" in text
    assert "| An x, forward | at least 5 times as fast as dense | 4.00 times as fast | missed |" in text
    assert "| An x, forward | no slower than peer |  | not measured |" in text
    assert "| dense | 4096 | 48.0 ms | 6.00 | 2.00 |" in text
    assert "peer was not timed; skipped: peer is not installed." in text
    assert "](bench.svg)" in text
    assert "dense 1.00" in text
    assert "| mha | attnzoo mha | 1.0 | 1.0 | 2.00 times | 512 | 64 |" in text
    assert text.endswith("|\n")


def test_a_page_of_nothing_else_holds_only_what_there_is(result: Result) -> None:
    result.targets = ()
    text = page("attnzoo bench", MACHINE, [result], [])
    assert "## Targets" not in text
    assert "## Counts" not in text
    assert "![" not in text


def test_a_bar_in_a_cell_is_no_border() -> None:
    assert markdown(["a"], [["x | y"]]).splitlines()[2] == "| x \\| y |"


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture(result: Result, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    first, again = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    plot.draw_lines([result], first)
    plot.draw_lines([result], again)
    assert first.read_bytes() == again.read_bytes()
    assert first.stat().st_size > 5000


def test_a_line_for_each_contender_on_logarithmic_axes(result: Result) -> None:
    pytest.importorskip("matplotlib")
    (panel,) = plot.figure([result]).axes
    legend = panel.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == [f"{name}: slope 1.00" for name in ("attnzoo x", "clever", "cleverer not", "dense")]
    assert [np.asarray(line.get_xdata()).tolist() for line in panel.lines] == [[1024, 2048, 4096]] * 4
    assert np.asarray(panel.lines[0].get_ydata()) == pytest.approx([3.0, 6.0, 12.0])
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")


def test_a_picture_that_cannot_be_written(result: Result, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--plot x.gif: the ending must be .png or .svg"):
        plot.check_file(Path("x.gif"), "--plot")
    with pytest.raises(ConfigError, match=r"there is no folder"):
        plot.check_file(tmp_path / "no" / "x.svg", "--plot")
    (tmp_path / "taken.svg").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*taken.svg"):
        plot.draw_lines([result], tmp_path / "taken.svg")
