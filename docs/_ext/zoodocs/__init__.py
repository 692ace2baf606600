"""Sphinx extension: writes the pages that the program itself can tell, before each build.

A page for each installed variant, for each law, and for the command. They are made anew every time and are not under
version control, so that none can be stale. Docstrings are plain text; autodoc shows them by the same rules.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoodocs import command, laws, mathml, variants
from zoodocs.docstrings import RST, convert
from zoodocs.pages import Page, sweep, write

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def generated() -> dict[str, Page]:
    """Every generated page, by its path in the docs, without ending."""
    return variants.pages() | laws.pages() | command.pages()


def write_pages(app: Sphinx) -> None:
    pages, folder = generated(), Path(app.srcdir)
    sweep(pages, folder, "variants", "laws")
    write(pages, folder)


def show_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """By our own rules; a value has none, though Python answers with that of its type."""
    doc = "\n".join(lines)
    its_type = inspect.getdoc(type(obj)) or ""
    lines[:] = [] if what == "data" and doc.strip() == its_type.strip() else convert(doc, RST).splitlines()


def keep_one_signature(app: Any, domain: str, kind: str, content: Any) -> None:
    """Of the overloads of a function the last one, which has the types of all."""
    first, *others = [node for node in content.parent.children if node.tagname == "desc_signature"]
    if domain == "py" and others:
        others[-1]["ids"] = first["ids"]
        for node in (first, *others[:-1]):
            content.parent.remove(node)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    mathml.setup(app)
    app.connect("autodoc-process-docstring", show_docstring)
    app.connect("object-description-transform", keep_one_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
