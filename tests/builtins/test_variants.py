"""The built-in variants as plain classes, without the registry: what sets each of them apart."""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnzoo import ops
from attnzoo.errors import ConfigError, InputError, Unsupported
from attnzoo.ops import grouped
from attnzoo_builtins import alibi, gqa, mha, packed, rope, single_head, sinks, sliding_window, softcap
from attnzoo_builtins.alibi import AlibiAttention
from attnzoo_builtins.gqa import GroupedQueryAttention, multi_query
from attnzoo_builtins.mha import CausalMultiHeadAttention
from attnzoo_builtins.packed import PackedAttention
from attnzoo_builtins.rope import RotaryAttention
from attnzoo_builtins.single_head import SingleHeadCausalAttention
from attnzoo_builtins.sinks import SinkAttention
from attnzoo_builtins.sliding_window import SlidingWindowAttention
from attnzoo_builtins.softcap import SoftcapAttention

B, T, C = 2, 7, 12

# Each built as its signature reads: by position.
BUILDS: dict[str, Callable[..., ops.AttentionLayer]] = {
    "single_head": lambda **options: SingleHeadCausalAttention(C, 5, **options),
    "mha": lambda **options: CausalMultiHeadAttention(C, 3, **options),
    "gqa": lambda **options: GroupedQueryAttention(C, 6, 3, **options),
    "mqa": lambda **options: multi_query(C, 3, **options),
    "rope": lambda **options: RotaryAttention(C, 6, 3, **{"head_dim": 4, **options}),
    "sliding_window": lambda **options: SlidingWindowAttention(C, 6, 3, **{"head_dim": 4, "window": 4, **options}),
    "softcap": lambda **options: SoftcapAttention(C, 6, 3, **{"head_dim": 4, "softcap": 1.0, **options}),
    "alibi": lambda **options: AlibiAttention(C, 6, 3, **options),
    "sinks": lambda **options: SinkAttention(C, 6, 3, **{"head_dim": 4, **options}),
    "packed": lambda **options: PackedAttention(C, 6, 3, **{"head_dim": 4, **options}),
}
OWN = {"sinks": {"sinks": (6,)}}  # parameters beside the two projections
EACH = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS.keys())
CACHED = pytest.mark.parametrize(
    "build", [build for name, build in BUILDS.items() if name != "packed"], ids=[n for n in BUILDS if n != "packed"]
)
MODULES = pytest.mark.parametrize(
    "module",
    [single_head, mha, gqa, rope, sliding_window, softcap, alibi, sinks, packed],
    ids=lambda module: module.__name__,
)


def tokens(b: int = B, t: int = T, c: int = C, seed: int = 1) -> Tensor:
    return torch.randn(b, t, c, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn(layer: ops.AttentionLayer, seed: int = 0) -> ops.AttentionLayer:
    """In float64, with weights large enough that the softmax is not flat."""
    generator = torch.Generator().manual_seed(seed)
    layer = layer.double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator) / 2)
    return layer


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


# On their own


@EACH
def test_a_variant_turns_tokens_into_tokens_and_no_token_sees_a_later_one(
    build: Callable[..., ops.AttentionLayer],
) -> None:
    layer, x = drawn(build()), tokens()
    changed = x.clone()
    changed[:, 4:] = tokens(t=3, seed=2)
    y, z = layer(x), layer(changed)
    assert y.shape == x.shape
    assert torch.equal(y[:, :4], z[:, :4])
    assert not torch.isclose(y[:, 4:], z[:, 4:]).any()


@EACH
def test_with_causality_off_a_later_token_shows(build: Callable[..., ops.AttentionLayer]) -> None:
    layer, x = drawn(build(causal=False)), tokens()
    changed = x.clone()
    changed[:, 3] += 1  # the last that a window of 4 shows to the first token
    assert not torch.isclose(layer(x)[:, 0], layer(changed)[:, 0]).any()


@EACH
def test_a_variant_is_one_fused_projection_and_one_back(build: Callable[..., ops.AttentionLayer]) -> None:
    layer = build()
    assert {name: type(part) for name, part in layer.named_children()} == {"qkv": nn.Linear, "out": nn.Linear}
    rows, width = (layer.heads + 2 * layer.kv_heads) * layer.head_dim, layer.heads * layer.head_dim
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "qkv.weight": (rows, C),
        "out.weight": (C, width),
        **OWN.get(layer.variant, {}),
    }
    assert not list(layer.buffers())


@EACH
def test_a_bias_is_there_where_asked_for(build: Callable[..., ops.AttentionLayer]) -> None:
    layer = build(bias=True)
    own = OWN.get(layer.variant, {}).keys()
    assert set(layer.state_dict()) == {"qkv.weight", "qkv.bias", "out.weight", "out.bias", *own}


def by_hand(layer: ops.AttentionLayer, x: Tensor) -> Tensor:
    """The formula with the layer's own rows, head by head and query by query; q, k and v never fused. No rotation."""
    d, h, g = layer.head_dim, layer.heads, layer.kv_heads
    rows = list(layer.state_dict()["qkv.weight"].split(d))
    out = layer.state_dict()["out.weight"]
    y = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for i in range(h):
            q, k, v = (x[b] @ rows[n].T for n in (i, h + i // (h // g), h + g + i // (h // g)))
            for t in range(x.shape[1]):
                share = torch.softmax(k[: t + 1] @ q[t] / d**0.5, dim=0)
                y[b, t] += out[:, i * d : (i + 1) * d] @ (share @ v[: t + 1])
    return y


@pytest.mark.parametrize(
    "layer",
    [
        SingleHeadCausalAttention(C),
        SingleHeadCausalAttention(C, 5),
        CausalMultiHeadAttention(C, 3),
        CausalMultiHeadAttention(C, 5, head_dim=7),
        GroupedQueryAttention(C, 6, 3),
        GroupedQueryAttention(C, 4, 2, head_dim=5),
        multi_query(C, 3, head_dim=7),
    ],
    ids=lambda layer: f"{layer.variant} {layer.extra_repr()}",
)
def test_a_layer_is_its_formula_written_out_head_by_head(layer: ops.AttentionLayer) -> None:
    close(drawn(layer)(tokens()), by_hand(layer, tokens()))


# Sizes


def test_a_single_head_is_as_wide_as_the_model_unless_told_otherwise() -> None:
    assert SingleHeadCausalAttention(C).head_dim == C
    assert SingleHeadCausalAttention(C, 5).head_dim == 5


def test_rotary_attention_has_as_many_key_value_heads_as_heads_where_not_given() -> None:
    assert RotaryAttention(C, 6).kv_heads == 6
    assert RotaryAttention(C, 6, 2).kv_heads == 2


@pytest.mark.parametrize("head_dim", [5, 16])
def test_the_width_of_a_head_is_free_of_that_of_the_model(head_dim: int) -> None:
    layer = CausalMultiHeadAttention(24, 4, head_dim=head_dim)
    assert layer.qkv.weight.shape == (3 * 4 * head_dim, 24)
    assert layer.out.weight.shape == (24, 4 * head_dim)
    assert layer.scale == head_dim**-0.5
    assert layer.new_cache(1, 8).append(*layer.project(torch.zeros(1, 3, 24))[1:])[0].shape == (1, 4, 3, head_dim)


UNEVEN: dict[str, Callable[..., ops.AttentionLayer]] = {
    "mha": CausalMultiHeadAttention,
    "mqa": multi_query,
    "rope": RotaryAttention,
}


@pytest.mark.parametrize("build", UNEVEN.values(), ids=UNEVEN.keys())
def test_heads_that_do_not_divide_the_width_are_refused_with_both_numbers_and_ways_out_that_work(
    build: Callable[..., ops.AttentionLayer],
) -> None:
    words = r"heads \(5\) must divide d_model \(24\) when head_dim is left out; try heads=(\d+), or give head_dim=(\d+)"
    with pytest.raises(ConfigError, match=words) as refusal:
        build(24, 5)
    offered = re.search(words, str(refusal.value))
    assert offered
    x = torch.zeros(1, 3, 24)
    assert build(24, int(offered[1]))(x).shape == x.shape
    assert build(24, 5, head_dim=int(offered[2]))(x).shape == x.shape


def test_heads_that_cannot_share_the_key_value_heads_are_refused_with_a_way_out_that_works() -> None:
    with pytest.raises(ConfigError, match=r"heads \(6\) must be a multiple of kv_heads \(4\); try kv_heads=3"):
        GroupedQueryAttention(24, 6, 4)
    assert GroupedQueryAttention(24, 6, 3).kv_heads == 3


# One variant beside another


def same_weights(one: ops.AttentionLayer, other: ops.AttentionLayer) -> None:
    other.load_state_dict(one.state_dict(), strict=True)


def test_multi_query_attention_is_grouped_attention_with_one_group() -> None:
    one, other = drawn(multi_query(C, 3, head_dim=5)), drawn(GroupedQueryAttention(C, 3, 1, head_dim=5), seed=1)
    same_weights(one, other)
    assert torch.equal(one(tokens()), other(tokens()))


def test_grouped_attention_with_a_group_a_head_is_multi_head_attention() -> None:
    one, other = drawn(CausalMultiHeadAttention(C, 3)), drawn(GroupedQueryAttention(C, 3, 3), seed=1)
    same_weights(one, other)
    assert torch.equal(one(tokens()), other(tokens()))


def test_multi_head_attention_with_one_head_is_single_head_attention() -> None:
    one, other = drawn(SingleHeadCausalAttention(C, 5)), drawn(CausalMultiHeadAttention(C, 1, head_dim=5), seed=1)
    same_weights(one, other)
    assert torch.equal(one(tokens()), other(tokens()))


def test_rotary_attention_that_stands_still_is_grouped_attention() -> None:
    one, other = drawn(GroupedQueryAttention(C, 6, 3, head_dim=4)), drawn(BUILDS["rope"](), seed=1)
    same_weights(one, other)
    assert torch.equal(one(tokens()), other(tokens(), positions=torch.zeros(T, dtype=torch.int64)))
    assert not torch.allclose(one(tokens()), other(tokens()))


# Rotary positions


def rotary(**options: Any) -> ops.AttentionLayer:
    return drawn(RotaryAttention(C, 4, 2, **{"head_dim": 6, "causal": False, **options}))


def logits(layer: ops.AttentionLayer, x: Tensor, **asked: Any) -> Tensor:
    """Products of q and k, key-value heads shared out. (b, h, t, s)"""
    q, k, _ = layer.project(x, **asked)
    return q @ k.repeat_interleave(2, dim=1).mT


def test_a_permutation_of_the_rows_of_q_and_k_turns_one_layout_into_the_other() -> None:
    half, interleaved = rotary(layout="half"), rotary(layout="interleaved")
    assert not torch.allclose(half(tokens()), interleaved(tokens()))
    pairs = torch.tensor([0, 3, 1, 4, 2, 5])  # interleaved pairs 2 i, 2 i + 1 are half's i, i + 3
    weight = half.state_dict()["qkv.weight"].unflatten(0, (8, 6)).clone()  # 4 q, 2 k, 2 v heads
    weight[:6] = weight[:6, pairs]
    interleaved.load_state_dict({**half.state_dict(), "qkv.weight": weight.flatten(0, 1)})
    close(interleaved(tokens()), half(tokens()))


def test_a_partial_rotation_passes_the_channels_behind_it() -> None:
    q, k, v = rotary(rotary_dim=4).project(tokens())
    still = rotary().project(tokens(), positions=torch.zeros(T, dtype=torch.int64))
    for turned, plain in ((q, still[0]), (k, still[1])):
        assert torch.equal(turned[..., 4:], plain[..., 4:])
        assert not torch.isclose(turned[:, :, 1:, :4], plain[:, :, 1:, :4]).any()
    assert torch.equal(v, still[2])


def test_values_are_not_turned() -> None:
    layer = rotary()
    assert torch.equal(layer.project(tokens(), offset=5)[2], layer.project(tokens())[2])


def test_theta_matters() -> None:
    assert not torch.allclose(rotary(theta=10000.0)(tokens()), rotary(theta=500.0)(tokens()))


def test_theta_is_ten_thousand_where_not_given() -> None:
    assert torch.equal(rotary()(tokens()), rotary(theta=10000.0)(tokens()))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_logits_see_the_distance_of_two_tokens_only(layout: str, rotary_dim: int | None) -> None:
    layer = rotary(layout=layout, rotary_dim=rotary_dim)
    near = logits(layer, tokens())
    close(logits(layer, tokens(), offset=1000), near)
    close(logits(layer, tokens(), positions=torch.arange(T) + 77), near)
    assert not torch.allclose(logits(layer, tokens(), positions=torch.arange(T) * 2), near)


def test_one_token_twice_has_logits_that_are_equal_along_each_diagonal() -> None:
    same = tokens(t=1).expand(B, T, C)
    seen = logits(rotary(), same)
    close(seen[..., 1:, 1:], seen[..., :-1, :-1])
    assert not torch.isclose(seen[..., 0, 1:], seen[..., 0, :-1]).all()


def test_positions_are_counted_from_the_cached_tokens_on() -> None:
    layer = rotary(causal=True)
    counted, given = layer.project(tokens(), offset=3)[0], layer.project(tokens(), positions=torch.arange(T) + 3)[0]
    torch.testing.assert_close(counted, given, rtol=0, atol=1e-6)


def test_rotary_attention_reads_no_context() -> None:
    with pytest.raises(Unsupported, match="rope: context cannot be combined with rotated positions; for cross-att"):
        rotary()(tokens(), tokens())


def test_heads_too_narrow_to_turn_are_refused_at_build() -> None:
    with pytest.raises(ConfigError, match=r"head_dim \(1\) has no pair of channels to turn; take a head_dim of 2"):
        RotaryAttention(6, 6)


# Length, state and memory


@CACHED
def test_max_seq_len_counts_cached_tokens_and_the_refused_call_leaves_the_cache_alone(
    build: Callable[..., ops.AttentionLayer],
) -> None:
    layer, x = drawn(build(max_seq_len=5)), tokens()
    cache = layer.new_cache(B, 9)
    whole = layer(x[:, :5])
    layer(x[:, :4], cache=cache)
    with pytest.raises(InputError, match=r"x makes 6 tokens \(cached tokens counted\), more than max_seq_len \(5\)"):
        layer(x[:, 4:6], cache=cache)
    assert cache.length == 4
    close(layer(x[:, 4:5], cache=cache), whole[:, 4:])


@EACH
def test_weights_load_under_another_max_seq_len(build: Callable[..., ops.AttentionLayer]) -> None:
    short, long = drawn(build(max_seq_len=8)), drawn(build(max_seq_len=4096), seed=1)
    same_weights(short, long)
    assert torch.equal(long(tokens()), short(tokens()))


@EACH
def test_the_memory_of_a_layer_does_not_grow_with_max_seq_len(build: Callable[..., ops.AttentionLayer]) -> None:
    def held(layer: nn.Module) -> int:
        found = [value for part in layer.modules() for value in vars(part).values() if isinstance(value, Tensor)]
        return sum(x.numel() * x.element_size() for x in (*layer.parameters(), *layer.buffers(), *found))

    long = build(max_seq_len=1_000_000)
    long(torch.zeros(1, 3, C))
    assert held(long) == held(build(max_seq_len=8)) == 4 * sum(p.numel() for p in build().parameters())


@EACH
def test_a_layer_cast_to_bfloat16_answers_in_bfloat16_and_near_itself(
    build: Callable[..., ops.AttentionLayer],
) -> None:
    layer = build().eval()
    layer.load_state_dict({name: value.bfloat16().float() for name, value in layer.state_dict().items()})
    x = tokens().bfloat16()
    half = copy.deepcopy(layer).to(torch.bfloat16)
    y, weights = half(x, need_weights=True)
    assert (half(x).dtype, y.dtype, weights.dtype) == (torch.bfloat16,) * 3
    torch.testing.assert_close(half(x).float(), layer(x.float()), rtol=0, atol=4 * torch.finfo(torch.bfloat16).eps)


@EACH
def test_a_copy_answers_alike_and_goes_its_own_way(build: Callable[..., ops.AttentionLayer]) -> None:
    layer, x = drawn(build()), tokens()
    y = layer(x)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), y)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2)
    assert torch.equal(layer(x), y)
    assert not torch.equal(twin(x), y)


# The source

FUTURE = "from __future__ import annotations"


def tree(module: ModuleType) -> ast.Module:
    """A variant's file, and that of the layer which it stands on."""
    return ast.parse(inspect.getsource(module) + inspect.getsource(grouped).replace(FUTURE, ""))


@MODULES
def test_a_variant_is_built_from_linear_layers_and_tensor_operations(module: ModuleType) -> None:
    words = {node.attr for node in ast.walk(tree(module)) if isinstance(node, ast.Attribute)}
    words |= {node.id for node in ast.walk(tree(module)) if isinstance(node, ast.Name)}
    assert "Linear" in words
    assert words.isdisjoint({"MultiheadAttention", "multi_head_attention_forward", "scaled_dot_product_attention"})


@MODULES
def test_a_variant_has_no_loop(module: ModuleType) -> None:
    loops = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    assert [node.lineno for node in ast.walk(tree(module)) if isinstance(node, loops)] == []
