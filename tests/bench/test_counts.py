"""What can be counted, against numbers worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import attnzoo
from attnzoo.bench import counts as counting
from attnzoo.bench.contender import Contender
from attnzoo.bench.counts import SIZE, Count, count, count_all, flops, kept_bytes, table
from attnzoo.bench.handwritten import BLOCK
from attnzoo.bench.ours import ours
from attnzoo.bench.problem import Problem
from attnzoo.bench.works import BAND, BLOCKS, BY_HAND

P = Problem(t=64, d_model=24, heads=6, kv_heads=2)  # d = 4: h d = 24, g d = 8
WORD = 4  # bytes of a float32


def projections(p: Problem) -> int:
    """FLOPs: every token by (h + 2 g) d rows of c, and back by h d."""
    d = p.head_dim
    return 2 * p.t * p.d_model * ((p.heads + 2 * p.kv_heads) * d + p.heads * d)


def pairs(p: Problem, number: int) -> int:
    """FLOPs of so many query-key pairs, in every head: d for the logit, d for the weighted sum."""
    return 2 * number * p.heads * 2 * p.head_dim


@pytest.mark.parametrize("contender", [ours(attnzoo.build, "rope"), BY_HAND], ids=lambda c: c.name)
def test_flops_parameters_and_kept_bytes_of_grouped_query_attention(contender: Contender) -> None:
    found = count("rope", P, contender)
    assert found.flops == projections(P) + pairs(P, 64 * 64)
    assert found.parameters == 24 * (24 + 2 * 8) + 24 * 24
    assert found.growth == 2.0
    # x, the projected rows, the turned queries and keys, what was mixed, a log-sum-exp a head
    least = WORD * 64 * (24 + 40 + 32 + 24 + 6)
    tables = WORD * 64 * 4  # cos and sin, half a head wide each
    assert found.kept >= least
    if contender is BY_HAND:
        assert found.kept == least + tables


def test_without_rotation_attnzoo_keeps_what_the_hand_written_layer_keeps() -> None:
    plain = replace(P, rope=False)
    expected = WORD * 64 * (24 + 40 + 24 + 6)  # x, rows, mixed, log-sum-exp
    assert count("gqa", plain, ours(attnzoo.build, "gqa")).kept == expected
    assert count("gqa", plain, BY_HAND).kept == expected


def test_a_cache_holds_two_numbers_a_channel() -> None:
    assert count("gqa", replace(P, rope=False), ours(attnzoo.build, "gqa")).cache == 2 * 8 * WORD
    assert count("gqa", replace(P, rope=False), BY_HAND).cache is None


def test_blocks_do_less_than_a_mask_and_keep_less() -> None:
    p = replace(P, t=64, window=32)
    banded, masked = count("w", p, BLOCKS), count("w", p, BAND)
    assert banded.flops == projections(p) + pairs(p, 32 * 32 + 32 * (32 + BLOCK))
    assert masked.flops == projections(p) + pairs(p, 64 * 64)
    long = replace(p, t=2048)
    assert count("w", long, BLOCKS).growth < 2.05
    assert count("w", long, BAND).growth > 3.5


class Views(nn.Module):
    """exp keeps what it gives, and the product keeps it twice more: one storage of 4 bytes a number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        y = x.exp()
        return y * y.view_as(y) * self.weight


def test_a_storage_counts_once_and_a_parameter_not_at_all() -> None:
    product = 3 * 5 * WORD  # y², which the parameter's gradient needs
    assert kept_bytes(Views(), torch.ones(3, 5)) == 3 * 5 * WORD + product


def test_a_fused_kernel_counts_as_the_whole_matrix() -> None:
    class Fused(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    assert flops(Fused(), torch.ones(1, 3, 10, 8)) == 3 * 10 * 10 * 2 * 2 * 8


def test_every_formula_is_counted_and_ours_keep_a_linear_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "SIZE", replace(SIZE, t=512))
    heard: list[tuple[int, int]] = []
    counts = count_all(attnzoo.build, lambda done, total, what: heard.append((done, total)))
    assert heard == [(i, len(counts)) for i in range(len(counts))]
    installed = {c.formula for c in counts if c.kind == "attnzoo" and not c.skipped}
    assert {"mha", "gqa", "rope"} <= installed <= set(attnzoo.variants())
    assert {c.skipped for c in counts if c.formula not in installed and c.kind == "attnzoo"} <= {"not installed"}
    assert [c.formula for c in counts if c.met is False] == []
    assert [c.formula for c in counts if c.met] == [c.formula for c in counts if c.formula in installed and c.met]


def test_the_table_tells_what_grows_too_fast_and_what_was_not_counted() -> None:
    known = {"formula": "f", "problem": str(SIZE), "contender": "attnzoo f", "kind": "attnzoo"}
    fast = Count(**known, flops=2_500_000, kept=1500, growth=4.0, cache=512.0, parameters=1024)  # type: ignore[arg-type]
    headings, rows = table([fast, Count(**known, skipped="not installed")])  # type: ignore[arg-type]
    assert rows[0] == ["f", "attnzoo f", "2.5", "1.5", "4.00 times, more than 2.2", "512", "1,024"]
    assert rows[1][2] == "skipped: not installed"
    assert {len(row) for row in rows} == {len(headings)}
    assert fast.met is False
