"""`attnzoo list`, as a reader and as a program sees it."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from torch import nn

import attnzoo
from attnzoo.cli import main
from attnzoo.registry import Registry

SUMMARY = "A variant whose summary is far too long for one line of a table that is eighty columns wide"
PAPER = "https://example.org/" + 40 * "long"


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture
def chatty_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zoo of one variant and one broken plugin, which prints while it loads."""

    def load() -> Registry:
        print("a plugin talks")
        variant = attnzoo.Variant(name="long_winded", build=nn.Linear, summary=SUMMARY, paper=PAPER, cases=[{}])
        return Registry([variant, SimpleNamespace()])

    monkeypatch.setattr("attnzoo.cli.screen.zoo", load)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("chatty_zoo")
def test_a_narrow_table_wraps_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    cells = "".join(line.split("│")[2] for line in table.splitlines() if line.count("│") == 5)
    assert re.sub(r"\s+", "", cells) == re.sub(r"\s+", "", SUMMARY + PAPER)
    for vital in ("long_winded", "causal: optional", "cache: none", "cross: no", "positions: none", "given"):
        assert vital in table


@pytest.mark.usefixtures("chatty_zoo")
def test_what_did_not_load_is_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    run("list")
    assert "Not loaded: SimpleNamespace. `attnzoo doctor` tells why." in capsys.readouterr().out


@pytest.mark.usefixtures("chatty_zoo")
def test_json_stands_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--json") == 0
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)
    assert row["name"] == "long_winded"
    assert row["provider"] == "given"
    assert row["traits"]["causal"] == "optional"
    assert "a plugin talks" in printed.err


def test_an_empty_zoo_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("attnzoo.cli.screen.zoo", Registry)
    assert run("list") == 0
    assert capsys.readouterr().out == "No variant is installed.\n"


def test_the_installed_zoo_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--json") == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == attnzoo.variants()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"attnzoo {attnzoo.__version__}\n"


@pytest.mark.parametrize("verb", ["list", "describe", "doctor"])
def test_help_gives_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, "--help") == 0
    assert re.search(rf"Example: .*attnzoo {verb}", capsys.readouterr().out)


def test_an_unknown_verb_is_a_usage_error() -> None:
    assert run("lists") == 2
