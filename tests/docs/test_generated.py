"""The generated pages say what the program says: of each variant, of each law, of each verb."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from torch import Tensor, nn

import attnzoo
import zoodocs
from attnzoo.checks import LAWS, Law
from attnzoo.checks.engine.clauses import CLAUSES
from attnzoo.checks.exam.faults import FAULTS
from attnzoo.cli import app, report
from attnzoo.errors import Unsupported
from zoodocs import variants
from zoodocs.docstrings import prose
from zoodocs.pages import Page, sweep, write

PLUGIN = '''
"""Attention that rounds its queries.

    q = round(x W_q)

Nobody needs it.
"""

from torch import nn

import attnzoo
from attnzoo import ops


class Rounded(ops.AttentionLayer):
    """Rounded attention (arXiv:1706.03762).

    x: (b, t, c)    y: (b, t, c)    digits: how many stay

    Differs: the paper rounds
    nothing.
    """

    variant = "rounded"

    def __init__(self, d_model: int, heads: int, *, digits: int = 1, causal: bool = True) -> None:
        super().__init__(d_model=d_model, heads=heads, causal=causal)
        self.digits = digits
        self.qkv = nn.Linear(d_model, 3 * heads * self.head_dim)
        self.out = nn.Linear(heads * self.head_dim, d_model)

    def project(self, x, context=None, *, positions=None, offset=0):
        q, k, v = ops.project_qkv(self.qkv, x, context, heads=self.heads, kv_heads=self.heads)
        return q.round(decimals=self.digits), k, v


VARIANT = attnzoo.Variant(
    name="rounded",
    build=Rounded,
    summary="Attention by rounded queries.",
    paper="arXiv:1706.03762",
    traits=attnzoo.Traits(cross=True, plain=False),
    cases=[dict(d_model=24, heads=4)],
)
'''


@pytest.fixture(scope="module")
def pages() -> dict[str, Page]:
    return zoodocs.generated()


@pytest.fixture
def rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """The page of a variant that is there for as long as this lasts."""
    (tmp_path / "rounded_attention.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with attnzoo.temporary(importlib.import_module("rounded_attention").VARIANT):
        yield variants.pages()["variants/rounded"]


def test_each_variant_and_each_law_has_a_page_and_nothing_else_has(pages: dict[str, Page]) -> None:
    due = [*(f"variants/{name}" for name in attnzoo.variants()), *(f"laws/{law.id}" for law in LAWS)]
    assert sorted(pages) == sorted([*due, "variants/index", "laws/index", "cli"])


@pytest.mark.parametrize("name", attnzoo.variants())
def test_a_variant_is_told_whole(pages: dict[str, Page], name: str) -> None:
    page, variant = pages[f"variants/{name}"], attnzoo.describe(name)
    assert variant.summary in page.text
    assert variant.paper.replace("arXiv:", "https://arxiv.org/abs/") in page.text
    for option in variant.options or ():
        assert re.search(rf"^\| `{option}` \| \S+ \| \S.+ \|$", page.text, re.MULTILINE), f"{option} is not explained"
    for trait, value in asdict(variant.traits).items():
        row = rf"^\| `{trait}` \| `{value}` \| \S.+ \|$"
        assert re.search(row, page.text, re.MULTILINE), f"{trait} is not explained"
    assert set(page.pictures) == {name, f"{name}-weights", f"{name}-mask"}
    assert f"/variants/pictures/{name}-weights.png" in page.text


def test_a_new_variant_is_told_too(rounded: Page) -> None:
    assert "```text\nq = round(x W_q)\n```\n\nNobody needs it." in rounded.text
    assert "    return q.round(decimals=self.digits), k, v\n```" in rounded.text
    assert "is shared: `AttentionLayer.forward`, `AttentionLayer.attend`, `AttentionLayer.merge`." in rounded.text
    assert "| `digits` | `1` | how many stay |" in rounded.text
    assert "| `plain` | `False` |" in rounded.text
    assert "- [truth.sdpa](/laws/truth.sdpa.md): it declares that its attention is more than SDPA" in rounded.text
    assert "## What differs elsewhere\n\n- the paper rounds nothing.\n" in rounded.text
    assert "softmax: weights" in rounded.text  # the trace
    assert len(rounded.pictures) == 3


class Silent(nn.Module):
    """A layer that hands out no weights and shows no stages."""

    def __init__(self, d_model: int = 8) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, *, need_weights: bool = False) -> Tensor:
        if need_weights:
            raise Unsupported("silent: it has no weights; leave need_weights out")
        y: Tensor = self.out(x)
        return y


def test_a_layer_that_cannot_be_drawn_says_so_and_still_has_an_emblem() -> None:
    traits = attnzoo.Traits(weights=False, mask=False, key_mask=False, causal="never")
    silent = attnzoo.Variant(
        name="silent", build=lambda **o: Silent(**o), summary="Silent.", traits=traits, cases=[{"d_model": 8}]
    )
    with attnzoo.temporary(silent):
        page = variants.page("silent")
    head, tail = page.text.partition("\n## ")[0], page.text.rpartition("\n## Options\n")[2]  # its file is in between
    assert "There is no picture of its weights: Silent shows no stages" in head
    assert "image" not in head
    assert tail.startswith("\nIt takes any keyword; these are the ones that its cases use.\n\n| option")
    assert set(page.pictures) == {"silent"}


def test_where_nothing_differs_the_page_does_not_speak_of_it(pages: dict[str, Page]) -> None:
    assert "What differs elsewhere" not in pages["variants/mha"].text


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)
def test_a_law_is_told_with_its_code_and_the_faults_it_must_find(pages: dict[str, Page], law: Law) -> None:
    text = pages[f"laws/{law.id}"].text
    assert text.startswith(f"# {law.id}\n\n**{prose(law.title)}**\n")
    assert f"[{law.clause}](#{law.clause.lower()}): {prose(CLAUSES[law.clause])}\n" in text
    assert f"attnzoo check gqa --only {law.id}\n" in text
    assert f"def {law.run.__name__}(lab: Lab, see: Evidence) -> None:" in text
    found = re.findall(r"^### (.+)\n\n(.+)\n", text, re.MULTILINE)
    assert found == [(fault.id, prose(fault.truth)) for fault in FAULTS if fault.killed_by == law.id]
    assert found
    assert f"](/laws/{law.id}.md)" in pages["laws/index"].text


def test_a_law_shows_what_it_finds_beside(pages: dict[str, Page]) -> None:
    """Forgetting the causal mask is killed by causality.no_future, and the oracle sees it as well."""
    assert "- `causal.missing`: There is no causal mask." in pages["laws/truth.oracle"].text


def test_the_command_is_told_with_every_verb(pages: dict[str, Page]) -> None:
    verbs = [str(command.name) for command in app.registered_commands]
    verbs += [f"report {command.name}" for command in report.app.registered_commands]
    assert {"check", "report diff"} <= set(verbs)
    told = re.findall(r"^## attnzoo (.+)$", pages["cli"].text, re.MULTILINE)
    assert sorted(told) == sorted([*verbs, "report"])


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda command: command.name)
def test_a_verb_shows_its_help_and_its_example(pages: dict[str, Page], command: object) -> None:
    text = pages["cli"].text.partition(f"## attnzoo {command.name}\n")[2].partition("\n## ")[0]  # type: ignore[attr-defined]
    example = command.epilog.removeprefix("Example: ")  # type: ignore[attr-defined]
    assert f"\n{example}\n" in text
    assert "| `--help` | Show this message and exit. |" in text


def test_a_page_of_what_is_gone_is_removed_and_no_other(tmp_path: Path) -> None:
    write({"variants/old": Page("# old"), "variants/gqa": Page("# gqa")}, tmp_path)
    (tmp_path / "mine.md").write_text("# mine", encoding="utf-8")
    sweep({"variants/gqa": Page("# gqa")}, tmp_path, "variants")
    assert sorted(path.name for path in tmp_path.rglob("*.md")) == ["gqa.md", "mine.md"]


def test_a_page_that_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    """Sphinx reads again what is newer than its last build."""
    path = tmp_path / "cli.md"
    write({"cli": Page("# one")}, tmp_path)
    path.chmod(0o644)
    first = path.stat().st_mtime_ns
    write({"cli": Page("# one")}, tmp_path)
    assert path.stat().st_mtime_ns == first
    write({"cli": Page("# two")}, tmp_path)
    assert path.read_text(encoding="utf-8") == "# two"
