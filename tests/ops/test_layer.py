"""The layer that every variant stands on: its sizes, its three stages, and every refusal in its own words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnzoo import ops
from attnzoo.errors import ConfigError, InputError, Unsupported
from attnzoo.ops.sdpa import fused

B, T, C = 2, 5, 12


class Tiny(ops.AttentionLayer):
    """The least that a variant has to write."""

    variant = "tiny"
    takes_positions = True

    def __init__(self, d_model: int = C, heads: int = 3, **options: Any) -> None:
        super().__init__(d_model=d_model, heads=heads, **options)
        self.qkv = nn.Linear(d_model, (heads + 2 * self.kv_heads) * self.head_dim)
        self.out = nn.Linear(heads * self.head_dim, d_model)
        self.offsets: list[int] = []

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.offsets.append(offset)
        return ops.project_qkv(self.qkv, x, context, heads=self.heads, kv_heads=self.kv_heads)


class Placeless(Tiny):
    takes_positions = False


class Alone(Tiny):
    takes_context = False


def tiny(**options: Any) -> Tiny:
    torch.manual_seed(0)
    return Tiny(**options).eval()


def tokens(b: int = B, t: int = T, c: int = C) -> Tensor:
    return torch.randn(b, t, c, generator=torch.Generator().manual_seed(1))


# Sizes


@pytest.mark.parametrize("word", ["d_model", "heads", "kv_heads", "head_dim", "max_seq_len"])
@pytest.mark.parametrize("number", [0, -3, 2.5, True, "8"], ids=repr)
def test_a_size_that_is_no_whole_number_above_zero_is_refused_by_its_name(word: str, number: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{word} must be a whole number above 0; got {number!r}"):
        Tiny(**{word: number})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d_model": 24, "heads": 5}, r"heads \(5\) must divide d_model \(24\).*try heads=4, or give head_dim=4"),
        ({"heads": 6, "kv_heads": 4}, r"heads \(6\) must be a multiple of kv_heads \(4\); try kv_heads=3"),
        ({"dropout": 1.0}, r"dropout \(1.0\) is a share of weights: it must be at least 0 and below 1"),
        ({"dropout": -0.1}, r"dropout \(-0.1\) is a share of weights"),
        ({"scale": math.inf}, r"scale \(inf\) multiplies the logits: it must be finite, and None stands for 1/sqrt"),
        ({"scale": math.nan}, r"scale \(nan\) multiplies the logits"),
        (
            {"backend": "sdap"},
            r"unknown backend 'sdap'; it takes auto, eager, sdpa, banded, blocks, flex; did you mean 'sdpa'\?",
        ),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused_at_build(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Tiny(**options)


def test_the_head_width_is_a_share_of_the_model_and_free_when_given() -> None:
    assert (Tiny().head_dim, Tiny(head_dim=7).head_dim, Tiny(heads=5, head_dim=7).head_dim) == (4, 7, 7)


def test_there_are_as_many_key_value_heads_as_heads_where_not_given() -> None:
    assert (Tiny().kv_heads, Tiny(kv_heads=1).kv_heads) == (3, 1)


@pytest.mark.parametrize(
    ("scale", "share"),
    [(None, 0.75), (1.0, 0.9878), (0.0, 0.5), (0.125, 0.6340)],  # by the root of d_model .634, of the heads .9
)
def test_logits_are_divided_by_the_root_of_the_head_width_unless_a_scale_is_given(
    scale: float | None, share: float
) -> None:
    layer = tiny(d_model=64, heads=4, head_dim=16, scale=scale, causal=False)
    q, k = torch.zeros(1, 4, 1, 16), torch.zeros(1, 4, 2, 16)
    q[..., 0], k[:, :, 0, 0] = 1.0, 4 * math.log(3)
    _, weights = layer.attend(q, k, k, need_weights=True)
    torch.testing.assert_close(weights[0, :, 0, 0], torch.full((4,), share), rtol=0, atol=5e-5)


def test_a_layer_tells_its_sizes() -> None:
    assert "d_model=12, heads=3, kv_heads=1, head_dim=7, causal=False" in repr(
        tiny(kv_heads=1, head_dim=7, causal=False)
    )


# The forward pass


def test_a_variant_that_writes_no_projection_is_told_what_to_write() -> None:
    class Empty(ops.AttentionLayer):
        def __init__(self) -> None:
            super().__init__(d_model=C)
            self.out = nn.Linear(C, C)

    with pytest.raises(TypeError, match=r"Empty must write project\(x, context=None, \*, positions=None, offset=0\)"):
        Empty()(tokens())


def test_a_projection_of_the_wrong_form_is_told_the_right_one() -> None:
    class Unsplit(Tiny):
        def project(self, *given: Any, **asked: Any) -> Any:
            q, k, v = super().project(*given, **asked)
            return q, k, ops.merge_heads(v)

    with pytest.raises(InputError, match=r"q, k, v need 4 axes, \(b, h, t, d\); got 4, 4 and 3"):
        Unsplit()(tokens())


def test_a_plain_call_gives_a_tensor_and_one_for_weights_a_pair() -> None:
    y = tiny()(tokens())
    pair = tiny()(tokens(), need_weights=True)
    assert isinstance(y, Tensor)
    assert isinstance(pair, tuple)
    assert [tuple(x.shape) for x in (y, *pair)] == [(B, T, C), (B, T, C), (B, 3, T, T)]


def test_a_call_is_merge_of_attend_of_project() -> None:
    layer, x = tiny(kv_heads=1, head_dim=7), tokens()
    assert torch.equal(layer(x), layer.merge(layer.attend(*layer.project(x))))


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_stage_that_a_variant_writes_anew_is_the_one_that_runs(need_weights: bool) -> None:
    class Doubled(Tiny):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, **asked: Any) -> Any:
            answer = super().attend(q, k, v, **asked)
            return (answer[0] * 2, answer[1]) if isinstance(answer, tuple) else answer * 2

        def merge(self, mixed: Tensor) -> Tensor:
            return super().merge(mixed) + 1000

    torch.manual_seed(0)
    layer, plain = Doubled().eval(), tiny()
    answer = layer(tokens(), need_weights=need_weights)  # type: ignore[call-overload]
    expected = plain.merge(2 * plain.attend(*plain.project(tokens()))) + 1000
    torch.testing.assert_close(answer[0] if need_weights else answer, expected)


@pytest.mark.parametrize(("backend", "fused"), [("auto", True), ("sdpa", True), ("eager", False)])
def test_the_backend_of_the_layer_is_the_one_that_runs(backend: str, fused: bool) -> None:
    layer = tiny(backend=backend)
    mixed = layer.attend(*layer.project(tokens()))
    assert ("ScaledDotProduct" in type(mixed.grad_fn).__name__) is fused


@pytest.mark.parametrize("causal", [True, False])
def test_a_later_token_has_weight_only_where_causality_is_off(causal: bool) -> None:
    _, weights = tiny(causal=causal)(tokens(), need_weights=True)
    later = torch.ones(T, T).triu(1).bool()
    assert (weights[..., later] == 0).all() == causal
    assert (weights[..., ~later] > 0).all()


@pytest.mark.parametrize(
    ("options", "asked", "lone"),
    [
        ({}, {}, True),
        ({"backend": "sdpa"}, {}, True),
        ({"backend": "eager"}, {}, False),
        ({"dropout": 0.5}, {}, False),
        ({}, {"need_weights": True}, False),
        ({}, {"mask": torch.ones(1, T, dtype=torch.bool)}, False),
        ({}, {"key_mask": torch.ones(B, T, dtype=torch.bool)}, False),
        ({}, {"document": torch.ones(B, T, dtype=torch.long)}, False),
    ],
    ids=str,
)
def test_a_lone_token_that_sees_all_goes_to_the_kernel_straight(
    options: dict[str, Any], asked: dict[str, Any], lone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = tiny(**options).train()
    q, k, v = layer.project(tokens())
    due = ops.attend(q[:, :, -1:], k, v, causal=True, scale=layer.scale)
    taken: list[int] = []

    def spy(*parts: Tensor, **how: Any) -> Tensor:
        taken.append(parts[0].shape[2])
        return fused(*parts, **how)

    monkeypatch.setattr("attnzoo.ops.layer.fused", spy)
    assert layer.attend(q, k, v).shape == q.shape
    assert not taken
    mixed = layer.attend(q[:, :, -1:], k, v, **asked)
    assert taken == ([1] if lone else [])
    if "dropout" not in options:
        torch.testing.assert_close(mixed[0] if asked.get("need_weights") else mixed, due)


def test_under_autocast_a_lone_token_keeps_its_precision() -> None:
    layer = tiny()
    q, k, v = layer.project(tokens())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.attend(q[:, :, -1:], k, v).dtype is torch.float32


def test_the_projection_is_told_how_many_tokens_came_before() -> None:
    layer, x = tiny(), tokens(t=7)
    cache = layer.new_cache(B, 7)
    for start, end in ((0, 4), (4, 5), (5, 7)):
        layer(x[:, start:end], cache=cache)
    assert layer.offsets == [0, 4, 5]


def test_a_call_without_a_cache_starts_at_the_first_token_again() -> None:
    layer = tiny()
    layer(tokens(), cache=layer.new_cache(B, T))
    layer(tokens())
    assert layer.offsets == [0, 0]


def test_dropout_is_on_in_training_only() -> None:
    layer, x = tiny(dropout=0.5), tokens()
    assert torch.equal(layer(x), tiny()(x))
    torch.manual_seed(1)
    layer.train()
    assert not torch.equal(layer(x), tiny()(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_new_cache_has_the_sizes_and_the_type_of_the_layer(dtype: torch.dtype) -> None:
    layer = tiny(heads=6, kv_heads=2, head_dim=7).to(dtype)
    cache = layer.new_cache(B, 9)
    layer(tokens().to(dtype), cache=cache)
    assert (cache.length, cache.max_len) == (T, 9)
    assert cache.nbytes == 2 * B * 2 * T * 7 * dtype.itemsize


def test_a_new_cache_is_made_where_the_layer_is() -> None:
    layer = tiny().to("meta")
    cache = layer.new_cache(B, T)
    layer.to_empty(device="cpu")
    with pytest.raises(InputError, match=r"torch.float32 on meta, the layer torch.float32 on cpu"):
        layer(tokens(), cache=cache)


def test_under_autocast_a_layer_takes_tokens_of_the_other_type() -> None:
    x = tokens().bfloat16()
    with pytest.raises(InputError, match=r"x is torch.bfloat16"):
        tiny()(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = tiny()(x)
    torch.testing.assert_close(y.float(), tiny()(x.float()), rtol=0, atol=4 * torch.finfo(torch.bfloat16).eps)


def test_under_autocast_a_cache_decodes() -> None:
    layer, x = tiny(), tokens()
    cache = layer.new_cache(B, T)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = layer(x)
        steps = torch.cat([layer(x[:, i : i + 1], cache=cache) for i in range(T)], dim=1)
    torch.testing.assert_close(steps, whole, rtol=0, atol=2 * torch.finfo(torch.bfloat16).eps)


# Refusals

REFUSED: dict[str, tuple[Callable[[Tiny, Any], Any], type[Exception], str]] = {
    "weights from sdpa": (
        lambda layer, cache: layer(tokens(), cache=cache, need_weights=True),
        Unsupported,
        r"tiny: backend='sdpa' returns no weights, and need_weights asks.*build with backend='auto' or 'eager'",
    ),
    "a floating mask for sdpa": (
        lambda layer, cache: layer(tokens(), cache=cache, mask=torch.zeros(T, T)),
        Unsupported,
        r"tiny: backend='sdpa' does not add a floating mask in the wide type.*build with backend='auto' or 'eager'",
    ),
    "context with a causal layer": (
        lambda layer, cache: layer(tokens(), tokens(), cache=cache),
        Unsupported,
        r"tiny: context has no causal order with x \(C5\); build with causal=False for cross-attention",
    ),
    "another rank": (
        lambda layer, cache: layer(tokens()[0], cache=cache),
        InputError,
        r"x is \(5, 12\); it must be \(batch, tokens, d_model=12\)",
    ),
    "another width": (
        lambda layer, cache: layer(tokens(c=11), cache=cache),
        InputError,
        r"x is \(2, 5, 11\); it must be \(batch, tokens, d_model=12\)",
    ),
    "another device": (
        lambda layer, cache: layer(tokens().to("meta"), cache=cache),
        InputError,
        r"x is on meta, the layer on cpu; try x.to\('cpu'\)",
    ),
    "another type": (
        lambda layer, cache: layer(tokens().double(), cache=cache),
        InputError,
        r"x is torch.float64, the layer torch.float32; try x.to\(torch.float32\)",
    ),
    "another batch": (
        lambda layer, cache: layer(tokens(b=3), cache=cache),
        InputError,
        r"this cache is for a batch of 2, the input is a batch of 3",
    ),
    "too many tokens": (
        lambda layer, cache: layer(tokens(t=8), cache=cache),
        InputError,
        r"8 more tokens do not fit: the cache holds 0 of max_len \(7\)",
    ),
    "a mask of integers": (
        lambda layer, cache: layer(tokens(), cache=cache, mask=torch.ones(T, T, dtype=torch.int64)),
        InputError,
        r"mask is torch.int64",
    ),
    "a mask of another size": (
        lambda layer, cache: layer(tokens(), cache=cache, mask=torch.ones(T, 3) > 0),
        InputError,
        r"mask is \(5, 3\); with 2 axes it must be \(t, s\) = \(5, 5\)",
    ),
    "a mask for other heads": (
        lambda layer, cache: layer(tokens(), cache=cache, mask=torch.ones(B, 2, T, T) > 0),
        InputError,
        r"\(2, 2, 5, 5\), which does not broadcast to \(b, h, t, s\) = \(2, 3, 5, 5\)",
    ),
    "a key mask of another size": (
        lambda layer, cache: layer(tokens(), cache=cache, key_mask=torch.ones(B, 3) > 0),
        InputError,
        r"key_mask is \(2, 3\); it must be \(b, s\) = \(2, 5\), cached tokens counted",
    ),
    "floating positions": (
        lambda layer, cache: layer(tokens(), cache=cache, positions=torch.arange(T).float()),
        InputError,
        r"positions is torch.float32; it must hold integers, such as torch.arange\(t\)",
    ),
    "boolean positions": (
        lambda layer, cache: layer(tokens(), cache=cache, positions=torch.ones(T) > 0),
        InputError,
        r"positions is torch.bool; it must hold integers",
    ),
    "too few positions": (
        lambda layer, cache: layer(tokens(), cache=cache, positions=torch.arange(4)),
        InputError,
        r"positions is \(4,\); it must be \(t,\) = \(5,\) or \(b, t\) = \(2, 5\)",
    ),
    "positions elsewhere": (
        lambda layer, cache: layer(tokens(), cache=cache, positions=torch.arange(T, device="meta")),
        InputError,
        r"positions is on meta, x on cpu",
    ),
}


@pytest.mark.parametrize(("call", "error", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_call_says_what_would_work_and_leaves_the_cache_alone(
    call: Callable[[Tiny, Any], Any], error: type[Exception], words: str
) -> None:
    layer = tiny(backend="sdpa")
    cache = layer.new_cache(B, 7)
    with pytest.raises(error, match=words):
        call(layer, cache)
    assert cache.length == 0
    layer(tokens(), cache=cache, positions=torch.arange(T))  # and it still serves
    assert cache.length == T


def test_positions_are_refused_by_a_layer_without_them() -> None:
    with pytest.raises(
        Unsupported, match="tiny: positions has no effect here; leave it out, or use a variant that knows"
    ):
        Placeless()(tokens(), positions=torch.arange(T))


def test_context_is_refused_by_a_layer_that_cannot_read_it() -> None:
    words = "tiny: context cannot be combined with rotated positions; for cross-attention use a variant that takes"
    with pytest.raises(Unsupported, match=words):
        Alone(causal=False)(tokens(), tokens())


def test_context_with_a_cache_is_refused() -> None:
    words = "tiny: context with cache is not supported; pass the whole context each call"
    cache = tiny().new_cache(B, T)
    with pytest.raises(Unsupported, match=words):
        tiny(causal=False)(tokens(), tokens(), cache=cache)
    assert cache.length == 0


def test_a_layer_that_looks_ahead_takes_no_cache() -> None:
    words = "tiny: cache needs causal=True:.*build with causal=True, or pass the whole sequence"
    cache = tiny().new_cache(B, T)
    with pytest.raises(Unsupported, match=words):
        tiny(causal=False)(tokens(), cache=cache)
    assert cache.length == 0


def test_a_layer_that_looks_ahead_makes_no_cache() -> None:
    with pytest.raises(Unsupported, match="tiny: cache needs causal=True"):
        tiny(causal=False).new_cache(B, T)


def test_a_cache_of_another_kind_is_refused_by_its_name() -> None:
    with pytest.raises(InputError, match=r"cache is a dict; it must come from layer.new_cache\(batch, max_len\)"):
        tiny()(tokens(), cache={})  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (tokens(t=7, c=11), r"context is \(2, 7, 11\); it must be \(batch, tokens, d_model=12\)"),
        (tokens(t=7).double(), r"context is torch.float64, the layer torch.float32; try context.to\(torch.float32\)"),
        (tokens(t=7).to("meta"), r"context is on meta, the layer on cpu; try context.to\('cpu'\)"),
        (tokens(b=3, t=7), r"context is a batch of 3, x a batch of 2"),
        (tokens(t=10), r"context makes 10 tokens, more than max_seq_len \(9\).*build with max_seq_len=10 or more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_context_that_does_not_fit_is_refused(context: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tiny(causal=False, max_seq_len=9)(tokens(), context)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "blocks"])
def test_a_named_backend_reads_a_context_of_another_length(backend: str) -> None:
    x, context = tokens(), tokens(t=7)
    real, allowed = torch.ones(2, 7, dtype=torch.bool), torch.ones(5, 7, dtype=torch.bool).tril()
    real[0, 5:] = False
    asks: list[dict[str, Any]] = [{}, {"key_mask": real}, {"mask": allowed}]
    for asked in asks:
        due = tiny(causal=False)(x, context, **asked)
        torch.testing.assert_close(tiny(causal=False, backend=backend)(x, context, **asked), due)


def test_masks_are_held_to_the_length_of_the_context() -> None:
    layer, mask = tiny(causal=False), torch.ones(T, 7) > 0
    assert layer(tokens(), tokens(t=7), mask=mask, key_mask=torch.ones(B, 7) > 0).shape == (B, T, C)
    with pytest.raises(InputError, match=r"mask is \(5, 7\); with 2 axes it must be \(t, s\) = \(5, 5\)"):
        layer(tokens(), mask=mask)


def test_more_tokens_than_max_seq_len_are_refused_with_both_numbers_and_two_ways_out() -> None:
    layer = tiny(max_seq_len=5)
    assert layer(tokens()).shape == (B, 5, C)
    words = r"x makes 6 tokens, more than max_seq_len \(5\); shorten it, or build with max_seq_len=6 or more"
    with pytest.raises(InputError, match=words):
        layer(tokens(t=6))


def test_cached_tokens_count_towards_max_seq_len() -> None:
    layer = tiny(max_seq_len=5)
    cache = layer.new_cache(B, 9)
    layer(tokens(t=4), cache=cache)
    layer(tokens(t=1), cache=cache)
    with pytest.raises(InputError, match=r"x makes 6 tokens \(cached tokens counted\), more than max_seq_len \(5\)"):
        layer(tokens(t=1), cache=cache)
    assert cache.length == 5
