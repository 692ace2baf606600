"""Every law says what it is, and can fail: with its comparisons or its controls put to sleep it is vacuous."""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import replace

import pytest
from torch import Tensor

import attnzoo
from attnzoo.checks import LAWS, Law
from attnzoo.checks.evidence import Evidence
from attnzoo.checks.faults import SOUND
from attnzoo.checks.lab import Case, option_cases, size_cases
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
    assert re.fullmatch(r"[A-Za-z`][^\n]+\.", law.title), law.title
    assert law.title.split() == law.doc.split()[: len(law.title.split())]


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


# Laws that say with what the change must show. One may run its control on some cases only.
CONTROLLED = [law for law in LAWS if "see.reacts(" in inspect.getsource(law.run)]


@pytest.mark.parametrize("law", CONTROLLED, ids=lambda law: law.id)
def test_a_law_whose_control_does_not_react_is_vacuous(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    react = Evidence.reacts

    def asleep(self: Evidence, before: Tensor, after: Tensor, what: str) -> None:
        react(self, before, before, what)

    monkeypatch.setattr(Evidence, "reacts", asleep)
    result = alone(law)
    assert result.outcome == "vacuous"
    assert "nothing moved (0.0e+00), so that the law could not have failed" in result.message


def test_many_laws_have_a_control() -> None:
    assert len(CONTROLLED) > len(LAWS) / 4
