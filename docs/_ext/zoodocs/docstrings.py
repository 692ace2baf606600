"""Plain-text docstrings as Markdown or reStructuredText: prose, examples, formulas, and a list of shapes.

attnzoo's docstrings are written to be read as they are. A block of `>>>` is an example, an indented block or one of
equations is a formula, and lines such as `q: (b, h, t, d)    returns: (b, h, t, d)` are a list of names.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ENTRY = re.compile(r"(?P<names>[a-z_][\w.]*(?:, [a-z_][\w.]*)*): +(?P<text>\S.*)")
GAP = re.compile(r" {3,}")
SENTENCE = re.compile(r"(?:Raises|Differs:) ")

# What is more than words in a line of prose: code, a shape such as (b, h, t, d), a paper, a convention.
SPECIAL = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|(?P<shape>\((?:[a-z0-9*/]{1,3}(?: [*/+] [a-z0-9]{1,3})*, ?)+(?:[a-z0-9*/]{1,3}(?: [*/+] [a-z0-9]{1,3})*)?\))"
    r"|arXiv:(?P<paper>\d{4}\.\d{4,5})"
    r"|\b(?P<clause>C\d{1,2})\b"
)


@dataclass(frozen=True)
class Markup:
    """How one language writes code, links and blocks. special: characters of prose that would mean something."""

    code: str
    paper: str
    clause: str
    special: str
    block: Callable[[str, str], str]


def fence(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def directive(language: str, text: str) -> str:
    return f".. code-block:: {language}\n\n{textwrap.indent(text, '   ')}"


MARKDOWN = Markup(
    code="`{}`",
    paper="[arXiv:{0}](https://arxiv.org/abs/{0})",
    clause="[{0}](#{1})",
    special=r"[\\*|<\[_]",
    block=fence,
)
# An escaped space ends a markup before a letter, and is not printed.
RST = Markup(
    code=r"\ ``{}``\ ",
    paper=r"\ `arXiv:{0} <https://arxiv.org/abs/{0}>`__\ ",
    clause=r"\ :ref:`{0} <{1}>`\ ",
    special=r"[\\*|_`]",
    block=directive,
)


def convert(doc: str | Sequence[str], markup: Markup = MARKDOWN) -> str:
    """A docstring, whole or some of its blocks."""
    chosen = blocks(doc) if isinstance(doc, str) else doc
    return "\n\n".join(convert_block(block, markup) for block in chosen)


def blocks(doc: str) -> list[str]:
    """What empty lines part."""
    return [block for block in re.split(r"\n\s*\n", inspect.cleandoc(doc)) if block.strip()]


def is_formula(block: str) -> bool:
    """Indented, or an equation in each line, and no sentence.

    >>> is_formula("q = x W_q,  k = x W_k\\ny = softmax(q k) v W_o"), is_formula("With p = 0 nothing is dropped.")
    (True, False)
    """
    lines = block.splitlines()
    return all(line.startswith("  ") for line in lines) or (
        all(" = " in line for line in lines) and not block.endswith(".")
    )


def convert_block(block: str, markup: Markup) -> str:
    if block.startswith(">>>"):
        return markup.block("pycon", block)
    rows = listed(block)
    if rows:
        return "\n".join(entry(row, markup) for row in rows)
    if is_formula(block):
        return markup.block("text", textwrap.dedent(block))
    return prose(block, markup)


def prose(text: str, markup: Markup = MARKDOWN) -> str:
    """A line or a paragraph: code and shapes set as code, papers and conventions linked, the rest as it is.

    >>> prose("Weights of (b, h, t, s) * 2, by C2")
    'Weights of `(b, h, t, s)` \\\\* 2, by [C2](#c2)'
    """
    done, start = "", 0
    for match in SPECIAL.finditer(text):
        done += re.sub(markup.special, r"\\\g<0>", text[start : match.start()])
        kind = str(match.lastgroup)
        words = {"shape": markup.code, "code": markup.code, "paper": markup.paper, "clause": markup.clause}[kind]
        done += words.format(match[kind], match[kind].lower())
        start = match.end()
    return done + re.sub(markup.special, r"\\\g<0>", text[start:])


def listed(block: str) -> list[str]:
    """The rows of a block that lists names, none for any other block.

    >>> listed("x: (b, t, c)    y: (b, t, c)\\nmask: (t, s),\\n    boolean")
    ['x: (b, t, c)', 'y: (b, t, c)', 'mask: (t, s), boolean']
    >>> listed("One thing: it\\nis prose.")
    []
    """
    rows: list[str] = []
    for line in block.splitlines():
        first, *more = GAP.split(line.strip())
        goes_on = line.startswith(" ") or not (ENTRY.match(first) or SENTENCE.match(first))
        if rows and goes_on:
            rows[-1] += f" {first}"
        else:
            rows.append(first)
        rows += more
    entered = [row for row in rows if ENTRY.match(row)]
    names_first = ENTRY.match(block) or (GAP.search(block.strip()) and not block.startswith(" "))
    return rows if names_first and (len(entered) > 1 or any(map(SPECIAL.search, entered))) else []


def entry(row: str, markup: Markup) -> str:
    found = ENTRY.fullmatch(row)
    if not found:
        return f"\n{prose(row, markup)}\n"
    names = ", ".join(name if name == "returns" else markup.code.format(name) for name in found["names"].split(", "))
    return f"- {names}: {prose(found['text'], markup)}"


def entries(doc: str | None) -> dict[str, str]:
    """Name -> what a docstring's lists say about it.

    >>> entries("Purpose.\\n\\nmask, key_mask: boolean    scale: of the logits")
    {'mask': 'boolean', 'key_mask': 'boolean', 'scale': 'of the logits'}
    """
    rows = [ENTRY.fullmatch(row) for block in blocks(doc or "") for row in listed(block)]
    return {name: row["text"] for row in rows if row for name in row["names"].split(", ")}
