"""Rooms and arrows: who imports whom, read from the source; and what the repository may hold."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import attnzoo

ROOT = Path(__file__).parents[1]
PLUGIN = "attnzoo" + "_builtins"


@dataclass(frozen=True)
class Import:
    """One imported name: `from a.b import c` is `a.b.c`. When: "at import", "in a call" or "for types"."""

    name: str
    when: str
    line: int

    def is_of(self, *rooms: str) -> bool:
        return any(self.name == room or self.name.startswith(f"{room}.") for room in rooms)


def imports(source: str, package: str = "") -> list[Import]:
    """Every import of a module, also those in functions, under conditions, and by `import_module` of a literal."""
    found: list[Import] = []

    def walk(node: ast.AST, when: str) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, when, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found.extend(Import(f"{base}.{alias.name}", when, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            found.extend(
                Import(str(arg.value), when, node.lineno) for arg in node.args if isinstance(arg, ast.Constant)
            )
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for typed in node.body:
                walk(typed, "for types")
            for other in node.orelse:
                walk(other, when)
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            when = "in a call"
        for child in ast.iter_child_nodes(node):
            walk(child, when)

    walk(ast.parse(source), "at import")
    return found


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def told(path: Path, found: Import) -> str:
    return f"{path.relative_to(ROOT)}:{found.line} imports {found.name}"


def imported(folder: str) -> Iterator[tuple[Path, Import]]:
    base = ROOT / "plugins" if folder.startswith("plugins") else ROOT
    paths = [ROOT / folder] if folder.endswith(".py") else modules(folder)
    for path in paths:
        package = ".".join(path.parent.relative_to(base).parts)
        for found in imports(path.read_text(encoding="utf-8"), package):
            yield path, found


def test_the_reader_of_imports_finds_them_all() -> None:
    source = """
import a.b, c as d
from e import f
from . import g
from .h import i
from ..j import k
if TYPE_CHECKING:
    from l import m
else:
    import n
try:
    import o
except ImportError:
    pass
class P:
    import p
    def method(self):
        from q import r
        importlib.import_module("s.t")
"""
    assert [(found.name, found.when) for found in imports(source, "top.room")] == [
        ("a.b", "at import"),
        ("c", "at import"),
        ("e.f", "at import"),
        ("top.room.g", "at import"),
        ("top.room.h.i", "at import"),
        ("top.j.k", "at import"),
        ("l.m", "for types"),
        ("n", "at import"),
        ("o", "at import"),
        ("p", "at import"),
        ("q.r", "in a call"),
        ("s.t", "in a call"),
    ]


# What a room may import beside itself and Python's own modules, at import or in a call; then what for types alone.
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "attnzoo/errors.py": (set(), set()),
    "attnzoo/protocol.py": ({"numpy", "torch"}, set()),
    "attnzoo/signature.py": ({"typing_extensions"}, set()),
    "attnzoo/variant.py": ({"attnzoo.errors", "attnzoo.signature"}, {"attnzoo.protocol", "torch"}),
    "attnzoo/hooks.py": ({"attnzoo.variant", "pluggy"}, set()),
    "attnzoo/counting.py": ({"torch"}, set()),
    "attnzoo/ops": ({"attnzoo.counting", "attnzoo.errors", "einops", "torch", "typing_extensions"}, set()),
    "attnzoo/oracle": ({"attnzoo.errors", "numpy"}, {"attnzoo.protocol"}),
    "attnzoo/checks": (
        {
            "attnzoo.counting",
            "attnzoo.errors",
            "attnzoo.oracle",
            "attnzoo.protocol",
            "attnzoo.variant",
            "hypothesis",
            "numpy",
            "rich",
            "torch",
        },
        set(),
    ),
    "attnzoo/bench": ({"attnzoo.counting", "attnzoo.errors", "matplotlib", "torch"}, set()),
}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_its_arrows_allow(room: str) -> None:
    always, for_types = ROOMS[room]
    itself = room.removesuffix(".py").replace("/", ".")
    seen = list(imported(room))
    assert seen
    assert [
        told(path, found)
        for path, found in seen
        if found.name.split(".")[0] not in sys.stdlib_module_names
        and not found.is_of(itself, *always, *(for_types if found.when == "for types" else ()))
    ] == []


def test_the_registry_knows_no_law_no_brick_and_no_plugin() -> None:
    for_itself = ("hooks", "variant", "errors", "loading", "options", "registry")
    rooms = [f"attnzoo.{room}" for room in for_itself] + ["pluggy", "torch"]
    seen = [pair for room in ("registry", "loading", "options") for pair in imported(f"attnzoo/{room}.py")]
    assert any(found.is_of("pluggy") for _, found in seen)
    assert [
        told(path, found)
        for path, found in seen
        if found.name.split(".")[0] not in sys.stdlib_module_names and not found.is_of(*rooms)
    ] == []


@pytest.mark.parametrize("path", modules("attnzoo"), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_host_neither_imports_nor_names_the_built_in_variants(path: Path) -> None:
    assert PLUGIN not in path.read_text(encoding="utf-8")


def test_a_plugin_imports_only_the_face_the_bricks_and_the_oracle() -> None:
    face = {f"attnzoo.{name}" for name in attnzoo.__all__}
    allowed = {"attnzoo.ops", "attnzoo.oracle", "attnzoo.errors", "einops", "numpy", "torch", "typing_extensions"}
    seen = list(imported("plugins"))
    assert any(found.is_of("attnzoo.ops") for _, found in seen)
    assert [
        told(path, found)
        for path, found in seen
        if found.name.split(".")[0] not in sys.stdlib_module_names
        and not found.is_of(*allowed)
        and found.name not in {"attnzoo", *face}
        and not (path.name == "__init__.py" and found.is_of(PLUGIN))
    ] == []


def test_a_plugin_reaches_through_the_face_for_nothing_but_the_face() -> None:
    reached = {
        node.attr
        for path in modules("plugins")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "attnzoo"
    }
    assert "Variant" in reached
    assert reached - set(attnzoo.__all__) == set()


def test_no_variant_subclasses_another() -> None:
    classes = [
        (path, node)
        for path in modules("plugins")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(classes) >= 4
    allowed = {"ops.AttentionLayer", "ops.GroupedLayer", "ops.RotaryLayer", "nn.Module"}
    assert [f"{path.name}: {n.name}" for path, n in classes if not {ast.unparse(b) for b in n.bases} <= allowed] == []


@pytest.mark.parametrize(("room", "above"), [("engine", ("laws", "exam")), ("laws", ("exam",))])
def test_the_arrows_of_the_suite_point_downward(room: str, above: tuple[str, ...]) -> None:
    seen = list(imported(f"attnzoo/checks/{room}"))
    assert any(found.is_of("attnzoo.checks.engine") for _, found in seen)
    rooms = [f"attnzoo.checks.{name}" for name in above]
    assert [told(path, found) for path, found in seen if found.is_of(*rooms)] == []


def test_pytest_is_imported_by_the_glue_alone() -> None:
    pairs = [pair for folder in ("attnzoo", "plugins") for pair in imported(folder)]
    assert {path.name for path, found in pairs if found.is_of("pytest", "_pytest")} == {"testing.py"}


def test_nobody_imports_the_glue() -> None:
    pairs = [pair for folder in ("attnzoo", "plugins") for pair in imported(folder)]
    assert [told(path, found) for path, found in pairs if found.is_of("attnzoo.testing")] == []


@pytest.mark.parametrize("heavy", ["matplotlib", "transformers"])
def test_a_heavy_package_waits_until_it_is_needed(heavy: str) -> None:
    pairs = [pair for folder in ("attnzoo", "plugins") for pair in imported(folder)]
    assert [told(path, found) for path, found in pairs if found.is_of(heavy) and found.when == "at import"] == []


def test_importing_the_package_loads_no_variant_and_nothing_heavy() -> None:
    unwanted = ["matplotlib", "pytest", "transformers", PLUGIN, "attnzoo.testing", "attnzoo.checks"]
    code = f"import sys, attnzoo; print([name for name in {unwanted} + ['attnzoo'] if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "['attnzoo']"


# What the repository may hold

TOP = {
    "attnzoo",
    "plugins",
    "tests",
    "docs",
    "pyproject.toml",
    "README.md",
    "constraints.txt",
    "LICENSE",
    "CHANGELOG.md",
}


def held() -> list[Path]:
    """The files under version control; outside of a checkout, all that no rule ignores."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT)
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(fnmatch.fnmatch(part, rule) for part in path.relative_to(ROOT).parts for rule in ignored)
        ]
    return sorted(path for path in paths if path.is_file())


def test_the_top_of_the_repository_is_fixed() -> None:
    top = {path.relative_to(ROOT).parts[0] for path in held()}
    assert {"attnzoo", "plugins", "tests", "pyproject.toml"} <= top
    assert {name for name in top if not name.startswith(".")} - TOP == set()


# Written in pieces, so that this file does not find itself.
UNWANTED = {
    "a path of one machine": r"(?<![\w.~-])/" + r"(?:home|work|root|Users)/\w",
    "the host of a package registry": r"\b(?:pypi|pythonhosted|npmjs|anaconda)"
    + r"\.(?:org|com)\b|download\.pytorch"
    + r"\.org",
    "a note to oneself": r"\b(?:TO" + r"DO|FIX" + r"ME)\b",
}


@pytest.mark.parametrize("pattern", UNWANTED.values(), ids=UNWANTED.keys())
def test_no_file_holds(pattern: str) -> None:
    found = []
    for path in held():
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {match.group()!r}" for match in re.finditer(pattern, text)]
    assert found == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("a path of one machine", 'open("/' + 'home/someone/data")'),
        ("the host of a package registry", "https://" + "pypi" + ".org/simple"),
        ("a note to oneself", "# TO" + "DO: later"),
    ],
)
def test_what_is_unwanted_would_be_found(kind: str, text: str) -> None:
    assert re.search(UNWANTED[kind], text)
