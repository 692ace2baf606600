"""`attnzoo report`, the documents it reads, their schema, and `attnzoo check --script`."""

from __future__ import annotations

import copy
import json
import runpy
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import attnzoo
from attnzoo.checks import LAWS, Report, Result
from attnzoo.checks.engine.report import RED, Diagnosis, Outcome
from attnzoo.checks.exam.faults import FAULTS
from attnzoo.cli import main

Capture = pytest.CaptureFixture[str]
Write = Callable[..., str]

FAULT = next(fault for fault in FAULTS if fault.id == "mask.replaces_causality")
# Without its oracle it fails all the same, and nothing is spent on diagnosing it.
FAULTY = replace(FAULT.variant, name="faulty", oracle=None)


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture
def faulty() -> Iterator[str]:
    with attnzoo.temporary(FAULTY) as variant:
        yield variant.name


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `attnzoo check` wrote about a sound variant and a faulty one, each held to a few laws."""
    path = tmp_path_factory.mktemp("real") / "report.json"
    laws = ("--only", "causality.no_future", "--only", "position.shift", "--only", "cache.overflow")
    with attnzoo.temporary(FAULTY):
        assert run("check", "mha", "faulty", *laws, "--json", str(path)) == 1
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a document of a variant with these outcomes and returns where."""

    def write(file: str, variant: str = "mine", /, **outcomes: Outcome) -> str:
        return save(tmp_path / file, {law.replace("__", "."): outcome for law, outcome in outcomes.items()}, variant)

    return write


def save(path: Path, outcomes: dict[str, Outcome], variant: str = "mine", version: str = "9.9") -> str:
    document = {"schema": 1, "reports": [report(outcomes, variant, version).to_dict()]}
    path.write_text(json.dumps({**document, "passed": document["reports"][0]["passed"]}))  # type: ignore[index]
    return str(path)


def report(outcomes: dict[str, Outcome], variant: str = "mine", version: str = "9.9") -> Report:
    results = [
        Result(law, "C5", "A law.", outcome, "" if outcome == "passed" else "why", comparisons=1)
        for law, outcome in outcomes.items()
    ]
    return Report(variant, version, "cpu", "quick", 0, results)


# The schema

SCHEMA = json.loads((files("attnzoo.checks.engine") / "report.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_real_documents_keep_to_the_schema(real: dict[str, Any]) -> None:
    VALIDATOR.validate(real)
    seen = [{result["outcome"] for result in report["results"]} for report in real["reports"]]
    assert seen == [{"passed", "not-applicable"}, {"passed", "not-applicable", "failed"}]
    for one in real["reports"]:
        VALIDATOR.validate(one)


def test_each_outcome_and_a_diagnosis_keep_to_the_schema() -> None:
    outcomes: tuple[Outcome, ...] = ("passed", "failed", "error", "known", "unexpected-pass", "blocked", "vacuous")
    held = report({f"a.b{n}": outcome for n, outcome in enumerate(outcomes)})
    VALIDATOR.validate(json.loads(held.to_json()))
    found = Diagnosis("mask.inverted", "The mask is inverted.", 0.0, "mask.added", 0.1)
    VALIDATOR.validate(json.loads(replace(held, diagnosis=found).to_json()))
    beyond = replace(held.results[1], worst=float("inf"))
    VALIDATOR.validate(json.loads(replace(held, results=[beyond]).to_json()))


PASSED, FAILED = ("reports", 0, "results", 0), ("reports", 1, "results", 1)
MUTATIONS: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "another schema": (("schema",), 2),
    "another schema inside": (("reports", 0, "schema"), 2),
    "no reports": (("reports",), []),
    "a word of no meaning": (("colour",), "green"),
    "no version": (("reports", 0, "version"), None),
    "a name that none can have": (("reports", 0, "variant"), "No Name"),
    "a verdict in words": (("reports", 0, "passed"), "yes"),
    "a count below one": (("reports", 0, "counts", "passed"), 0),
    "a count of something else": (("reports", 0, "counts", "skipped"), 1),
    "a diagnosis of nothing": (("reports", 1, "diagnosis"), {}),
    "a diagnosis without a reason": (("reports", 1, "diagnosis", "reason"), ""),
    "an outcome of its own": ((*PASSED, "outcome"), "skipped"),
    "a pass that compared nothing": ((*PASSED, "comparisons"), 0),
    "a failure without words": ((*FAILED, "message"), ""),
    "an error in words": ((*FAILED, "worst"), "large"),
    "a clause of none": ((*FAILED, "clause"), "5"),
    "a law without theme": ((*FAILED, "law"), "nofuture"),
    "more in a result": ((*FAILED, "line"), 3),
}


@pytest.mark.parametrize(("at", "value"), MUTATIONS.values(), ids=MUTATIONS)
def test_a_mutated_document_breaks_the_schema(real: dict[str, Any], at: tuple[str | int, ...], value: Any) -> None:
    mutant = copy.deepcopy(real)
    place: Any = mutant
    for step in at[:-1]:
        place = place[step]
    place[at[-1]] = value
    assert not VALIDATOR.is_valid(mutant)


@pytest.mark.parametrize("kind", ["document", "report", "result"])
def test_a_document_that_lacks_a_word_breaks_the_schema(real: dict[str, Any], kind: str) -> None:
    for word in SCHEMA["$defs"][kind]["required"]:
        mutant = copy.deepcopy(real)
        place = {"document": mutant, "report": mutant["reports"][1], "result": mutant["reports"][1]["results"][1]}
        del place[kind][word]
        assert not VALIDATOR.is_valid(mutant), word


# attnzoo report diff


def test_a_run_is_no_worse_than_itself(write: Write, capsys: Capture) -> None:
    same = write("same.json", a__b="failed", a__c="passed")
    assert run("report", "diff", same, same) == 0
    assert capsys.readouterr().out == "0 laws changed, nothing got worse\n"


def test_what_got_worse_is_told_law_by_law(write: Write, capsys: Capture) -> None:
    before = write("before.json", a__same="passed", a__down="passed", a__up="error", a__side="failed", a__old="failed")
    after = write("after.json", a__same="passed", a__down="failed", a__up="passed", a__side="error", a__new="passed")
    assert run("report", "diff", before, after) == 1
    table = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if line.count("│") == 6]
    assert cells == [
        ["mine", "a.down", "passed", "failed", "worse"],
        ["mine", "a.up", "error", "passed", "better"],
        ["mine", "a.side", "failed", "error", "changed"],
        ["mine", "a.old", "failed", "-", "gone"],
        ["mine", "a.new", "-", "passed", "new"],
    ]
    assert "5 laws changed, 1 got worse" in table
    assert run("report", "diff", before, after, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["worse"] is True
    assert [change["law"] for change in told["changes"] if change["worse"]] == ["a.down"]
    assert told["changes"][3] == {
        "variant": "mine",
        "law": "a.old",
        "before": "failed",
        "after": "",
        "worse": False,
        "told": "gone",
    }


@pytest.mark.parametrize("now", [*sorted(RED), "blocked", "known", "not-applicable", ""])
def test_a_pass_that_is_lost_is_worse_and_one_that_is_won_is_not(write: Write, now: Outcome) -> None:
    passed, lost = write("passed.json", a__b="passed", a__a="passed"), write("lost.json", a__a="passed")
    if now:
        lost = write("lost.json", a__a="passed", a__b=now)
    assert run("report", "diff", passed, lost) == 1
    assert run("report", "diff", lost, passed) == 0


def test_a_new_law_that_fails_is_worse(write: Write) -> None:
    assert run("report", "diff", write("a.json", a__a="passed"), write("b.json", a__a="passed", a__b="failed")) == 1


def test_a_law_is_compared_with_that_of_the_same_variant(write: Write, capsys: Capture) -> None:
    assert run("report", "diff", write("a.json", "one", a__a="passed"), write("b.json", "two", a__a="passed")) == 1
    assert "2 laws changed, 1 got worse" in capsys.readouterr().out


# Files that are no report


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON"),
        ("[]", "is no report"),
        ('{"n": 90, "m": 90}', "is no report"),
        ('{"schema": 2, "reports": []}', "has schema 2; this attnzoo reads schema 1"),
        ('{"schema": 1, "reports": []}', "lists no reports"),
        ('{"schema": 1, "passed": true}', "needs variant, version and results"),
    ],
)
@pytest.mark.parametrize("verb", ["diff", "badge"])
def test_a_file_that_is_no_report_is_refused(
    tmp_path: Path, write: Write, verb: str, text: str, words: str, capsys: Capture
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    others = [write("good.json", a__b="passed")] if verb == "diff" else []
    assert run("report", verb, *others, str(path)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert run("report", "badge", str(tmp_path / "none.json")) == 2
    assert "none.json: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "value", "words"),
    [
        ("counts", {"passed": 2}, "counts are not those of its results"),
        ("passed", True, "verdict does not follow"),
        ("results", [{"law": "a.b", "outcome": "fine"}], "one of the outcomes passed,"),
    ],
)
def test_a_report_that_was_touched_up_is_refused(
    tmp_path: Path, word: str, value: Any, words: str, capsys: Capture
) -> None:
    document = {**report({"a.a": "passed", "a.b": "failed"}).to_dict(), word: value}
    (tmp_path / "report.json").write_text(json.dumps(document))
    assert run("report", "badge", str(tmp_path / "report.json")) == 2
    assert words in capsys.readouterr().err


# attnzoo report badge


def test_the_badge_counts_what_passed_among_all(tmp_path: Path, capsys: Capture) -> None:
    every: dict[str, Outcome] = {law.id: "passed" for law in LAWS}
    every[LAWS[3].id], every[LAWS[5].id] = "not-applicable", "failed"
    path = save(tmp_path / "report.json", every, version=attnzoo.__version__)
    assert run("report", "badge", path) == 0
    line = f"{len(LAWS) - 2} of {len(LAWS)} laws, attnzoo {attnzoo.__version__}, protocol 1\n"
    assert capsys.readouterr().out == line


def test_several_variants_get_a_named_line_each(real: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    for one in real["reports"]:
        one["version"] = "0.0.9"  # of which this attnzoo cannot say how many laws it had
    (tmp_path / "report.json").write_text(json.dumps(real))
    assert run("report", "badge", str(tmp_path / "report.json")) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "mha: 3 of 4 laws, attnzoo 0.0.9, protocol 1",
        "faulty: 2 of 4 laws, attnzoo 0.0.9, protocol 1",
    ]


def test_a_run_of_some_laws_earns_no_badge(tmp_path: Path, capsys: Capture) -> None:
    path = save(tmp_path / "report.json", {"build.runs": "passed"}, version=attnzoo.__version__)
    assert run("report", "badge", path) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"held to 1 of {len(LAWS)} laws; a badge needs them all: attnzoo check mine --json FILE" in printed.err


def test_the_face_writes_a_document_too(tmp_path: Path, write: Write) -> None:
    (tmp_path / "one.json").write_text(report({"a.b": "passed"}).to_json())
    assert run("report", "diff", write("cli.json", a__b="passed"), str(tmp_path / "one.json")) == 0


# attnzoo check --script


def test_a_script_shows_the_failure_again(faulty: str, tmp_path: Path, capsys: Capture) -> None:
    script = tmp_path / "failure.py"
    assert run("check", faulty, "--only", FAULT.killed_by, "--seed", "3", "--script", str(script)) == 1
    printed = capsys.readouterr()
    assert f"`python {script}` shows {FAULT.killed_by}" in printed.err
    text = script.read_text()
    assert len(text.splitlines()) < 25
    assert "attnzoo.cli" not in text
    assert "seed=3" in text
    assert "t=2,b=1" in text  # the smallest case, not the first one
    with one_thread(), pytest.raises(SystemExit) as stop:
        runpy.run_path(str(script))
    told = str(stop.value.code)  # a string: Python prints it and exits with 1
    assert told.startswith(f"{FAULT.killed_by} (C5), case ")
    assert "mask: outputs before token 1" in told


def test_a_script_of_a_deeper_run_goes_as_deep(faulty: str, tmp_path: Path) -> None:
    script = tmp_path / "failure.py"
    assert run("check", faulty, "--only", FAULT.killed_by, "--depth", "full", "--script", str(script)) == 1
    assert "depth='full'" in script.read_text()
    with one_thread(), pytest.raises(SystemExit, match=FAULT.killed_by):
        runpy.run_path(str(script))


def test_a_script_of_a_failure_that_was_mended_says_that_the_law_holds(
    faulty: str, tmp_path: Path, capsys: Capture
) -> None:
    script = tmp_path / "failure.py"
    run("check", faulty, "--only", FAULT.killed_by, "--script", str(script))
    script.write_text(script.read_text().replace("'faulty'", "'gqa'"))
    capsys.readouterr()
    with one_thread():
        runpy.run_path(str(script))
    assert capsys.readouterr().out == f"{FAULT.killed_by} holds\n"


def test_where_nothing_failed_no_script_is_written(tmp_path: Path, capsys: Capture) -> None:
    script = tmp_path / "failure.py"
    assert run("check", "mha", "--only", "causality.no_future", "--script", str(script)) == 0
    assert not script.exists()
    assert "no law failed on a case, so that there is nothing to write" in capsys.readouterr().err


def test_a_script_that_cannot_be_written_is_told(faulty: str, tmp_path: Path, capsys: Capture) -> None:
    where = tmp_path / "none" / "failure.py"
    assert run("check", faulty, "--only", FAULT.killed_by, "--script", str(where)) == 2
    assert "--script: cannot write" in capsys.readouterr().err


class one_thread:  # noqa: N801 - reads like the function that it stands for
    """The script keeps torch to one thread; the tests after it shall not."""

    def __enter__(self) -> None:
        self.threads = torch.get_num_threads()

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.threads)
