"""Heads: which channel, which row and which key-value head goes where."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnzoo import ops
from attnzoo.errors import ConfigError
from attnzoo.ops.heads import check_groups, head_width, join_tokens
from attnzoo.ops.rope import Layout


def numbers(*shape: int) -> Tensor:
    """0, 1, 2, … so that every entry carries its place."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def test_each_head_gets_its_own_channels_of_every_token() -> None:
    heads = ops.split_heads(numbers(1, 2, 4), 2)
    assert heads.tolist() == [[[[0, 1], [4, 5]], [[2, 3], [6, 7]]]]  # a bare view would give [[0, 1], [2, 3]] first


def test_merging_puts_the_heads_of_a_token_side_by_side() -> None:
    merged = ops.merge_heads(torch.tensor([[[[0.0, 1], [4, 5]], [[2, 3], [6, 7]]]]))
    assert merged.tolist() == [[[0, 1, 2, 3], [4, 5, 6, 7]]]


def test_merging_undoes_splitting() -> None:
    x = numbers(2, 7, 3 * 5)
    assert torch.equal(ops.merge_heads(ops.split_heads(x, 3)), x)


def test_splitting_reads_a_transposed_tensor_by_its_values() -> None:
    x = numbers(2, 15, 7).mT
    assert not x.is_contiguous()
    assert torch.equal(ops.split_heads(x, 3), ops.split_heads(x.contiguous(), 3))


def test_merging_reads_an_expanded_tensor_by_its_values() -> None:
    x = numbers(1, 3, 7, 5).expand(2, 3, 7, 5)
    assert torch.equal(ops.merge_heads(x), ops.merge_heads(x.contiguous()))


def test_parts_are_joined_token_after_token_and_merged_without_a_copy() -> None:
    x = numbers(2, 3, 7, 5)
    joined = join_tokens(torch.split(x, [2, 1, 4], dim=2))
    assert torch.equal(joined, x)
    assert ops.merge_heads(joined).data_ptr() == joined.data_ptr()
    assert join_tokens([x]) is x


@pytest.mark.parametrize(
    ("kv_heads", "heads", "read"),
    [(2, 4, [0, 0, 1, 1]), (3, 6, [0, 0, 1, 1, 2, 2]), (1, 3, [0, 0, 0]), (3, 3, [0, 1, 2])],
)
def test_a_group_of_query_heads_in_a_row_shares_a_key_value_head(kv_heads: int, heads: int, read: list[int]) -> None:
    kv = torch.arange(kv_heads).reshape(1, kv_heads, 1, 1).expand(2, kv_heads, 5, 7)
    shared = ops.share_kv(kv, heads)
    assert shared.shape == (2, heads, 5, 7)
    assert shared[0, :, 0, 0].tolist() == read  # tiled, it would be 0 1 0 1
    assert torch.equal(shared, shared[:1, :, :1, :1].expand_as(shared))


def test_a_shared_head_gathers_the_gradient_of_its_group() -> None:
    kv = torch.zeros(1, 2, 1, 1, requires_grad=True)
    torch.autograd.backward((ops.share_kv(kv, 4).flatten() * torch.tensor([1.0, 10, 100, 1000])).sum())
    assert kv.grad is not None
    assert kv.grad.flatten().tolist() == [11, 1100]


def test_heads_that_do_not_fall_into_groups_are_refused_with_the_nearest_that_do() -> None:
    with pytest.raises(ConfigError, match=r"heads \(6\) must be a multiple of kv_heads \(4\); try kv_heads=3"):
        ops.share_kv(torch.zeros(1, 4, 2, 2), 6)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 4), (6, 0), (2, 5), (7, 3)])
def test_the_kv_heads_that_an_error_offers_are_accepted(heads: int, kv_heads: int) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_groups(heads, kv_heads)
    offered = re.search(r"try kv_heads=(\d+)", str(refusal.value))
    assert offered
    check_groups(heads, int(offered[1]))


def test_a_head_is_as_wide_as_its_share_of_the_model() -> None:
    assert head_width(24, 4) == 6


@pytest.mark.parametrize("head_dim", [5, 16, 640])
def test_a_given_head_width_is_free_of_the_model_width(head_dim: int) -> None:
    assert head_width(24, 7, head_dim) == head_dim


def test_heads_that_do_not_divide_the_width_are_refused_with_both_numbers_and_two_ways_out() -> None:
    words = (
        r"heads \(5\) must divide d_model \(24\) when head_dim is left out; try heads=4, or give head_dim=4"  # 4 or 6
    )
    with pytest.raises(ConfigError, match=words):
        head_width(24, 5)


@pytest.mark.parametrize(("d_model", "heads"), [(24, 5), (7, 3), (13, 12), (3, 40)])
def test_both_ways_out_of_an_uneven_width_work(d_model: int, heads: int) -> None:
    with pytest.raises(ConfigError) as refusal:
        head_width(d_model, heads)
    offered = re.search(r"try heads=(\d+), or give head_dim=(\d+)", str(refusal.value))
    assert offered
    assert head_width(d_model, int(offered[1])) * int(offered[1]) == d_model
    assert head_width(d_model, heads, int(offered[2])) >= 1


def numbered_projection(heads: int, kv_heads: int, head_dim: int) -> nn.Linear:
    """From one channel: row i gives x + i, so that every row carries its number."""
    rows = (heads + 2 * kv_heads) * head_dim
    qkv = nn.Linear(1, rows)
    with torch.no_grad():
        qkv.weight.fill_(1.0)
        qkv.bias.copy_(torch.arange(rows))
    return qkv


def test_the_rows_of_a_fused_projection_are_all_q_then_all_k_then_all_v() -> None:
    qkv = numbered_projection(heads=4, kv_heads=2, head_dim=3)
    q, k, v = ops.project_qkv(qkv, torch.zeros(1, 1, 1), None, heads=4, kv_heads=2)
    assert q[0, :, 0].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert k[0, :, 0].tolist() == [[12, 13, 14], [15, 16, 17]]
    assert v[0, :, 0].tolist() == [[18, 19, 20], [21, 22, 23]]


def test_queries_come_from_x_and_keys_and_values_from_the_context() -> None:
    qkv = numbered_projection(heads=2, kv_heads=1, head_dim=2)
    x, context = torch.full((1, 3, 1), 100.0), torch.full((1, 5, 1), 1000.0)
    q, k, v = ops.project_qkv(qkv, x, context, heads=2, kv_heads=1)
    assert (q.shape, k.shape, v.shape) == ((1, 2, 3, 2), (1, 1, 5, 2), (1, 1, 5, 2))
    assert q[0, :, 2].tolist() == [[100, 101], [102, 103]]
    assert k[0, :, 4].tolist() == [[1004, 1005]]
    assert v[0, :, 4].tolist() == [[1006, 1007]]


def test_projecting_calls_the_module_so_that_its_hooks_run() -> None:
    qkv = numbered_projection(heads=2, kv_heads=1, head_dim=2)
    seen: list[int] = []
    qkv.register_forward_hook(lambda _, arguments, __: seen.append(arguments[0].shape[1]))
    ops.project_qkv(qkv, torch.zeros(1, 3, 1), torch.zeros(1, 5, 1), heads=2, kv_heads=1)
    assert seen == [3, 5]


def test_one_key_value_head_is_offered_where_no_other_number_is_near() -> None:
    with pytest.raises(ConfigError, match=r"heads \(5\) must be a multiple of kv_heads \(2\); try kv_heads=1$"):
        ops.share_kv(torch.zeros(1, 2, 3, 4), 5)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [None, 2])
@pytest.mark.parametrize("asked", [{}, {"offset": 5}, {"positions": torch.tensor([3, 0, 9])}], ids=str)
def test_queries_and_keys_turned_at_once_are_as_turned_each(
    layout: Layout, rotary_dim: int | None, asked: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    qkv, x = nn.Linear(5, (4 + 2 * 2) * 6), torch.randn(2, 3, 5)
    rotary = ops.Rotary(6, layout=layout, rotary_dim=rotary_dim)
    q, k, v = ops.project_qkv(qkv, x, None, heads=4, kv_heads=2)
    turned = ops.project_turned_qkv(qkv, rotary, x, heads=4, kv_heads=2, **asked)
    assert [part.shape for part in turned] == [(2, 4, 3, 6), (2, 2, 3, 6), (2, 2, 3, 6)]
    torch.testing.assert_close(turned, (rotary(q, **asked), rotary(k, **asked), v), rtol=0, atol=1e-6)
    assert torch.equal(turned[2], v)


def test_projecting_and_turning_calls_the_module_once_so_that_its_hooks_run() -> None:
    qkv = nn.Linear(5, 8 * 6)
    seen: list[int] = []
    qkv.register_forward_hook(lambda _, arguments, __: seen.append(arguments[0].shape[1]))
    ops.project_turned_qkv(qkv, ops.Rotary(6), torch.zeros(2, 3, 5), heads=4, kv_heads=2)
    assert seen == [3]
