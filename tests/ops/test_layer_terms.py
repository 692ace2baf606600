"""The layer with terms of its own: windows on a ring, documents, named backends, and what each refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnzoo import ops
from attnzoo.errors import InputError, Unsupported

B, T, C, W = 2, 9, 12, 4


class Sliding(ops.AttentionLayer):
    """A window of four, and more terms where given."""

    variant = "sliding"
    takes_document = True

    def __init__(self, more: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(d_model=C, heads=4, kv_heads=2, **options)
        self.qkv = nn.Linear(C, (4 + 2 * 2) * self.head_dim)
        self.out = nn.Linear(4 * self.head_dim, C)
        self.more = more or {}

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        return ops.project_qkv(self.qkv, x, context, heads=4, kv_heads=2)

    def terms(self) -> dict[str, Any]:
        return {"window": W, **self.more}

    def new_cache(self, batch: int, max_len: int | None = None, *, rollback: int = 0) -> ops.WindowCache:
        return self.cache_of(ops.WindowCache, batch, max_len, window=W, rollback=rollback)


class Whole(Sliding):
    takes_cache = False


class Plain(Sliding):
    takes_document = False


def built(kind: type[Sliding] = Sliding, **options: Any) -> Sliding:
    torch.manual_seed(0)
    return kind(**options).double().eval()


def tokens(t: int = T) -> Tensor:
    return torch.randn(B, t, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


# The ring

MORE: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "softcap": lambda: {"softcap": 0.5},
    "sinks": lambda: {"sinks": torch.tensor([0.0, 1.0, -1.0, 2.0]).double()},
    "alibi": lambda: {"bias": ops.Alibi(4)},
}


@pytest.mark.parametrize("more", MORE.values(), ids=MORE.keys())
@pytest.mark.parametrize("chunks", [[1] * T, [3, 1, 1, 4], [6, 1, 1, 1], [9]], ids=str)
@pytest.mark.parametrize("gradients", [True, False])
def test_a_window_of_tokens_in_a_ring_is_enough(
    more: Callable[[], dict[str, Any]], chunks: list[int], gradients: bool
) -> None:
    """A lone token's keys may come as they lie, but not where a bias goes by their index."""
    layer, x = built(more=more()), tokens()
    cache = layer.new_cache(B)
    with torch.set_grad_enabled(gradients):
        steps = torch.cat([layer(part, cache=cache) for part in torch.split(x, chunks, dim=1)], dim=1)
        close(steps, layer(x))
    assert (cache.length, cache.held) == (T, W)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "kind", ["none", "key_mask", "mask", "mask per head", "mask per sample", "floating", "one for all keys", "both"]
)
@pytest.mark.parametrize("chunks", [[1] * T, [6, 2, 1]], ids=str)
def test_masks_and_weights_cover_all_tokens_seen_and_not_only_those_held(
    chunks: list[int], kind: str, need_weights: bool
) -> None:
    layer, x = built(), tokens()
    drawn = torch.rand(B, 4, T, T, generator=torch.Generator().manual_seed(2))
    padding, mask = {"key_mask": drawn[:, 0, 0] > 0.3}, {"mask": drawn[0, 0] > 0.3}
    given: dict[str, Tensor] = {
        "none": {},
        "key_mask": padding,
        "mask": mask,
        "mask per head": {"mask": drawn[:1] > 0.3},
        "mask per sample": {"mask": drawn[:, :1] > 0.3},
        "floating": {"mask": drawn[0, 0].double()},
        "one for all keys": {"mask": drawn[:, :, :, :1] > 0.3},
        "both": padding | mask,
    }[kind]
    whole, whole_weights = layer(x, need_weights=True, **given)  # type: ignore[call-overload]
    cache = layer.new_cache(B)
    with torch.no_grad():
        for part in torch.split(x, chunks, dim=1):
            start = cache.length
            end = start + part.shape[1]
            asked = {
                word: m[:, :end] if word == "key_mask" else m[..., start:end, : min(end, m.shape[-1])]
                for word, m in given.items()
            }
            answer = layer(part, cache=cache, need_weights=need_weights, **asked)  # type: ignore[call-overload]
            y = answer[0] if need_weights else answer
            close(y, whole[:, start:end])
            if need_weights:
                assert answer[1].shape == (B, 4, end - start, end)
                close(answer[1], whole_weights[:, :, start:end, :end])


def test_the_weights_of_tokens_let_go_are_exactly_zero() -> None:
    layer, x = built(), tokens()
    cache = layer.new_cache(B)
    layer(x[:, :8], cache=cache)
    _, weights = layer(x[:, 8:], cache=cache, need_weights=True)
    assert weights.shape == (B, 4, 1, T)
    assert not weights[..., : T - W].any()
    assert (weights[..., T - W :] > 0).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"key_mask": torch.ones(B, W) > 0}, r"key_mask is \(2, 4\); it must be \(b, s\) = \(2, 9\), cached tokens"),
        ({"mask": torch.ones(1, W) > 0}, r"mask is \(1, 4\); with 2 axes it must be \(t, s\) = \(1, 9\)"),
    ],
)
def test_a_mask_over_the_tokens_held_alone_is_refused(given: dict[str, Tensor], words: str) -> None:
    layer, x = built(), tokens()
    cache = layer.new_cache(B)
    layer(x[:, :8], cache=cache)
    with pytest.raises(InputError, match=words):
        layer(x[:, 8:], cache=cache, **given)  # type: ignore[call-overload]
    assert cache.length == 8


def test_rejected_tokens_are_taken_back() -> None:
    layer, x = built(), tokens()
    cache = layer.new_cache(B, rollback=2)
    layer(x[:, :7], cache=cache)
    layer(torch.ones(B, 2, C).double(), cache=cache)
    cache.crop(7)
    close(layer(x[:, 7:], cache=cache), layer(x)[:, 7:])


def test_dropout_in_training_goes_through_a_ring_too() -> None:
    layer = built(dropout=0.5).train()
    cache = layer.new_cache(B)
    for part in torch.split(tokens(), 1, dim=1):
        assert layer(part, cache=cache).isfinite().all()
    assert cache.length == T


@pytest.mark.parametrize("chunks", [[1] * T, [3, 1, 5]], ids=str)
def test_under_autocast_a_ring_decodes(chunks: list[int]) -> None:
    layer, x = built().float(), tokens().float()
    cache = layer.new_cache(B)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = layer(x)
        steps = torch.cat([layer(part, cache=cache) for part in torch.split(x, chunks, dim=1)], dim=1)
    torch.testing.assert_close(steps, whole, rtol=0, atol=4 * torch.finfo(torch.bfloat16).eps)


def test_a_new_cache_without_a_length_grows_with_the_tokens() -> None:
    class Dense(Sliding):
        new_cache = ops.AttentionLayer.new_cache  # type: ignore[assignment]

    layer, x = built(Dense), tokens(40)
    cache = layer.new_cache(B)
    steps = torch.cat([layer(part, cache=cache) for part in torch.split(x, [7, 1, 1, 20, 11], dim=1)], dim=1)
    close(steps, layer(x))
    assert (cache.max_len, cache.length, cache.held) == (None, 40, 40)


# Documents


IDS = torch.tensor([[0] * 4 + [1] * 5, [7] * 6 + [3] * 3])


@pytest.mark.parametrize("need_weights", [True, False])
def test_documents_are_kept_apart(need_weights: bool) -> None:
    layer, x = built(Whole), tokens()
    answer = layer(x, document=IDS, need_weights=need_weights)  # type: ignore[call-overload]
    y = answer[0] if need_weights else answer
    close(y[:1, 4:], layer(x[:1, 4:]))
    close(y[1:, 6:], layer(x[1:, 6:]))
    if need_weights:
        assert not answer[1][0, :, 4:, :4].any()


def test_a_layer_without_documents_says_where_they_go() -> None:
    words = r"sliding: document has no effect here; use the variant for packed sequences.*or a boolean mask that keeps"
    with pytest.raises(Unsupported, match=words):
        built(Plain)(tokens(), document=IDS)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (IDS.float(), r"document is torch.float32; it must hold integers"),
        (IDS[:, :5], r"document is \(2, 5\); it must be \(b, t\) = \(2, 9\), an id for each token"),
        (IDS.to("meta"), r"document is on meta, the layer's input is on cpu"),
    ],
    ids=["floating", "too few", "elsewhere"],
)
def test_documents_that_do_not_fit_are_refused(ids: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        built()(tokens(), document=ids)


def test_documents_count_the_cached_tokens_or_leave_the_cache_alone() -> None:
    layer = built()
    cache = layer.new_cache(B)
    layer(tokens(), cache=cache)
    with pytest.raises(InputError, match=r"document is \(2, 9\); it must be \(b, t\) = \(2, 18\)"):
        layer(tokens(), cache=cache, document=IDS)
    assert cache.length == T


def test_a_layer_that_cannot_decode_says_so_and_makes_no_cache() -> None:
    words = "sliding: cache is not supported; pass the whole sequence, without a cache"
    with pytest.raises(Unsupported, match=words):
        built(Whole).new_cache(B)
    cache = built().new_cache(B)
    with pytest.raises(Unsupported, match=words):
        built(Whole)(tokens(), cache=cache)
    assert cache.length == 0


def test_positions_are_refused_by_a_layer_that_goes_by_index() -> None:
    with pytest.raises(Unsupported, match="sliding: positions has no effect here; leave it out, or use a variant that"):
        built()(tokens(), positions=torch.arange(T))


# A named backend is used, or refused before a cache is touched

REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "weights from bands": ("banded", {}, {"need_weights": True}, "returns no weights, and need_weights asks for them"),
    "weights from blocks": ("blocks", {}, {"need_weights": True}, "returns no weights"),
    "weights from flex": ("flex", {}, {"need_weights": True}, "returns no weights"),
    "a cap for sdpa": ("sdpa", {"softcap": 1.0}, {}, "knows no softcap"),
    "a bias for sdpa": ("sdpa", {"bias": ops.Alibi(4)}, {}, "adds a bias only as a tensor"),
    "a cap for bands": ("banded", {"softcap": 1.0}, {}, "works by torch's kernel, which knows no softcap"),
    "a mask for bands": ("banded", {}, {"mask": torch.ones(T, T) > 0}, "follows rules; a mask of its own may be any"),
    "float64 for flex": ("flex", {}, {}, "has no backward pass on cpu"),
}


@pytest.mark.parametrize(("backend", "more", "asked", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_named_backend_that_cannot_is_refused_before_the_cache_is_touched(
    backend: str, more: dict[str, Any], asked: dict[str, Any], words: str
) -> None:
    layer = built(backend=backend, more=more)
    cache = layer.new_cache(B)
    with pytest.raises(
        Unsupported, match=rf"sliding: backend='{backend}' {words}.*; build with backend='auto' or 'eager'"
    ):
        layer(tokens(), cache=cache, **asked)
    assert (cache.length, cache.held) == (0, 0)


def test_without_gradients_flex_is_held_to_its_type_alone() -> None:
    with (
        torch.no_grad(),
        pytest.raises(Unsupported, match="backend='flex' computes in float32, which is less than the float64"),
    ):
        built(backend="flex")(tokens())


def test_a_frozen_layer_asks_flex_for_no_gradient() -> None:
    layer = built(backend="flex").requires_grad_(False)
    with pytest.raises(Unsupported, match="computes in float32"):
        layer(tokens())
    with pytest.raises(Unsupported, match="has no backward pass on cpu"):
        layer(tokens().requires_grad_())


@pytest.mark.parametrize("backend", ["eager", "sdpa", "banded", "blocks"])
def test_a_named_backend_that_can_gives_the_same(backend: str) -> None:
    layer, x = built(backend=backend), tokens()
    cache = layer.new_cache(B)
    steps = torch.cat([layer(part, cache=cache) for part in torch.split(x, [5, 1, 3], dim=1)], dim=1)
    close(steps, built()(x))


def test_a_layer_s_device_and_type_are_those_of_its_output_projection_or_of_any_parameter() -> None:
    class Bare(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Identity()

    layer = built(Bare)
    assert layer.new_cache(B).nbytes == 0
    assert layer(tokens()).shape == (B, T, C)
    with pytest.raises(InputError, match=r"x is torch.float32, the layer torch.float64"):
        layer(tokens().float())
