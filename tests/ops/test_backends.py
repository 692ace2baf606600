"""The fused kernel held to the readable definition, and which of them runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.checks.engine.tolerance import budget, error
from attnzoo.errors import ConfigError, Unsupported

BACKENDS = pytest.mark.parametrize("backend", ["eager", "sdpa"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def zeros(t: int, *, b: int = 1, h: int = 1, d: int = 1) -> Tensor:
    return torch.zeros(b, h, t, d, dtype=torch.float64)


# The fused kernel beside the definition

B, H, G, T, S, D, E = 2, 6, 3, 5, 7, 4, 11


def blind(mask: Tensor) -> Tensor:
    mask = mask.clone()
    mask[..., 2, :] = False
    return mask


QUESTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "causal, t = s": {"causal": True, "t": S},
    "causal, t > s": {"causal": True, "t": 13},
    "one query": {"causal": True, "t": 1},
    "mask of 2 axes": {"mask": blind(normal(T, S) > -0.5)},
    "mask of 4 axes": {"mask": blind(normal(B, H, T, S) > -0.5), "causal": True},
    "mask per head": {"mask": normal(1, H, 1, S) > -0.5},
    "mask per sample": {"mask": normal(B, 1, T, S) > -0.5},
    "mask, causal, t = s": {"mask": normal(S, S) > -0.5, "causal": True, "t": S},
    "strided mask": {"mask": (normal(B, H, S, 2 * T) > -0.5)[..., ::2].mT},
    "padding": {"key_mask": normal(B, S) > -0.5},
    "padding, causal, t = s": {"key_mask": normal(B, S) > 0, "causal": True, "t": S},
    "mask, padding, causal": {"mask": normal(T, S) > -1, "key_mask": normal(B, S) > -0.5, "causal": True},
    "no key at all": {"key_mask": torch.zeros(B, S, dtype=torch.bool)},
    "scale zero": {"causal": True, "scale": 0.0, "t": S},
    "scale negative": {"causal": True, "scale": -0.7, "t": S},
    "scale negative, mask": {"mask": normal(T, S) > -0.5, "scale": -0.7},
    "one key-value head": {"causal": True, "g": 1},
    "no groups": {"causal": True, "g": H},
    "no batch": {"causal": True, "b": 0},
    "no queries": {"causal": True, "t": 0},
    "no keys": {"causal": True, "s": 0},
    "no tokens": {"causal": True, "t": 0, "s": 0},
}


def forward_backward(
    question: dict[str, Any], dtype: torch.dtype, computed: torch.dtype, backend: str
) -> dict[str, Tensor]:
    """Output and gradients for inputs rounded to `dtype`, computed in `computed`."""
    asked = dict(question)
    b, g, t, s = asked.pop("b", B), asked.pop("g", G), asked.pop("t", T), asked.pop("s", S)
    shapes = {"q": (b, H, t, D), "k": (b, g, s, D), "v": (b, g, s, E)}
    leaves = {
        name: normal(*shape, seed=seed, dtype=dtype).to(computed).requires_grad_()
        for seed, (name, shape) in enumerate(shapes.items())
    }
    mixed: Tensor = ops.attend(*leaves.values(), **asked, backend=backend)
    torch.autograd.backward(mixed, normal(b, H, t, E, seed=4, dtype=dtype).to(computed))
    return {"output": mixed, **{f"d{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}}


@DTYPES
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_the_fused_kernel_gives_what_the_definition_gives_forward_and_backward(
    question: dict[str, Any], dtype: torch.dtype
) -> None:
    truth = forward_backward(question, dtype, torch.float64, "eager")
    eager = forward_backward(question, dtype, dtype, "eager")
    fused = forward_backward(question, dtype, dtype, "sdpa")
    assert truth.keys() == fused.keys() == {"output", "dq", "dk", "dv"}
    for name, expected in truth.items():
        # A gradient sums over tokens and channels, so that its last digits depend on the order.
        order = 8 * torch.finfo(dtype).eps if name != "output" else 0.0
        allowed = budget(dtype, plain=max(order, error(eager[name], expected)[0]))
        assert fused[name].shape == expected.shape
        assert fused[name].dtype == dtype
        assert error(fused[name], expected)[0] <= allowed, name
        assert error(eager[name], expected)[0] <= budget(dtype, plain=max(order, error(fused[name], expected)[0])), name


def strided(x: Tensor, how: str) -> Tensor:
    """The same values, laid out otherwise."""
    if how == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "every second channel":
        wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), 9.0)
        wide[..., ::2] = x
        return wide[..., ::2]
    return torch.cat([x.new_full((1,), 9.0), x.flatten()])[1:].view(x.shape)  # with an offset


@BACKENDS
@pytest.mark.parametrize("how", ["transposed", "every second channel", "offset"])
def test_how_the_inputs_lie_in_memory_does_not_matter(backend: str, how: str) -> None:
    q, k, v = normal(2, 4, 3, 6), normal(2, 2, 5, 6, seed=1), normal(2, 2, 5, 7, seed=2)
    grad = normal(2, 4, 3, 7, seed=3)
    outcomes = []
    for inputs in ([q, k, v], [strided(x, how) for x in (q, k, v)]):
        leaves = [x.detach().requires_grad_() for x in inputs]
        mixed = ops.attend(*leaves, causal=True, backend=backend)
        outcomes.append((mixed, *torch.autograd.grad(mixed, leaves, strided(grad, how))))
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=0, atol=1e-14)


@BACKENDS
def test_an_expanded_batch_is_as_a_written_out_one(backend: str) -> None:
    q, k = normal(1, 2, 3, 6).expand(3, 2, 3, 6), normal(1, 2, 5, 6, seed=1).expand(3, 2, 5, 6)
    torch.testing.assert_close(
        ops.attend(q, k, k, causal=True, backend=backend),
        ops.attend(q.contiguous(), k.contiguous(), k.contiguous(), causal=True, backend=backend),
        rtol=0,
        atol=1e-14,
    )


@BACKENDS
def test_a_gradient_without_strides_is_read_by_its_values(backend: str) -> None:
    q = normal(2, 2, 3, 6).requires_grad_()
    k = normal(2, 2, 5, 6, seed=1)
    (by_sum,) = torch.autograd.grad(ops.attend(q, k, k, backend=backend).sum(), q)
    (by_ones,) = torch.autograd.grad(ops.attend(q, k, k, backend=backend), q, torch.ones(2, 2, 3, 6).double())
    torch.testing.assert_close(by_sum, by_ones, rtol=0, atol=1e-14)


@BACKENDS
def test_inputs_are_not_changed(backend: str) -> None:
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 3, 4, seed=1), normal(1, 2, 3, 4, seed=2)
    key_mask, mask = torch.tensor([[True, False, True]]), torch.tensor([[True, True, False]] * 3)
    given = (q, k, v, key_mask, mask)
    before = [x.clone() for x in given]
    ops.attend(q, k, v, key_mask=key_mask, mask=mask, causal=True, scale=-1.0, backend=backend)
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True))


# The choice of a backend


def choices(**options: Any) -> tuple[bool, Tensor]:
    """Whether the output carries the fused kernel's mark, and the output."""
    q = normal(1, 2, 3, 4).requires_grad_()
    mixed = ops.attend(q, q, q, **options)
    assert mixed.grad_fn is not None
    return "ScaledDotProduct" in type(mixed.grad_fn).__name__, mixed


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ({}, True),
        ({"causal": True}, True),
        ({"backend": "sdpa"}, True),
        ({"backend": "eager"}, False),
        ({"mask": torch.zeros(3, 3)}, False),
    ],
    ids=str,
)
def test_auto_takes_the_fused_kernel_where_it_can_and_a_named_backend_is_the_one_that_runs(
    options: dict[str, Any], fused: bool
) -> None:
    assert choices(**options)[0] is fused


def test_a_boolean_mask_goes_to_the_fused_kernel() -> None:
    assert choices(mask=torch.ones(3, 3, dtype=torch.bool).tril())[0]


def test_sdpa_with_weights_is_refused_with_the_way_out() -> None:
    words = "backend='sdpa' returns no weights, and need_weights asks for them; use backend='auto' or 'eager'"
    with pytest.raises(Unsupported, match=words):
        ops.attend(zeros(2), zeros(2), zeros(2), need_weights=True, backend="sdpa")


def test_sdpa_with_a_floating_mask_is_refused_with_the_way_out() -> None:
    words = "backend='sdpa' does not add a floating mask in the wide type.*use backend='auto' or 'eager'"
    with pytest.raises(Unsupported, match=words):
        ops.attend(zeros(2), zeros(2), zeros(2), mask=torch.zeros(2, 2), backend="sdpa")


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("sdpaa", r"unknown backend 'sdpaa'; it takes auto, eager, sdpa, banded, blocks, flex; did you mean 'sdpa'\?"),
        ("flash", r"unknown backend 'flash'; it takes auto, eager, sdpa, banded, blocks, flex"),
    ],
)
def test_an_unknown_backend_is_refused_with_those_there_are(backend: str, words: str, need_weights: bool) -> None:
    with pytest.raises(ConfigError, match=words):
        ops.attend(zeros(2), zeros(2), zeros(2), need_weights=need_weights, backend=backend)


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_asking_for_the_weights_does_not_change_the_output(backend: str) -> None:
    q, k, v = normal(2, 4, 3, 6), normal(2, 2, 5, 6, seed=1), normal(2, 2, 5, 7, seed=2)
    mixed, weights = ops.attend(q, k, v, causal=True, need_weights=True, backend=backend)
    assert weights.shape == (2, 4, 3, 5)
    torch.testing.assert_close(ops.attend(q, k, v, causal=True, backend=backend), mixed, rtol=0, atol=1e-14)
    torch.testing.assert_close(weights @ v.repeat_interleave(2, dim=1), mixed, rtol=0, atol=1e-14)
