"""A call that fails anywhere has not happened, one that runs twice is refused, and a cache belongs to its layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attnzoo
from attnzoo import ops
from attnzoo.errors import InputError, Unsupported

B, C = 2, 24
CACHED: dict[str, dict[str, Any]] = {
    "mha": {},
    "gqa": dict(kv_heads=2),
    "rope": {},
    "alibi": {},
    "softcap": dict(softcap=5.0),
    "sinks": {},
    "sliding_window": dict(window=3),
}
LAYERS = pytest.mark.parametrize("name", CACHED)


def built(name: str, **more: Any) -> ops.AttentionLayer:
    torch.manual_seed(0)
    layer = attnzoo.build(name, d_model=C, heads=4, **{**CACHED[name], **more}).double().eval()
    assert isinstance(layer, ops.AttentionLayer)
    return layer


def tokens(t: int) -> Tensor:
    return torch.randn(B, t, C, dtype=torch.float64, generator=torch.Generator().manual_seed(t))


def failing(where: nn.Module, error: BaseException) -> Callable[[], None]:
    """Make a module fail when it is called; what is returned mends it."""

    def fail(*_: Any) -> None:
        raise error

    return where.register_forward_pre_hook(fail).remove


@LAYERS
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no room"), KeyboardInterrupt()], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("t", [1, 4])
@pytest.mark.parametrize("need_weights", [False, True])
def test_a_call_that_fails_behind_the_cache_leaves_no_token_in_it(
    name: str, error: BaseException, t: int, need_weights: bool
) -> None:
    layer, x = built(name), tokens(12)
    asked: dict[str, Any] = dict(need_weights=need_weights)
    with torch.no_grad():
        failed, whole = layer.new_cache(B, 20), layer.new_cache(B, 20)
        for cache in (failed, whole):
            layer(x[:, :7], cache=cache)
        size = failed.length, failed.nbytes
        mend = failing(layer.out, error)
        with pytest.raises(type(error)):
            layer(-x[:, 7 : 7 + t], cache=failed, **asked)
        mend()
        assert (failed.length, failed.nbytes) == size
        for start in range(7, 12):
            step = x[:, start : start + 1]
            assert torch.equal(layer(step, cache=failed), layer(step, cache=whole))


@pytest.mark.parametrize("name", ["mha", "sliding_window"])
def test_what_failed_is_forgotten_by_crop_reorder_and_reset_too(name: str) -> None:
    layer, x, index = built(name), tokens(9), torch.tensor([1, 0])
    rollback: dict[str, Any] = dict(rollback=2) if name == "sliding_window" else {}
    after: dict[str, Callable[[Any], None]] = {
        "crop": lambda cache: cache.crop(cache.length - 1),
        "reorder": lambda cache: cache.reorder(index),
        "reset": lambda cache: cache.reset(),
    }
    for word, change in after.items():
        caches = [layer.new_cache(B, 20, **rollback) for _ in range(2)]
        with torch.no_grad():
            for cache in caches:
                layer(x[:, :7], cache=cache)
            mend = failing(layer.out, ValueError("no"))
            with pytest.raises(ValueError, match="no"):
                layer(-x[:, 7:8], cache=caches[0])
            mend()
            for cache in caches:
                change(cache)
            assert torch.equal(layer(x[:, 8:], cache=caches[0]), layer(x[:, 8:], cache=caches[1])), word


def test_a_call_that_fails_puts_the_random_state_back() -> None:
    layer = built("mha", dropout=0.5).train()
    mend = failing(layer.out, ValueError("no"))
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="no"):
        layer(tokens(5))
    mend()
    assert torch.equal(torch.get_rng_state(), before)
    layer(tokens(5))
    assert not torch.equal(torch.get_rng_state(), before)


@LAYERS
def test_the_cache_of_another_layer_is_refused_by_name(name: str) -> None:
    layer, twin, x = built(name), built(name), tokens(3)
    cache = twin.new_cache(B, 8)
    with pytest.raises(InputError, match=r"not made by this layer.*\(kv_heads, head_dim\).*layer.new_cache"):
        layer(x, cache=cache)
    assert cache.length == 0
    twin(x, cache=cache)
    assert cache.length == 3


def test_a_cache_of_nobodys_is_refused_by_a_layer() -> None:
    free = ops.KVCache(B, 8, kv_heads=4, head_dim=6, dtype=torch.float64)
    with pytest.raises(InputError, match="not made by this layer"):
        built("mha")(tokens(3), cache=free)


def test_a_copy_of_a_cache_belongs_to_the_same_layer_and_one_copied_along_with_it_to_the_copy() -> None:
    layer, x = built("rope"), tokens(4)
    cache = layer.new_cache(B, 8)
    layer(x[:, :2], cache=cache)
    branch = copy.deepcopy(cache)
    twin, theirs = copy.deepcopy((layer, cache))
    assert torch.equal(layer(x[:, 2:], cache=branch), layer(x[:, 2:], cache=cache))
    twin(x[:, 2:], cache=theirs)
    assert theirs.length == 4
    with pytest.raises(InputError, match="not made by this layer"):
        layer(x, cache=theirs)


@LAYERS
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_cached_call_under_checkpointing_is_refused_and_never_doubled(name: str, reentrant: bool) -> None:
    layer, x = built(name), tokens(2).requires_grad_()
    cache = layer.new_cache(B, 8)
    y = checkpoint(lambda q: layer(q, cache=cache), x, use_reentrant=reentrant)
    with pytest.raises(Unsupported, match=rf"{name}: a call with a cache runs a second time.*without checkpointing"):
        torch.autograd.backward(y.sum())
    assert cache.length == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_call_without_a_cache_may_be_checkpointed(reentrant: bool) -> None:
    layer, x = built("rope"), tokens(5).requires_grad_()
    (right,) = torch.autograd.grad(layer(x).square().sum(), x)
    y = checkpoint(layer, x, use_reentrant=reentrant)
    torch.autograd.backward(y.square().sum())
    assert x.grad is not None
    assert torch.allclose(x.grad, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("word", ["mask", "key_mask", "document", "positions"])
@pytest.mark.parametrize(
    ("strange", "says"),
    [(lambda x: x.to_sparse(), "layout torch.sparse_coo"), (lambda x: x.tolist(), "is a list")],
    ids=["sparse", "list"],
)
def test_what_is_no_dense_tensor_is_refused_by_name(word: str, strange: Callable[[Tensor], Any], says: str) -> None:
    layer = built("rope") if word != "document" else attnzoo.build("packed", d_model=C, heads=4).double()
    given = {
        "mask": torch.ones(5, 5, dtype=torch.bool),
        "key_mask": torch.ones(B, 5, dtype=torch.bool),
        "document": torch.zeros(B, 5, dtype=torch.long),
        "positions": torch.arange(5),
    }
    with pytest.raises(InputError, match=rf"{word} .*{says}.*must be"):
        layer(tokens(5), **{word: strange(given[word])})


# Projections that are not plain


class Adapted(nn.Module):
    """Low-rank factors in float32 beside the projection that they adapt (arXiv:2106.09685)."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.base = base

    @property
    def whole(self) -> Tensor:
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + (x.float() @ self.a.T @ self.b.T).to(x.dtype)
        return y


class InBytes(nn.Module):
    """A projection whose weight is kept in bytes, one scale a row."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        wide = base.weight.detach().float()
        scale = wide.abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("weight", (wide / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.to(base.weight.dtype))

    @property
    def whole(self) -> Tensor:
        weight: Tensor = self.get_buffer("weight").to(self.get_buffer("scale").dtype) * self.get_buffer("scale")
        return weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.whole.T


@pytest.mark.parametrize("kind", [Adapted, InBytes])
@pytest.mark.parametrize("name", ["rope", "sliding_window"])
def test_a_projection_that_is_not_plain_runs_with_and_without_a_cache(
    kind: type[Adapted] | type[InBytes], name: str
) -> None:
    layer, plain, x = built(name).bfloat16(), built(name).bfloat16(), tokens(6).bfloat16()
    for part in ("qkv", "out"):
        other = kind(getattr(layer, part))
        setattr(layer, part, other)
        getattr(plain, part).weight.data = other.whole.detach()
    cache = layer.new_cache(B, 8)
    with torch.no_grad():
        whole, steps = layer(x), torch.cat([layer(x[:, i : i + 1], cache=cache) for i in range(6)], dim=1)
    assert whole.dtype == steps.dtype == torch.bfloat16
    assert torch.allclose(whole, plain(x), rtol=0, atol=2**-7)
    assert torch.allclose(steps, whole, rtol=0, atol=2**-7)
    with pytest.raises(InputError, match=r"x is torch.float32, the layer torch.bfloat16; try x.to\(torch.bfloat16\)"):
        layer(x.float())


class Packed(nn.Module):
    """A projection that shows no tensor at all, as those of quantised libraries do: the weight is packed away."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.packed = [base.weight.detach()]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.packed[0].T


def test_a_layer_whose_projections_show_no_weight_takes_torchs_default_type() -> None:
    layer, x = built("rope").float(), tokens(5).float()
    right = layer(x)
    for part in ("qkv", "out"):
        setattr(layer, part, Packed(getattr(layer, part)))
    assert torch.allclose(layer(x), right, rtol=0, atol=1e-6)
    with pytest.raises(InputError, match=r"x is torch.float64, the layer torch.float32"):
        layer(x.double())
