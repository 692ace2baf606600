"""Packed sequences: where documents can be cut apart, and that each is then a sequence of its own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.errors import InputError
from attnzoo.ops.segments import by_document, run_lengths, scattered
from attnzoo.ops.terms import Terms


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("ids", "lengths"),
    [([5], [1]), ([7, 7, 3, 3, 3, 9], [2, 3, 1]), ([1, 2, 3], [1, 1, 1]), ([0, 0, 0], [3]), ([1, 2, 1], [1, 1, 1])],
)
def test_a_run_ends_where_the_id_changes(ids: list[int], lengths: list[int]) -> None:
    assert run_lengths(torch.tensor(ids)) == lengths


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([[0, 0, 1, 1]], None),
        ([[9, 9, 2, -5]], None),  # any order
        ([[0, 0, 1, 1], [0, 1, 1, 2]], None),
        ([[0, 1, 0, 0]], "cuts documents out of the sequence, but the tokens of one do not stand together"),
        ([[0, 0, 1, 1], [0, 1, 1, 0]], "cuts documents out of the sequence, but the tokens of one do not stand"),
    ],
)
def test_documents_whose_tokens_stand_together_can_be_cut_apart(ids: list[list[int]], reason: str | None) -> None:
    found = scattered(torch.tensor(ids), 4, 4)
    assert found is None if reason is None else found is not None and reason in found


def test_documents_of_the_newest_queries_alone_are_not_cut() -> None:
    words = "cuts whole sequences into documents, but there are 2 queries for 4 keys"
    assert scattered(torch.tensor([[0, 0, 1, 1]]), 2, 4) == words


def calls(ids: list[list[int]]) -> tuple[list[tuple[int, ...]], Tensor]:
    """The shapes of q that a kernel gets, and what comes back from one that returns its queries doubled."""
    got: list[tuple[int, ...]] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
        assert terms.document is None
        assert terms.first_query == terms.first_key
        assert torch.equal(q, k)
        assert torch.equal(q, v)
        assert float(q[0, 0, 0, 0]) % 100 == terms.first_query  # the token's own number
        got.append(tuple(q.shape))
        return q * 2

    document = torch.tensor(ids)
    b, t = document.shape
    x = (100.0 * torch.arange(b)[:, None] + torch.arange(t))[:, None, :, None]
    return got, by_document(kernel, x, x, x, Terms(scale=1.0, document=document)) - 2 * x


def test_samples_with_the_same_borders_go_together_whatever_their_ids() -> None:
    got, wrong = calls([[0, 0, 0, 1, 2], [8, 8, 8, 3, 4]])
    assert got == [(2, 1, 3, 1), (2, 1, 1, 1), (2, 1, 1, 1)]
    assert not wrong.any()


def test_samples_with_borders_of_their_own_go_one_after_another() -> None:
    got, wrong = calls([[0, 0, 0, 1, 1], [8, 8, 8, 3, 3], [0, 1, 1, 1, 1]])
    assert got == [(1, 1, 3, 1), (1, 1, 2, 1)] * 2 + [(1, 1, 1, 1), (1, 1, 4, 1)]
    assert not wrong.any()


BORDERS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 0, 1, 1, 1, 2, 2, 2, 2]])


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa", "banded", "blocks"])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_documents_come_out_as_they_do_alone(backend: str, causal: bool) -> None:
    q, k, v = normal(2, 4, 9, 6), normal(2, 2, 9, 6, seed=1), normal(2, 2, 9, 5, seed=2)
    asked: dict[str, Any] = dict(causal=causal, backend=backend)
    packed = ops.attend(q, k, v, document=BORDERS, **asked)
    for sample, borders in enumerate([[0, 3, 7, 9], [0, 2, 5, 9]]):
        for start, end in pairwise(borders):
            part = (slice(sample, sample + 1), slice(None), slice(start, end))
            alone = ops.attend(q[part], k[part], v[part], causal=causal)
            torch.testing.assert_close(packed[part], alone, rtol=0, atol=1e-14)


@pytest.mark.parametrize("backend", ["auto", "sdpa", "banded", "blocks"])
@pytest.mark.parametrize("prefix", [False, True])
def test_a_rule_with_samples_of_its_own_goes_with_its_sample(backend: str, prefix: bool) -> None:
    """Where samples go one after another, the rule once stayed the one for the whole batch."""
    q, k, v = normal(2, 4, 9, 6), normal(2, 2, 9, 6, seed=1), normal(2, 2, 9, 5, seed=2)
    mask = ops.key_mask(torch.tensor([[True, False, True] * 3, [False, True, True] * 3]))
    mask = mask & (ops.prefix(4) | ops.causal()) if prefix else mask
    expected = ops.attend(q, k, v, document=BORDERS, mask=mask, backend="eager")
    seen = ops.attend(q, k, v, document=BORDERS, mask=mask, backend=backend)
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("b", [1, 3])
def test_a_rule_for_another_batch_is_refused(b: int) -> None:
    q = normal(b, 1, 9, 4)
    words = rf"mask is a rule for 2 samples, causal\(\) & document\(ids\); the input is a batch of {b}"
    with pytest.raises(InputError, match=words):
        ops.attend(q, q, q, mask=ops.causal() & ops.document(BORDERS))


@pytest.mark.parametrize(
    ("t", "offset", "words"),
    [
        (12, None, r"documents of tokens 0 to 8; the queries are tokens -3 to 8, which have none"),
        (4, 6, r"documents of tokens 0 to 8; the queries are tokens 6 to 9, which have none"),
        (9, 1, r"documents of tokens 0 to 8; the queries are tokens 1 to 9"),
        (4, -1, r"documents of tokens 0 to 8; the queries are tokens -1 to 2"),
    ],
)
def test_queries_without_a_document_are_refused(t: int, offset: int | None, words: str) -> None:
    """A token before the first was once in the last one's document."""
    q, k = normal(2, 1, t, 4), normal(2, 1, 9, 4)
    with pytest.raises(InputError, match=words):
        ops.attend(q, k, k, document=BORDERS, q_offset=offset)


@pytest.mark.parametrize("backend", ["auto", "sdpa", "blocks"])
@pytest.mark.parametrize("offset", [None, 0, 2])
def test_a_few_queries_belong_to_the_documents_of_their_tokens(backend: str, offset: int | None) -> None:
    q, k = normal(2, 2, 9, 4), normal(2, 2, 9, 4, seed=1)
    whole = ops.attend(q, k, k, document=BORDERS, causal=True, backend="eager")
    here = slice(6, 9) if offset is None else slice(offset, offset + 3)
    seen = ops.attend(q[:, :, here], k, k, document=BORDERS, causal=True, q_offset=offset, backend=backend)
    torch.testing.assert_close(seen, whole[:, :, here], rtol=0, atol=1e-14)
