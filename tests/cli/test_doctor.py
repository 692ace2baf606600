"""`attnzoo doctor`: what it examines, and when it is content. tests/registry shows it a dozen broken distributions."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import attnzoo
from attnzoo.cli import main
from attnzoo.registry import Registry


def refuse(d_model: int) -> nn.Module:
    raise attnzoo.errors.ConfigError(f"d_model ({d_model}) is [too] small")


def make(name: str, build: Callable[..., Any] = nn.Identity) -> attnzoo.Variant:
    return attnzoo.Variant(name=name, build=build, summary="A stand-in.", cases=[{"d_model": 24}])


def plugin(origin: str, *variants: attnzoo.Variant) -> ModuleType:
    module = ModuleType(origin)
    module.attnzoo_variants = attnzoo.hookimpl(lambda: list(variants))  # type: ignore[attr-defined]
    return module


@pytest.fixture
def examined(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, dict[str, Any]]]:
    """Doctor's exit code, words and JSON on a zoo of these plugins."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*plugins: object) -> tuple[int, str, dict[str, Any]]:
        monkeypatch.setattr("attnzoo.cli.screen.zoo", lambda: Registry(plugins))
        codes, printed = [], []
        for arguments in (["doctor"], ["doctor", "--json"]):
            with pytest.raises(SystemExit) as stop:
                main(arguments)
            codes.append(stop.value.code)
            printed.append(capsys.readouterr().out)
        assert codes[0] == codes[1]
        assert isinstance(codes[0], int)
        return codes[0], printed[0], json.loads(printed[1])

    return run


def test_a_sound_installation(examined: Callable[..., tuple[int, str, dict[str, Any]]]) -> None:
    code, words, findings = examined(plugin("zoo", make("one"), make("two")))
    assert code == 0
    assert findings["ok"] is True
    assert findings["attnzoo"] == attnzoo.__version__
    assert findings["python"] == platform.python_version()
    assert findings["torch"] == torch.__version__
    assert findings["devices"][0] == "cpu"
    assert len(findings["devices"]) >= 1 + torch.cuda.device_count()
    assert findings["plugins"][0]["variants"] == ["one", "two"]
    assert "one, two" in words
    assert "All is well: each of 2 variants was built once." in words


def test_a_factory_that_fails_is_named_and_its_words_are_not_markup(
    examined: Callable[..., tuple[int, str, dict[str, Any]]],
) -> None:
    code, words, findings = examined(plugin("zoo", make("one"), make("two", refuse)), plugin("other", make("three")))
    assert code == 1
    assert findings["plugins"][0]["problems"] == ["two: d_model (24) is [too] small"]
    assert findings["plugins"][0]["status"] == "loaded"
    assert "[too]" in words
    assert "Something is wrong with zoo. A broken plugin costs only itself." in words


def test_a_plugin_that_did_not_load(examined: Callable[..., tuple[int, str, dict[str, Any]]]) -> None:
    code, words, findings = examined(SimpleNamespace(), make("one"))
    assert code == 1
    assert [found["status"] for found in findings["plugins"]] == ["failed", "loaded"]
    assert "no hook" in findings["plugins"][0]["problems"][0]
    assert "failed" in words


def test_an_ambiguous_name_is_told_but_is_no_fault(examined: Callable[..., tuple[int, str, dict[str, Any]]]) -> None:
    code, words, findings = examined(plugin("ours", make("gqa")), plugin("theirs", make("gqa")))
    assert code == 0
    assert findings["ambiguous"] == {"gqa": ["ours/gqa", "theirs/gqa"]}
    assert "'gqa' is offered by several distributions; ask for ours/gqa or theirs/gqa" in words


@pytest.mark.parametrize(("limit", "code"), [("", 1), ("none", 0)])
def test_no_plugin_at_all_is_wrong_unless_it_was_asked_for(
    examined: Callable[..., tuple[int, str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, limit: str, code: int
) -> None:
    monkeypatch.setenv("ATTNZOO_PLUGINS", limit)
    got, words, _ = examined()
    assert got == code
    assert ("no plugin is installed" in words) == bool(code)


@pytest.mark.parametrize(
    ("limit", "words"),
    [("", "ATTNZOO_PLUGINS is not set"), ("attnzoo", "ATTNZOO_PLUGINS=attnzoo limits what is loaded")],
)
def test_the_limit_is_shown(
    examined: Callable[..., tuple[int, str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, limit: str, words: str
) -> None:
    monkeypatch.setenv("ATTNZOO_PLUGINS", limit)
    _, printed, findings = examined(make("one"))
    assert words in printed
    assert findings["ATTNZOO_PLUGINS"] == limit
