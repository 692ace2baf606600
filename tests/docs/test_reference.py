"""The reference leaves no public name out, and the first page of the docs shows what is true."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import attnzoo
from attnzoo import checks, errors, ops, oracle, protocol, viz
from attnzoo.checks.engine.lab import size_cases
from attnzoo.checks.laws import costs
from zoodocs.docstrings import RST, convert

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("module", [attnzoo, checks, ops, oracle, viz], ids=lambda module: module.__name__)
def test_every_public_name_has_its_place(module: ModuleType) -> None:
    page = (DOCS / f"reference/{module.__name__.rpartition('.')[2]}.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto\w+:: (?:[\w.]*\.)?(\w+)$", page, re.MULTILINE)
    rooms = {name for name in module.__all__ if isinstance(getattr(module, name), ModuleType)}
    elsewhere = rooms | {"hookimpl"}  # rooms have pages of their own, and the hook stands for its marker
    assert set(module.__all__) - elsewhere <= set(listed)
    assert "hookimpl" not in module.__all__ or "@attnzoo.hookimpl" in page


def test_every_room_of_the_face_has_a_page() -> None:
    rooms = [name for name in attnzoo.__all__ if isinstance(getattr(attnzoo, name), ModuleType)]
    assert "ops" in rooms
    assert [room for room in rooms if not (DOCS / f"reference/{room}.md").exists()] == []


def test_all_that_a_cache_must_answer_has_words() -> None:
    silent = [name for name, member in vars(protocol.Cache).items() if name[0] != "_" and not inspect.getdoc(member)]
    assert silent == []
    words = inspect.getdoc(protocol.Cached.new_cache) or ""
    assert "max_len:" in words
    assert "rollback:" in words


def test_the_longest_sequences_of_the_suite_are_told() -> None:
    most = max(case.t for case in size_cases(attnzoo.describe("gqa")))
    assert f"up to {most} tokens" in (protocol.__doc__ or "")
    assert f"those of costs {costs.LENGTH} where" in (protocol.__doc__ or "")


def test_shapes_are_a_list_and_examples_are_examples() -> None:
    shown = convert(ops.attend.__doc__ or "", RST)
    assert "- \\ ``k``\\ : \\ ``(b, g, s, d)``\\ \n" in shown
    assert ".. code-block:: pycon\n\n   >>> import torch\n" in shown
    assert ":ref:`C2 <c2>`" in shown


def test_errors_are_told_as_they_are_written() -> None:
    assert convert(errors.Unsupported.__doc__ or "", RST) == "A variant was asked for something that it does not do."


def test_the_first_page_shows_what_is_true() -> None:
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest(example, {}, "index.md", "index.md", 0)
    told: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=told.append).failed == 0, "".join(told)
