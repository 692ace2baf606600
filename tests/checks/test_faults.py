"""The exam: every planted fault is killed by the law it names, and no sound specimen is accused."""

from __future__ import annotations

import re

import pytest

import attnzoo
from attnzoo.checks import LAWS
from attnzoo.checks.engine.runner import Run
from attnzoo.checks.exam.faults import FAULTS, SOUND, Fault
from attnzoo.checks.exam.faults.fault import kind_of

# Faults that break off the call instead of answering wrongly: their law cannot fail, only err.
RAISING = {
    "cross.single_token",
    "layout.empty",
    "state.keeps_weights",
    "autocast.breaks",
    "autocast.cache_breaks",
    "claims.too_much",
}

each = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)


@each
def test_a_fault_is_killed_by_the_law_it_names(fault: Fault) -> None:
    run = Run(fault.variant, LAWS, explain=False)
    killed = run.result(fault.killed_by)
    assert killed.outcome == ("error" if fault.id in RAISING else "failed"), killed
    assert killed.message
    assert fault.killed_by == "build.runs" or run.result("build.runs").outcome == "passed"
    assert not run.report([fault.killed_by]).passed


sound = pytest.mark.parametrize("variant", SOUND, ids=lambda variant: variant.name)


@sound
def test_a_sound_specimen_passes_every_law(variant: attnzoo.Variant) -> None:
    report = attnzoo.check(variant)
    assert set(report.counts) == {"passed", "not-applicable"}, str(report)
    assert report.counts["passed"] > 70


@sound
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_sound_specimen_passes_whatever_the_seed(variant: attnzoo.Variant, seed: int) -> None:
    report = attnzoo.check(variant, seed=seed, case="options-0")
    assert set(report.counts) == {"passed", "not-applicable"}, str(report)


def test_every_law_applies_to_a_sound_specimen() -> None:
    idle = [law.id for law in LAWS if all(law.not_applicable(variant) for variant in SOUND)]
    assert idle == []


def test_every_law_kills_something() -> None:
    assert {law.id for law in LAWS} == {fault.killed_by for fault in FAULTS}


def test_there_are_many_faults_and_no_two_of_one_name() -> None:
    ids = [fault.id for fault in FAULTS]
    assert len(ids) >= 60
    assert len(set(ids)) == len(ids)
    assert {fault.id for fault in FAULTS} >= RAISING


@each
def test_a_fault_says_what_it_is(fault: Fault) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z_\d]+", fault.id)
    assert re.fullmatch(r"B\d\d|ours", fault.source)
    assert re.fullmatch(r"C([1-9]|1\d)", fault.clause)
    assert fault.layer.__doc__ is not None
    assert "\n" not in fault.layer.__doc__
    assert re.fullmatch(r"[A-Za-z`][^\n]+\.", fault.truth), fault.truth
    assert (fault.needs == "") == (kind_of(fault.layer).name == "plain")


@each
def test_a_fault_claims_what_its_sound_specimen_claims(fault: Fault) -> None:
    (sound,) = (variant for variant in SOUND if variant.name == f"sound_{kind_of(fault.layer).name}")
    assert (fault.variant.traits, fault.variant.cases) == (sound.traits, sound.cases)
    assert fault.variant.oracle == sound.oracle
    assert fault.variant.options is not None
    assert sound.options is not None
    assert fault.variant.options.keys() >= sound.options.keys()
