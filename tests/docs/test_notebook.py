"""The classroom notebook: it runs in a fresh kernel, shows what it stores, and is stored as a run from top to bottom.

Pictures are stored, and not compared. When outputs change, this runs the notebook and stores them.

    python tests/docs/test_notebook.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbclient
import nbformat
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs/examples/attention_from_scratch.ipynb"

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
FOLDED = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def run(notebook: Any) -> Any:
    """Run all cells in a fresh kernel, from nothing; the first error ends it."""
    for cell in code(notebook).values():
        cell.outputs, cell.execution_count = [], None
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", record_timing=False, coalesce_streams=True
    )
    client.execute(cwd=str(ROOT))
    notebook.metadata = METADATA
    return notebook


def code(notebook: Any) -> dict[str, Any]:
    """The code cells by id."""
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def shown(cell: Any) -> list[str]:
    """What a cell printed and gave, in order; a picture counts as a picture."""
    found = []
    for output in cell.outputs:
        data = output.get("data", {})
        found.append("a picture" if "image/png" in data else output.get("text") or data.get("text/plain"))
    return found


NAMES = list(code(read()))


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return code(read())


@pytest.fixture(scope="module")
def fresh() -> dict[str, Any]:
    """The code cells after a run."""
    return code(run(read()))


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_gives_what_is_stored(fresh: dict[str, Any], stored: dict[str, Any], name: str) -> None:
    assert shown(fresh[name]) == shown(stored[name]), f"if that is right: python {Path(__file__).relative_to(ROOT)}"


def test_it_is_stored_as_one_run_from_top_to_bottom(stored: dict[str, Any]) -> None:
    assert [cell.execution_count for cell in stored.values()] == list(range(1, len(stored) + 1))
    assert read().metadata == METADATA
    for name, cell in stored.items():
        assert cell.metadata == (FOLDED if name.startswith("solution") else {}), name
        for output in cell.outputs:
            assert output.output_type in ("stream", "execute_result"), name
            assert output.get("name", "stdout") == "stdout", name


def test_an_exercise_is_unsolved_and_its_solution_is_right(stored: dict[str, Any]) -> None:
    for number in (1, 2, 3, 4):
        (asked,), (solved,) = (shown(stored[name]) for name in (f"exercise-{number}-judge", f"solution-{number}"))
        assert set(asked.splitlines()) == {"not tried yet"}, number
        assert set(solved.splitlines()) == {"right"}, number
        assert len(asked.splitlines()) == len(solved.splitlines()), number


def test_a_wrong_answer_is_told_with_a_hint(stored: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    source = stored["imports"].source.replace("%matplotlib inline", "")
    room: dict[str, Any] = {}
    with np.printoptions():  # the cell sets how numbers print, and this process has doctests to come
        exec(source, room)
    with pytest.raises(AssertionError, match="each row by itself"):
        room["judge"]([0.25, 0.75], [0.75, 0.25], "each row by itself")
    assert capsys.readouterr().out == ""


if __name__ == "__main__":
    nbformat.write(run(read()), NOTEBOOK)  # type: ignore[no-untyped-call]
