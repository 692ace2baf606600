"""The laws under pytest: the same outcomes as `attnzoo.check`, and an exit code that is never green by accident."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import attnzoo
from attnzoo.checks import LAWS
from attnzoo.cli import main

pytest_plugins = ["pytester"]

OK, FAILED, USAGE, NONE = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.USAGE_ERROR,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)

# A sound causal layer without any option, in a file of its own; and the same with a hole in it.
SOUND = """
import attnzoo
from attnzoo.checks.exam.faults.specimen import Specimen
from attnzoo.errors import Unsupported


class Bare(Specimen):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, 4, 2)

    def forward(self, x, context=None, **asked):
        for word, given in {"context": context, **asked}.items():
            if given is not None and given is not False:
                raise Unsupported(f"{word} is not taken here")
        return super().forward(x)


def variant(name, build=Bare):
    traits = attnzoo.Traits(causal="always", mask=False, key_mask=False, weights=False)
    return attnzoo.Variant(name=name, build=build, summary="Ours.", traits=traits, cases=[{"d_model": 24}])
"""
BROKEN = """
from sound import Bare, variant


class Leaking(Bare):
    def causal_rule(self, q, k):
        return super().causal_rule(q, k) | True
"""
TWO_LINES = """
from attnzoo.testing import conformance
test_conforms = conformance("mine")
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a sound layer and a broken one."""
    pytester.makepyfile(sound=SOUND, broken=BROKEN)
    return pytester


def pytest_words(result: pytest.RunResult) -> dict[str, str]:
    """Test id -> the word pytest has for its outcome, from a verbose run."""
    found = (re.match(r"\S*::test_conforms\[(\S+)\] (.+?) +\[ *\d+%\]", line) for line in result.outlines)
    return {match[1]: match[2] for match in found if match}


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "attnzoo.testing", *arguments)


# Three ways, one result


def test_three_ways_give_one_outcome_for_each_law(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    report = attnzoo.check("single_head")
    face = {result.law: result.outcome for result in report.results}

    with pytest.raises(SystemExit) as stop:
        main(["check", "single_head", "--json", "-"])
    shell = {
        result["law"]: result["outcome"] for result in json.loads(capsys.readouterr().out)["reports"][0]["results"]
    }

    result = run(pytester, "--variant=single_head", "-v")
    told = pytest_words(result)
    tests = {id.removeprefix("single_head-"): word.lower().replace(" ", "-") for id, word in told.items()}

    assert face == shell == tests
    assert list(face) == [law.id for law in LAWS] == list(tests)
    assert (report.passed, stop.value.code, result.ret) == (True, 0, OK)
    assert (
        f" {report.counts['passed']} passed, {report.counts['not-applicable']} not applicable in "
        in result.outlines[-1]
    )


# Which variants


def collected(result: pytest.RunResult) -> list[str]:
    """The variants of the tests of one law, in order."""
    return re.findall(r"\[(\S+)-build\.runs\]", result.stdout.str())


def test_variant_may_be_given_twice_and_as_a_glob(pytester: pytest.Pytester) -> None:
    asked = ("-k", "build.runs", "--collect-only", "-q")
    assert collected(run(pytester, "--variant=rope", "--variant=mha", *asked)) == ["rope", "mha"]
    assert collected(run(pytester, "--variant=m*", "--variant=mha", *asked)) == ["mha", "mqa"]
    assert collected(run(pytester, "--variant=attnzoo/rope", *asked)) == ["attnzoo/rope"]


def test_with_variant_nothing_else_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own="def test_own():\n    assert False\n")
    result = run(pytester, "--variant=single_head", "-k", "build.runs or own", "-v")
    assert result.ret == OK
    result.assert_outcomes(passed=1, deselected=len(LAWS) - 1)


def test_without_variant_a_projects_own_tests_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own="def test_own():\n    assert True\n")
    run(pytester).assert_outcomes(passed=1)


# What cannot be served


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("--variant=singel_head", "unknown variant 'singel_head'; did you mean 'single_head'?"),
        ("--variant=zz*", "no variant matches 'zz*'"),
        ("--device=cuda:99", "device 'cuda:99' was asked for and is not there"),
        ("--depth=deep", "invalid choice: 'deep'"),
    ],
)
def test_what_cannot_be_served_is_a_usage_error(pytester: pytest.Pytester, asked: str, words: str) -> None:
    result = run(pytester, "--variant=mha", asked)
    assert result.ret == USAGE
    assert words in result.stderr.str()


def test_a_selection_of_nothing_is_not_green(pytester: pytest.Pytester) -> None:
    assert run(pytester, "--variant=single_head", "-k", "nonesuch").ret == NONE


def test_laws_that_do_not_apply_alone_are_not_green(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--variant=single_head", "-k", "position.shift or position.matters")
    assert "2 not applicable" in result.outlines[-1]
    assert result.ret == NONE


# In a project of one's own


def test_two_lines_hold_a_projects_own_variant_to_every_law(project: pytest.Pytester) -> None:
    project.makeconftest("import attnzoo, sound\nattnzoo.register(sound.variant('mine'))\n")
    project.makepyfile(test_laws=TWO_LINES, test_own="def test_own():\n    pass\n")
    result = project.runpytest_subprocess("-p", "attnzoo.testing", "-v")
    assert result.ret == OK
    told = pytest_words(result)
    assert list(told) == [f"mine-{law.id}" for law in LAWS]
    assert set(told.values()) == {"PASSED", "NOT APPLICABLE"}
    result.stdout.fnmatch_lines(["test_own.py::test_own PASSED*"])


def test_a_broken_variant_fails_in_the_laws_own_words(project: pytest.Pytester) -> None:
    project.makeconftest("import attnzoo, broken\nattnzoo.register(broken.variant('mine', broken.Leaking))\n")
    project.makepyfile(test_laws=TWO_LINES)
    result = project.runpytest_subprocess("-p", "attnzoo.testing", "-k", "build.runs or no_future or position.shift")
    assert result.ret == FAILED
    result.stdout.fnmatch_lines(
        [
            "FAILED causality.no_future (C5): *",
            "*outputs before token 1, when tokens from 1 on change: off by *",
            "*again: attnzoo check mine --only causality.no_future *",
            "*1 failed, 1 passed, * 1 not applicable*",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "testing.py:" not in result.stdout.str()


def test_a_declared_failure_is_known_and_what_stands_on_a_failure_is_blocked(project: pytest.Pytester) -> None:
    project.makeconftest(
        "from dataclasses import replace\n"
        "import attnzoo, broken\n"
        "mine = broken.variant('mine', broken.Leaking)\n"
        "attnzoo.register(replace(mine, known={'causality.no_future': 'outputs before token 1'}))\n"
        "def nothing(d_model: int):\n"
        "    raise RuntimeError('no memory')\n"
        "attnzoo.register(replace(mine, name='nothing', build=nothing))\n"
    )
    project.makepyfile(test_laws=TWO_LINES.replace('"mine"', '"mine", "nothing"'))
    result = project.runpytest_subprocess("-p", "attnzoo.testing", "-v", "-k", "build.runs or no_future")
    told = pytest_words(result)
    assert told == {
        "mine-build.runs": "PASSED",
        "mine-causality.no_future": "KNOWN",
        "nothing-build.runs": "FAILED",
        "nothing-causality.no_future": "BLOCKED",
    }
    assert "RuntimeError: no memory" in result.stdout.str()
    assert result.ret == FAILED


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n2")], ids=["alone", "xdist"])
def test_workers_of_xdist_change_neither_the_exit_code_nor_the_diagnosis(
    project: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    project.makeconftest("import attnzoo, broken\nattnzoo.register(broken.variant('mine', broken.Leaking))\n")
    project.makepyfile(test_laws=TWO_LINES)
    asked = ("-p", "attnzoo.testing", *workers, "-k")
    good = project.runpytest_subprocess(*asked, "build.runs", "--variant=single_head")
    bad = project.runpytest_subprocess(*asked, "no_future")
    none = project.runpytest_subprocess(*asked, "position.shift", "--variant=single_head")
    assert (good.ret, bad.ret, none.ret) == (OK, FAILED, NONE)
    bad.stdout.fnmatch_lines(["mine on cpu: no known fault: the variant brings no oracle*"])
    assert "1 not applicable" in none.outlines[-1]


def test_nothing_is_loaded_into_a_project_that_does_not_ask(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own="def test_own():\n    pass\n")
    code = "import sys, pytest; code = pytest.main([]); sys.exit(code or 'attnzoo' in sys.modules)"
    assert pytester.run(sys.executable, "-c", code).ret == OK
    result = pytester.run(sys.executable, "-m", "pytest", "--variant=mha")
    assert result.ret == USAGE
    assert "--variant" in result.stderr.str()


def test_the_plugin_is_the_only_file_that_knows_pytest() -> None:
    package = Path(attnzoo.__file__).parent
    importing = re.compile(r"^\s*(import|from) pytest", re.MULTILINE)
    assert [p.name for p in package.rglob("*.py") if importing.search(p.read_text("utf-8"))] == ["testing.py"]
