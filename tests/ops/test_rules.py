"""Rules: who may see whom, as pictures, and what a kernel may conclude from them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.errors import ConfigError, InputError
from attnzoo.ops.rules import FAR, Rule


def sees(*rows: str) -> Tensor:
    """A picture of a mask: x where a query sees a key."""
    return torch.tensor([[mark == "x" for mark in row] for row in rows])


IDS = torch.tensor([[4, 4, 9, 9], [1, 2, 1, 2]])
REAL = torch.tensor([[True, True, False, True], [False, False, False, True]])

PICTURES: dict[str, tuple[Rule, list[str]]] = {
    "causal": (ops.causal(), ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]),
    "window 1": (ops.window(1), ["x....", ".x...", "..x..", "...x.", "....x"]),
    "window 2": (ops.window(2), ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"]),
    "chunk 2": (ops.chunk(2), ["xx...", "xx...", "..xx.", "..xx.", "....x"]),
    "chunk 3": (ops.chunk(3), ["xxx..", "xxx..", "xxx..", "...xx", "...xx"]),
    "prefix 2": (ops.prefix(2), ["xx...", "xx...", "xx...", "xx...", "xx..."]),
    "causal and window 2": (ops.causal() & ops.window(2), ["x....", "xx...", ".xx..", "..xx.", "...xx"]),
    "causal and chunk 2": (ops.causal() & ops.chunk(2), ["x....", "xx...", "..x..", "..xx.", "....x"]),
    "prefix or causal": (ops.prefix(2) | ops.causal(), ["xx...", "xx...", "xxx..", "xxxx.", "xxxxx"]),
    "not causal": (~ops.causal(), [".xxxx", "..xxx", "...xx", "....x", "....."]),
    "not not causal": (~~ops.causal(), ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]),
    "a window and a prefix, no later token": (
        (ops.window(2) | ops.prefix(1)) & ops.causal(),
        ["x....", "xx...", "xxx..", "x.xx.", "x..xx"],
    ),
}


@pytest.mark.parametrize(("rule", "picture"), PICTURES.values(), ids=PICTURES.keys())
def test_a_rule_is_its_picture(rule: Rule, picture: list[str]) -> None:
    assert torch.equal(rule.mask(5, 5), sees(*picture))


@pytest.mark.parametrize(("rule", "picture"), PICTURES.values(), ids=PICTURES.keys())
def test_the_newest_queries_on_a_cache_see_what_they_see_in_the_whole(rule: Rule, picture: list[str]) -> None:
    assert torch.equal(rule.mask(2, 5), sees(*picture[3:]))
    assert torch.equal(rule.mask(1, 5), sees(*picture[4:]))


@pytest.mark.parametrize(("rule", "picture"), PICTURES.values(), ids=PICTURES.keys())
def test_a_piece_is_cut_out_of_the_picture(rule: Rule, picture: list[str]) -> None:
    piece = rule.mask(2, 3, first_query=1, first_key=2)
    assert torch.equal(piece, sees(*picture)[1:3, 2:5])


@pytest.mark.parametrize(("rule", "_"), PICTURES.values(), ids=PICTURES.keys())
def test_no_query_sees_further_than_a_rule_says(rule: Rule, _: list[str]) -> None:
    """And one that is exact sees all up to there: this is what the kernels leave keys out by."""
    apart = torch.arange(9)[:, None] - torch.arange(9)
    mask = rule.mask(9, 9)
    inside = (apart <= rule.behind) & (-apart <= rule.ahead)
    assert not (mask & ~inside).any()
    if rule.exact:
        assert torch.equal(mask, inside)


def test_queries_after_the_last_key_still_count_from_it() -> None:
    assert torch.equal(ops.window(3).mask(3, 2, first_query=1), sees("xx", "xx", ".x"))


def test_where_only_the_first_key_is_told_the_queries_are_the_last_of_the_keys() -> None:
    assert torch.equal(ops.chunk(4).mask(2, 4, first_key=2), sees("..xx", "..xx"))  # tokens 4 and 5 of 2 to 5


def test_a_chunk_is_counted_from_the_first_token_and_not_from_the_first_query() -> None:
    # tokens 0 to 6 make the chunks 0 1 2 | 3 4 5 | 6
    assert torch.equal((ops.causal() & ops.chunk(3)).mask(3, 7), sees("...xx..", "...xxx.", "......x"))


def test_a_prefix_language_model_on_a_cache_sees_the_prefix_and_the_past() -> None:
    assert torch.equal((ops.prefix(3) | ops.causal()).mask(2, 4, first_query=0), sees("xxx.", "xxx."))


@pytest.mark.parametrize(
    ("rule", "behind", "ahead", "exact"),
    [
        (ops.causal(), FAR, 0, True),
        (ops.window(4), 3, 3, True),
        (ops.causal() & ops.window(4), 3, 0, True),
        (ops.window(4) & ops.window(2), 1, 1, True),
        (ops.chunk(4), 3, 3, False),
        (ops.window(2) & ops.chunk(4), 1, 1, False),
        (ops.chunk(4) & ops.window(2), 1, 1, False),
        (ops.window(4) | ops.window(2), 3, 3, False),
        (ops.window(4) | ops.causal(), FAR, 3, False),
        (ops.prefix(4), FAR, FAR, False),
        (ops.prefix(4) & ops.causal(), FAR, 0, False),
        (~ops.window(4), FAR, FAR, False),
        (ops.document(IDS), FAR, FAR, False),
        (ops.key_mask(REAL), FAR, FAR, False),
    ],
    ids=str,
)
def test_a_rule_knows_how_far_it_sees(rule: Rule, behind: int, ahead: int, exact: bool) -> None:
    assert (rule.behind, rule.ahead, rule.exact) == (behind, ahead, exact)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (ops.causal() & ops.window(4), "causal() & window(4)"),
        ((ops.prefix(2) | ops.causal()) & ops.chunk(3), "(prefix(2) | causal()) & chunk(3)"),
        (~(ops.causal() & ops.window(4)), "~(causal() & window(4))"),
        (ops.document(IDS) & ops.key_mask(REAL), "document(ids) & key_mask(real)"),
    ],
)
def test_a_rule_tells_its_name(rule: Rule, name: str) -> None:
    assert rule.name == repr(rule) == str(rule) == name


# Rules that depend on the sample


@pytest.mark.parametrize(
    ("rule", "pictures"),
    [
        (ops.document(IDS), [["xx..", "xx..", "..xx", "..xx"], ["x.x.", ".x.x", "x.x.", ".x.x"]]),
        (ops.key_mask(REAL), [["xx.x"] * 4, ["...x"] * 4]),
        (
            ops.causal() & ops.document(IDS),
            [["x...", "xx..", "..x.", "..xx"], ["x...", ".x..", "x.x.", ".x.x"]],
        ),
        (
            ops.document(IDS) & ops.key_mask(REAL),
            [["xx..", "xx..", "...x", "...x"], ["....", "...x", "....", "...x"]],
        ),
        (ops.key_mask(REAL) | ops.window(1), [["xx.x", "xx.x", "xxxx", "xx.x"], ["x..x", ".x.x", "..xx", "...x"]]),
        (~ops.document(IDS), [["..xx", "..xx", "xx..", "xx.."], [".x.x", "x.x.", ".x.x", "x.x."]]),
    ],
    ids=str,
)
def test_each_sample_has_its_own_documents_and_its_own_padding(rule: Rule, pictures: list[list[str]]) -> None:
    mask = rule.mask(4, 4)
    assert mask.shape == (2, 1, 4, 4)
    assert rule.samples == 2
    for sample, picture in enumerate(pictures):
        assert torch.equal(mask[sample, 0], sees(*picture))
        assert torch.equal(rule.of_sample(sample).mask(4, 4)[0, 0], sees(*picture))
        assert torch.equal(rule.mask(2, 3, first_query=1, first_key=1)[sample, 0], sees(*picture)[1:3, 1:4])


def test_a_rule_of_one_sample_of_three_is_that_sample_s() -> None:
    real = torch.tensor([[True, False], [False, True], [False, False]])
    rows = [ops.key_mask(real).of_sample(i) for i in range(3)]
    assert [row.samples for row in rows] == [1, 1, 1]
    assert [row.mask(1, 2).tolist() for row in rows] == [[[[seen]]] for seen in real.tolist()]


def test_a_rule_that_knows_no_samples_is_the_same_for_each() -> None:
    assert ops.causal().of_sample(3) is ops.causal()


@pytest.mark.parametrize("join", ["__and__", "__or__"])
def test_rules_for_unlike_numbers_of_samples_are_not_joined(join: str) -> None:
    words = r"document\(ids\) tells of 2 samples and key_mask\(real\) of 1; joined, they must be as many"
    with pytest.raises(InputError, match=words):
        getattr(ops.document(IDS), join)(ops.key_mask(REAL[:1]))


def test_ids_may_be_of_any_integer_type() -> None:
    assert torch.equal(ops.document(IDS.to(torch.int16)).mask(4, 4), ops.document(IDS).mask(4, 4))


def test_a_rule_that_many_share_cannot_be_changed() -> None:
    assert ops.causal() is ops.causal()
    with pytest.raises(FrozenInstanceError):
        ops.causal().behind = 3  # type: ignore[misc]


# Refusals


@pytest.mark.parametrize("n", [0, -3, 2.5, 2.0, True, "8", None], ids=repr)
@pytest.mark.parametrize(("rule", "word"), [(ops.window, "window"), (ops.chunk, "chunk")])
def test_a_window_without_a_key_is_refused_by_its_name(rule: Any, word: str, n: Any) -> None:
    rule(1), rule(2)  # what was made before does not answer for what is refused
    with pytest.raises(ConfigError, match=rf"{word} \({n!r}\) counts tokens.*: a whole number, 1 or more"):
        rule(n)


def test_a_window_that_is_one_is_given_back() -> None:
    assert ops.check_window(3) == 3


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.zeros(2, 4), r"document is torch.float32 \(2, 4\); it must hold integers of shape \(b, t\)"),
        (torch.zeros(2, 4, dtype=torch.bool), r"document is torch.bool"),
        (torch.zeros(2, 4, dtype=torch.complex64), r"document is torch.complex64"),
        (torch.zeros(4, dtype=torch.int64), r"document is torch.int64 \(4,\); it must hold integers of shape \(b, t\)"),
        (torch.zeros(1, 2, 4, dtype=torch.int64), r"document is torch.int64 \(1, 2, 4\)"),
    ],
)
def test_what_are_no_ids_are_refused(ids: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ops.document(ids)


@pytest.mark.parametrize("real", [REAL.int(), REAL[0]], ids=["integers", "one axis"])
def test_what_is_no_key_mask_is_refused(real: Tensor) -> None:
    words = rf"key_mask is {real.dtype} .*; it must be torch.bool of shape \(b, s\)"
    with pytest.raises(InputError, match=words):
        ops.key_mask(real)


def test_a_rule_is_made_on_the_device_that_is_asked_for() -> None:
    assert (ops.causal() & ops.window(2)).mask(2, 3, device="meta").is_meta
