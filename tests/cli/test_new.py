"""`attnzoo new`: what it writes, what it refuses, and that it leaves nothing half done.

That the project installs, is listed and conforms is shown in tests/test_outsider.py.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import attnzoo
from attnzoo.cli import main

Capture = pytest.CaptureFixture[str]

FILES = [
    ".github/workflows/test.yml",
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "sharp_focus.py",
    "tests/test_conformance.py",
]


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own name, written into the working folder."""
    monkeypatch.chdir(tmp_path)
    assert run("new", "sharp-focus") == 0
    return tmp_path / "sharp-focus"


def held(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_says_what_it_wrote_and_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("new", "sharp-focus") == 0
    assert held(tmp_path / "sharp-focus") == FILES
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "Written to sharp-focus:",
        *(f"  {file}" for file in FILES),
        "",
        "Next:",
        "  cd sharp-focus",
        '  python -m pip install -e ".[test]"',
        "  attnzoo check sharp_focus",
    ]


def test_nothing_is_left_of_the_template_and_nothing_beside_the_project(project: Path) -> None:
    assert [path.name for path in project.parent.iterdir()] == ["sharp-focus"]
    text = "".join(path.read_text(encoding="utf-8") for path in project.rglob("*") if path.is_file())
    assert "sharp-focus" in text
    assert "sharp_focus" in text
    assert "class SharpFocus(ops.AttentionLayer)" in text
    for old in ("my-attention", "my_attention", "MyAttention", "My attention"):
        assert old not in text


def test_the_project_is_one_that_others_can_work_in(project: Path) -> None:
    (project.parent / "plain").mkdir()
    assert project.stat().st_mode == (project.parent / "plain").stat().st_mode
    for check in (("check",), ("format", "--check")):
        command = [sys.executable, "-m", "ruff", *check, "--isolated", "--no-cache", str(project)]
        ruff = subprocess.run(command, capture_output=True, text=True)
        assert ruff.returncode == 0, ruff.stdout + ruff.stderr


def test_it_tests_itself_by_the_two_lines_of_any_plugin(project: Path) -> None:
    text = (project / "tests/test_conformance.py").read_text(encoding="utf-8")
    assert "from attnzoo.testing import conformance\n" in text
    assert 'test_conforms = conformance("sharp_focus")\n' in text
    assert '"-p", "attnzoo.testing"' in (project / "pyproject.toml").read_text(encoding="utf-8")


def test_its_variant_is_sound(project: Path) -> None:
    (variant,) = load(project / "sharp_focus.py").attnzoo_variants()
    assert variant.name == "sharp_focus"
    assert variant.oracle is not None
    report = attnzoo.check(variant, only=["truth.oracle", "truth.oracle_gradients", "causality.no_future"])
    assert report.passed, report


def test_into_another_folder(tmp_path: Path, capsys: Capture) -> None:
    assert run("new", "sharp-focus", "--into", str(tmp_path)) == 0
    assert held(tmp_path / "sharp-focus") == FILES
    assert f"  cd {tmp_path / 'sharp-focus'}" in capsys.readouterr().out


def test_an_empty_folder_of_that_name_is_filled(tmp_path: Path) -> None:
    (tmp_path / "sharp-focus").mkdir()
    assert run("new", "sharp-focus", "--into", str(tmp_path)) == 0
    assert held(tmp_path / "sharp-focus") == FILES


# What it refuses


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Sharp Focus", "'Sharp Focus' must be lower case letters and digits, .* try sharp-focus"),
        ("sharp/focus", "must be lower case .* try sharp-focus"),
        ("../sharp", "must be lower case .* try sharp"),
        ("1st", "must be lower case .* starting with a letter; try my-1st"),
        ("sharp--focus", "must be lower case .* try sharp-focus"),
        ("sharp-", "must be lower case .* try sharp"),
        ("schärfe", "must be lower case .* try sch-rfe"),
        ("", "must be lower case .* try my-attention"),
        ("class", "'class' is a word of the Python language.*; try my-class"),
        ("json", "a module of Python's own.*; try my-json"),
        ("torch", "a module 'torch' is already installed.*; try my-torch"),
        ("attnzoo", "a module 'attnzoo' is already installed.*; try my-attnzoo"),
        ("tests", "the project's own tests are called so; try my-tests"),
        ("gqa", "attnzoo already offers a variant 'gqa'; try my-gqa"),
        ("single-head", "attnzoo already offers a variant 'single_head'; try my-single-head"),
        ("single_head", "attnzoo already offers a variant 'single_head'; try my-single-head"),
    ],
)
def test_a_name_that_does_not_do_is_refused_with_one_that_does(
    tmp_path: Path, name: str, words: str, capsys: Capture
) -> None:
    assert run("new", name, "--into", str(tmp_path)) == 2
    assert list(tmp_path.iterdir()) == []
    told = capsys.readouterr().err
    assert re.search(words, told), told
    better = told.strip().rpartition("try ")[2]
    assert run("new", better, "--into", str(tmp_path)) == 0


def test_a_name_taken_in_this_session_is_refused(tmp_path: Path, capsys: Capture) -> None:
    variant = attnzoo.Variant(name="sharp_focus", build=attnzoo.ops.AttentionLayer, summary="", cases=[{"d_model": 8}])
    with attnzoo.temporary(variant):
        assert run("new", "sharp-focus", "--into", str(tmp_path)) == 2
    assert "already offers a variant 'sharp_focus'; try my-sharp-focus" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_left_as_it_is(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "sharp-focus").mkdir()
    (tmp_path / "sharp-focus" / "thesis.tex").write_text("years of work")
    assert run("new", "sharp-focus", "--into", str(tmp_path)) == 2
    assert "already holds something" in capsys.readouterr().err
    assert held(tmp_path) == ["sharp-focus/thesis.tex"]


def test_a_file_of_that_name_is_left_as_it_is(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "sharp-focus").write_text("notes")
    assert run("new", "sharp-focus", "--into", str(tmp_path)) == 2
    assert "is already a file" in capsys.readouterr().err
    assert (tmp_path / "sharp-focus").read_text() == "notes"


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, capsys: Capture) -> None:
    assert run("new", "sharp-focus", "--into", str(tmp_path / "none")) == 2
    assert "none is no folder; make it first: mkdir -p" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    sound = Path.write_text

    def write_text(path: Path, text: str, encoding: str | None = None) -> int:
        if path.name == "test_conformance.py":
            raise OSError(28, "No space left on device")
        return sound(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", write_text)
    (tmp_path / "sharp-focus").mkdir()
    assert run("new", "sharp-focus", "--into", str(tmp_path)) == 2
    assert "cannot write" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["sharp-focus"]
