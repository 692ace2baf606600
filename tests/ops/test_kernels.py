"""Every kernel held to the readable definition: the output, and the gradient of all that went in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.checks.engine.tolerance import budget, error
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
    asked = {word: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for word, x in asked.items()}
    truth = forward_backward("eager", q, k, v, asked, torch.float64)
    plain = truth if dtype == torch.float64 else forward_backward("eager", q, k, v, asked, dtype)
    rounded = 2 if dtype.itemsize == 2 else 1  # a fused kernel takes weights and sinks in the half type itself
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
            allowed = rounded * budget(dtype, plain=error(plain[name], expected)[0])
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


# Who sees whom

SIZES: dict[str, Sizes] = {
    "1 token": (2, 4, 2, 1, 1),
    "7 tokens": (3, 2, 1, 7, 7),
    "17 tokens": (2, 6, 3, 17, 17),
    "129 tokens": (1, 4, 2, 129, 129),
    "300 tokens": (2, 2, 1, 300, 300),
    "the newest": (1, 4, 4, 1, 300),
    "the newest 130": (1, 4, 2, 130, 300),
    "fewer keys": (2, 2, 1, 300, 40),
}
SIGHTS: dict[str, dict[str, Any]] = {
    "all": {},
    "causal": {"causal": True},
    "window 1": {"causal": True, "window": 1},
    "window 16": {"causal": True, "window": 16},
    "window 100": {"causal": True, "window": 100},
    "window 1000": {"causal": True, "window": 1000},
    "both sides 1": {"window": 1},
    "both sides 16": {"window": 16},
    "both sides 100": {"window": 100},
    "chunk 16": {"causal": True, "mask": ops.chunk(16)},
    "prefix 5 or causal": {"mask": ops.prefix(5) | ops.causal()},
    "all but a window": {"mask": ~ops.window(16)},
}


@pytest.mark.parametrize("sight", SIGHTS.values(), ids=SIGHTS.keys())
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_every_kernel_sees_what_the_definition_sees(sizes: Sizes, sight: dict[str, Any]) -> None:
    took = agree(sizes, sight)
    assert ("banded" in took) is ("window" in sight and "mask" not in sight)
    assert {"auto", "sdpa", "blocks"} <= set(took)


# Documents


def same_borders(b: int, s: int) -> Tensor:
    """One border for all samples, at a third."""
    return torch.stack([(torch.arange(s) >= s // 3).long() + 10 * i for i in range(b)])


def own_borders(b: int, s: int) -> Tensor:
    """Ids that fall, in documents of about twenty tokens, or of three where there are few."""
    return -drawn(0.05 if s > 20 else 0.3, b, s, seed=3).long().cumsum(dim=1)


def one_token_each(b: int, s: int) -> Tensor:
    return torch.arange(s).expand(b, s)


def whole(b: int, s: int) -> Tensor:
    return torch.full((b, s), 7)


def come_back(b: int, s: int) -> Tensor:
    """Ids 0, 1, 2, 0, 1, 2, …: no document stands together."""
    return (torch.arange(s) % 3).expand(b, s)


DOCUMENTS: list[Callable[[int, int], Tensor]] = [same_borders, own_borders, whole, come_back]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda made: made.__name__)
@pytest.mark.parametrize("sizes", [sizes for sizes in SIZES.values() if sizes[3] == sizes[4]], ids=lambda s: f"{s[3]}")
def test_every_kernel_keeps_documents_apart(sizes: Sizes, document: Callable[[int, int], Tensor], causal: bool) -> None:
    b, h, _, _, s = sizes
    ids = document(b, s)
    together = document is not come_back or s == 1
    asks: list[dict[str, Any]] = [
        {"window": 5},
        {"key_mask": drawn(0.8, b, s)},
        {"sinks": normal(h)},
        {"softcap": 2.0},
        {"bias": normal(h, s, s), "mask": drawn(0.8, b, 1, s, s), "softcap": 2.0},
    ]
    for more in ({}, *asks[:: 1 if s < 300 else 2]):
        took = agree(sizes, {"document": ids, "causal": causal, **more})
        assert ("banded" in took) is (together and "softcap" not in more)


@pytest.mark.parametrize("more", [{}, {"softcap": 2.0}, {"sinks": normal(6)}], ids=["plain", "softcap", "sinks"])
def test_documents_of_one_token_see_only_themselves(more: dict[str, Any]) -> None:
    agree((2, 6, 3, 17, 17), {"document": one_token_each(2, 17), "causal": True, **more})


# What is done to the scores, and further masks


def padding(b: int, s: int) -> Tensor:
    """The first sample is nothing but padding."""
    real = drawn(0.8, b, s)
    real[0] = False
    return real


# (b, h, t, s) -> terms
TERMS: dict[str, Callable[[int, int, int, int], dict[str, Any]]] = {
    "padding": lambda b, h, t, s: {"key_mask": padding(b, s)},
    "sinks": lambda b, h, t, s: {"sinks": normal(h)},
    "sinks, padding": lambda b, h, t, s: {"sinks": normal(h), "key_mask": padding(b, s)},
    "softcap": lambda b, h, t, s: {"softcap": 2.0},
    "softcap, sinks, padding": lambda b, h, t, s: {"softcap": 3.0, "sinks": normal(h), "key_mask": padding(b, s)},
    "alibi": lambda b, h, t, s: {"bias": ops.Alibi(h)},
    "bias": lambda b, h, t, s: {"bias": normal(1, h, t, s)},
    "bias for each key": lambda b, h, t, s: {"bias": normal(h, 1, s)},
    "mask": lambda b, h, t, s: {"mask": drawn(0.7, t, s)},
    "mask per sample, sinks": lambda b, h, t, s: {"mask": drawn(0.3, b, 1, t, s), "sinks": normal(h)},
    "mask per head": lambda b, h, t, s: {"mask": drawn(0.7, 1, h, t, s)},
    "floating mask": lambda b, h, t, s: {"mask": normal(t, s).masked_fill(drawn(0.3, t, s), -torch.inf)},
    "floating mask, softcap": lambda b, h, t, s: {"mask": normal(b, 1, t, s), "softcap": 3.0, "bias": ops.Alibi(h)},
    "scale 0": lambda b, h, t, s: {"scale": 0.0},
    "scale 0, sinks": lambda b, h, t, s: {"scale": 0.0, "sinks": normal(h)},
    "scale below 0": lambda b, h, t, s: {"scale": -0.3},
    "scale below 0, sinks": lambda b, h, t, s: {"scale": -0.3, "sinks": normal(h)},
    "scale below 0, softcap": lambda b, h, t, s: {"scale": -0.3, "softcap": 1.0},
}
EACH_TERM = pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS.keys())
FEW = {
    "1 token": ["causal", "both sides 1"],
    "17 tokens": ["all", "causal", "both sides 16", "prefix 5 or causal"],
    "300 tokens": ["causal", "window 16", "both sides 16"],
    "the newest 130": ["all", "window 16"],
}


@EACH_TERM
@pytest.mark.parametrize("sizes", FEW)
def test_every_kernel_gives_what_the_definition_gives_forward_and_backward(
    sizes: str, terms: Callable[[int, int, int, int], dict[str, Any]]
) -> None:
    b, h, _, t, s = SIZES[sizes]
    more = terms(b, h, t, s)
    changes_scores = "softcap" in more or "bias" in more or ("mask" in more and more["mask"].is_floating_point())
    for sight in FEW[sizes]:
        took = agree(SIZES[sizes], {**SIGHTS[sight], **more})
        assert ("sdpa" in took) is not changes_scores
        assert (took[0], took[-1]) == ("auto", "blocks")


@EACH_TERM
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_in_a_narrower_type_no_kernel_is_further_from_the_truth_than_twice_the_definition(
    dtype: torch.dtype, terms: Callable[[int, int, int, int], dict[str, Any]]
) -> None:
    b, h, _, t, s = sizes = (2, 4, 2, 150, 150)
    for sight in ("causal", "window 16"):
        assert agree(sizes, {**SIGHTS[sight], **terms(b, h, t, s)}, dtype=dtype)


def test_documents_and_windows_hold_in_float32_too() -> None:
    for document in DOCUMENTS:
        for more in ({}, {"window": 5}, {"softcap": 2.0}, {"sinks": normal(4)}):
            assert agree((2, 4, 2, 150, 150), {"document": document(2, 150), **more}, dtype=torch.float32)


@pytest.mark.parametrize("widths", [(1, 1), (3, 11), (16, 16), (7, 8), (8, 7), (40, 3)], ids=str)
def test_values_may_be_wider_or_narrower_than_keys(widths: tuple[int, int]) -> None:
    for more in ({}, {"sinks": normal(4)}, {"softcap": 2.0}, {"window": 9}, {"window": 9, "sinks": normal(4)}):
        assert agree((2, 4, 2, 160, 160), {"causal": True, **more}, widths=widths)


@pytest.mark.parametrize(("h", "g"), [(1, 1), (4, 4), (4, 2), (6, 2), (5, 1)])
def test_any_number_of_query_heads_shares_a_key_value_head(h: int, g: int) -> None:
    for more in ({}, {"sinks": normal(h)}, {"softcap": 2.0}, {"bias": ops.Alibi(h)}, {"window": 9}):
        for causal in (True, False):
            assert agree((2, h, g, 160, 160), {"causal": causal, **more})


@pytest.mark.parametrize("backend", ["auto", "eager", "banded", "blocks"])
def test_autocast_changes_nothing_for_inputs_of_its_own_type(backend: str) -> None:
    q, k, v = (normal(1, h, 160, 8, seed=h).bfloat16() for h in (4, 2, 1))
    v = v.expand_as(k)
    for more in ({}, {"sinks": normal(4).float()}, {"key_mask": drawn(0.8, 1, 160)}):
        asked: dict[str, Any] = {"causal": True, "window": 9, "backend": backend, **more}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            answer = ops.attend(q, k, v, **asked)
        assert answer.dtype is torch.bfloat16
        assert torch.equal(answer, ops.attend(q, k, v, **asked))
