"""Who may see whom, counted out."""

from __future__ import annotations

import numpy as np
import pytest

from attnzoo.errors import ConfigError, InputError
from attnzoo.oracle import causal, same_document, within


@pytest.mark.parametrize(
    ("window", "counts"),
    [(1, [1, 1, 1, 1, 1, 1]), (3, [1, 2, 3, 3, 3, 3]), (6, [1, 2, 3, 4, 5, 6]), (99, [1, 2, 3, 4, 5, 6])],
)
def test_a_window_is_so_many_keys_the_own_included(window: int, counts: list[int]) -> None:
    seen = within(window, 6, 6) & causal(6, 6)
    assert seen.sum(axis=1).tolist() == counts
    assert seen.diagonal().all()


def test_a_window_reaches_to_both_sides_where_nothing_is_causal() -> None:
    assert within(2, 4, 4).astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert (within(1, 4, 4) == np.eye(4, dtype=bool)).all()


def test_fewer_queries_than_keys_are_the_newest_ones() -> None:
    for t in range(1, 6):
        np.testing.assert_array_equal(within(3, t, 6), within(3, 6, 6)[-t:])
        document = np.array([[5, 5, 8, 8, 8, -1]])
        np.testing.assert_array_equal(same_document(document, t), same_document(document, 6)[:, :, -t:])


def test_a_document_sees_itself_whatever_its_name() -> None:
    seen = same_document(np.array([[3, 3, 900, -2], [1, 2, 2, 1]]), 4)
    assert seen.shape == (2, 1, 4, 4)
    assert seen[0, 0].astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert seen[1, 0].astype(int).tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]]


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(ConfigError, match=r"window \(0\).*at least 1"):
        within(0, 3, 3)
    for wrong in (np.zeros((2, 4)), np.zeros(4, dtype=int), np.zeros((2, 3), dtype=int)):
        with pytest.raises(InputError, match=r"integers of shape \(b, s\), s >= 4"):
            same_document(wrong, 4)
