"""Blocks: scores of any kind, with memory that grows with the tokens, and the cap they are made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.ops import blocks
from attnzoo.ops.terms import Terms


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


# Memory


def kept(t: int, backend: str = "blocks", **asked: Any) -> int:
    """Bytes that a call keeps for the backward pass, each storage counted once."""
    storages: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    q, k = normal(1, 4, t, 8).requires_grad_(), normal(1, 2, t, 8, seed=1).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        mixed = ops.attend(q, k, k, causal=True, backend=backend, **asked)
    assert mixed.requires_grad
    return sum(storages.values())


MEMORY: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 2.0},
    "alibi": {"bias": ops.Alibi(4)},
    "softcap, sinks, window": {"softcap": 2.0, "sinks": torch.zeros(4), "window": 99},
}


@pytest.mark.parametrize("asked", MEMORY.values(), ids=MEMORY.keys())
def test_what_is_kept_for_the_backward_pass_grows_with_the_tokens(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    monkeypatch.setattr(blocks, "ROOM", 2**15)  # many blocks at few tokens
    short, long = kept(512, **asked), kept(1024, **asked)
    assert short > 0
    assert long / short <= 2.2
    assert kept(1024, backend="eager", **asked) > 4 * 1024 * 1024 * 8  # the control: one number for every pair


def test_padding_and_documents_keep_no_pairs_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROOM", 2**15)

    def size(t: int) -> int:
        return kept(t, softcap=2.0, document=torch.arange(t)[None] // 100, key_mask=torch.ones(1, t) > 0)

    assert size(1024) / size(512) <= 2.2


# Blocks


@pytest.mark.parametrize("room", [1, 2**12, 2**14, 2**21])
@pytest.mark.parametrize("asked", [{}, {"window": 20}, {"softcap": 2.0, "bias": ops.Alibi(4)}, {"mask": ops.chunk(30)}])
def test_however_many_blocks_the_answer_is_one(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], room: int
) -> None:
    monkeypatch.setattr(blocks, "ROOM", room)
    leaves = [normal(2, h, 150, 6, seed=h).requires_grad_() for h in (4, 2, 1)]
    q, k, v = leaves[0], leaves[1], leaves[2].expand(2, 2, 150, 6)
    outcomes = []
    for backend in ("blocks", "eager"):
        mixed = ops.attend(q, k, v, causal=True, backend=backend, **asked)
        outcomes.append((mixed, *torch.autograd.grad(mixed, leaves, normal(2, 4, 150, 6, seed=9))))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "rule", "size"),
    [
        ((1, 1, 300), None, 256),  # never more
        ((1, 8, 1024), None, 256),  # 2^21 numbers in 8 heads of 1024 keys are 256 queries
        ((1, 8, 2048), None, 128),
        ((2, 8, 2048), None, 64),
        ((2, 8, 2048), ops.causal(), 64),
        ((2, 8, 2048), ops.causal() & ops.window(512), 256),  # a query reaches 512 keys
        ((2, 8, 2048), ops.window(513), 127),  # 512 to either side, and its own
        ((2, 8, 200), ops.causal() & ops.window(512), 256),
        ((64, 64, 4096), None, 16),  # never less
        ((0, 8, 2048), None, 256),
        ((1, 8, 0), None, 256),
    ],
)
def test_a_block_is_as_large_as_the_room_allows(shape: tuple[int, int, int], rule: ops.Rule | None, size: int) -> None:
    b, h, s = shape
    q, k = torch.empty(b, h, 1, 4, device="meta"), torch.empty(b, h, s, 4, device="meta")
    assert blocks.block_size(q, k, Terms(scale=1.0, rule=rule)) == size


def test_a_block_reads_the_keys_in_its_reach_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen queries with a window of 20 reach 19 keys behind the first of them."""
    read: list[int] = []
    block = blocks.block

    def spy(q: Tensor, terms: Terms, cut: slice, *pieces: Tensor) -> Tensor:
        keys = sum(piece.shape[2] for piece in pieces) // 2
        assert cut.stop <= keys < cut.stop + 16
        assert cut.start < 16
        read.append(cut.stop - cut.start)
        return block(q, terms, cut, *pieces)

    monkeypatch.setattr(blocks, "ROOM", 1)
    monkeypatch.setattr(blocks, "block", spy)
    q = normal(1, 2, 90, 4)
    ops.attend(q, q, q, causal=True, window=20, softcap=1.0, backend="blocks")
    assert read == [16, 32, 35, 35, 35, 29]


def test_a_bias_with_a_parameter_of_its_own_learns() -> None:
    """The function is called again in the backward pass, and its gradient adds up over the blocks."""
    slope = torch.tensor([0.3, 0.1], dtype=torch.float64, requires_grad=True)

    def bias(head: Tensor, query: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
        return -slope[head].to(dtype) * (query - key).abs()

    q, k = normal(1, 2, 600, 4), normal(1, 2, 600, 4, seed=1)
    gradients = [
        torch.autograd.grad(ops.attend(q, k, k, causal=True, bias=bias, backend=backend).square().sum(), slope)[0]
        for backend in ("blocks", "eager")
    ]
    assert gradients[1].abs().min() > 1e-3
    torch.testing.assert_close(gradients[0], gradients[1])


def test_without_gradients_nothing_is_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: Any, **options: Any) -> Tensor:
        raise AssertionError("checkpoint was called")

    monkeypatch.setattr(blocks, "checkpoint", never)
    q = normal(1, 2, 20, 4).requires_grad_()
    with torch.no_grad():
        seen = ops.attend(q, q, q, softcap=1.0, backend="blocks")
    torch.testing.assert_close(seen, ops.attend(q, q, q, softcap=1.0, backend="eager"))
    with pytest.raises(AssertionError, match="checkpoint was called"):
        ops.attend(q, q, q, softcap=1.0, backend="blocks")


# Dropout


def test_the_recomputation_drops_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is linear in v: its gradient tells which weights the backward pass used."""
    monkeypatch.setattr(blocks, "ROOM", 2**10)
    t = 70
    q = torch.zeros(1, 1, t, 4, dtype=torch.float64)
    v = torch.eye(t, dtype=torch.float64).reshape(1, 1, t, t).requires_grad_()
    torch.manual_seed(0)
    mixed = ops.attend(q, q, v, causal=True, softcap=1.0, dropout=0.5, backend="blocks")
    torch.manual_seed(99)  # what is drawn in between must not matter
    chosen = normal(1, 1, t, t)
    (gradient,) = torch.autograd.grad(mixed, v, chosen)
    torch.testing.assert_close(gradient, mixed.detach().mT @ chosen)
    dropped = mixed[0, 0][torch.ones(t, t).tril() > 0] == 0
    assert 0.4 < float(dropped.double().mean()) < 0.6


def test_no_dropout_draws_no_random_number() -> None:
    q = normal(1, 2, 20, 4).requires_grad_()
    before = torch.get_rng_state()
    ops.attend(q, q, q, softcap=1.0, backend="blocks").sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(torch.get_rng_state(), before)


# The cap


def capped(x: Tensor, c: float) -> Tensor:
    out: Tensor = blocks.Cap.apply(x * 1, c)  # type: ignore[no-untyped-call]
    return out


NUMBERS = [0.0, 1e-30, 1e-12, 1e-6, 0.1, 1.0, 7.0, 30.0, 200.0, 1e4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("c", [0.5, 2.0, 50.0, 1e9])
def test_the_cap_and_its_slope_are_those_of_tanh(c: float, dtype: torch.dtype) -> None:
    x = torch.tensor([*NUMBERS, *(-n for n in NUMBERS)], dtype=dtype, requires_grad=True)
    exact = x.detach().double()
    y = capped(x, c)
    (slope,) = torch.autograd.grad(y.sum(), x)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), c * torch.tanh(exact / c), rtol=8 * eps, atol=0)
    torch.testing.assert_close(slope.double(), 1 - torch.tanh(exact / c) ** 2, rtol=0, atol=8 * eps)
    assert y.dtype is slope.dtype is dtype
    assert y.abs().max() <= c


def test_the_cap_is_exact_far_out_and_infinite_logits_make_no_nan() -> None:
    x = torch.tensor([1e4, -1e4, torch.inf, -torch.inf, torch.finfo(torch.float32).max])
    assert capped(x, 3.0).tolist() == [3, -3, 3, -3, 3]


def test_the_cap_can_be_differentiated() -> None:
    x = (3 * normal(2, 5)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: capped(x, 2.0), x)
    assert torch.autograd.gradgradcheck(lambda x: capped(x, 2.0), x)


@pytest.mark.parametrize("more", [{}, {"softcap": 2.0}, {"bias": ops.Alibi(2)}, {"window": 3, "softcap": 1.0}])
def test_blocks_can_be_differentiated(more: dict[str, Any]) -> None:
    leaves = [normal(1, h, 5, 2, seed=h).requires_grad_() for h in (2, 1)]

    def mixed(q: Tensor, k: Tensor) -> Tensor:
        out: Tensor = ops.attend(q, k, k, causal=True, backend="blocks", **more)
        return out

    assert torch.autograd.gradcheck(mixed, leaves)


# Precision


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_under_autocast_the_logits_keep_their_precision(dtype: torch.dtype) -> None:
    """256 and 257 are one number in bfloat16, and the weights would be equal."""
    q = torch.tensor([16.0, 1.0]).reshape(1, 1, 1, 2).to(dtype)
    k = torch.tensor([[16.0, 0.0], [16.0, 1.0]]).reshape(1, 1, 2, 2).to(dtype)
    v = torch.eye(2).reshape(1, 1, 2, 2).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = ops.attend(q, k, v, scale=1.0, bias=torch.zeros(1, 1), backend="blocks")
    assert seen.dtype is dtype
    expected = torch.tensor([0.26894, 0.73106], dtype=torch.float64)
    torch.testing.assert_close(seen.flatten().double(), expected, rtol=0, atol=torch.finfo(dtype).eps + 1e-5)


Made = Callable[[Tensor], Tensor]
LAYOUTS: dict[str, Made] = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every second channel": lambda x: torch.stack([x, x + 9], dim=-1).flatten(-2)[..., ::2],
    "of a wider tensor": lambda x: torch.cat([x + 9, x], dim=1)[:, x.shape[1] :],
}


@pytest.mark.parametrize("how", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(
    ("backend", "asked"),
    [
        ("blocks", {"softcap": 2.0}),
        ("banded", {"window": 5}),
        ("banded", {"window": 5, "sinks": torch.zeros(4)}),
        ("sdpa", {"sinks": torch.zeros(4)}),
    ],
    ids=str,
)
def test_how_the_inputs_lie_in_memory_does_not_matter(backend: str, asked: dict[str, Any], how: Made) -> None:
    q, k, v = normal(2, 4, 200, 6), normal(2, 2, 200, 6, seed=1), normal(2, 2, 200, 7, seed=2)
    gradient = normal(2, 4, 200, 7, seed=3)
    outcomes = []
    for laid in (lambda x: x, how):
        leaves = [laid(x).detach().requires_grad_() for x in (q, k, v)]
        mixed = ops.attend(*leaves, causal=True, backend=backend, **asked)
        outcomes.append((mixed, *torch.autograd.grad(mixed, leaves, laid(gradient))))
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=0, atol=1e-13)
