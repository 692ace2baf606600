"""Variants with one term more than plain attention: a window, a cap, a bias, sinks, documents."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.errors import ConfigError, InputError, Unsupported
from attnzoo_builtins import alibi, packed, sinks, sliding_window, softcap
from attnzoo_builtins.alibi import AlibiAttention
from attnzoo_builtins.gqa import GroupedQueryAttention
from attnzoo_builtins.packed import PackedAttention
from attnzoo_builtins.rope import RotaryAttention
from attnzoo_builtins.sinks import SinkAttention
from attnzoo_builtins.sliding_window import SlidingWindowAttention
from attnzoo_builtins.softcap import SoftcapAttention

B, T, C, H, G = 2, 9, 12, 4, 2


def tokens(t: int = T, seed: int = 1) -> Tensor:
    return torch.randn(B, t, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn(kind: Callable[..., ops.AttentionLayer], **options: Any) -> ops.AttentionLayer:
    """In float64, with weights large enough that the softmax is not flat; the same for every kind."""
    layer = kind(C, H, G, **{"head_dim": 6, **options}).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(layer.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator) / 2)
            if name == "sinks":
                parameter.mul_(4)
    return layer


def close(actual: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def sliding(**options: Any) -> ops.AttentionLayer:
    return drawn(SlidingWindowAttention, **{"window": 4, **options})


IDS = torch.tensor([[0] * 4 + [1] * 5, [7] * 2 + [3] * 6 + [5]])
SLOPES = [2**-2, 2**-4, 2**-6, 2**-8]

Sees = Callable[[int, int, int], bool]  # sample, query, key
Score = Callable[[float, int, int], float]  # logit, head, distance


def by_loops(layer: ops.AttentionLayer, x: Tensor, sees: Sees, score: Score, sink: list[float] | None) -> Tensor:
    """The formula one number at a time, from the layer's projected queries, keys and values."""
    q, k, v = (part.detach() for part in layer.project(x))
    out = layer.state_dict()["out.weight"]
    mixed = torch.zeros(B, T, H, 6, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            g = h // (H // G)
            for i in range(T):
                exps = {
                    j: math.exp(score(float(q[b, h, i] @ k[b, g, j]) / 6**0.5, h, abs(i - j)))
                    for j in range(T)
                    if sees(b, i, j)
                }
                total = sum(exps.values()) + (math.exp(sink[h]) if sink else 0.0)
                for j, share in exps.items():
                    mixed[b, i, h] += share / total * v[b, g, j]
    y: Tensor = mixed.flatten(2) @ out.T
    return y


FORMULAS: dict[str, tuple[Callable[..., ops.AttentionLayer], Sees, Score]] = {
    "sliding_window": (sliding, lambda b, i, j: abs(i - j) < 4, lambda z, h, distance: z),
    "softcap": (
        lambda **options: drawn(SoftcapAttention, softcap=1.5, **options),
        lambda b, i, j: True,
        lambda z, h, distance: 1.5 * math.tanh(z / 1.5),
    ),
    "alibi": (
        lambda **options: drawn(AlibiAttention, **options),
        lambda b, i, j: True,
        lambda z, h, distance: z - SLOPES[h] * distance,
    ),
    "sinks": (lambda **options: drawn(SinkAttention, **options), lambda b, i, j: True, lambda z, h, distance: z),
    "packed": (
        lambda **options: drawn(PackedAttention, **options),
        lambda b, i, j: bool(IDS[b, i] == IDS[b, j]),
        lambda z, h, distance: z,
    ),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_layer_is_its_formula_written_out_one_number_at_a_time(name: str, causal: bool) -> None:
    build, sees, score = FORMULAS[name]
    layer = build(causal=causal)
    sink = layer.state_dict()["sinks"].tolist() if name == "sinks" else None
    expected = by_loops(layer, tokens(), lambda b, i, j: sees(b, i, j) and (j <= i or not causal), score, sink)
    asked: dict[str, Any] = {"document": IDS} if name == "packed" else {}
    close(layer(tokens(), **asked), expected)
    y, weights = layer(tokens(), **asked, need_weights=True)
    close(y, expected)
    sums = weights.sum(dim=-1)
    assert (sums.min() < 0.9) == (name == "sinks")
    assert sums.max() < 1 + 1e-12


# A window


@pytest.mark.parametrize("window", [T, T + 1, 1000])
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_as_wide_as_the_sequence_is_none(window: int, causal: bool) -> None:
    rope = drawn(RotaryAttention, causal=causal)
    close(sliding(window=window, causal=causal)(tokens()), rope(tokens()))
    assert not torch.allclose(sliding(window=T - 1, causal=causal)(tokens())[:, -1], rope(tokens())[:, -1])


def test_in_a_window_of_one_each_token_sees_itself() -> None:
    layer = sliding(window=1)
    v = layer.project(tokens())[2]
    close(layer(tokens()), layer.merge(v.repeat_interleave(2, dim=1)))


@pytest.mark.parametrize("window", [0, -1, 2.5, True, None])
def test_a_window_that_is_no_number_of_tokens_is_refused_at_build(window: Any) -> None:
    with pytest.raises(ConfigError, match=rf"window \({window}\) counts tokens, the query's own included: a whole"):
        SlidingWindowAttention(C, H, head_dim=6, window=window)


@pytest.mark.parametrize("chunks", [[1] * T, [5, 1, 3]], ids=str)
def test_a_ring_of_the_window_decodes_as_the_whole(chunks: list[int]) -> None:
    layer = sliding()
    cache = layer.new_cache(B)
    assert isinstance(cache, ops.WindowCache)
    steps = torch.cat([layer(part, cache=cache) for part in torch.split(tokens(), chunks, dim=1)], dim=1)
    close(steps, layer(tokens()))
    assert (cache.length, cache.held, cache.nbytes) == (T, 4, 2 * B * G * 4 * 6 * 8)


def test_a_window_takes_tokens_back_where_it_was_told_to() -> None:
    layer = SlidingWindowAttention(C, H, G, head_dim=6, window=4).double().eval()
    cache = layer.new_cache(B, 20, rollback=2)
    layer(tokens(), cache=cache)
    cache.crop(T - 2)
    close(layer(tokens()[:, T - 2 :], cache=cache), layer(tokens())[:, T - 2 :])
    assert cache.max_len == 20


# A cap


@pytest.mark.parametrize("causal", [True, False])
def test_a_cap_far_above_the_logits_is_none(causal: bool) -> None:
    rope = drawn(RotaryAttention, causal=causal)
    close(drawn(SoftcapAttention, softcap=1e9, causal=causal)(tokens()), rope(tokens()))
    assert not torch.allclose(drawn(SoftcapAttention, softcap=1.0, causal=causal)(tokens()), rope(tokens()))


def test_under_a_cap_of_almost_nothing_all_keys_are_alike() -> None:
    layer = drawn(SoftcapAttention, softcap=1e-9)
    _, weights = layer(tokens(), need_weights=True)
    even = torch.ones(T, T).double().tril() / torch.arange(1, T + 1)[:, None]
    close(weights, even.expand(B, H, T, T), atol=1e-8)


def test_the_cap_is_fifty_where_not_given() -> None:
    assert SoftcapAttention(C, H, head_dim=6).softcap == 50.0


@pytest.mark.parametrize("cap", [0, 0.0, -1.0, float("nan"), float("inf")])
def test_a_cap_that_leaves_no_logit_is_refused_at_build(cap: float) -> None:
    with pytest.raises(ConfigError, match=rf"softcap \({cap}\) bounds the logits: it must be above 0 and finite"):
        SoftcapAttention(C, H, head_dim=6, softcap=cap)


# A bias


@pytest.mark.parametrize("causal", [True, False])
def test_alibi_is_grouped_attention_with_a_floating_mask_of_distances(causal: bool) -> None:
    distance = (torch.arange(T)[:, None] - torch.arange(T)).abs()
    bias = -torch.tensor(SLOPES, dtype=torch.float64)[:, None, None] * distance
    gqa = drawn(GroupedQueryAttention, causal=causal)
    close(drawn(AlibiAttention, causal=causal)(tokens()), gqa(tokens(), mask=bias[None]))
    assert not torch.allclose(gqa(tokens()), gqa(tokens(), mask=bias[None]))


def test_alibi_goes_by_the_index_of_a_cached_token() -> None:
    layer = drawn(AlibiAttention)
    cache = layer.new_cache(B)
    steps = torch.cat([layer(part, cache=cache) for part in torch.split(tokens(), [4, 1, 4], dim=1)], dim=1)
    close(steps, layer(tokens()))


def test_alibi_takes_no_positions_and_no_context() -> None:
    layer = drawn(AlibiAttention, causal=False)
    with pytest.raises(Unsupported, match="alibi: positions has no effect here"):
        layer(tokens(), positions=torch.arange(T))
    with pytest.raises(Unsupported, match="alibi: context"):
        layer(tokens(), tokens())


# Sinks


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sink", [-1e4, -math.inf])
def test_sinks_far_below_the_logits_are_none(causal: bool, sink: float) -> None:
    layer = drawn(SinkAttention, causal=causal)
    with torch.no_grad():
        layer.get_parameter("sinks").fill_(sink)
    rope = drawn(RotaryAttention, causal=causal)
    rope.load_state_dict({name: x for name, x in layer.state_dict().items() if name != "sinks"})
    close(layer(tokens()), rope(tokens()))


def test_a_new_sink_weighs_as_much_as_a_key_whose_logit_is_zero() -> None:
    layer = SinkAttention(C, H, G, head_dim=6, scale=0.0).double()
    assert layer.sinks.tolist() == [0] * H
    _, weights = layer(tokens(), need_weights=True)
    close(weights.sum(dim=-1), (torch.arange(1, T + 1) / torch.arange(2, T + 2)).double().expand(B, H, T), atol=1e-7)


def test_sinks_far_above_the_logits_leave_nothing() -> None:
    layer = drawn(SinkAttention)
    with torch.no_grad():
        layer.get_parameter("sinks").fill_(1e4)
    assert not layer(tokens()).any()


def test_sinks_learn() -> None:
    layer = drawn(SinkAttention)
    torch.autograd.backward(layer(tokens()).square().sum())
    gradient = layer.get_parameter("sinks").grad
    assert gradient is not None
    assert gradient.shape == (H,)
    assert gradient.all()


# Documents


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_packed_documents_come_out_as_they_do_alone(causal: bool, layout: str) -> None:
    layer = drawn(PackedAttention, causal=causal, layout=layout)
    y = layer(tokens(), document=IDS)
    for sample, borders in enumerate([[0, 4, 9], [0, 2, 8, 9]]):
        for start, end in pairwise(borders):
            close(y[sample, start:end], layer(tokens()[sample : sample + 1, start:end])[0])


def test_without_ids_all_tokens_are_one_document() -> None:
    layer = drawn(PackedAttention)
    close(layer(tokens()), drawn(RotaryAttention)(tokens()))
    close(layer(tokens(), document=torch.full((B, T), 7)), layer(tokens()))
    assert not torch.allclose(layer(tokens(), document=IDS), layer(tokens()))


def test_padding_inside_a_document_is_left_out() -> None:
    layer, real = drawn(PackedAttention, causal=False), torch.ones(B, T, dtype=torch.bool)
    real[0, 2] = False
    y = layer(tokens(), document=IDS, key_mask=real)
    alone = layer(tokens()[:1, :4], key_mask=real[:1, :4])
    close(y[:1, :4], alone)


def test_packed_sequences_make_and_take_no_cache() -> None:
    layer = drawn(PackedAttention)
    words = "packed: cache is not supported; pass the whole sequence, without a cache"
    with pytest.raises(Unsupported, match=words):
        layer.new_cache(B)
    with pytest.raises(Unsupported, match=words):
        layer(tokens(), cache=drawn(RotaryAttention).new_cache(B))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (IDS[:, :4], r"document is \(2, 4\); it must be \(b, t\) = \(2, 9\), an id for each token"),
        (IDS[0], r"document is \(9,\); it must be \(b, t\) = \(2, 9\)"),
        (IDS.double(), r"document is torch.float64; it must hold integers"),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        drawn(PackedAttention)(tokens(), document=ids)


@pytest.mark.parametrize("name", ["sliding_window", "softcap", "alibi", "sinks"])
def test_the_others_take_no_documents(name: str) -> None:
    with pytest.raises(Unsupported, match=f"{name}: document has no effect here; use the variant for packed sequences"):
        FORMULAS[name][0]()(tokens(), document=IDS)


@pytest.mark.parametrize("sizes", [(0, T), (B, 0)], ids=["no batch", "no tokens"])
@pytest.mark.parametrize("name", FORMULAS)
def test_no_samples_or_no_tokens_give_an_empty_output(name: str, sizes: tuple[int, int]) -> None:
    layer = FORMULAS[name][0]()
    asked: dict[str, Any] = {"document": torch.zeros(sizes, dtype=torch.int64)} if name == "packed" else {}
    assert layer(torch.zeros(*sizes, C).double(), **asked).shape == (*sizes, C)


# All of them


def test_positions_of_the_rotary_ones_are_shifted_without_harm() -> None:
    for name in ("sliding_window", "softcap", "sinks", "packed"):
        layer = FORMULAS[name][0]()
        close(layer(tokens(), positions=torch.arange(T) + 1000), layer(tokens()), atol=1e-10)
        assert not torch.allclose(layer(tokens(), positions=2 * torch.arange(T)), layer(tokens()))


@pytest.mark.parametrize("name", ["sliding_window", "softcap", "sinks", "packed"])
def test_the_rotary_ones_turn_by_the_options_they_are_given(name: str) -> None:
    def q(**options: Any) -> Tensor:
        return FORMULAS[name][0](**options).project(tokens())[0]

    for options in ({}, {"theta": 7.0}, {"layout": "interleaved"}, {"rotary_dim": 4}):
        assert torch.equal(q(**options), drawn(RotaryAttention, **options).project(tokens())[0])
        assert torch.equal(q(), q(**options)) is (not options)


@pytest.mark.parametrize("name", ["sliding_window", "softcap", "sinks", "packed"])
def test_the_rotary_ones_read_no_context(name: str) -> None:
    with pytest.raises(Unsupported, match=f"{name}: context cannot be combined with rotated positions"):
        FORMULAS[name][0](causal=False)(tokens(), tokens())


REFUSED = {
    "softcap": ("sdpa", "knows no softcap"),
    "alibi": ("sdpa", "adds a bias only as a tensor of t by s"),
    "sinks": ("flex", "computes in float32"),
    "packed": ("banded", "needs a window, or documents"),
    "sliding_window": ("flex", "computes in float32"),
}


@pytest.mark.parametrize("name", REFUSED)
@torch.no_grad()
def test_a_backend_that_cannot_is_refused_by_the_variant_s_name(name: str) -> None:
    backend, words = REFUSED[name]
    with pytest.raises(Unsupported, match=rf"{name}: backend='{backend}' {words}.*; build with backend='auto' or"):
        FORMULAS[name][0](backend=backend)(tokens())


@pytest.mark.parametrize(
    ("build", "end"),
    [
        (sliding, "causal=True, window=4"),
        (lambda: drawn(SoftcapAttention, softcap=30.0), "causal=True, softcap=30.0"),
        (lambda: drawn(AlibiAttention, causal=False), "causal=False"),
        (lambda: drawn(SinkAttention), "causal=True"),
        (lambda: drawn(PackedAttention), "causal=True"),
    ],
)
def test_a_layer_tells_its_sizes_and_its_numbers(build: Callable[[], ops.AttentionLayer], end: str) -> None:
    layer = build()
    assert layer.extra_repr() == f"d_model=12, heads=4, kv_heads=2, head_dim=6, {end}"


@pytest.mark.parametrize(
    ("module", "claims"),
    [
        (sliding_window, dict(cache="ring", sees="some", plain=True, rows="one", work="linear")),
        (softcap, dict(cache="kv", sees="all", plain=False, rows="one", work="quadratic")),
        (alibi, dict(cache="kv", sees="all", plain=False, rows="one", work="quadratic", positions="index")),
        (sinks, dict(cache="kv", sees="all", plain=False, rows="at_most_one", work="quadratic")),
        (packed, dict(cache="none", sees="all", plain=True, rows="one", document=True)),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_a_variant_claims(module: ModuleType, claims: dict[str, Any]) -> None:
    variant = module.VARIANT
    expected = {"causal": "optional", "cross": False, "memory": "linear", "positions": "relative", **claims}
    assert {word: getattr(variant.traits, word) for word in expected} == expected
    assert variant.traits.takes_positions is (variant.name != "alibi")
    assert module.__name__.endswith(variant.name)
    assert variant.build.variant == variant.name
