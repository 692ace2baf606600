"""FlexAttention: what it is asked, what it cannot, and one compiled kernel held to the definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from attnzoo import ops
from attnzoo.errors import Unsupported
from attnzoo.ops import flex
from attnzoo.ops.attend import terms_of
from attnzoo.ops.terms import Terms


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


Q = normal(1, 2, 5, 4)

REFUSED: dict[str, tuple[Tensor, dict[str, Any], str]] = {
    "dropout": (Q, {"dropout": 0.5}, "has no dropout"),
    "gradients": (Q.clone().requires_grad_(), {}, "has no backward pass on cpu"),
    "float64": (Q.double(), {}, "computes in float32, which is less than the float64 of the input"),
    "a mask": (
        Q,
        {"mask": torch.ones(5, 5) > 0},
        "takes rules and functions of indices; a mask or bias of its",
    ),
    "a floating mask": (Q, {"mask": torch.zeros(5, 5)}, "takes rules and functions of indices"),
    "a bias": (Q, {"bias": torch.zeros(5, 5)}, "takes rules and functions of indices"),
    "sinks": (Q, {"sinks": torch.zeros(2)}, "does not return the sum of the softmax on cpu, which sinks need"),
    "no batch": (Q[:0], {}, "takes no empty input"),
    "no tokens": (Q[:, :, :0], {}, "takes no empty input"),
}


@pytest.mark.parametrize(("q", "asked", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_flex_cannot_is_refused_with_the_reason(q: Tensor, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=rf"backend='flex' {words}.*; use backend='auto' or 'eager'"):
        ops.attend(q, q, q, backend="flex", **asked)


def test_no_queries_or_no_keys_are_refused() -> None:
    for q, k in ((Q[:, :, :0], Q), (Q, Q[:, :, :0])):
        with pytest.raises(Unsupported, match="backend='flex' takes no empty input"):
            ops.attend(q, k, k, backend="flex")


def test_flex_returns_no_weights() -> None:
    with pytest.raises(Unsupported, match="backend='flex' returns no weights, and need_weights asks for them"):
        ops.attend(Q, Q, Q, need_weights=True, backend="flex")


@pytest.mark.parametrize("learns", ["q", "k"])
def test_a_gradient_of_queries_or_keys_is_refused_and_without_gradients_not(learns: str) -> None:
    q, k = Q.clone().requires_grad_(learns == "q"), Q.clone().requires_grad_(learns == "k")
    terms = Terms(scale=1.0)
    assert flex.why_not(q, k, terms) == "has no backward pass on cpu"
    with torch.no_grad():
        assert flex.why_not(q, k, terms) == flex.no_compiler("cpu")


def test_where_nothing_compiles_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none_found() -> str:
        raise InvalidCxxCompiler()

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none_found)
    flex.no_compiler.cache_clear()
    try:
        words = "backend='flex' needs a C.. compiler, and none was found; install g.. or clang; use backend='auto' or"
        with pytest.raises(Unsupported, match=words):
            ops.attend(Q, Q, Q, backend="flex")
    finally:
        flex.no_compiler.cache_clear()


def test_a_compiler_is_looked_for_once() -> None:
    flex.no_compiler("cpu")
    before = flex.no_compiler.cache_info().hits
    flex.no_compiler("cpu")
    assert flex.no_compiler.cache_info().hits == before + 1


# The two functions that are compiled, called as they are


def index(*numbers: int) -> list[Tensor]:
    return [torch.tensor(n) for n in numbers]


def test_scores_are_capped_and_biased_by_the_indices_in_the_sequence() -> None:
    change = flex.score_mod(Terms(scale=1.0, softcap=2.0, bias=ops.Alibi(2), first_query=10, first_key=3))
    score = change(torch.tensor(3.0), *index(0, 1, 2, 4))  # query 12, key 7, in the head with the slope 1/256
    assert float(score) == pytest.approx(2 * torch.tanh(torch.tensor(1.5)).item() - 5 / 256, abs=1e-6)


def test_a_cap_or_a_bias_alone_is_applied_alone() -> None:
    capped = flex.score_mod(Terms(scale=1.0, softcap=2.0))(torch.tensor(1e4), *index(0, 0, 5, 2))
    biased = flex.score_mod(Terms(scale=1.0, bias=ops.Alibi(1)))(torch.tensor(0.0), *index(0, 0, 5, 2))
    assert (float(capped), float(biased)) == (2.0, -3 / 256)
    assert flex.score_mod(Terms(scale=1.0, sinks=torch.zeros(1))) is None


def test_a_rule_is_asked_by_the_indices_in_the_sequence() -> None:
    terms = Terms(scale=1.0, first_query=10, first_key=3)
    sees = flex.mask_mod(ops.causal() & ops.window(3), terms)
    seen = [bool(sees(*index(0, 0, 1, k))) for k in range(10)]  # query 11 sees tokens 9, 10 and 11
    assert seen == [False] * 6 + [True] * 3 + [False]


def test_documents_and_padding_are_told_apart_by_the_sample() -> None:
    rule = Terms(
        scale=1.0, document=torch.tensor([[0, 1], [1, 1]]), key_mask=torch.tensor([[True, True], [False, True]])
    ).every_rule()
    assert rule is not None
    sees = flex.mask_mod(rule, Terms(scale=1.0))
    assert [[bool(sees(*index(b, 0, 1, k))) for k in range(2)] for b in range(2)] == [[False, True], [False, True]]


@pytest.mark.skipif(flex.no_compiler("cpu") is not None, reason=str(flex.no_compiler("cpu")))
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own affairs
def test_compiled_it_gives_what_the_definition_gives() -> None:
    q, k, v = normal(2, 4, 150, 16), normal(2, 2, 150, 16, seed=1), normal(2, 2, 150, 16, seed=2)
    asked: dict[str, Any] = dict(causal=True, window=20, softcap=2.0, bias=ops.Alibi(4))
    with torch.no_grad():
        seen = ops.attend(q, k, v, backend="flex", **asked)
        expected = ops.attend(q.double(), k.double(), v.double(), backend="eager", **asked)
    torch.testing.assert_close(seen.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])], ids=["plain", "sinks"])
@pytest.mark.filterwarnings("ignore")  # torch warns that it is not compiled
def test_uncompiled_it_has_sinks_too(sinks: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that is compiled for a CPU tells no sum of its softmax; what torch falls back to does."""
    monkeypatch.setattr(flex, "call", flex_attention)
    q, k, v = normal(2, 4, 9, 16), normal(2, 2, 9, 16, seed=1), normal(2, 2, 9, 16, seed=2)
    asked: dict[str, Any] = dict(causal=True, window=5, softcap=2.0, sinks=sinks)
    seen = flex.run(q, k, v, terms_of(q, k, **asked))
    torch.testing.assert_close(seen, ops.attend(q, k, v, backend="eager", **asked), rtol=0, atol=1e-5)


@pytest.mark.skipif(flex.no_compiler("cpu") is not None, reason=str(flex.no_compiler("cpu")))
@pytest.mark.filterwarnings("ignore")
def test_it_never_falls_back_to_its_unfused_form(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = normal(1, 1, 40, 16), normal(1, 1, 40, 16, seed=1), normal(1, 1, 40, 16, seed=2)
    before = torch._dynamo.config.cache_size_limit  # or recompile_limit, its newer name
    with torch.no_grad():
        ops.attend(q, k, v, backend="flex")
        monkeypatch.setattr(flex, "KINDS", 1)
        with pytest.raises(Unsupported, match=r"has compiled 1 kernels.*pad the tokens to few lengths"):
            ops.attend(q[:, :, :30], k, v, backend="flex")
        ops.attend(q, k, v, backend="flex")
    assert torch._dynamo.config.cache_size_limit == before
