"""A page before it is a file: its text in Markdown, and its pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from zoodocs.docstrings import convert, prose

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150

templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def claim(value: str | bool) -> str:
    """
    >>> claim(True), claim("kv")
    ('yes', 'kv')
    """
    return value if isinstance(value, str) else "yes" if value else "no"


def thread(reported: str) -> str:
    """
    >>> thread("onnx/onnx#7274")
    'https://github.com/onnx/onnx/issues/7274'
    """
    return "https://github.com/{}/issues/{}".format(*reported.split("#"))


templates.filters |= {"convert": convert, "prose": prose, "code": code, "claim": claim, "thread": thread}


@dataclass(frozen=True)
class Page:
    """pictures: figures by file name without ending; they are put into the folder `pictures` beside the page"""

    text: str
    pictures: Mapping[str, Figure] = field(default_factory=dict)


def render(template: str, **facts: Any) -> str:
    """Fill a template of this folder's `templates`."""
    return templates.get_template(template).render(facts)


def write(pages: Mapping[str, Page], folder: Path) -> None:
    """Make the files of these pages, by path without ending. One that has not changed is left alone."""
    for name, page in pages.items():
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != page.text:
            path.write_text(page.text, encoding="utf-8")
        for picture, figure in page.pictures.items():
            file = path.parent / "pictures" / f"{picture}.png"
            file.parent.mkdir(exist_ok=True)
            figure.savefig(file, dpi=DPI)


def sweep(pages: Mapping[str, Page], folder: Path, *rooms: str) -> None:
    """Remove what an earlier build left in these folders: the page of a variant or law that is no more."""
    for room in rooms:
        for path in (folder / room).rglob("*.md"):
            if path.relative_to(folder).with_suffix("").as_posix() not in pages:
                path.unlink()
