"""The terms of a call: which part of them a block needs, and what a kernel may leave out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.ops.rules import Rule
from attnzoo.ops.terms import Terms, rule_of

CPU = torch.device("cpu")
LIKE = torch.zeros(1, dtype=torch.float32)
CAUSAL, WINDOW = ops.causal(), ops.window(3)
BAND = CAUSAL & WINDOW


def terms(**given: Any) -> Terms:
    return Terms(**{"scale": 1.0, **given})


def numbers(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


# What a query can reach


@pytest.mark.parametrize(
    ("rule", "first_query", "t", "reach"),
    [
        (None, 0, 3, (0, 10)),
        (CAUSAL, 0, 3, (0, 3)),
        (CAUSAL, 7, 3, (0, 10)),
        (CAUSAL, 4, 2, (0, 6)),
        (WINDOW, 4, 2, (2, 8)),  # tokens 4 and 5 see 2 to 7
        (WINDOW, 0, 10, (0, 10)),
        (BAND, 4, 2, (2, 6)),
        (BAND, 0, 1, (0, 1)),
        (BAND, 9, 1, (7, 10)),
        (BAND, -1, 2, (0, 1)),
        (ops.chunk(4), 5, 1, (2, 9)),  # no further than three to either side: the bound, not the chunk
        (ops.prefix(2) | CAUSAL, 5, 1, (0, 10)),
        (~CAUSAL, 5, 1, (0, 10)),
        (CAUSAL, 5, 0, (0, 10)),  # no query
        (BAND, 20, 3, (10, 10)),  # behind the last key
        (BAND, 12, 3, (10, 10)),
        (BAND, 11, 3, (9, 10)),
        (WINDOW, -9, 3, (0, 0)),  # before the first
    ],
)
def test_only_keys_in_reach_are_kept(rule: Rule | None, first_query: int, t: int, reach: tuple[int, int]) -> None:
    assert terms(rule=rule, first_query=first_query).span(t, 10) == slice(*reach)
    moved = terms(rule=rule, first_query=first_query + 100, first_key=100)
    assert moved.span(t, 10) == slice(*reach)


def test_a_part_has_its_rows_and_columns_and_knows_where_they_stand() -> None:
    whole = terms(
        mask=numbers(4, 6), key_mask=numbers(2, 6) > 2, bias=numbers(1, 3, 4, 6), rule=BAND, first_query=2, first_key=0
    )
    part = whole.part(slice(1, 3), slice(2, 6))
    assert part.mask is not None
    assert torch.equal(part.mask, numbers(4, 6)[1:3, 2:6])
    assert part.key_mask is not None
    assert torch.equal(part.key_mask, (numbers(2, 6) > 2)[:, 2:6])
    assert isinstance(part.bias, Tensor)
    assert torch.equal(part.bias, numbers(1, 3, 4, 6)[:, :, 1:3, 2:6])
    assert (part.first_query, part.first_key) == (3, 2)
    assert part.rule is BAND
    again = part.part(slice(1, 2), slice(1, 4))
    assert (again.first_query, again.first_key) == (4, 3)
    seen, all_seen = part.visible(2, 4, CPU), whole.visible(4, 6, CPU)
    assert seen is not None
    assert all_seen is not None
    assert torch.equal(seen, all_seen[..., 1:3, 2:6])


@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (4, 1), (1, 1), (2, 3, 1, 6), (2, 1, 4, 1)], ids=str)
def test_a_part_of_what_broadcasts_still_broadcasts(shape: tuple[int, ...]) -> None:
    part = terms(bias=numbers(*shape)).part(slice(1, 3), slice(2, 6)).bias
    assert isinstance(part, Tensor)
    expected = numbers(*shape).expand(*shape[:-2], 4, 6)[..., 1:3, 2:6]
    assert torch.equal(part.expand(expected.shape), expected)


def test_a_part_of_two_rows_and_two_columns_is_taken_too() -> None:
    part = terms(bias=numbers(2, 2)).part(slice(1, 2), slice(0, 1)).bias
    assert isinstance(part, Tensor)
    assert part.tolist() == [[2.0]]


def test_a_bias_that_is_a_function_and_a_document_go_whole() -> None:
    alibi, ids = ops.Alibi(3), torch.tensor([[0, 0, 1, 1]])
    part = terms(bias=alibi, document=ids).part(slice(1, 3), slice(1, 3))
    assert part.bias is alibi
    assert part.document is ids


def test_a_row_is_one_sample() -> None:
    ids = torch.tensor([[0, 0, 1], [0, 1, 1]])
    whole = terms(
        mask=numbers(2, 1, 3, 3) > 9,
        key_mask=numbers(2, 3) > 1,
        bias=numbers(2, 4, 1, 3),
        document=ids,
        rule=CAUSAL & ops.document(ids),
    )
    row = whole.row(1)
    assert row.mask is not None
    assert torch.equal(row.mask, (numbers(2, 1, 3, 3) > 9)[1:])
    assert row.key_mask is not None
    assert torch.equal(row.key_mask, (numbers(2, 3) > 1)[1:])
    assert isinstance(row.bias, Tensor)
    assert torch.equal(row.bias, numbers(2, 4, 1, 3)[1:])
    assert row.document is not None
    assert torch.equal(row.document, ids[1:])
    seen, all_seen = row.visible(3, 3, CPU), whole.visible(3, 3, CPU)
    assert seen is not None
    assert all_seen is not None
    assert torch.equal(seen, all_seen[1:])


def test_a_row_leaves_alone_what_is_the_same_for_all_samples() -> None:
    alibi = ops.Alibi(2)
    for mask in (numbers(3, 3), numbers(1, 2, 3, 3)):
        row = terms(mask=mask, bias=mask, rule=CAUSAL).row(1)
        assert row.mask is mask
        assert row.bias is mask
        assert row.rule is CAUSAL
    assert terms(bias=numbers(4, 3, 3), sinks=numbers(2)).row(1).bias.shape == (4, 3, 3)  # type: ignore[union-attr]
    assert terms(bias=alibi).row(1).bias is alibi


# What a kernel may conclude


@pytest.mark.parametrize(
    ("rule", "first_query", "t", "s", "all_seen"),
    [
        (None, 0, 5, 5, True),
        (CAUSAL, 7, 1, 8, True),
        (CAUSAL, 6, 2, 8, False),
        (CAUSAL, 6, 1, 8, False),
        (CAUSAL, 9, 2, 8, True),  # behind all keys
        (BAND, 2, 1, 3, True),
        (BAND, 3, 1, 4, False),
        (WINDOW, 2, 1, 5, True),
        (WINDOW, 2, 1, 6, False),
        (WINDOW, 0, 3, 3, True),
        (WINDOW, 0, 4, 4, False),
        (ops.chunk(9), 0, 3, 3, False),  # it would, but it does not say so
        (~WINDOW, 0, 1, 1, False),
        (BAND, 0, 0, 5, True),
        (BAND, 0, 5, 0, True),
    ],
)
def test_a_rule_that_blocks_nothing_is_left_out(
    rule: Rule | None, first_query: int, t: int, s: int, all_seen: bool
) -> None:
    for moved in (0, 50):
        asked = terms(rule=rule, first_query=first_query + moved, first_key=moved)
        assert asked.allows_all(t, s) is all_seen
        if all_seen:
            assert asked.visible(t, s, CPU) is None
            assert rule is None or rule.mask(t, s, first_query=first_query).all()


@pytest.mark.parametrize(
    ("given", "t", "s", "triangle"),
    [
        ({"rule": CAUSAL}, 5, 5, True),
        ({"rule": CAUSAL}, 1, 1, True),
        ({"rule": CAUSAL & ops.window(5)}, 5, 5, True),  # a window as wide as the sequence
        ({"rule": CAUSAL & ops.window(4)}, 5, 5, False),
        ({"rule": CAUSAL, "first_query": 9, "first_key": 9}, 5, 5, True),
        ({"rule": CAUSAL, "first_query": 1}, 5, 5, False),
        ({"rule": CAUSAL}, 4, 5, False),
        ({}, 5, 5, False),
        ({"rule": ops.window(9)}, 5, 5, False),
        ({"rule": CAUSAL & ops.chunk(9)}, 5, 5, False),
        ({"rule": CAUSAL, "key_mask": torch.ones(1, 5) > 0}, 5, 5, False),
        ({"rule": CAUSAL, "mask": torch.ones(5, 5) > 0}, 5, 5, False),
        ({"rule": CAUSAL, "document": torch.zeros(1, 5).long()}, 5, 5, False),
    ],
)
def test_the_plain_triangle_is_told_from_everything_else(given: dict[str, Any], t: int, s: int, triangle: bool) -> None:
    assert terms(**given).is_triangle(t, s) is triangle


@pytest.mark.parametrize("first_key", [0, 7])
@pytest.mark.parametrize("rule", [CAUSAL, WINDOW, BAND, CAUSAL & ops.window(4), CAUSAL & ops.window(9)], ids=str)
def test_the_edge_is_where_the_first_keys_that_all_queries_see_end(rule: Rule, first_key: int) -> None:
    """Where each query sees keys from the first one on, and none of them nothing; told by the rule written out."""
    edges = set()
    for s, t, ahead in itertools.product((3, 5), (1, 2, 3), (0, 1, 2)):
        asked = terms(rule=rule, first_query=first_key + ahead, first_key=first_key)
        seen = asked.seen(t, s, CPU)
        from_the_first = bool((seen.int().diff(dim=-1) <= 0).all()) and ahead + t <= s
        assert asked.edge(t, s) == (int(seen.sum(dim=-1).min()) if from_the_first else None), (s, t, ahead)
        edges.add(asked.edge(t, s))
    assert len(edges) > 3  # the control: it is somewhere, and nowhere


def test_without_a_rule_all_queries_see_all_keys_and_a_mask_may_hide_any() -> None:
    assert terms().edge(2, 5) == 5
    assert terms(key_mask=torch.ones(1, 5) > 0).edge(2, 5) is None
    assert terms(rule=CAUSAL, first_query=-1).edge(3, 5) is None  # the first query sees nothing
    assert terms(rule=ops.chunk(4)).edge(2, 5) is None


@pytest.mark.parametrize(
    ("given", "holes"),
    [
        ({}, False),
        ({"rule": BAND}, False),
        ({"rule": BAND, "mask": torch.ones(2, 2) > 0}, True),
        ({"rule": ops.prefix(2) | BAND}, True),
        ({"rule": ops.chunk(4)}, True),
        ({"document": torch.zeros(1, 2).long()}, True),
    ],
)
def test_an_exact_rule_alone_has_no_holes(given: dict[str, Any], holes: bool) -> None:
    assert terms(**given).has_holes is holes


@pytest.mark.parametrize(
    ("given", "changes", "masked"),
    [
        ({}, False, False),
        ({"softcap": 1.0}, True, False),
        ({"bias": ops.Alibi(1)}, True, False),
        ({"bias": torch.zeros(1, 1)}, True, False),
        ({"mask": torch.zeros(1, 1)}, True, True),
        ({"mask": torch.zeros(1, 1) > 0}, False, True),
        ({"key_mask": torch.zeros(1, 1) > 0}, False, True),
        ({"document": torch.zeros(1, 1).long()}, False, True),
        ({"rule": CAUSAL, "sinks": torch.zeros(1), "dropout": 0.5}, False, False),
    ],
)
def test_terms_know_whether_they_change_scores_and_whether_there_are_masks(
    given: dict[str, Any], changes: bool, masked: bool
) -> None:
    asked = terms(**given)
    assert (asked.changes_scores, asked.has_mask) == (changes, masked)


def test_rules_documents_and_padding_make_one_rule() -> None:
    ids, real = torch.tensor([[0, 0, 1]]), torch.tensor([[True, False, True]])
    every = terms(rule=CAUSAL, document=ids, key_mask=real).every_rule()
    assert repr(every) == "causal() & document(ids) & key_mask(real)"
    assert terms().every_rule() is None
    assert terms(rule=CAUSAL).every_rule() is CAUSAL
    assert rule_of(None, CAUSAL, None) is CAUSAL
    assert repr(rule_of(CAUSAL, WINDOW)) == "causal() & window(3)"
    assert rule_of() is None


# What is seen, and what is added


def test_what_is_seen_is_all_rules_at_once() -> None:
    ids = torch.tensor([[0, 0, 1], [0, 1, 1]])
    visible = terms(rule=CAUSAL, document=ids, key_mask=torch.tensor([[True] * 3, [True, True, False]])).visible(
        3, 3, CPU
    )
    assert visible is not None
    assert visible.int().tolist() == [[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]], [[[1, 0, 0], [0, 1, 0], [0, 1, 0]]]]


def test_nothing_to_add_is_none() -> None:
    assert terms(mask=torch.ones(2, 3) > 0).added(1, 2, 3, LIKE) is None


def test_bias_and_floating_mask_are_added_up_in_the_wide_type() -> None:
    bias, mask = numbers(3, 2, 3).bfloat16(), numbers(2, 3)
    added = terms(bias=bias, mask=mask).added(3, 2, 3, LIKE.bfloat16())
    assert added is not None
    assert added.dtype is torch.float32
    assert torch.equal(added, numbers(3, 2, 3) + numbers(2, 3))
    alone = terms(mask=mask.half()).added(3, 2, 3, LIKE)
    assert alone is not None
    assert alone.dtype is torch.float32


def test_a_function_bias_is_asked_for_the_heads_and_the_tokens_indices() -> None:
    def bias(head: Tensor, query: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
        return (100 * head + 10 * query + key).to(dtype)

    added = terms(bias=bias, first_query=5, first_key=3).added(2, 2, 3, LIKE.double())
    assert added is not None
    assert added.dtype is torch.float64
    assert added.tolist() == [[[53, 54, 55], [63, 64, 65]], [[153, 154, 155], [163, 164, 165]]]


def test_terms_that_are_not_given_are_none() -> None:
    given = terms()
    assert (given.dropout, given.first_query, given.first_key) == (0, 0, 0)
    words = ("mask", "key_mask", "rule", "document", "softcap", "bias", "sinks")
    assert [getattr(given, word) for word in words] == [None] * 7
