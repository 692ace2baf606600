"""`attnzoo check`: its tables, its JSON, its exit codes, and what it says when it cannot serve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import attnzoo
from attnzoo.checks import LAWS
from attnzoo.checks.exam.faults import FAULTS, SOUND
from attnzoo.cli import main
from attnzoo.cli.check import share
from attnzoo.errors import ConfigError
from attnzoo.registry import Registry

# Laws that take no time; those on which they stand come with them.
QUICK = ("--only", "claims.claimed", "--only", "causality.no_future")
NAMES = ["build.runs", "causality.no_future", "claims.claimed"]


class Ran(NamedTuple):
    code: Any
    out: str
    err: str


Check = Callable[..., Ran]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Run the command in this process, wide enough that no row is folded."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as stop:
            main(["check", *arguments])
        return Ran(stop.value.code, *capsys.readouterr())

    return run


def offer(monkeypatch: pytest.MonkeyPatch, *variants: attnzoo.Variant) -> None:
    """Make these the only variants there are."""
    monkeypatch.setattr("attnzoo.cli.screen.zoo", lambda: Registry(variants))


def planted(id: str) -> attnzoo.Variant:
    """A planted fault; without its oracle, so that it is not diagnosed, which takes long."""
    return next(replace(fault.variant, oracle=None) for fault in FAULTS if fault.id == id)


# What is shown


def test_one_variant_gets_a_row_for_each_law(check: Check) -> None:
    ran = check("mha", *QUICK)
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert [row[:3] for row in rows if row and row[0] in {law.id for law in LAWS}] == [
        ["build.runs", "C1", "passed"],
        ["causality.no_future", "C5", "passed"],
        ["claims.claimed", "C14", "passed"],
    ]
    assert "mha: conforms (3 passed;" in ran.out


def test_several_variants_get_a_row_each(check: Check) -> None:
    ran = check("mha", "single_*", "mha", *QUICK)
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert [row[1] for row in rows if "conforms" in row] == ["mha", "single_head"]
    assert "causality.no_future" not in ran.out
    assert ran.out.rstrip().endswith("all 2 variants conform")


def test_without_a_device_every_one_there_is_gets_a_row(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    # "cpu:0" stands for the GPU: another name of a device that is there.
    monkeypatch.setattr("attnzoo.cli.check.devices", lambda asked: [asked] if asked else ["cpu", "cpu:0"])
    ran = check("mha", *QUICK)
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert sum("conforms" in row for row in rows) == 2
    assert "mha on cpu:0" in ran.out
    assert "all 1 variants conform" in ran.out


def test_all_is_every_variant_there_is(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, *SOUND)
    ran = check("--all", "--only", "build.runs")
    assert ran.code == 0
    for variant in SOUND:
        assert variant.name in ran.out
    assert f"all {len(SOUND)} variants conform" in ran.out


def test_one_that_does_not_conform_is_named_and_told(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, SOUND[0], planted("cross.in_causal_layer"))
    ran = check("--all", "--only", "claims.cross_alone")
    assert ran.code == 1
    assert "does not conform" in ran.out
    assert "cross_in_causal_layer did not conform" in ran.out
    assert "cross_in_causal_layer: FAILED claims.cross_alone (C5)" in ran.out
    assert "must raise Unsupported, but was accepted" in ran.out
    assert "again: attnzoo check cross_in_causal_layer --only claims.cross_alone" in ran.out


# Several processes


def test_processes_give_what_one_does(check: Check) -> None:
    """`mha` takes longer than `single_head` and still comes first."""
    apart, together = (
        json.loads(check("mha", "single_head", *QUICK, "--seed", "3", "--json", "-", "--jobs", jobs).out)
        for jobs in "21"
    )
    for document in (apart, together):
        for report in document["reports"]:
            report["seconds"] = 0
            for result in report["results"]:
                result["seconds"] = 0
    assert apart == together
    assert [report["variant"] for report in apart["reports"]] == ["mha", "single_head"]


def test_what_a_process_cannot_serve_is_said_as_by_one(check: Check) -> None:
    ran = check("mha", "gqa", "--case", "option-0", "--jobs", "2")
    assert ran.code == 2
    assert "attnzoo: no case is called 'option-0'; did you mean 'options-0'?" in ran.err
    assert ran.out == ""


def test_the_cores_share_what_takes_longer_than_to_start_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnzoo.cli.check.cores", lambda: 4)
    many = [(name, "cpu") for name in ("alibi", "gqa", "mha", "mqa", "rope")]
    assert share(many, None, few=False) == 4
    assert share(many[:3], None, few=False) == 3
    assert share(many[:1], None, few=False) == 1
    assert share(many, None, few=True) == 1
    assert share(many, 2, few=True) == 2
    assert share(many[:1], 8, few=False) == 1


def test_a_gpu_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnzoo.cli.check.cores", lambda: 4)
    places = [("mha", "cpu"), ("mha", "cuda"), ("gqa", "cpu"), ("gqa", "cuda")]
    assert share(places, None, few=False) == share(places, 1, few=False) == 1
    with pytest.raises(ConfigError, match=r"--jobs 3: processes that share cuda only wait .* say --jobs 1"):
        share(places, 3, few=False)


# JSON


@pytest.mark.parametrize("where", ["-", "report.json"])
def test_json_holds_every_report(check: Check, tmp_path: Path, where: str) -> None:
    file = tmp_path / where
    ran = check("mha", "single_head", *QUICK, "--json", where if where == "-" else str(file))
    document = json.loads(ran.out if where == "-" else file.read_text("utf-8"))
    assert ran.code == 0
    assert document["schema"] >= 1
    assert document["passed"] is True
    assert [report["variant"] for report in document["reports"]] == ["mha", "single_head"]
    for report in document["reports"]:
        assert [result["law"] for result in report["results"]] == NAMES
        assert report["passed"] is True
    assert ("all 2 variants conform" in ran.out) == (where != "-")


def test_json_of_a_failure(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, planted("cross.in_causal_layer"))
    ran = check("cross_in_causal_layer", "--only", "claims.cross_alone", "--json", "-", "--seed", "3")
    document = json.loads(ran.out)
    assert ran.code == 1
    assert document["passed"] is False
    assert document["reports"][0]["seed"] == 3
    assert document["reports"][0]["results"][-1]["outcome"] == "failed"


def test_json_that_cannot_be_written(check: Check, tmp_path: Path) -> None:
    where = tmp_path / "nowhere" / "report.json"
    ran = check("mha", "--only", "build.runs", "--json", str(where))
    assert ran.code == 2
    assert f"attnzoo: --json: cannot write {where}: No such file or directory" in ran.err


# What cannot be served


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gqua"], "unknown variant 'gqua'; did you mean 'gqa'?"),
        (["mha", "zz*"], "no variant matches 'zz*'"),
        ([], "name the variants to check, or say --all for every one; installed: "),
        (["mha", "--all"], "name the variants to check, or say --all"),
        (
            ["mha", "--only", "causality.no_futur"],
            "no law is called 'causality.no_futur'; did you mean 'causality.no_f",
        ),
        (["mha", "--device", "cuda:99"], "device 'cuda:99' was asked for and is not there"),
        (["mha", "--depth", "deep"], "unknown depth 'deep'; it takes 'quick' or 'full'"),
        (["mha", "--case", "option-0"], "no case is called 'option-0'; did you mean 'options-0'?"),
    ],
)
def test_what_cannot_be_served_is_said_on_stderr(check: Check, arguments: list[str], words: str) -> None:
    ran = check(*arguments)
    assert ran.code == 2
    assert ran.err.lstrip().startswith("attnzoo: ")  # a progress bar may have begun
    assert words in ran.err
    assert ran.out == ""


def test_an_empty_zoo_is_not_green(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    ran = check("--all")
    assert ran.code == 2
    assert "no variant is installed, so that nothing can be checked; see `attnzoo doctor`" in ran.err


def test_laws_that_do_not_apply_alone_are_not_green(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(d_model: int) -> Any:
        raise RuntimeError("no memory")

    nothing = attnzoo.Variant(name="nothing", build=build, summary="Cannot be built.", cases=[{"d_model": 4}])
    offer(monkeypatch, nothing)
    ran = check("nothing", "--only", "position.shift")
    assert ran.code == 1
    assert "RuntimeError: no memory" in ran.out


# As a stranger runs it

LEAKING = """
import attnzoo
from attnzoo.checks.exam.faults.specimen import Specimen

print("a plugin that talks")

class Leaking(Specimen):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, 4, 2)

    def causal_rule(self, q, k):
        return super().causal_rule(q, k) | True

@attnzoo.hookimpl
def attnzoo_variants():
    traits = attnzoo.Traits(causal="always", cross=True)
    return [attnzoo.Variant(name="leaking", build=Leaking, summary="Ours.", traits=traits, cases=[{"d_model": 24}])]
"""


def test_a_broken_plugin_is_found_out_and_its_failure_can_be_read_alone(tmp_path: Path) -> None:
    (tmp_path / "leaking_plugin.py").write_text(LEAKING)
    info = tmp_path / "leaking_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leaking-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[attnzoo]\nleaking = leaking_plugin\n")
    ran = subprocess.run(
        [sys.executable, "-m", "attnzoo", "check", "leaking", *QUICK],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "300"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "a plugin that talks" not in ran.stdout
    failure = ran.stdout[ran.stdout.index("leaking: FAILED") :]
    assert "FAILED causality.no_future (C5): Changing a token changes no earlier output" in failure
    assert "case options-0: plain: outputs before token 1, when tokens from 1 on change: off by" in failure
    assert "again: attnzoo check leaking --only causality.no_future --case options-0" in failure
    assert "leaking: does not conform (1 failed, 2 passed;" in failure
