"""The ring: what a window's cache holds, hands out, takes back and refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.errors import ConfigError, InputError

B, G, D = 3, 2, 5


def ring(window: int = 4, max_len: int | None = None, **options: Any) -> ops.WindowCache:
    sizes: dict[str, Any] = {"kv_heads": G, "head_dim": D, "dtype": torch.float32}
    return ops.WindowCache(B, max_len, window=window, **{**sizes, **options})


def tokens(t: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """Keys that say sample and token, and values a thousand above. Two of (b, g, t, d)"""
    sample = 100.0 * torch.arange(B)[:, None, None, None]
    token = torch.arange(start, start + t, dtype=torch.float32)[:, None]
    k = (sample + token).expand(B, G, t, D).clone()
    return k, k + 1000


def shown(held: Tensor, sample: int = 0) -> list[float]:
    """The numbers of the tokens handed out."""
    out: list[float] = held[sample, 0, :, 0].tolist()
    return out


def fed(held: ops.WindowCache, t: int) -> ops.WindowCache:
    """After so many tokens, one at a time."""
    for i in range(held.length, held.length + t):
        held.append(*tokens(1, start=i))
    return held


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7])
def test_a_token_sees_the_newest_window_in_order(window: int) -> None:
    held = ring(window)
    for i in range(11):
        keys, values = held.append(*tokens(1, start=i))
        newest = [float(n) for n in range(max(0, i - window + 1), i + 1)]
        assert shown(keys) == newest
        assert shown(keys, 2) == [200 + n for n in newest]
        assert shown(values, 1) == [1100 + n for n in newest]
        assert (held.length, held.held) == (i + 1, min(i + 1, window))


@pytest.mark.parametrize("chunks", [[3, 3, 3], [1, 6, 2], [9, 1, 1], [4, 4, 4], [5, 3, 1, 2], [2, 0, 9]], ids=str)
def test_a_chunk_sees_itself_and_what_its_first_token_could_see(chunks: list[int]) -> None:
    held, seen = ring(4), 0
    for t in chunks:
        keys, values = held.append(*tokens(t, start=seen))
        expected = [float(n) for n in range(max(0, seen - 3), seen + t)]
        assert shown(keys) == expected
        assert shown(values) == [1000 + n for n in expected]
        seen += t
        assert (held.length, held.held) == (seen, min(seen, 4))
    keys, _ = held.append(*tokens(1, start=seen))  # and what is held afterwards is right too
    assert shown(keys) == [float(n) for n in range(max(0, seen - 3), seen + 1)]


@pytest.mark.parametrize("window", [1, 3, 4])
def test_a_lone_token_may_have_its_keys_as_they_lie(window: int) -> None:
    """Spared the copy, it gets the ring itself: the right tokens, from a place of their own in it."""
    held = ring(window)
    for i in range(9):
        keys, values = held.append(*tokens(1, start=i), in_order=False)
        assert sorted(shown(keys)) == list(range(max(0, i - window + 1), i + 1))
        assert torch.equal(values, keys + 1000)
        assert keys.data_ptr() == room(held)[0].data_ptr()
    assert shown(keys)[8 % window] == 8


def room(held: ops.WindowCache) -> list[Tensor]:
    return [value for value in vars(held).values() if isinstance(value, Tensor)]


def test_more_tokens_than_one_are_always_in_order() -> None:
    held = fed(ring(3), 4)
    keys, _ = held.append(*tokens(2, start=4), in_order=False)
    assert shown(keys) == [2, 3, 4, 5]


def test_what_is_held_beyond_the_window_is_not_handed_out_as_it_lies() -> None:
    held = fed(ring(3, rollback=2), 9)
    keys, _ = held.append(*tokens(1, start=9), in_order=False)
    assert (shown(keys), held.held) == ([7, 8, 9], 5)


@pytest.mark.parametrize("learned", ["k", "v"])
def test_under_gradients_nothing_is_handed_out_as_it_lies(learned: str) -> None:
    held = fed(ring(3), 4)
    k, v = tokens(1, start=4)
    (k if learned == "k" else v).requires_grad_()
    keys, values = held.append(k, v, in_order=False)
    assert shown(keys) == [2, 3, 4]
    torch.autograd.backward((keys + values).sum())
    gradient = k.grad if learned == "k" else v.grad
    assert gradient is not None
    assert torch.equal(gradient, torch.ones_like(k))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)], ids=str)
@pytest.mark.parametrize(("t", "held_tokens"), [(0, 0), (3, 3), (4, 4), (11, 4)])
def test_nbytes_counts_the_tokens_held(dtype: torch.dtype, size: int, t: int, held_tokens: int) -> None:
    held = ring(4, dtype=dtype)
    k, v = (x.to(dtype) for x in tokens(t))
    keys, _ = held.append(k, v)
    assert keys.dtype is dtype
    assert held.nbytes == 2 * B * G * held_tokens * D * size


def test_memory_does_not_grow_with_the_tokens_seen() -> None:
    held = ring(4)
    before = [(x.data_ptr(), x.shape) for x in room(held)]
    fed(held, 50)
    held.append(*tokens(9, start=50))
    assert [(x.data_ptr(), x.shape) for x in room(held)] == before
    assert before[0][1] == (B, G, 4, D)


# Back


def test_a_ring_that_is_not_full_can_go_back_to_any_token() -> None:
    held = fed(ring(4), 4)
    held.crop(0)
    assert (held.length, held.held) == (0, 0)
    assert shown(fed(held, 2).append(*tokens(1, start=2))[0]) == [0, 1, 2]


def test_a_full_ring_has_forgotten_what_the_token_before_the_last_saw() -> None:
    held = fed(ring(4), 9)
    held.crop(8)  # token 8 again sees 5 to 8, and these are there
    keys, _ = held.append(*tokens(1, start=80))
    assert shown(keys) == [5, 6, 7, 80]
    held.crop(8)
    words = r"crop\(7\) is out of reach: 8 tokens were seen, and the cache can go back to 8; .*rollback=1\) to go back"
    with pytest.raises(InputError, match=words):
        held.crop(7)
    assert held.length == 8


@pytest.mark.parametrize("rollback", [1, 2, 5])
@pytest.mark.parametrize("window", [1, 3])
def test_a_rollback_holds_that_many_more(window: int, rollback: int) -> None:
    held = fed(ring(window, rollback=rollback), 20)
    assert held.held == window + rollback
    held.crop(20 - rollback)
    keys, _ = held.append(*tokens(2, start=50))
    assert shown(keys) == [*range(20 - rollback - window + 1, 20 - rollback), 50, 51]


def test_the_rollback_that_an_error_offers_is_enough() -> None:
    with pytest.raises(InputError, match=r"crop\(15\) .* 20 tokens were seen.* go back to 19; .*rollback=5\)"):
        fed(ring(3), 20).crop(15)
    held = fed(ring(3, rollback=5), 20)
    held.crop(15)
    assert shown(held.append(*tokens(1, start=15))[0]) == [13, 14, 15]


@pytest.mark.parametrize("n", [-1, 10])
def test_what_was_never_seen_cannot_be_cropped_to_and_no_rollback_is_offered(n: int) -> None:
    held = fed(ring(4), 9)
    with pytest.raises(InputError, match=rf"crop\({n}\) is out of reach: 9 tokens were seen$"):
        held.crop(n)
    assert held.length == 9


@pytest.mark.parametrize("in_order", [True, False])
def test_the_way_back_and_on_again_is_as_if_it_had_not_been(in_order: bool) -> None:
    held, straight = fed(ring(3, rollback=2), 7), fed(ring(3, rollback=2), 7)
    for i in range(7, 15):
        held.append(*tokens(2, start=900))
        held.crop(i)
        keys, values = held.append(*tokens(1, start=i), in_order=in_order)
        expected = straight.append(*tokens(1, start=i))
        assert torch.equal(keys, expected[0])
        assert torch.equal(values, expected[1])


def test_a_cropped_ring_hands_out_its_keys_as_they_lie_without_the_one_taken_back() -> None:
    held = fed(ring(3), 7)
    held.crop(6)
    keys, _ = held.append(*tokens(1, start=60), in_order=False)
    assert sorted(shown(keys)) == [4, 5, 60]


def test_reset_forgets_every_token() -> None:
    held = fed(ring(4), 9)
    held.reset()
    assert (held.length, held.held, held.nbytes) == (0, 0, 0)
    keys, _ = held.append(*tokens(2, start=70))
    assert shown(keys) == [70, 71]
    assert shown(held.append(*tokens(1, start=72), in_order=False)[0]) == [70, 71, 72]


def test_reorder_moves_the_rows_of_a_ring() -> None:
    held = fed(ring(3), 5)
    held.reorder(torch.tensor([2, 0, 0]))
    keys, values = held.append(*tokens(1, start=5))
    assert [shown(keys, row)[:2] for row in range(B)] == [[203, 204], [3, 4], [3, 4]]
    assert [shown(values, row)[:2] for row in range(B)] == [[1203, 1204], [1003, 1004], [1003, 1004]]


# Lengths


def test_a_ring_with_a_length_refuses_the_token_beyond_it_and_changes_nothing() -> None:
    held = fed(ring(4, max_len=6), 5)
    with pytest.raises(InputError, match=r"2 more tokens do not fit: the cache holds 5 of max_len \(6\)"):
        held.append(*tokens(2, start=5))
    assert held.length == 5
    keys, _ = held.append(*tokens(1, start=5))
    assert shown(keys) == [2, 3, 4, 5]
    with pytest.raises(InputError, match=r"1 more tokens do not fit: .*; make it with max_len=7 or more, or without"):
        held.append(*tokens(1, start=6))


def test_a_length_below_the_window_is_all_that_is_set_aside() -> None:
    held = ring(100, max_len=3, rollback=7)
    assert [x.shape[2] for x in room(held)] == [3, 3]
    assert shown(fed(held, 2).append(*tokens(1, start=2))[0]) == [0, 1, 2]
    held.crop(1)
    assert shown(held.append(*tokens(1, start=1), in_order=False)[0]) == [0, 1]


def test_a_length_between_window_and_rollback_is_all_that_is_set_aside() -> None:
    assert [x.shape[2] for x in room(ring(3, max_len=4, rollback=2))] == [4, 4]
    assert [x.shape[2] for x in room(ring(3, max_len=9, rollback=2))] == [5, 5]


def test_a_rollback_that_is_no_number_of_tokens_is_refused() -> None:
    with pytest.raises(InputError, match=r"rollback counts tokens to take back, 0 or more; got -1"):
        ring(4, rollback=-1)


def test_a_ring_of_no_size_is_refused() -> None:
    with pytest.raises(InputError, match=r"batch >= 0 and max_len >= 1; got batch=3, max_len=0"):
        ring(4, max_len=0)


@pytest.mark.parametrize("n", [0, -2, 1.5])
def test_a_window_that_holds_no_token_is_refused_by_its_name(n: Any) -> None:
    """It was once refused as a max_len, which nobody gave."""
    with pytest.raises(ConfigError, match=rf"window \({n}\) counts tokens"):
        ring(n)


def test_a_ring_for_no_samples_works() -> None:
    held = ops.WindowCache(0, window=2, kv_heads=G, head_dim=D, dtype=torch.float32)
    keys, _ = held.append(torch.zeros(0, G, 3, D), torch.zeros(0, G, 3, D))
    assert (keys.shape, held.length, held.held) == ((0, G, 3, D), 3, 2)


# Gradients, modes, copies


def test_what_is_held_is_cut_from_the_graph_and_what_is_new_is_not() -> None:
    held = ring(3)
    old, new = tokens(5)[0].requires_grad_(), tokens(2, start=5)[0].requires_grad_()
    held.append(old, old * 2)
    keys, values = held.append(new, new * 2)
    assert shown(keys) == [3, 4, 5, 6]
    torch.autograd.backward(keys.sum() + values.sum())
    assert old.grad is None
    assert new.grad is not None
    assert torch.equal(new.grad, torch.full_like(new, 3.0))


def test_a_chunk_longer_than_the_window_gets_the_gradient_of_all_its_tokens() -> None:
    k = tokens(7)[0].requires_grad_()
    held = ring(3)
    keys, _ = held.append(k, k)
    loss = keys.square().sum()
    held.append(*tokens(3, start=7))
    torch.autograd.backward(loss)
    assert k.grad is not None
    assert torch.equal(k.grad, 2 * k.detach())


@pytest.mark.parametrize("in_order", [True, False])
def test_a_ring_filled_in_inference_mode_serves_outside_of_it(in_order: bool) -> None:
    with torch.inference_mode():
        held = fed(ring(3), 5)
    keys, _ = held.append(*tokens(1, start=5), in_order=in_order)
    assert sorted(shown(keys)) == [3, 4, 5]


@pytest.mark.parametrize("in_order", [True, False])
def test_narrower_tokens_come_back_in_their_own_type(in_order: bool) -> None:
    """Under autocast a float32 layer hands over bfloat16 keys."""
    held = fed(ring(3), 5)
    k, v = tokens(1, start=5)
    keys, values = held.append(k.bfloat16(), v.bfloat16(), in_order=in_order)
    assert (keys.dtype, values.dtype) == (torch.bfloat16, torch.bfloat16)
    assert sorted(shown(keys)) == [3, 4, 5]


def test_inputs_are_copied_and_not_kept() -> None:
    held = ring(3)
    k, v = tokens(3)
    held.append(k, v)
    k.zero_()
    v.zero_()
    keys, values = held.append(*tokens(1, start=3))
    assert shown(keys) == [1, 2, 3]
    assert shown(values) == [1001, 1002, 1003]


def test_a_copy_goes_its_own_way() -> None:
    held = fed(ring(3), 5)
    twin = copy.deepcopy(held)
    fed(held, 2)
    keys, _ = twin.append(*tokens(1, start=70))
    assert shown(keys) == [3, 4, 70]
    assert (twin.length, held.length) == (6, 7)


def test_another_layer_s_tokens_are_refused() -> None:
    with pytest.raises(InputError, match=r"for a batch of 3, the input is a batch of 1"):
        ring().append(*(x[:1] for x in tokens(1)))
