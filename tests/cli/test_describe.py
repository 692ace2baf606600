"""`attnzoo describe NAME`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

import attnzoo
from attnzoo.cli import main
from attnzoo.registry import Registry


class Layer(nn.Module):
    def __init__(self, d_model: int, heads: int = 2, *, dtype: object = None) -> None:
        super().__init__()


def make(build: Callable[..., Any], **fields: Any) -> attnzoo.Variant:
    return attnzoo.Variant(name="tiny", build=build, summary="A stand-in.", cases=[{"d_model": 24}], **fields)


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[attnzoo.Variant], None]:
    """Make this variant the whole zoo."""
    return lambda variant: monkeypatch.setattr("attnzoo.cli.screen.zoo", lambda: Registry([variant]))


def test_tells_all_there_is_to_know(
    offer: Callable[[attnzoo.Variant], None], capsys: pytest.CaptureFixture[str]
) -> None:
    traits = attnzoo.Traits(causal="never", rows="free", cross=True, key_mask=False, weights=False)
    offer(make(functools.partial(Layer, heads=3), paper="arXiv:0000.00000", traits=traits, known={"a.law": "why"}))
    assert run("describe", "tiny") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in (
        "tiny: A stand-in.",
        "paper     arXiv:0000.00000",
        "provider  given",
        f"file      {__file__}",
        "d_model (required)",
        "heads=3",
        "never causal",
        "rows of weights may have any sum",
        "takes no cache",
        "takes a context (cross-attention)",
        "knows no positions",
        "takes mask",
        "does not return its weights",
        "attnzoo.build('tiny', d_model=24)",
        "a.law: why",
    ):
        assert line in lines


def test_json_is_the_same_for_programs(
    offer: Callable[[attnzoo.Variant], None], capsys: pytest.CaptureFixture[str]
) -> None:
    offer(make(functools.partial(Layer, dtype=nn.Linear)))
    assert run("describe", "tiny", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["options"] == {
        "d_model": {"required": True},
        "heads": {"default": 2},
        "dtype": {"default": repr(nn.Linear)},
    }
    assert told["file"] == __file__
    assert told["cases"] == [{"d_model": 24}]
    assert told["traits"]["cross"] is False
    assert told["traits"]["memory"] == "quadratic"


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"cache": "ring"}, "decodes step by step with a cache that holds the newest keys and values only"),
        ({"positions": "index"}, "sees the order of the tokens, and takes no positions"),
        ({"sees": "some"}, "hears only some of the keys, as in a window"),
        ({"document": True}, "takes document ids: packed sequences stay apart"),
        ({"plain": False}, "is more than torch's SDPA can do alone"),
        ({"memory": "linear"}, "memory for the backward pass grows in proportion to the tokens"),
        ({"work": "linear"}, "operations grow in proportion to the tokens"),
    ],
)
def test_each_claim_has_its_words(
    offer: Callable[[attnzoo.Variant], None], capsys: pytest.CaptureFixture[str], claims: dict[str, Any], words: str
) -> None:
    offer(make(Layer))
    run("describe", "tiny")
    assert words not in capsys.readouterr().out
    offer(make(Layer, traits=attnzoo.Traits(**claims)))
    run("describe", "tiny")
    assert words in capsys.readouterr().out


def test_a_factory_without_a_file_and_of_any_keyword(
    offer: Callable[[attnzoo.Variant], None], capsys: pytest.CaptureFixture[str]
) -> None:
    class Factory:
        def __call__(self, **options: Any) -> nn.Module:
            return nn.Identity()

    offer(make(Factory()))
    assert run("describe", "tiny") == 0
    out = capsys.readouterr().out
    assert "file      unknown" in out
    assert "takes any keyword" in out


def test_an_unknown_name_is_one_line_on_stderr(
    offer: Callable[[attnzoo.Variant], None], capsys: pytest.CaptureFixture[str]
) -> None:
    offer(make(Layer))
    assert run("describe", "tinny") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "attnzoo: unknown variant 'tinny'; did you mean 'tiny'? Installed: tiny.\n"
