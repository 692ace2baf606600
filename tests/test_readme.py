"""The README: its Python runs, its install lines are pinned, its table is what is installed."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import attnzoo
from attnzoo.registry import zoo

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_examples_give_what_they_show() -> None:
    examples = "\n".join(block for block in blocks("python") if block.startswith(">>>"))
    test = doctest.DocTestParser().get_doctest(examples, {}, "README.md", "README.md", 0)
    assert len(test.examples) > 10
    told: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=told.append).failed == 0, "".join(told)


def test_the_examples_that_show_no_output_are_python() -> None:
    scripts = [block for block in blocks("python") if not block.startswith(">>>")]
    assert scripts
    for script in scripts:
        compile(script, "README.md", "exec")


def test_python_and_its_output_come_first() -> None:
    top = README.splitlines()[:15]
    assert "```python" in top
    assert any(line.startswith(">>> ") for line in top)
    assert any(line.startswith("(torch.Size") for line in top)


def test_the_variant_written_in_the_readme_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = (block for block in blocks("python") if "attnzoo.hookimpl" in block)
    (tmp_path / "my_attention.py").write_text(script, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    (variant,) = importlib.import_module("my_attention").attnzoo_variants()
    report = attnzoo.check(variant)
    assert report.passed, str(report)


def test_every_install_is_pinned() -> None:
    installs = re.findall(r"pip install[^`&\n]*", README)  # in prose and comments too
    assert len(installs) >= 5
    assert [install for install in installs if " -c constraints.txt " not in f"{install} "] == []


def test_the_install_lines_are_each_enough_on_a_bare_machine() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("python3 -m venv ")]
    check, tests, docs = lines
    assert check.endswith("attnzoo check --all")
    assert tests.endswith("/bin/pytest")
    assert docs.endswith("/bin/sphinx-build -W -b html docs docs/_build/html")


def test_the_table_lists_what_is_installed() -> None:
    listed = re.findall(r"^\| `([a-z_0-9]+)` \|", README, re.MULTILINE)
    assert sorted(listed) == [name for name in zoo().names() if zoo().origin(name) == "attnzoo"]
