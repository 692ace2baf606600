"""Every kernel held to the readable definition: the output, and the gradient of all that went in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.checks.tolerance import budget, error
from attnzoo.errors import Unsupported

KERNELS = ("auto", "sdpa", "banded", "blocks")
Sizes = tuple[int, int, int, int, int]  # b, h, g, t, s
D, E = 10, 12


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def drawn(share: float, *shape: int, seed: int = 0) -> Tensor:
    """True with this share."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def forward_backward(
    backend: str, q: Tensor, k: Tensor, v: Tensor, asked: dict[str, Any], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Output and gradients of one backend, computed in `dtype`."""
    learned = {word: x for word, x in asked.items() if isinstance(x, Tensor) and x.is_floating_point()}
    leaves = {word: x.detach().to(dtype).requires_grad_() for word, x in {"q": q, "k": k, "v": v, **learned}.items()}
    terms = {**asked, **{word: leaves[word] for word in learned}}
    mixed: Tensor = ops.attend(leaves["q"], leaves["k"], leaves["v"], **terms, backend=backend)
    gradients = torch.autograd.grad(mixed, list(leaves.values()), normal(*mixed.shape, seed=9).to(dtype))
    return {"output": mixed, **{f"d{word}": x for word, x in zip(leaves, gradients, strict=True)}}


def agree(
    sizes: Sizes,
    asked: dict[str, Any],
    *,
    dtype: torch.dtype = torch.float64,
    kernels: tuple[str, ...] = KERNELS,
    widths: tuple[int, int] = (D, E),
) -> list[str]:
    """Hold each kernel that takes the question to the definition in float64; returns those that took it."""
    b, h, g, t, s = sizes
    d, e = widths
    q, k, v = (
        normal(*shape, seed=seed).to(dtype)
        for seed, shape in enumerate([(b, h, t, d), (b, g, s, d), (b, g, s, e)], start=1)
    )
    truth = forward_backward("eager", q, k, v, asked, torch.float64)
    plain = truth if dtype == torch.float64 else forward_backward("eager", q, k, v, asked, dtype)
    took = []
    for backend in kernels:
        try:
            answer = forward_backward(backend, q, k, v, asked, dtype)
        except Unsupported:
            continue
        took.append(backend)
        for name, expected in truth.items():
            assert answer[name].dtype == dtype, (backend, name)
            assert answer[name].shape == expected.shape, (backend, name)
            worst, where = error(answer[name], expected)
            allowed = budget(dtype, plain=error(plain[name], expected)[0])
            assert worst <= allowed, f"{backend}: {name}{list(where)} is off by {worst:.1e}, more than {allowed:.1e}"
    return took


# Nothing to do

EMPTY: dict[str, Sizes] = {
    "no batch": (0, 4, 2, 5, 5),
    "no tokens": (2, 4, 2, 0, 0),
    "no queries": (2, 4, 2, 0, 5),
    "no keys": (2, 4, 2, 5, 0),
}


@pytest.mark.parametrize("asked", [{"causal": True}, {"causal": True, "window": 3}, {"window": 3}], ids=str)
@pytest.mark.parametrize("sizes", EMPTY.values(), ids=EMPTY.keys())
def test_no_batch_no_queries_or_no_keys_give_an_empty_or_a_zero_output(sizes: Sizes, asked: dict[str, Any]) -> None:
    b, h, _, _, s = sizes
    for more in ({}, {"softcap": 2.0}, {"sinks": normal(h)}, {"key_mask": torch.ones(b, s, dtype=torch.bool)}):
        assert "auto" in agree(sizes, {**asked, **more})


@pytest.mark.parametrize("sizes", [EMPTY["no batch"], EMPTY["no tokens"]], ids=["no batch", "no tokens"])
def test_documents_without_a_token_give_an_empty_output(sizes: Sizes) -> None:
    """They were once joined from no pieces, and torch joins nothing from nothing."""
    b, h, _, _, s = sizes
    document = torch.zeros(b, s, dtype=torch.int64)
    for more in ({}, {"causal": True}, {"softcap": 2.0}, {"sinks": normal(h)}, {"window": 3}):
        assert agree(sizes, {"document": document, **more})[-1] == "blocks"


# Where the queries stand


@pytest.mark.parametrize("offset", [-300, -20, 0, 56, 255, 256, 300])
@pytest.mark.parametrize("t", [1, 200])
def test_queries_may_stand_anywhere_among_the_keys_or_beside_them(t: int, offset: int) -> None:
    """Queries that see no key at all were once an error in bands, and in blocks that end with the keys."""
    for asked in ({"causal": True}, {"causal": True, "window": 5}, {"window": 5}, {"mask": ops.chunk(6)}):
        for more in ({}, {"sinks": normal(2)}, {"softcap": 2.0}):
            assert agree((1, 2, 1, t, 256), {**asked, **more, "q_offset": offset})[-1] == "blocks"
