"""Sound layers by other hands are not accused: of torch, of transformers, hand-written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention

import attnzoo
from attnzoo.errors import ConfigError, InputError, Unsupported


class Memory:
    """A growing cache in a few lines; `update` is what transformers asks of one."""

    def __init__(self, batch: int, max_len: int) -> None:
        self.batch, self.max_len = batch, max_len
        self.held: tuple[Tensor, ...] = ()

    @property
    def length(self) -> int:
        return self.held[0].shape[2] if self.held else 0

    @property
    def nbytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.held)

    def update(self, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self.held:
            k, v = torch.cat([self.held[0], k], dim=2), torch.cat([self.held[1], v], dim=2)
        self.held = k.detach(), v.detach()
        return k, v

    def reset(self) -> None:
        self.held = ()

    def crop(self, n: int) -> None:
        if n > self.length:
            raise InputError(f"crop({n}) of {self.length} tokens")
        self.held = tuple(part[:, :, :n] for part in self.held)

    def reorder(self, index: Tensor) -> None:
        self.held = tuple(part[index] for part in self.held)


class Adapter(nn.Module):
    """What an adapter owes the conventions: it refuses what does not fit, and makes one rule of all masks."""

    refused: tuple[str, ...] = ()

    def __init__(self, d_model: int, heads: int, *, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout ({dropout}) must be at least 0 and below 1")
        self.d_model, self.heads, self.causal = d_model, heads, causal

    def new_cache(self, batch: int, max_len: int) -> Memory:
        if not self.causal:
            raise Unsupported("a cache needs causal=True")
        return Memory(batch, max_len)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Memory | None = None,
        need_weights: bool = False,
    ) -> Any:
        given = {"context": context, "positions": positions, "cache": cache, "need_weights": need_weights or None}
        for word in self.refused:
            if given[word] is not None:
                raise Unsupported(f"{word} is not taken here")
        if context is not None and self.causal:
            raise Unsupported("context has no causal order with x")
        if cache is not None and not self.causal:
            raise Unsupported("a cache needs causal=True")
        source, held = x if context is None else context, cache.length if cache else 0
        self.check(x, source, cache, mask, key_mask, positions)
        t, s = x.shape[1], held + source.shape[1]
        if x.numel() == 0:
            return (x.clone(), x.new_zeros(x.shape[0], self.heads, t, s)) if need_weights else x.clone()
        visible = torch.ones(x.shape[0], 1, t, s, dtype=torch.bool, device=x.device)
        if self.causal:
            visible = visible.tril(s - t)
        if key_mask is not None:
            visible = visible & key_mask[:, None, None]
        bias = None
        if mask is not None:
            visible = visible & (mask if mask.dtype == torch.bool else mask > float("-inf"))
            bias = mask if mask.is_floating_point() else None
        if positions is None:
            positions = torch.arange(held, s, device=x.device)
        return self.answer(x, source, visible, bias, positions, cache, need_weights)

    def answer(
        self,
        x: Tensor,
        source: Tensor,
        visible: Tensor,
        bias: Tensor | None,
        positions: Tensor,
        cache: Memory | None,
        need_weights: bool,
    ) -> Any:
        raise NotImplementedError

    def check(
        self,
        x: Tensor,
        source: Tensor,
        cache: Memory | None,
        mask: Tensor | None,
        key_mask: Tensor | None,
        positions: Tensor | None,
    ) -> None:
        like = next(self.parameters())
        for tokens in (x, source):
            if tokens.dim() != 3 or tokens.shape[2] != self.d_model or tokens.shape[0] != x.shape[0]:
                raise InputError(f"tokens of {tuple(tokens.shape)}, not ({x.shape[0]}, any, {self.d_model})")
            if tokens.device != like.device:
                raise InputError(f"tokens on {tokens.device}, the layer on {like.device}")
            if tokens.dtype != like.dtype and not torch.is_autocast_enabled(tokens.device.type):
                raise InputError(f"tokens in {tokens.dtype}, the layer in {like.dtype}")
        b, t, s = x.shape[0], x.shape[1], source.shape[1]
        if cache is not None:
            s += cache.length
            if b != cache.batch:
                raise InputError(f"a batch of {b} for a cache of {cache.batch}")
            if s > cache.max_len:
                raise InputError(f"{t} tokens more for a cache that holds {cache.length} of {cache.max_len}")
        if mask is not None:
            self.check_mask(mask, x, (b, self.heads, t, s))
        if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != (b, s)):
            raise InputError(f"key_mask of {key_mask.dtype} {tuple(key_mask.shape)}, not bool {(b, s)}")
        if positions is not None and (positions.is_floating_point() or positions.shape not in ((t,), (b, t))):
            raise InputError(f"positions of {positions.dtype} {tuple(positions.shape)}, not integers ({t},)")

    def check_mask(self, mask: Tensor, x: Tensor, full: tuple[int, int, int, int]) -> None:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise InputError(f"mask of {mask.dtype}, neither bool nor floating")
        if mask.device != x.device:
            raise InputError(f"mask on {mask.device}, x on {x.device}")
        if mask.dim() == 3:
            raise InputError("mask of 3 axes: write mask[:, None] for samples, mask[None] for heads")
        broadcasts = mask.dim() == 4 and all(n in (1, due) for n, due in zip(mask.shape, full, strict=True))
        if mask.shape != full[2:] and not broadcasts:
            raise InputError(f"mask of {tuple(mask.shape)}, neither {full[2:]} nor like {full}")


class TorchMultihead(Adapter):
    """torch's own layer: a mask for every sample and head, True where blocked."""

    refused = ("positions", "cache")

    def __init__(self, d_model: int, heads: int, *, bias: bool = False, causal: bool = True) -> None:
        super().__init__(d_model, heads, causal=causal)
        self.layer = nn.MultiheadAttention(d_model, heads, bias=bias, batch_first=True)

    def answer(
        self,
        x: Tensor,
        source: Tensor,
        visible: Tensor,
        bias: Tensor | None,
        positions: Tensor,
        cache: Memory | None,
        need_weights: bool,
    ) -> Any:
        y = self.layer(x, source, source, attn_mask=self.blocked(x, ~visible, bias), need_weights=False)[0]
        if not need_weights:
            return y
        blind = ~visible.any(-1, keepdim=True)  # NaN where weights are asked for
        given = self.blocked(x, ~visible & ~blind, bias)
        weights = self.layer(x, source, source, attn_mask=given, average_attn_weights=False)[1]
        return y, weights.masked_fill(blind, 0.0)

    def blocked(self, x: Tensor, blocked: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None:
            finite = bias.to(x.dtype).masked_fill(bias == float("-inf"), 0.0)
            blocked = finite.masked_fill(blocked, float("-inf"))
        return blocked.expand(x.shape[0], self.heads, -1, -1).flatten(0, 1)


class HandWritten(Adapter):
    """Grouped heads around torch's SDPA, as many write them."""

    refused = ("positions",)

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int,
        *,
        head_dim: int | None = None,
        causal: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, heads, causal=causal, dropout=dropout)
        if heads % kv_heads:
            raise ConfigError(f"heads={heads} cannot share kv_heads={kv_heads}")
        if head_dim is None and d_model % heads:
            raise ConfigError(f"heads={heads} do not divide d_model={d_model}; give head_dim")
        self.head_dim, self.scale, self.dropout = head_dim or d_model // heads, scale, dropout
        self.wq = nn.Linear(d_model, heads * self.head_dim, bias=False)
        self.wkv = nn.Linear(d_model, 2 * kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(heads * self.head_dim, d_model, bias=False)

    def answer(
        self,
        x: Tensor,
        source: Tensor,
        visible: Tensor,
        bias: Tensor | None,
        positions: Tensor,
        cache: Memory | None,
        need_weights: bool,
    ) -> Any:
        q, (k, v) = self.split(self.wq(x)), map(self.split, self.wkv(source).chunk(2, dim=-1))
        if cache is not None:
            k, v = cache.update(k, v)
        allowed, wide = visible, q.dtype
        if bias is not None:
            wide = torch.promote_types(q.dtype, bias.dtype)
            allowed = bias.to(wide).masked_fill(~visible, float("-inf"))

        def mix(values: Tensor, dropout: float = 0.0) -> Tensor:
            wide_q, wide_k, wide_v = (part.to(wide) for part in (q, k, values))
            mixed = F.scaled_dot_product_attention(
                wide_q, wide_k, wide_v, attn_mask=allowed, dropout_p=dropout, scale=self.scale, enable_gqa=True
            )
            return mixed.to(q.dtype)

        y = self.wo(mix(v, self.dropout if self.training else 0.0).transpose(1, 2).flatten(2))
        identity = torch.eye(k.shape[2], dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1)
        return (y, mix(identity)) if need_weights else y

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class Llama(Adapter):
    """transformers' layer. Its angles come from outside, so that they can be made in float64 (C9)."""

    refused = ("context", "need_weights")

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int,
        *,
        theta: float = 10000.0,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, heads, dropout=dropout)
        if heads % kv_heads:
            raise ConfigError(f"heads={heads} cannot share kv_heads={kv_heads}")
        self.head_dim, self.theta = d_model // heads, theta
        config = LlamaConfig(
            hidden_size=d_model,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            attention_bias=bias,
            attention_dropout=dropout,
        )
        config._attn_implementation = "sdpa"
        self.layer = LlamaAttention(config, layer_idx=0)

    def answer(
        self,
        x: Tensor,
        source: Tensor,
        visible: Tensor,
        bias: Tensor | None,
        positions: Tensor,
        cache: Memory | None,
        need_weights: bool,
    ) -> Any:
        powers = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=x.device) / self.head_dim
        angles = (positions[..., None] / self.theta**powers).repeat(*[1] * positions.dim(), 2).expand(len(x), -1, -1)
        allowed = visible if bias is None else bias.to(x.dtype).masked_fill(~visible, float("-inf"))
        return self.layer(x, (angles.cos().to(x.dtype), angles.sin().to(x.dtype)), allowed, cache)[0]


MASK_IN_HALF = "the output under a mask moved by 256, torch.bfloat16: off by"

STRANGERS = [
    attnzoo.Variant(
        name="torch_multihead",
        build=TorchMultihead,
        summary="torch's nn.MultiheadAttention.",
        traits=attnzoo.Traits(cross=True),
        cases=[dict(d_model=24, heads=4), dict(d_model=24, heads=3, bias=True)],
        # It takes floating masks in its own type only, and applies its output projection past the hooks on it. Where no
        # gradient is asked for it takes another path, which has NaN for a query that sees nothing.
        known={
            "mask.wide": MASK_IN_HALF,
            "mask.blind_rows": "the output without gradients, with nothing to see by",
            "mode.hooks": "a forward hook on layer.out_proj runs",
        },
    ),
    attnzoo.Variant(
        name="hand_written",
        build=HandWritten,
        summary="Around torch's SDPA.",
        traits=attnzoo.Traits(cross=True, cache="kv"),
        cases=[dict(d_model=24, heads=6, kv_heads=3, head_dim=10)],
    ),
    attnzoo.Variant(
        name="llama",
        build=Llama,
        summary="transformers' LlamaAttention.",
        traits=attnzoo.Traits(causal="always", cache="kv", positions="relative", weights=False),
        cases=[dict(d_model=24, heads=6, kv_heads=3), dict(d_model=32, heads=4, kv_heads=2, bias=True, theta=500.0)],
        known={"mask.wide": MASK_IN_HALF},
    ),
]


@pytest.mark.parametrize("variant", STRANGERS, ids=lambda variant: variant.name)
def test_a_sound_layer_by_another_hand_is_not_accused(variant: attnzoo.Variant) -> None:
    report = attnzoo.check(variant)
    assert report.passed, str(report)
    assert {result.law for result in report.results if result.outcome == "known"} == set(variant.known)
    assert report.counts["passed"] > 45


def test_a_stranger_whose_mask_is_upside_down_is_accused() -> None:
    class Inverted(TorchMultihead):
        def blocked(self, x: Tensor, blocked: Tensor, bias: Tensor | None) -> Tensor:
            return super().blocked(x, ~blocked, bias)

    report = attnzoo.check(replace(STRANGERS[0], build=Inverted), only=["mask.blocks", "causality.no_future"])
    assert [result.outcome for result in report.results] == ["passed", "failed", "failed"]


def test_the_known_failure_that_the_tutorial_shows_is_that_of_torchs_own_layer() -> None:
    page = (Path(__file__).parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")
    law, words = re.findall(r'`known=\{"([\w.]+)": "([^"]+)"\}`', page)[0]
    assert STRANGERS[0].known[law] == words
