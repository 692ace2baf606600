"""What a report says, to a reader and to a program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attnzoo.checks import LAWS
from attnzoo.checks.engine.clauses import CLAUSES
from attnzoo.checks.engine.report import TRUTHS, Outcome, Report, Result, tell
from attnzoo.checks.engine.runner import Run
from attnzoo.checks.exam.faults import FAULTS

OUTCOMES: list[Outcome] = [
    "passed",
    "failed",
    "error",
    "known",
    "unexpected-pass",
    "not-applicable",
    "blocked",
    "vacuous",
]
RED: list[Outcome] = ["failed", "error", "unexpected-pass", "vacuous"]


def result(law: str, outcome: Outcome, message: str = "", **more: Any) -> Result:
    return Result(law=law, clause="C5", title="No token sees a later one.", outcome=outcome, message=message, **more)


def report(*results: Result) -> Report:
    return Report(variant="ours", version="1.2.3", device="cpu", depth="quick", seed=7, results=results)


# The verdict


def test_nothing_that_ran_is_no_pass() -> None:
    assert not report().passed


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_only_a_pass_passes(outcome: Outcome) -> None:
    assert report(result("a.b", outcome)).passed is (outcome == "passed")


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_red_outcome_fails_the_report_whatever_else_passed(outcome: Outcome) -> None:
    assert report(result("a.a", "passed"), result("a.b", outcome)).passed is (outcome not in RED)


def test_counts_and_seconds() -> None:
    held = report(
        result("a.a", "passed", seconds=1.5), result("a.b", "passed", seconds=0.25), result("a.c", "known", seconds=2)
    )
    assert held.counts == {"passed": 2, "known": 1}
    assert held.seconds == 3.75


# For programs


def test_json_holds_everything() -> None:
    held = report(result("a.a", "passed", cases=3), result("a.b", "failed", "off by 1", case="options-0", worst=12.5))
    document = json.loads(held.to_json())
    assert document == json.loads(json.dumps(held.to_dict()))
    assert document["schema"] >= 1
    assert (document["variant"], document["version"], document["device"]) == ("ours", "1.2.3", "cpu")
    assert (document["depth"], document["seed"], document["passed"]) == ("quick", 7, False)
    assert document["counts"] == {"passed": 1, "failed": 1}
    first, second = document["results"]
    assert (first["law"], first["outcome"], first["cases"]) == ("a.a", "passed", 3)
    assert (second["message"], second["case"], second["worst"]) == ("off by 1", "options-0", 12.5)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_json_is_json_though_the_worst_error_is_infinite() -> None:
    document = report(result("a.a", "failed", "off by inf", worst=float("inf"))).to_json()
    json.loads(document, parse_constant=refuse)


# For readers


def test_a_report_has_a_row_for_each_law() -> None:
    held = report(result("a.first", "passed", comparisons=31, worst=0.125), result("a.second", "blocked"))
    rows = str(held).splitlines()
    (first,) = (row for row in rows if "a.first" in row)
    assert first.split() == ["a.first", "C5", "passed", "31", "0.12"]
    assert any("a.second" in row and "blocked" in row for row in rows)


@pytest.mark.parametrize("outcome", [*RED, "known"])
def test_what_is_no_plain_pass_is_told_in_full(outcome: Outcome) -> None:
    words = str(report(result("a.b", outcome, "because of [this]", case="options-0", reproduce="attnzoo check ours")))
    assert f"ours: {outcome.upper()} a.b (C5): No token sees a later one." in words
    assert "because of [this]" in words
    assert "again: attnzoo check ours" in words


@pytest.mark.parametrize("outcome", ["passed", "not-applicable"])
def test_what_is_well_is_not_told_in_full(outcome: Outcome) -> None:
    assert "No token sees a later one" not in str(report(result("a.b", outcome, "takes no option window")))


def test_laws_that_do_not_apply_are_listed_under_their_reason() -> None:
    words = str(
        report(
            result("a.a", "not-applicable", "declares no cache"),
            result("a.b", "not-applicable", "takes no option window"),
            result("a.c", "not-applicable", "declares no cache"),
        )
    )
    assert "not applicable, because ours declares no cache: a.a, a.c\n" in words
    assert "not applicable, because ours takes no option window: a.b\n" in words


def test_blocked_laws_are_listed_under_what_blocks_them() -> None:
    words = str(report(*(result(law, "blocked", "stands on a.z") for law in ("a.a", "a.b"))))
    assert "ours: BLOCKED a.a, a.b: stands on a.z\n" in words


def test_where_all_other_laws_are_blocked_they_are_counted() -> None:
    blocked = [result(f"a.law_{i}", "blocked", "stands on build.runs") for i in range(30)]
    words = str(report(result("build.runs", "error", "InputError: no context", case="options-0"), *blocked))
    assert "ours: BLOCKED all other 30 laws: stands on build.runs\n" in words
    assert "a.law_7:" not in words
    words = str(report(result("build.runs", "error", "no"), result("a.a", "passed"), *blocked))
    assert f"ours: BLOCKED {', '.join(one.law for one in blocked)}: stands on build.runs\n" in words


def test_a_layer_that_does_not_run_is_told_what_every_layer_answers() -> None:
    assert "InputError: no context\n  every layer answers y = layer(x)" in tell(
        result("build.runs", "error", "InputError: no context", case="options-0")
    )
    assert "every layer" not in tell(result("a.a", "error", "InputError: no context", case="options-0"))


def test_what_no_truth_could_judge_is_told_before_the_verdict() -> None:
    oracle = result("truth.oracle", "not-applicable", "brings no oracle")
    sdpa = result("truth.sdpa", "not-applicable", "shows no stages (project, attend, merge)")
    for why, named in {
        "shows no stages (project, attend, merge)": " and the grouping of heads",
        "takes no": "",
    }.items():
        held = report(result("a.a", "passed"), oracle, sdpa, result("truth.grouping", "not-applicable", why))
        last_but_one, last = [line for line in str(held).splitlines() if line][-2:]
        assert last_but_one == (
            f"not judged: the numbers, such as the scale{named}; "
            "ours brings no oracle and shows no stages (project, attend, merge)"
        )
        assert last.startswith("ours: conforms")
    for judged in ([oracle, result("truth.sdpa", "passed")], [oracle], [sdpa, result("truth.oracle", "failed", "no")]):
        assert "not judged" not in str(report(*judged))


def test_the_laws_that_tell_what_is_computed_are_there() -> None:
    assert {*TRUTHS, "truth.grouping"} <= {law.id for law in LAWS}


def test_the_last_line_is_the_verdict() -> None:
    assert str(report(result("a.a", "passed", seconds=1.26))).rstrip().endswith("ours: conforms (1 passed; 1.3 s)")
    words = str(report(result("a.a", "passed"), result("a.b", "failed", "off by 1"), result("a.c", "passed")))
    assert "ours: does not conform (1 failed, 2 passed; 0.0 s)" in words


def test_a_failure_can_be_read_alone() -> None:
    failed = result(
        "a.b", "failed", "off by 1", case="options-0", smallest="options-0,b=1", reproduce="attnzoo check ours"
    )
    assert tell(failed) == (
        "FAILED a.b (C5): No token sees a later one.\n"
        f"  clause C5: {CLAUSES['C5']}\n"
        "  case options-0: off by 1\n"
        "  smallest case that fails: options-0,b=1\n"
        "  again: attnzoo check ours"
    )


def test_the_report_of_a_real_fault_can_be_read_alone() -> None:
    (fault,) = (fault for fault in FAULTS if fault.id == "causal.one_ahead")
    run = Run(fault.variant, LAWS, explain=False)
    words = " ".join(str(run.report(["causality.no_future"])).split())
    assert "FAILED causality.no_future (C5): Changing a token changes no earlier output" in words
    assert "outputs before token 1, when tokens from 1 on change: off by" in words
    assert "times its budget of 1.0e-12, worst at (" in words
    assert "again: attnzoo check causal_one_ahead --only causality.no_future" in words
    assert "does not conform (1 failed, 1 passed;" in words
