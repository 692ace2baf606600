"""Every law says what it is, and can fail: without its comparisons, or with controls that see nothing, it is vacuous."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import attnzoo
from attnzoo.checks import LAWS, Law
from attnzoo.checks.evidence import Evidence
from attnzoo.checks.faults import SOUND
from attnzoo.checks.lab import Case, Lab, option_cases, size_cases
from attnzoo.checks.report import Result
from attnzoo.checks.runner import Run

each = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)

cases_of = functools.cache(lambda index: [*option_cases(SOUND[index]), *size_cases(SOUND[index])])


def a_place_for(law: Law) -> tuple[attnzoo.Variant, Case]:
    """A sound specimen, and a case of it, that the law applies to."""
    for index, variant in enumerate(SOUND):
        if law.not_applicable(variant) is None:
            return variant, next(case for case in cases_of(index) if law.where(case))
    raise AssertionError(f"{law.id} applies to no sound specimen")


def alone(law: Law) -> Result:
    """The result of a law that stands on no other, on one case of a sound specimen."""
    variant, case = a_place_for(law)
    return Run(variant, [replace(law, after=())], case=case.name).result(law.id)


@each
def test_a_law_says_what_it_is(law: Law) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", law.id)
    assert re.fullmatch(r"C([1-9]|1\d)", law.clause)
    sentence = " ".join(law.doc.split("\n\n")[0].split())
    assert re.match(r"[A-Z`].*[.:]$", sentence), sentence
    assert law.title == law.doc.splitlines()[0]


def test_no_two_laws_have_one_id_and_each_stands_on_laws_that_are_there() -> None:
    ids = [law.id for law in LAWS]
    assert len(set(ids)) == len(ids)
    assert {other for law in LAWS for other in law.after} <= set(ids)
    assert [law.id for law in LAWS if not law.after] == ["build.runs"]


def test_every_clause_has_a_law() -> None:
    assert {law.clause for law in LAWS} == {f"C{number}" for number in range(1, 20)} - WITHOUT_A_LAW


# C8 counts the keys of a window, which no variant has yet.
WITHOUT_A_LAW = {"C8"}


@each
def test_a_law_without_its_comparisons_is_vacuous(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    assert alone(law).outcome == "passed"
    for comparison in ("close", "exactly", "holds", "finite", "raises", "differs"):
        monkeypatch.setattr(Evidence, comparison, lambda *_, **__: None)
    result = alone(law)
    assert (result.outcome, result.message) == ("vacuous", "compared nothing")


def controls(law: Law) -> int:
    """How many positive controls a law has on one case of a sound specimen."""
    variant, case = a_place_for(law)
    seen = Evidence()
    torch.manual_seed(0)
    law.run(Lab(variant, case, torch.device("cpu")), seen)
    return seen.controls


@each
def test_a_law_whose_control_does_not_react_is_vacuous(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    has_controls = controls(law) > 0
    react = Evidence.reacts

    def asleep(self: Evidence, before: Tensor, after: Any, what: str) -> None:
        react(self, before, before, what)

    monkeypatch.setattr(Evidence, "reacts", asleep)
    result = alone(law)
    assert result.outcome == ("vacuous" if has_controls else "passed")
    assert ("nothing moved" in result.message) == has_controls


def test_most_laws_that_compare_two_runs_have_a_control() -> None:
    assert sum(controls(law) > 0 for law in LAWS) > 30
