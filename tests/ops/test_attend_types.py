"""`attend` and the types of numbers: what is kept, what is widened, what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.checks.engine.tolerance import budget, error
from attnzoo.errors import InputError

BACKENDS = pytest.mark.parametrize("backend", ["eager", "sdpa"])
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
INF = float("inf")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def zeros(t: int, *, b: int = 1, h: int = 1, d: int = 1) -> Tensor:
    return torch.zeros(b, h, t, d, dtype=torch.float64)


def values(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).reshape(1, 1, -1, 1)


def identity(s: int) -> Tensor:
    return torch.eye(s, dtype=torch.float64).reshape(1, 1, s, s)


def near(actual: Tensor, *expected: Any) -> None:
    """Every number of the one head, to the digits that are written here."""
    torch.testing.assert_close(
        actual.flatten(), torch.tensor(expected, dtype=actual.dtype).flatten(), rtol=0, atol=5e-5
    )


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_type_goes_out_as_it_came_in(backend: str, dtype: torch.dtype) -> None:
    q = normal(1, 2, 3, 4, dtype=dtype)
    assert ops.attend(q, q, q, causal=True, backend=backend).dtype is dtype


@HALF
def test_the_weights_have_the_type_of_the_input(dtype: torch.dtype) -> None:
    q = normal(1, 2, 3, 4, dtype=dtype)
    assert ops.attend(q, q, q, need_weights=True)[1].dtype is dtype


@pytest.mark.parametrize("inputs", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mask", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("need_weights", [False, True])
def test_a_floating_mask_of_another_type_is_added_or_refused_the_same_on_every_path(
    inputs: torch.dtype, mask: torch.dtype, need_weights: bool
) -> None:
    bias = torch.tensor([[0.5, -INF, -2.0]], dtype=mask)
    q, k = zeros(1).to(inputs), zeros(3).to(inputs)
    v = identity(3).to(inputs)
    if mask == torch.float64 and inputs != torch.float64:
        with pytest.raises(InputError, match=r"mask is torch.float64.* fits into torch.float32"):
            ops.attend(q, k, v, mask=bias, need_weights=need_weights)
        return
    answer = ops.attend(q, k, v, mask=bias, need_weights=need_weights)
    seen = answer[0] if isinstance(answer, tuple) else answer
    assert seen.dtype is inputs
    assert seen[0, 0, 0, 1] == 0
    rest = math.exp(-2.5)
    expected = torch.tensor([1, 0, rest], dtype=torch.float64) / (1 + rest)
    assert error(seen[0, 0, 0], expected)[0] <= budget(inputs)


@HALF
def test_the_lowest_number_of_float32_hides_a_key_of_a_half_layer_without_becoming_infinite(
    dtype: torch.dtype,
) -> None:
    """Cast to the layer's type it would be -inf, and a row full of it NaN; as a number, it makes the keys equal."""
    lowest = torch.finfo(torch.float32).min
    mask = torch.tensor([[0.0, lowest], [lowest, lowest], [lowest, -INF]])
    q, k = zeros(3).to(dtype), zeros(2).to(dtype)
    near(ops.attend(q, k, identity(2).to(dtype), mask=mask), [1, 0], [0.5, 0.5], [1, 0])


def test_a_small_bias_is_not_rounded_to_the_type_of_a_half_layer() -> None:
    """256 and 257 are one number in bfloat16."""
    mask = torch.tensor([[256.0, 257.0]])
    q = zeros(1).bfloat16()
    _, weights = ops.attend(q, zeros(2).bfloat16(), identity(2).bfloat16(), mask=mask, need_weights=True)
    near(weights.float(), [0.2695, 0.7305])


def test_a_float64_input_is_computed_in_float64() -> None:
    q, k = values(1.0), values(0.0, 1e-9)
    weights = ops.attend(q, k, k, scale=1.0, need_weights=True)[1].flatten()
    assert float(weights[1] - weights[0]) == pytest.approx(0.5e-9, rel=1e-6)  # in float32, exactly 0


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa", "banded", "blocks"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_autocast_changes_no_kernel(backend: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 130, 8).to(dtype)
    expected = ops.attend(q, k, v, causal=True, window=8, backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = ops.attend(q, k, v, causal=True, window=8, backend=backend)
    assert seen.dtype is dtype
    assert torch.equal(seen, expected)


def test_autocast_does_not_take_the_logits_in_half_precision() -> None:
    """Logits of 256 and 257 again: an autocast product of q and k would make them equal."""
    q = torch.tensor([16.0, 1.0]).reshape(1, 1, 1, 2)
    k = torch.tensor([[16.0, 0.0], [16.0, 1.0]]).reshape(1, 1, 2, 2)
    expected = ops.attend(q, k, k, scale=1.0, need_weights=True)[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = ops.attend(q, k, k, scale=1.0, need_weights=True)[1]
    assert torch.equal(weights, expected)
    near(weights, [0.26894, 0.73106])
