"""The page of what the suite catches is that of the faults and laws there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnzoo.checks import LAWS
from attnzoo.checks.exam.faults import FAULTS, Fault

PAGE = (Path(__file__).parent.parent / "docs/kill-table.md").read_text(encoding="utf-8")
ROWS = {row.split("`")[1]: row for row in PAGE.splitlines() if row.startswith("| `")}
AGAIN = "stale; make it anew: attnzoo selftest --table docs/kill-table.md"


def test_the_page_counts_the_faults_and_laws_there_are() -> None:
    assert f"{len(FAULTS)} faults, {len(LAWS)} laws." in PAGE, AGAIN
    assert list(ROWS) == [fault.id for fault in FAULTS], AGAIN


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_row_says_what_its_fault_says(fault: Fault) -> None:
    cells = [cell.strip() for cell in ROWS[fault.id].split(" | ")]
    killers = cells[4].removesuffix("|").strip().split(", ")
    assert cells[1:4] == [fault.truth, fault.clause, fault.reported or "ours"], AGAIN
    assert killers[0] == f"**{fault.killed_by}**", AGAIN
    assert set(killers[1:]) <= {law.id for law in LAWS} - {fault.killed_by}, AGAIN
