"""`attnzoo explain NAME`."""

from __future__ import annotations

import json

import pytest

from attnzoo.cli import main


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_a_window_in_training(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--d-model=32", "--heads=4", "--kv-heads=2", "--window=16", "--seq=512", "--train"]
    assert run("explain", "sliding_window", *arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("sliding_window: 1 x 512 tokens, float32 on cpu, training")
    assert "banded" in out
    assert "1 to 16 keys a query" in out
    assert "has no backward pass on cpu" in out
    assert "times when the tokens double" in out


def test_one_token_on_a_cache_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "gqa", "--seq", "1", "--past", "99", "--dtype", "bfloat16", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["variant"], told["seq"], told["past"], told["dtype"]) == ("gqa", 1, 99, "bfloat16")
    assert told["backend"] == "sdpa"
    assert told["visible"] == [100, 100.0, 100]
    assert told["kept"] == 0
    assert set(told["others"]) == {"eager", "banded", "blocks", "flex"}


def test_weights_need_the_definition(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "rope", "--seq", "8", "--need-weights", "--json") == 0
    assert json.loads(capsys.readouterr().out)["backend"] == "eager"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rope", "--backend", "banded"], "backend='banded' needs a window, or documents"),
        (["rope", "--device", "abacus"], "--device abacus cannot be used here"),
        (["rope", "--past", "3", "--train"], "--past (3)"),
        (["rope", "--seq", "0"], "--seq must be at least 1; got 0"),
        (["nope"], "unknown variant 'nope'"),
    ],
)
def test_what_cannot_be_served_is_told(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", *arguments) == 2
    assert words in capsys.readouterr().err
