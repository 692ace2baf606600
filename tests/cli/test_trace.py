"""`attnzoo trace NAME`."""

from __future__ import annotations

import json
from collections.abc import Sequence

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


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run("trace", *arguments, "--json") == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_table_of_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", "mha", "--d-model", "64", "--heads", "8", "--seq", "10") == 0
    out = capsys.readouterr().out
    assert out.startswith("mha: b=2, t=10, s=10, h=8, g=8, d=8, c=64")
    names = [line[1:20].strip() for line in out.splitlines() if line.strip()]
    steps = ["x", "qkv: Linear", "q", "k", "v", "scores q · kᵀ", "scaled by 0.354", "masked, 45% hidden"]
    steps += ["softmax: weights", "weights · v", "merged", "out: Linear", "y", "in all"]
    assert [name for name in names if name in steps] == steps
    assert "grouped.py:" in out
    assert "Proven" in out


def test_any_build_option_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "gqa", "--d-model=24", "--heads", "4", "--kv-heads", "2", "--causal", "false", "--batch", "3")
    assert found["sizes"] == {"b": 3, "t": 10, "s": 10, "h": 4, "g": 2, "d": 6, "c": 24}
    steps = found["steps"]
    assert isinstance(steps, list)
    assert not [step for step in steps if step["name"].startswith("masked")]
    assert told(capsys, "rope", "--layout", "interleaved", "--seq", "3")["proven"] is True


def test_the_first_case_helps_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "gqa")["sizes"] == {"b": 2, "t": 10, "s": 10, "h": 6, "g": 3, "d": 10, "c": 24}
    assert told(capsys, "gqa", "--kv-heads", "2")["sizes"] == {
        "b": 2,
        "t": 10,
        "s": 10,
        "h": 6,
        "g": 2,
        "d": 10,
        "c": 24,
    }


def test_a_text_sets_the_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "mha", "--text", "The cat sat.")["sizes"] == {
        "b": 1,
        "t": 4,
        "s": 4,
        "h": 4,
        "g": 4,
        "d": 6,
        "c": 24,
    }


def test_the_same_seed_gives_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (told(capsys, "mha", "--seed", seed)["steps"] for seed in ("3", "3", "4"))
    assert first == again != other


def test_the_scale_lesson(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", "mha", "--scale-lesson") == 0
    assert "Why the scale" in capsys.readouterr().out
    assert "scale_lesson" in told(capsys, "mha", "--scale-lesson")
    assert "scale_lesson" not in told(capsys, "mha")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mah"], "unknown variant 'mah'; did you mean 'mha'?"),
        (["mha", "--num-heads", "8"], "'num_heads' is called 'heads' here"),
        (["mha", "--heads"], "--heads needs a value, as in --heads 8 or --heads False"),
        (["mha", "--heads", "--causal", "no"], "--heads needs a value"),
        (["mha", "8"], "'8' belongs to no option"),
        (["--heads", "8", "mha"], "name the variant first, then its options; --heads came before it"),
        (["mha", "--heads", "5"], "heads (5) must divide d_model (24)"),
        (["mha", "--seq", "0"], "--seq must be at least 1; got 0"),
        (["mha", "--seq", "3", "--text", "a b"], "--seq and --text both say how many tokens there are"),
        (["mha", "--text", " "], "the text ' ' holds no word"),
    ],
)
def test_what_cannot_be_served_is_one_line_on_stderr(
    arguments: Sequence[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("trace", *arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.startswith("attnzoo: ")
    assert printed.err.count("\n") == 1
    assert not printed.out
