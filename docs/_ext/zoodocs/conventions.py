"""What the page of conventions takes from the code: of each its sentence and the laws that guard it."""

from __future__ import annotations

from attnzoo.checks import LAWS
from attnzoo.checks.engine.clauses import CLAUSES
from attnzoo.checks.exam.faults import FAULTS
from zoodocs.pages import render


def substitutions() -> dict[str, str]:
    """Number of a convention -> Markdown. The page says `{{ C5 }}` where it is to stand."""
    return {
        number: render(
            "convention.md",
            sentence=sentence,
            laws=[law for law in LAWS if law.clause == number],
            faults=[fault for fault in FAULTS if fault.clause == number],
        )
        for number, sentence in CLAUSES.items()
    }
