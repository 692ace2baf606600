"""The conventions: each is told in the code's own sentence, and shown by an example that runs."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from attnzoo.checks import LAWS
from attnzoo.checks.engine.clauses import CLAUSES
from zoodocs import conventions
from zoodocs.docstrings import prose

PAGE = (Path(__file__).parents[2] / "docs/conventions.md").read_text(encoding="utf-8")
SECTIONS: dict[str, str] = dict(re.findall(r"^## (C\d+): [a-z].*\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE))


def examples(text: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_each_has_a_section_in_order() -> None:
    assert list(SECTIONS) == list(CLAUSES)


@pytest.mark.parametrize("number", CLAUSES)
def test_a_section_takes_its_sentence_from_the_code_and_shows_an_example(number: str) -> None:
    assert SECTIONS[number].startswith(f"\n{{{{ {number} }}}}\n")
    assert f"({number.lower()})=\n\n## {number}:" in PAGE  # what C5 in a docstring links to
    shown = doctest.DocTestParser().get_examples(examples(SECTIONS[number]))
    assert any(example.want for example in shown)


@pytest.mark.parametrize("number", CLAUSES)
def test_the_sentence_stands_there_with_the_laws_that_guard_it(number: str) -> None:
    text = conventions.substitutions()[number]
    assert text.startswith(f"> {prose(CLAUSES[number])}\n")
    guards = re.findall(r"\(/laws/([\w.]+)\.md\)", text)
    assert guards == [law.id for law in LAWS if law.clause == number]
    assert ("No law is for it alone" in text) == (not guards)


def test_the_examples_give_what_they_show() -> None:
    test = doctest.DocTestParser().get_doctest(examples(PAGE), {}, "conventions.md", "conventions.md", 0)
    told: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=told.append).failed == 0, "".join(told)
