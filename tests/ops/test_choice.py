"""Which kernel serves a call, told by the kernels that are called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.errors import ConfigError, Unsupported
from attnzoo.ops import blocks, eager
from attnzoo.ops.attend import KERNELS
from attnzoo.ops.terms import Terms


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kernels that `attend` called."""
    names: list[str] = []

    def spied(name: str, kernel: Any) -> Any:
        def run(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Any:
            names.append(name)
            return kernel(q, k, v, terms)

        return run

    monkeypatch.setattr(eager, "run", spied("eager", eager.run))
    for name, kernel in KERNELS.items():
        monkeypatch.setitem(KERNELS, name, spied(name, kernel))
    yield names
    assert names, "no kernel was called"


IDS = torch.arange(300)[None] // 50

AUTO: dict[str, tuple[int, int, dict[str, Any], str]] = {
    "plain": (300, 300, {}, "sdpa"),
    "causal": (300, 300, {"causal": True}, "sdpa"),
    "the newest token": (1, 300, {"causal": True}, "sdpa"),
    "a mask": (300, 300, {"mask": torch.ones(300, 300) > 0}, "sdpa"),
    "padding": (300, 300, {"key_mask": torch.ones(1, 300) > 0}, "sdpa"),
    "sinks": (300, 300, {"causal": True, "sinks": torch.zeros(2)}, "sdpa"),
    "a rule": (300, 300, {"mask": ops.prefix(9) | ops.causal()}, "sdpa"),
    "dropout": (300, 300, {"dropout": 0.5}, "sdpa"),
    "a small window": (300, 300, {"causal": True, "window": 16}, "banded"),
    "a small window on both sides": (300, 300, {"window": 16}, "banded"),
    "a small window with sinks and padding": (
        300,
        300,
        {"window": 16, "sinks": torch.zeros(2), "key_mask": torch.ones(1, 300) > 0},
        "banded",
    ),
    "a window that is nearly all": (300, 300, {"causal": True, "window": 200}, "sdpa"),
    "a window of few tokens": (90, 90, {"causal": True, "window": 16}, "sdpa"),
    "a window of the newest token": (1, 300, {"causal": True, "window": 16}, "sdpa"),
    "a window of a few newest tokens": (4, 300, {"causal": True, "window": 16}, "sdpa"),
    "a window with a mask": (300, 300, {"window": 16, "mask": torch.ones(300, 300) > 0}, "sdpa"),
    "a window with holes": (300, 300, {"window": 16, "mask": ops.chunk(4)}, "sdpa"),
    "documents": (300, 300, {"document": IDS}, "banded"),
    "documents, causal": (300, 300, {"document": IDS, "causal": True}, "banded"),
    "documents here and there": (300, 300, {"document": IDS % 2}, "sdpa"),
    "documents of the newest tokens": (30, 300, {"document": IDS, "causal": True}, "sdpa"),
    "a softcap": (300, 300, {"softcap": 1.0}, "blocks"),
    "a bias": (300, 300, {"bias": ops.Alibi(2)}, "blocks"),
    "a bias of its own": (300, 300, {"bias": torch.zeros(300, 300).double()}, "blocks"),
    "a floating mask": (300, 300, {"mask": torch.zeros(300, 300)}, "blocks"),
    "a softcap of one block": (256, 256, {"softcap": 1.0}, "eager"),
    "a softcap of one block and a token": (257, 257, {"softcap": 1.0}, "blocks"),
    "a softcap for the newest token": (1, 300, {"softcap": 1.0, "causal": True}, "eager"),
    "weights": (300, 300, {"need_weights": True}, "eager"),
    "weights of a window": (300, 300, {"window": 16, "need_weights": True}, "eager"),
}


@pytest.mark.parametrize(("t", "s", "asked", "expected"), AUTO.values(), ids=AUTO.keys())
def test_auto_takes_the_kernel_that_serves_best(
    ran: list[str], t: int, s: int, asked: dict[str, Any], expected: str
) -> None:
    q, k = normal(1, 2, t, 4), normal(1, 2, s, 4, seed=1)
    ops.attend(q, k, k, **asked)
    assert ran == [expected]


def test_on_the_meta_device_shapes_come_from_the_definition(ran: list[str]) -> None:
    q = torch.empty(1, 2, 300, 4, device="meta")
    assert ops.attend(q, q, q, causal=True, window=16).shape == (1, 2, 300, 4)
    assert ran == ["eager"]


@pytest.mark.parametrize("backend", ["eager", "sdpa", "banded", "blocks"])
@pytest.mark.parametrize("t", [5, 300])
def test_a_named_backend_is_the_one_that_runs(ran: list[str], backend: str, t: int) -> None:
    q = normal(1, 2, t, 4)
    ops.attend(q, q, q, causal=True, window=4, backend=backend)
    assert ran == [backend]


def test_flex_is_the_one_that_runs_where_it_is_named_and_auto_never_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    q = normal(1, 2, 5, 4).float()
    monkeypatch.setitem(KERNELS, "flex", lambda q, k, v, terms: q + 1)
    monkeypatch.setattr("attnzoo.ops.flex.no_compiler", lambda device: None)
    assert torch.equal(ops.attend(q, q, q, backend="flex"), q + 1)
    assert not torch.equal(ops.attend(q, q, q), q + 1)


@pytest.mark.parametrize("backend", ["sdpa", "banded", "blocks", "flex"])
def test_weights_come_from_the_definition_alone(backend: str) -> None:
    q = normal(1, 2, 5, 4)
    words = f"backend='{backend}' returns no weights, and need_weights asks for them; use backend='auto' or 'eager'"
    with pytest.raises(Unsupported, match=words):
        ops.attend(q, q, q, window=4, need_weights=True, backend=backend)


def test_an_unknown_backend_is_refused_before_anything_else_is_asked_of_it() -> None:
    q = normal(1, 2, 5, 4)
    words = r"unknown backend 'block'; it takes auto, eager, sdpa, banded, blocks, flex; did you mean 'blocks'\?"
    with pytest.raises(ConfigError, match=words):
        ops.attend(q, q, q, backend="block")


def test_every_backend_has_a_kernel() -> None:
    assert {"auto", "eager", *KERNELS} == set(ops.BACKENDS)


def test_the_size_of_a_block_decides_where_the_definition_is_enough() -> None:
    q, k = normal(1, 2, 256, 4), normal(1, 2, 256, 4)
    assert blocks.block_size(q, k, Terms(scale=1.0, softcap=1.0)) == 256


@pytest.mark.parametrize("asked", [{"window": 4}, {"softcap": 1.0}, {"document": IDS}, {"sinks": torch.zeros(2)}])
def test_asking_for_the_weights_does_not_change_the_output(asked: dict[str, Any]) -> None:
    q, k = normal(1, 2, 300, 4), normal(1, 2, 300, 4, seed=1)
    mixed, weights = ops.attend(q, k, k, causal=True, need_weights=True, **asked)
    torch.testing.assert_close(ops.attend(q, k, k, causal=True, **asked), mixed, rtol=0, atol=1e-13)
    torch.testing.assert_close(weights @ k, mixed, rtol=0, atol=1e-13)


@pytest.mark.parametrize("asked", [{"window": 4}, {"softcap": 1.0}, {"document": IDS}, {"sinks": torch.ones(2)}])
def test_inputs_are_not_changed(asked: dict[str, Any]) -> None:
    given = [normal(1, 2, 300, 4, seed=n) for n in range(3)] + [x for x in asked.values() if isinstance(x, Tensor)]
    before = [x.clone() for x in given]
    ops.attend(given[0], given[1], given[2], scale=-1.0, **asked)
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True))
