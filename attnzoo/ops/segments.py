"""Packed sequences, document by document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attnzoo.ops.heads import join_tokens
from attnzoo.ops.terms import Terms

Kernel = Callable[[Tensor, Tensor, Tensor, Terms], Tensor]


def by_document(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
    """Each document as a sequence of its own: no query meets another document's key, so none need be masked.

    Samples with the same borders go together; otherwise one after another.
    """
    assert terms.document is not None
    borders = [run_lengths(row) for row in terms.document]
    if any(other != borders[0] for other in borders[1:]):
        rows = [by_document(kernel, q[i : i + 1], k[i : i + 1], v[i : i + 1], terms.row(i)) for i in range(q.shape[0])]
        return torch.cat(rows)
    alone = replace(terms, document=None)
    if not borders or not borders[0]:  # no sample, or no token
        return kernel(q, k, v, alone)
    start, mixed = 0, []
    parts = zip(*(x.split_with_sizes(borders[0], dim=2) for x in (q, k, v)), borders[0], strict=True)
    for q_part, k_part, v_part, length in parts:
        here = slice(start, start + length)
        mixed.append(kernel(q_part, k_part, v_part, alone.part(here, here)))
        start += length
    return join_tokens(mixed)


def run_lengths(ids: Tensor) -> list[int]:
    """How long each run of equal ids is. ids: (t,)

    >>> run_lengths(torch.tensor([7, 7, 3, 3, 3, 9]))
    [2, 3, 1]
    """
    return [int(n) for n in torch.unique_consecutive(ids, return_counts=True)[1].tolist()]


def scattered(ids: Tensor, t: int, s: int) -> str | None:
    """Why the documents of these samples cannot be cut apart, or None where they can. ids: (b, s)"""
    if t != s:
        return f"cuts whole sequences into documents, but there are {t} queries for {s} keys"
    for row in ids:
        found = torch.unique_consecutive(row).tolist()
        if len(found) != len(set(found)):
            return "cuts documents out of the sequence, but the tokens of one do not stand together"
    return None
