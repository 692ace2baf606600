"""The key-value cache on its own: what it holds, hands out, and refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.errors import InputError

B, G, D = 3, 2, 5


def cache(max_len: int | None = 8, **options: Any) -> ops.KVCache:
    return ops.KVCache(B, max_len, **{"kv_heads": G, "head_dim": D, "dtype": torch.float32, **options})


def tokens(t: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """Keys that say sample and token, and values a thousand above. Two of (b, g, t, d)"""
    sample = 100.0 * torch.arange(B)[:, None, None, None]
    token = torch.arange(start, start + t, dtype=torch.float32)[:, None]
    k = (sample + token).expand(B, G, t, D).clone()
    return k, k + 1000


def shown(held: Tensor) -> list[list[float]]:
    """Per sample, the numbers of the tokens held."""
    out: list[list[float]] = held[:, 0, :, 0].tolist()
    return out


def test_a_new_cache_is_empty() -> None:
    new = cache(8)
    assert (new.length, new.max_len, new.nbytes) == (0, 8, 0)


def test_tokens_come_back_in_the_order_they_came() -> None:
    held = cache()
    held.append(*tokens(3))
    keys, values = held.append(*tokens(2, start=3))
    assert shown(keys) == [[0, 1, 2, 3, 4], [100, 101, 102, 103, 104], [200, 201, 202, 203, 204]]
    assert shown(values)[2] == [1200, 1201, 1202, 1203, 1204]
    assert held.length == 5


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2)], ids=str)
def test_nbytes_counts_the_tokens_held_and_not_the_room(dtype: torch.dtype, size: int) -> None:
    held = cache(1000, dtype=dtype)
    k, v = tokens(4)
    held.append(k.to(dtype), v.to(dtype))
    assert held.nbytes == 2 * B * G * 4 * D * size


def test_an_empty_chunk_changes_nothing() -> None:
    held = cache()
    held.append(*tokens(3))
    keys, _ = held.append(*tokens(0))
    assert held.length == 3
    assert shown(keys)[0] == [0, 1, 2]


def test_a_cache_for_no_samples_works() -> None:
    held = ops.KVCache(0, 4, kv_heads=G, head_dim=D, dtype=torch.float32)
    keys, _ = held.append(torch.zeros(0, G, 3, D), torch.zeros(0, G, 3, D))
    assert (keys.shape, held.length) == ((0, G, 3, D), 3)


def test_a_cache_may_be_filled_to_the_brim() -> None:
    held = cache(4)
    held.append(*tokens(3))
    keys, _ = held.append(*tokens(1, start=3))
    assert shown(keys)[0] == [0, 1, 2, 3]


@pytest.mark.parametrize("t", [1, 2, 5], ids=lambda t: f"{t} more")
def test_a_token_too_many_is_never_dropped_in_silence(t: int) -> None:
    """Assigning one token to the empty slice behind the last slot is no error in torch: it broadcasts to nothing."""
    held = cache(8)
    held.append(*tokens(8))
    with pytest.raises(InputError, match=rf"{t} more tokens do not fit: the cache holds 8 of max_len \(8\).*={8 + t}"):
        held.append(*tokens(t, start=8))
    assert held.length == 8


def test_a_chunk_that_straddles_the_end_is_refused_whole() -> None:
    held = cache(8)
    held.append(*tokens(6))
    with pytest.raises(InputError, match=r"3 more tokens do not fit: the cache holds 6 of max_len \(8\)"):
        held.append(*tokens(3, start=6))
    assert held.length == 6
    keys, _ = held.append(*tokens(2, start=6))
    assert shown(keys)[0] == [0, 1, 2, 3, 4, 5, 6, 7]


def test_one_sample_is_not_spread_over_the_batch() -> None:
    held = cache()
    k, v = tokens(2)
    with pytest.raises(InputError, match="for a batch of 3, the input is a batch of 1"):
        held.append(k[:1], v[:1])
    assert held.length == 0


def test_keys_and_values_of_unlike_shapes_are_refused() -> None:
    k, v = tokens(2)
    with pytest.raises(InputError, match=r"k \(3, 2, 2, 5\) and v \(3, 2, 1, 5\)"):
        cache().append(k, v[:, :, :1])


def test_reset_forgets_every_token() -> None:
    held = cache()
    held.append(*tokens(5))
    held.reset()
    assert (held.length, held.nbytes) == (0, 0)
    keys, values = held.append(*tokens(2, start=7))
    assert shown(keys)[1] == [107, 108]
    assert shown(values)[1] == [1107, 1108]


@pytest.mark.parametrize("n", [0, 2, 5])
def test_crop_keeps_the_first_tokens(n: int) -> None:
    held = cache()
    held.append(*tokens(5))
    held.crop(n)
    assert held.length == n
    keys, _ = held.append(*tokens(1, start=50))
    assert shown(keys)[0] == [*range(n), 50]


@pytest.mark.parametrize("n", [6, -1])
def test_crop_cannot_reach_beyond_the_tokens_held(n: int) -> None:
    held = cache()
    held.append(*tokens(5))
    with pytest.raises(InputError, match=rf"crop\({n}\) is out of reach: the cache holds 5 tokens"):
        held.crop(n)
    assert held.length == 5


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_reorder_moves_keys_and_values_alike_even_when_a_row_is_named_twice(dtype: torch.dtype) -> None:
    held = cache()
    held.append(*tokens(4))
    held.reorder(torch.tensor([2, 0, 0], dtype=dtype))
    assert held.length == 4
    keys, values = held.append(*tokens(1, start=4))
    assert [row[:4] for row in shown(keys)] == [[200, 201, 202, 203], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert [row[:4] for row in shown(values)] == [[1200, 1201, 1202, 1203], *[[1000, 1001, 1002, 1003]] * 2]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (torch.tensor([0.0, 1, 2]), r"reorder takes integers of shape \(b,\); got torch.float32 of shape \(3,\)"),
        (torch.tensor([True, False, True]), r"reorder takes integers.*got torch.bool"),
        (torch.tensor([[0, 1, 2]]), r"reorder takes integers of shape \(b,\); got torch.int64 of shape \(1, 3\)"),
        (torch.tensor([0, 1, 3]), r"reorder\(\[0, 1, 3\]\) names rows that a batch of 3 does not have"),
        (torch.tensor([0, -1, 2]), r"reorder\(\[0, -1, 2\]\) names rows that a batch of 3 does not have"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_reorder_that_names_no_rows_is_refused_and_moves_nothing(index: Tensor, words: str) -> None:
    held = cache()
    held.append(*tokens(2))
    with pytest.raises(InputError, match=words):
        held.reorder(index)
    keys, _ = held.append(*tokens(0))
    assert shown(keys) == [[0, 1], [100, 101], [200, 201]]


def test_what_is_held_is_cut_from_the_graph_and_what_is_new_is_not() -> None:
    held = cache()
    old, new = tokens(2)[0].requires_grad_(), tokens(1, start=2)[0].requires_grad_()
    held.append(old, old * 2)
    keys, values = held.append(new, new * 2)
    torch.autograd.backward(keys.sum() + values.sum())
    assert old.grad is None
    assert new.grad is not None
    assert torch.equal(new.grad, torch.full_like(new, 3.0))


def test_a_later_step_leaves_the_gradient_of_an_earlier_one_right() -> None:
    held = cache()
    k = tokens(2)[0].requires_grad_()
    keys, _ = held.append(k, k)
    loss = keys.square().sum()
    held.append(*tokens(3, start=2))
    torch.autograd.backward(loss)
    assert k.grad is not None
    assert torch.equal(k.grad, 2 * k.detach())


def test_under_gradients_the_new_tokens_come_back_as_they_are_and_the_old_as_held() -> None:
    held = cache()
    held.append(*tokens(2))
    k = tokens(2, start=2)[0].requires_grad_()
    keys, _ = held.append(k, k)
    assert shown(keys)[1] == [100, 101, 102, 103]


def test_inputs_are_copied_and_not_kept() -> None:
    held = cache()
    k, v = tokens(2)
    held.append(k, v)
    k.zero_()
    v.zero_()
    keys, values = held.append(*tokens(0))
    assert shown(keys)[0] == [0, 1]
    assert shown(values)[0] == [1000, 1001]


def test_narrower_tokens_come_back_in_their_own_type() -> None:
    """Under autocast a float32 layer hands over bfloat16 keys."""
    held = cache()
    k, v = tokens(2)
    keys, values = held.append(k.bfloat16(), v.bfloat16())
    assert (keys.dtype, values.dtype) == (torch.bfloat16, torch.bfloat16)


def test_the_room_is_set_aside_once() -> None:
    held = cache(8)
    keys, _ = held.append(*tokens(3))
    address = keys.data_ptr()
    keys, _ = held.append(*tokens(5, start=3))
    assert keys.data_ptr() == address


def test_the_room_is_clean_and_not_whatever_memory_held() -> None:
    held = cache()
    held.append(*tokens(2))
    room = [value for value in vars(held).values() if isinstance(value, Tensor)]
    assert len(room) == 2
    assert all(not tensor[:, :, 2:].any() for tensor in room)


def test_a_cache_made_in_inference_mode_serves_outside_of_it() -> None:
    with torch.inference_mode():
        held = cache()
        held.append(*tokens(2))
    keys, _ = held.append(*tokens(1, start=2))
    assert shown(keys)[1] == [100, 101, 102]


def test_a_cache_reordered_in_inference_mode_serves_outside_of_it() -> None:
    held = cache()
    held.append(*tokens(2))
    with torch.inference_mode():
        held.reorder(torch.tensor([1, 1, 0]))
    keys, _ = held.append(*tokens(1, start=2))
    assert [row[:2] for row in shown(keys)] == [[100, 101], [100, 101], [0, 1]]


def test_a_copy_goes_its_own_way() -> None:
    held = cache()
    held.append(*tokens(2))
    twin = copy.deepcopy(held)
    held.append(*tokens(1, start=2))
    theirs, _ = twin.append(*tokens(1, start=70))
    ours, _ = held.append(*tokens(0))
    assert shown(theirs)[0] == [0, 1, 70]
    assert shown(ours)[0] == [0, 1, 2]


@pytest.mark.parametrize(("batch", "max_len"), [(-1, 4), (2, 0)])
def test_a_cache_of_no_size_is_refused_with_both_numbers(batch: int, max_len: int) -> None:
    words = rf"batch >= 0 and max_len >= 1; got batch={batch}, max_len={max_len}"
    with pytest.raises(InputError, match=words):
        ops.KVCache(batch, max_len, kv_heads=G, head_dim=D, dtype=torch.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"owner": "another"},
            r"not made by this layer, .*\(kv_heads, head_dim\) = \(2, 5\).*each layer needs its own",
        ),
        ({"dtype": torch.bfloat16}, r"is torch.float32 on cpu, the layer torch.bfloat16 on cpu; make the cache after"),
        ({"device": torch.device("meta")}, r"is torch.float32 on cpu, the layer torch.float32 on meta"),
        ({"batch": 2}, r"for a batch of 3, the input is a batch of 2"),
        ({"t": 9}, r"9 more tokens do not fit: the cache holds 0 of max_len \(8\); make it with max_len=9 or more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_cache_that_does_not_fit_the_layer_says_what_it_is_for(change: dict[str, Any], words: str) -> None:
    asked: dict[str, Any] = dict(owner="layer", batch=B, t=1, dtype=torch.float32, device=torch.device("cpu"))
    held = cache(owner="layer")
    held.check(**asked)
    with pytest.raises(InputError, match=words):
        held.check(**{**asked, **change})


@pytest.mark.parametrize(("kv_heads", "head_dim"), [(4, D), (G, 7)])
def test_tokens_of_another_size_are_refused(kv_heads: int, head_dim: int) -> None:
    held, k = cache(), torch.zeros(B, kv_heads, 1, head_dim)
    words = rf"holds \(kv_heads, head_dim\) = \(2, 5\), the tokens have \({kv_heads}, {head_dim}\)"
    with pytest.raises(InputError, match=words):
        held.append(k, k)
    assert held.length == 0


# Whole numbers


@pytest.mark.parametrize("n", [2.5, None, "2", True, torch.tensor(2.0)], ids=repr)
def test_crop_takes_whole_numbers_only(n: Any) -> None:
    held = cache()
    held.append(*tokens(4))
    with pytest.raises(InputError, match=r"crop\(.*\) must be a whole number of tokens to keep; the cache holds 4"):
        held.crop(n)
    assert held.length == 4


@pytest.mark.parametrize("n", [2, torch.tensor(2), torch.tensor(2, dtype=torch.uint8)], ids=repr)
def test_crop_takes_an_integer_of_any_type(n: Any) -> None:
    held = cache()
    held.append(*tokens(4))
    held.crop(n)
    assert held.length == 2
    assert type(held.length) is int


@pytest.mark.parametrize(("batch", "max_len"), [(2.0, 4), (2, 4.0), (True, 4), (2, "4"), (None, 4)])
def test_a_cache_of_no_whole_size_is_refused(batch: Any, max_len: Any) -> None:
    with pytest.raises(InputError, match=rf"batch >= 0 and max_len >= 1; got batch={batch}, max_len={max_len}"):
        ops.KVCache(batch, max_len, kv_heads=G, head_dim=D, dtype=torch.float32)


@pytest.mark.parametrize(
    "index",
    [[2, 0, 0], (2, 0, 0), *(torch.tensor([2, 0, 0], dtype=kind) for kind in (torch.uint8, torch.int8, torch.int16))],
    ids=str,
)
def test_reorder_takes_lists_and_narrow_integers(index: Any) -> None:
    """A tensor of bytes used as an index would be read as a mask."""
    held = cache()
    held.append(*tokens(2))
    held.reorder(index)
    keys, _ = held.append(*tokens(0))
    assert shown(keys) == [[200, 201], [0, 1], [0, 1]]


@pytest.mark.parametrize("index", [[0.5, 1, 2], [True, False, True], ["a"], None, 1], ids=str)
def test_reorder_of_what_are_no_integers_is_refused(index: Any) -> None:
    held = cache()
    held.append(*tokens(2))
    with pytest.raises(InputError, match=r"reorder takes integers of shape \(b,\); got"):
        held.reorder(index)


# A cache that grows


def room(held: ops.KVCache) -> int:
    """How many tokens it has set memory aside for."""
    (sizes,) = {value.shape[2] for value in vars(held).values() if isinstance(value, Tensor)}
    return sizes


def test_a_cache_without_a_length_grows_by_doubling() -> None:
    held, rooms = cache(None), []
    for i in range(70):
        held.append(*tokens(1, start=i))
        rooms.append(room(held))
    assert held.max_len is None
    assert rooms == [16] * 16 + [32] * 16 + [64] * 32 + [128] * 6
    keys, values = held.append(*tokens(0))
    assert shown(keys)[1] == [100 + i for i in range(70)]
    assert shown(values)[2] == [1200 + i for i in range(70)]


@pytest.mark.parametrize(("t", "expected"), [(16, 16), (17, 32), (100, 128), (128, 128), (129, 256)])
def test_a_long_prompt_makes_room_at_once(t: int, expected: int) -> None:
    held = cache(None)
    keys, _ = held.append(*tokens(t))
    assert room(held) == expected
    assert shown(keys)[2] == [200 + i for i in range(t)]


def test_nbytes_of_a_growing_cache_counts_the_tokens_held_and_not_the_room() -> None:
    held = cache(None, dtype=torch.float16)
    k, v = tokens(33)
    held.append(k.half(), v.half())
    assert (room(held), held.length, held.held) == (64, 33, 33)
    assert held.nbytes == 2 * B * G * 33 * D * 2
    held.crop(5)
    assert (held.length, held.held, held.nbytes) == (5, 5, 2 * B * G * 5 * D * 2)
    held.reset()
    assert (held.length, held.held, held.nbytes) == (0, 0, 0)


def test_the_new_room_is_clean_and_of_the_old_type() -> None:
    held = cache(None, dtype=torch.bfloat16)
    k, v = tokens(17)
    held.append(k.bfloat16(), v.bfloat16())
    for tensor in (value for value in vars(held).values() if isinstance(value, Tensor)):
        assert tensor.dtype is torch.bfloat16
        assert not tensor[:, :, 17:].any()


def test_keys_handed_out_before_growing_stay_as_they_were() -> None:
    held = cache(None)
    keys, _ = held.append(*tokens(16))
    held.append(*tokens(1, start=16))
    assert shown(keys)[0] == list(range(16))


def test_a_cache_grows_in_inference_mode_and_serves_outside_of_it() -> None:
    held = cache(None)
    held.append(*tokens(10))
    with torch.inference_mode():
        held.append(*tokens(10, start=10))
    keys, _ = held.append(*tokens(1, start=20))
    assert shown(keys)[1] == [100 + i for i in range(21)]


def test_a_growing_cache_moves_its_rows_and_keeps_growing() -> None:
    held = cache(None)
    held.append(*tokens(15))
    held.reorder(torch.tensor([1, 1, 2]))
    keys, _ = held.append(*tokens(4, start=15))
    assert [row[:15] for row in shown(keys)] == [
        [100 + i for i in range(15)],
        [100 + i for i in range(15)],
        [200 + i for i in range(15)],
    ]


def test_an_overflow_offers_a_length_that_is_enough_or_none() -> None:
    held = cache(8)
    held.append(*tokens(6))
    words = r"max_len \(8\); make it with max_len=11 or more, or without max_len, so that it grows"
    with pytest.raises(InputError, match=words):
        held.append(*tokens(5, start=6))
    for longer in (cache(11), cache(None)):
        longer.append(*tokens(6))
        longer.append(*tokens(5, start=6))
        assert longer.length == 11


def test_values_of_another_size_are_refused_before_anything_is_written() -> None:
    held = cache(None)
    with pytest.raises(InputError, match=r"k \(3, 2, 2, 5\) and v \(3, 2, 2, 4\) must have one shape, \(b, g, t, d\)"):
        held.append(tokens(2)[0], tokens(2)[1][..., :4])
    assert held.length == 0
