"""Code as it stands in its file."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any


def code_of(thing: Callable[..., Any] | type | ModuleType) -> str:
    """The source, or "" where there is no file, as for a class that was typed into a prompt."""
    try:
        return textwrap.dedent(inspect.getsource(thing)).strip("\n")
    except (OSError, TypeError):
        return ""


def methods(cls: type) -> str:
    """A class without its docstring and its constructor: what it does, one method after another."""
    code = code_of(cls)
    if not code:
        return ""
    lines, (tree,) = code.splitlines(), ast.parse(code).body
    assert isinstance(tree, ast.ClassDef)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name != "__init__"]
    starts = [min([node.lineno, *(mark.lineno for mark in node.decorator_list)]) for node in found]
    parts = ["\n".join(lines[start - 1 : node.end_lineno]) for start, node in zip(starts, found, strict=True)]
    return "\n\n".join(map(textwrap.dedent, parts))


def docstrings(code: str) -> list[str]:
    """Every docstring of a piece of code, the module's first."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    found = [ast.get_docstring(node) for node in ast.walk(ast.parse(code)) if isinstance(node, documented)]
    return [doc for doc in found if doc]


def paragraphs(code: str, start: str) -> list[str]:
    """The paragraphs of its docstrings that start with a word.

    >>> paragraphs('\"\"\"One.\\n\\nDiffers: by a sign,\\nsay.\\nDiffers: too.\\n\\nNo more.\"\"\"', "Differs: ")
    ['by a sign,\\nsay.', 'too.']
    """
    said = re.compile(rf"^{start}(.*?)(?=\n\s*\n|\n{start}|\Z)", re.DOTALL | re.MULTILINE)
    return [paragraph.strip() for doc in docstrings(code) for paragraph in said.findall(doc)]
