"""A page for each law: its sentence, its code, what it asks of a variant, and the planted faults that it kills."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path

from attnzoo.checks import LAWS, Law
from attnzoo.checks.engine.clauses import CLAUSES
from attnzoo.checks.engine.law import Need
from attnzoo.checks.exam.faults import FAULTS, Fault
from zoodocs.docstrings import blocks
from zoodocs.pages import Page, render
from zoodocs.source import code_of

KILL_TABLE = Path(__file__).parents[2] / "kill-table.md"

CASES = {
    "default": "the variant's default case",
    "options": "every set of options the variant names, and the coincidences that hide bugs",
    "all": "every set of options the variant names, the coincidences that hide bugs, and the sizes at which code forks",
}


def pages() -> dict[str, Page]:
    """The overview, and a page for each law."""
    themes: dict[str, list[Law]] = {}
    for law in LAWS:
        themes.setdefault(theme_of(law), []).append(law)
    finds = found_by(KILL_TABLE.read_text(encoding="utf-8"))
    overview = render(
        "laws.md",
        laws=LAWS,
        faults=FAULTS,
        themes=themes,
        abouts={theme: about(laws[0]) for theme, laws in themes.items()},
        kills={law.id: len(declared(law)) for law in LAWS},
    )
    return {"laws/index": Page(overview)} | {f"laws/{law.id}": page(law, finds.get(law.id, [])) for law in LAWS}


def page(law: Law, finds: Sequence[str]) -> Page:
    """finds: the faults that it was seen to kill"""
    killed = declared(law)
    _, *more = blocks(law.doc)
    text = render(
        "law.md",
        law=law,
        clause=CLAUSES[law.clause],
        more=more,
        needs=[need_of(need) for need in law.needs],
        cases=CASES[law.cases],
        where=inspect.getdoc(law.where),
        code=code_of(law.run),
        killed=killed,
        fault_code={fault.id: code_of(fault.layer) for fault in killed},
        also=[fault for fault in FAULTS if fault.id in finds and fault not in killed],
    )
    return Page(text)


def theme_of(law: Law) -> str:
    return law.id.partition(".")[0]


def about(law: Law) -> str:
    """What the file of a law says it holds."""
    module = inspect.getmodule(law.run)
    return " ".join(blocks((module and module.__doc__) or "")[0].split())


def declared(law: Law) -> list[Fault]:
    """The faults that this law, by their own word, must find."""
    return [fault for fault in FAULTS if fault.killed_by == law.id]


def need_of(need: Need) -> str:
    """What a need asks of a variant, in words. One for a build option carries its name along."""
    if doc := inspect.getdoc(need):
        return doc
    return f"It takes the option `{inspect.getclosurevars(need).nonlocals['name']}`."


def found_by(table: str) -> dict[str, list[str]]:
    """Law -> the faults that the kill table says it finds.

    >>> found_by("| `scale.twice` | The queries are scaled twice. | C2 | ours | **truth.oracle**, mask.adds |")
    {'truth.oracle': ['scale.twice'], 'mask.adds': ['scale.twice']}
    """
    found: dict[str, list[str]] = {}
    for fault, laws in re.findall(r"^\| `([\w.]+)` \|.* \| ([^|]+) \|$", table, re.MULTILINE):
        for law in laws.replace("*", "").split(", "):
            found.setdefault(law, []).append(fault)
    return found
