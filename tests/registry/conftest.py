"""Fake distributions, and variants small enough to see through."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import nn

import attnzoo

Install = Callable[[Path, str, str], None]
MakeVariant = Callable[..., attnzoo.Variant]
MakePlugin = Callable[..., ModuleType]


class Layer(nn.Module):
    """Stands in for an attention layer: it holds its options and computes nothing."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.d_model, self.heads, self.causal, self.dropout = d_model, heads, causal, dropout


@pytest.fixture(scope="session")
def install() -> Install:
    """Write a distribution of one module with one entry point, as an installer would leave it in a folder."""

    def write(folder: Path, name: str, code: str, entry: str = "plugin") -> None:
        module = name.replace("-", "_")
        (folder / f"{module}.py").write_text(textwrap.dedent(code))
        info = folder / f"{module}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[attnzoo]\n{entry} = {module}\n")

    return write


@pytest.fixture
def make_variant() -> MakeVariant:
    def make(name: str = "tiny", build: Callable[..., Any] = Layer, **fields: Any) -> attnzoo.Variant:
        cases = fields.pop("cases", [{"d_model": 24, "heads": 4}])
        return attnzoo.Variant(name=name, build=build, summary="A stand-in.", cases=cases, **fields)

    return make


@pytest.fixture
def make_plugin() -> MakePlugin:
    def make(origin: str, *variants: attnzoo.Variant) -> ModuleType:
        plugin = ModuleType(origin)
        plugin.attnzoo_variants = attnzoo.hookimpl(lambda: list(variants))  # type: ignore[attr-defined]
        return plugin

    return make
