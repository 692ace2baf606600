"""How laws come out: with laws and layers small enough to see through."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnzoo
from attnzoo.checks import LAWS, Law
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import law
from attnzoo.checks.engine.report import Result
from attnzoo.checks.engine.runner import Run, devices
from attnzoo.checks.exam.faults import FAULTS
from attnzoo.errors import ConfigError
from attnzoo.registry import zoo


class Line(nn.Module):
    """Stands in for a layer."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


LINE = attnzoo.Variant(
    name="line", build=Line, summary="A stand-in.", cases=[{"d_model": 4}], traits=attnzoo.Traits(causal="never")
)


@law("ours.holds", "C1", after=())
def holds(lab: Lab, see: Evidence) -> None:
    """It holds."""
    see.reacts(torch.zeros(1), lab.layer()(lab.tokens()), "the output")
    see.close(torch.ones(2), torch.ones(2) + 2**-22, "the one")
    see.holds(True, "the other")


@law("ours.fails", "C2", after=())
def fails(lab: Lab, see: Evidence) -> None:
    """It fails."""
    see.holds(True, "before")
    see.holds(lab.case.b == 0, f"b is 0, not {lab.case.b}")


@law("ours.errs", "C3", after=())
def errs(lab: Lab, see: Evidence) -> None:
    """It errs."""
    lab.layer()(None)


@law("ours.compares_nothing", "C4", after=())
def compares_nothing(lab: Lab, see: Evidence) -> None:
    """It compares nothing."""
    see.close(torch.ones(0), torch.ones(0), "nothing")


@law("ours.asleep", "C5", after=())
def asleep(lab: Lab, see: Evidence) -> None:
    """Its control does not react."""
    see.holds(True, "a fact")
    see.reacts(lab.tokens(), lab.tokens(), "the tokens")


@law("ours.other_kind", "C6", needs=[lambda variant: None, lambda variant: f"is {variant.name}"], after=())
def other_kind(lab: Lab, see: Evidence) -> None:
    """It is for other variants."""
    raise AssertionError("this law does not apply")


@law("ours.no_case", "C7", where=lambda case: case.t > 1000, after=())
def no_case(lab: Lab, see: Evidence) -> None:
    """It has no case."""
    raise AssertionError("this law has no case")


@law("ours.follower", "C8", after=("ours.holds", "ours.fails"))
def follower(lab: Lab, see: Evidence) -> None:
    """It stands on one that fails."""
    raise AssertionError("this law is blocked")


@law("ours.second_follower", "C9", after=("ours.follower",))
def second_follower(lab: Lab, see: Evidence) -> None:
    """It stands on one that is blocked."""
    raise AssertionError("this law is blocked")


OURS = [holds, fails, errs, compares_nothing, asleep, other_kind, no_case, follower, second_follower]


def result(one: Law, variant: attnzoo.Variant = LINE, **options: Any) -> Result:
    return Run(variant, [one], **options).result(one.id)


# Outcomes


def test_a_law_that_holds_has_passed_and_says_how_much_was_compared() -> None:
    passed = result(holds)
    assert (passed.law, passed.clause, passed.title) == ("ours.holds", "C1", "It holds.")
    assert (passed.outcome, passed.message, passed.case) == ("passed", "", "")
    assert (passed.cases, passed.comparisons, passed.worst_of) == (1, 2, "the one")
    assert passed.worst == pytest.approx(2**-22 / 1e-6)
    assert passed.reproduce == ""


def test_a_law_that_does_not_hold_has_failed_and_says_where() -> None:
    failed = result(fails)
    assert (failed.outcome, failed.message, failed.case) == ("failed", "b is 0, not 2", "options-0")
    assert failed.reproduce.startswith("attnzoo check line --only ours.fails ")
    assert " --seed 0" in failed.reproduce


def test_an_exception_is_an_error_with_the_line_that_raised_it() -> None:
    failed = result(errs)
    assert failed.outcome == "error"
    assert failed.message.startswith("TypeError: unsupported operand type")
    assert re.search(r"\(forward, line \d+ of test_runner.py\)$", failed.message)


def test_a_law_that_compared_nothing_is_vacuous() -> None:
    vacuous = result(compares_nothing)
    assert (vacuous.outcome, vacuous.message, vacuous.case) == ("vacuous", "compared nothing", "options-0")


def test_a_law_whose_control_did_not_react_is_vacuous() -> None:
    vacuous = result(asleep)
    assert vacuous.outcome == "vacuous"
    assert vacuous.message.startswith("the tokens: nothing moved")


def test_comparisons_of_one_case_do_not_count_for_another() -> None:
    @law("ours.first_only", "C1", after=())
    def first_only(lab: Lab, see: Evidence) -> None:
        """It compares on the first case only."""
        if lab.case.name == "options-0":
            see.holds(True, "a fact")

    vacuous = result(first_only, replace(LINE, cases=[{"d_model": 4}, {"d_model": 6}]))
    assert (vacuous.outcome, vacuous.case, vacuous.cases) == ("vacuous", "options-1", 2)


def test_a_law_for_other_variants_is_not_applicable_with_the_reason() -> None:
    exempt = result(other_kind)
    assert (exempt.outcome, exempt.message) == ("not-applicable", "is line")
    assert result(no_case).outcome == "not-applicable"
    assert "no case" in result(no_case).message


def test_a_law_on_one_that_did_not_pass_is_blocked_by_it() -> None:
    run = Run(LINE, OURS)
    assert run.result("ours.follower").outcome == "blocked"
    assert "ours.fails" in run.result("ours.follower").message
    assert run.result("ours.second_follower").outcome == "blocked"
    assert "ours.follower" in run.result("ours.second_follower").message


@pytest.mark.parametrize("root", [fails, errs, compares_nothing, asleep])
def test_any_red_outcome_blocks(root: Law) -> None:
    after = replace(holds, after=(root.id,))
    assert Run(LINE, [root, after]).result(holds.id).outcome == "blocked"


def test_a_law_on_one_that_does_not_apply_is_not_blocked() -> None:
    after = replace(holds, after=(other_kind.id,))
    assert Run(LINE, [other_kind, after]).result(holds.id).outcome == "passed"


# Known failures


def known(words: str, one: Law = fails) -> Result:
    return result(one, replace(LINE, known={one.id: words}))


def test_a_failure_that_was_declared_with_its_words_is_known() -> None:
    assert known("b is 0").outcome == "known"
    assert known("b is 0").message == "b is 0, not 2"
    assert known("TypeError", errs).outcome == "known"


def test_a_declared_failure_for_another_reason_stays_a_failure() -> None:
    wrong = known("t is 0")
    assert wrong.outcome == "failed"
    assert wrong.message.startswith("b is 0, not 2")
    assert "'t is 0'" in wrong.message
    assert "another reason" in wrong.message


def test_vacuity_cannot_be_declared() -> None:
    assert known("compared nothing", compares_nothing).outcome == "vacuous"
    assert known("nothing moved", asleep).outcome == "vacuous"


def test_a_declared_failure_that_holds_is_an_unexpected_pass() -> None:
    stale = known("b is 0", holds)
    assert stale.outcome == "unexpected-pass"
    assert "'b is 0'" in stale.message
    assert not Run(replace(LINE, known={holds.id: "b is 0"}), [holds]).report().passed


def test_a_declared_failure_that_names_no_law_fails_the_report() -> None:
    report = Run(replace(LINE, known={"ours.hold": "b is 0"}), [holds]).report()
    assert [(told.law, told.outcome) for told in report.results] == [
        ("ours.holds", "passed"),
        ("suite.known", "failed"),
    ]
    assert "'ours.hold'" in report.results[1].message
    assert not report.passed


def test_a_known_failure_does_not_fail_the_report_but_is_no_pass_either() -> None:
    declared = replace(LINE, known={fails.id: "b is 0"})
    assert Run(declared, [holds, fails]).report().passed
    assert not Run(declared, [fails]).report().passed


# Reports


@pytest.mark.parametrize(
    ("laws", "passed"),
    [
        ([holds], True),
        ([holds, other_kind, no_case], True),
        ([holds, fails], False),
        ([holds, errs], False),
        ([holds, compares_nothing], False),
        ([holds, asleep], False),
        ([other_kind], False),
        ([], False),
    ],
)
def test_a_report_passes_if_something_passed_and_nothing_is_red(laws: list[Law], passed: bool) -> None:
    assert Run(LINE, laws).report().passed is passed


def test_a_report_holds_every_law_in_order_and_tells_its_progress() -> None:
    told: list[tuple[int, int, str]] = []
    report = Run(LINE, OURS, seed=3).report(progress=lambda *step: told.append(step))
    assert [one.law for one in report.results] == [one.id for one in OURS]
    assert told == [*((done, 9, one.id) for done, one in enumerate(OURS)), (9, 9, "")]
    assert (report.variant, report.device, report.depth, report.seed) == ("line", "cpu", "quick", 3)


def test_a_result_is_made_once() -> None:
    run = Run(LINE, OURS)
    assert run.result("ours.holds") is run.result("ours.holds") is run.report().results[0]


# What is asked for


def outcomes(*only: str) -> list[str]:
    return [one.law for one in Run(LINE, OURS).report(only).results]


def test_only_names_laws_by_id_or_glob_and_brings_what_they_stand_on() -> None:
    assert outcomes("ours.fails") == ["ours.fails"]
    assert outcomes("ours.*s", "ours.asleep") == ["ours.holds", "ours.fails", "ours.errs", "ours.asleep"]
    assert outcomes("ours.follower") == ["ours.holds", "ours.fails", "ours.follower"]


def test_only_that_names_no_law_is_an_error_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no law is called 'ours.hold'; did you mean 'ours.holds'\?"):
        outcomes("ours.hold")
    with pytest.raises(ConfigError, match=r"'theirs\.\*'"):
        outcomes("ours.holds", "theirs.*")


def test_depth_sets_the_number_of_seeds() -> None:
    assert result(holds, depth="full").cases == 5 * result(holds).cases
    with pytest.raises(ConfigError, match="unknown depth 'deep'; it takes 'quick' or 'full'"):
        Run(LINE, OURS, depth="deep")


def test_a_failure_under_another_seed_is_told_with_it() -> None:
    @law("ours.rare", "C1", after=())
    def rare(lab: Lab, see: Evidence) -> None:
        """It holds under some seeds."""
        see.holds(lab.seed != 6, "the seed is not 6")

    failed = result(rare, depth="full", seed=4)
    assert failed.outcome == "failed"
    assert " --seed 6" in failed.reproduce


LEAKING = next(fault.variant for fault in FAULTS if fault.id == "causal.one_ahead")


def again(variant: attnzoo.Variant | str, **asked: Any) -> str:
    """The line that shows the last law of this report again."""
    return attnzoo.check(variant, only=["causality.no_future"], **asked).results[-1].reproduce


def test_a_variant_that_is_not_installed_is_checked_again_in_python() -> None:
    line = again(LEAKING, seed=5, depth="full")
    assert re.fullmatch(
        r"print\(attnzoo\.check\(variant, only=\['causality\.no_future'\], case='[^']+', seed=5, depth='full'\)\)", line
    )
    report = eval(line.removeprefix("print"), {"attnzoo": attnzoo, "variant": LEAKING})
    assert [one.outcome for one in report.results] == ["passed", "failed"]
    assert report.results[-1].reproduce == line


def test_a_variant_of_this_session_is_checked_again_by_name_in_python() -> None:
    with attnzoo.temporary(LEAKING):
        assert again(LEAKING.name).startswith(
            "print(attnzoo.check('causal_one_ahead', only=['causality.no_future'], case="
        )


def test_an_installed_variant_is_checked_again_in_the_shell_and_one_that_only_has_its_name_is_not() -> None:
    gqa = attnzoo.describe("gqa")
    assert zoo().has_installed(gqa)
    assert not zoo().has_installed(replace(gqa, summary="Another."))
    assert not zoo().has_installed(LEAKING)
    with attnzoo.temporary(LEAKING):
        assert not zoo().has_installed(LEAKING)


@pytest.mark.parametrize("device", ["cuda:99", "nonesuch"])
def test_a_device_that_is_not_there_is_an_error(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device '{device}' was asked for and is not there"):
        Run(LINE, OURS, device=device)


def test_one_case_can_be_asked_for() -> None:
    several = replace(LINE, cases=[{"d_model": 4}, {"d_model": 6}])
    assert result(fails, several, case="options-1").case == "options-1"
    assert result(fails, several, case="options-1,b=1").message == "b is 0, not 1"
    with pytest.raises(ConfigError, match="no case is called 'options-2'"):
        result(fails, several, case="options-2")


def test_a_check_leaves_torch_as_it_was() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    try:
        torch.set_num_threads(2)
        attnzoo.check("single_head", only=["build.seeded", "mode.dropout"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_law_that_leaves_a_switch_turned_troubles_no_other() -> None:
    @law("ours.turns", "C1", after=())
    def turns(lab: Lab, see: Evidence) -> None:
        see.holds(torch.is_grad_enabled(), "gradients are on")
        torch.set_grad_enabled(False)

    @law("ours.looks", "C1", after=())
    def looks(lab: Lab, see: Evidence) -> None:
        see.holds(torch.is_grad_enabled(), "gradients are on")

    run = Run(replace(LINE, cases=[{"d_model": 4}]), [turns, looks])
    assert [result.outcome for result in run.report().results] == ["passed", "passed"]
    assert torch.is_grad_enabled()


def test_two_checks_with_one_seed_are_equal() -> None:
    one, other = (attnzoo.check("single_head", only=["mask.*", "mode.*"], seed=5).results for _ in range(2))
    assert [replace(told, seconds=0) for told in one] == [replace(told, seconds=0) for told in other]


# Variants that do not work at all


def test_a_factory_that_raises_fails_the_first_law_and_blocks_the_rest() -> None:
    def build(d_model: int) -> nn.Module:
        raise RuntimeError("no memory")

    report = attnzoo.check(replace(LINE, build=build))
    assert report.counts == {"error": 1, "blocked": len(LAWS) - 1}
    assert report.results[0].law == "build.runs"
    assert "RuntimeError: no memory" in report.results[0].message
    assert not report.passed


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: x[:, :1], "the same shape, not"),
        (lambda x: (x, None), "a plain call returns a tensor, not a tuple"),
        (lambda x: x / 0, "must be finite"),
    ],
    ids=["shape", "tuple", "infinity"],
)
def test_a_layer_that_does_not_answer_with_tokens_fails_the_first_law(answer: Any, words: str) -> None:
    class Wrong(Line):
        def forward(self, x: Tensor) -> Any:
            return answer(super().forward(x))

    root = attnzoo.check(replace(LINE, build=Wrong), only=["build.runs"]).results[0]
    assert root.outcome == "failed"
    assert words in root.message


def test_a_factory_that_returns_no_module_fails_the_first_law() -> None:
    def build(d_model: int) -> Any:
        return lambda x: x

    root = attnzoo.check(replace(LINE, build=build), only=["build.runs"]).results[0]
    assert root.outcome in ("failed", "error")
    assert "function" in root.message


@pytest.mark.parametrize(("there", "expected"), [(True, ["cpu", "cuda"]), (False, ["cpu"])])
def test_without_a_device_the_cpu_is_asked_and_a_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, there: bool, expected: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert devices("") == expected
    assert devices("cpu") == ["cpu"]


def test_another_device_stands_in_the_command_that_shows_a_failure_again() -> None:
    leaking = next(fault for fault in FAULTS if fault.id == "causal.missing").variant
    run = Run(leaking, LAWS, explain=False)
    run.device = torch.device("meta")
    place = run._place(run.laws["causality.no_future"], run._option_cases[0], 3, "error")
    assert place["reproduce"].endswith("--case options-0 --seed 3 --device meta")


def test_a_law_alone_does_not_wake_torchs_compiler() -> None:
    """To import it takes longer than the law."""
    code = "import sys, attnzoo; attnzoo.check('mha', only=['build.runs']); print('torch._dynamo' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
