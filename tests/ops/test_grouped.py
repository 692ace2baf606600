"""`GroupedLayer` and `RotaryLayer`: a fused projection in and one back, ready for a variant's own terms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnzoo import ops
from attnzoo.errors import ConfigError, Unsupported
from attnzoo.signature import options_of

B, T, C, H, G, D = 2, 7, 24, 6, 3, 10


def tokens() -> Tensor:
    return torch.randn(B, T, C, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [ops.GroupedLayer, ops.RotaryLayer])
def test_the_projections_are_those_of_two_linears_drawn_in_this_order(kind: type[ops.GroupedLayer]) -> None:
    torch.manual_seed(3)
    layer = kind(C, H, G, head_dim=D, bias=True)
    torch.manual_seed(3)
    qkv, out = nn.Linear(C, (H + 2 * G) * D), nn.Linear(H * D, C)
    due = {f"qkv.{name}": p for name, p in qkv.named_parameters()}
    due |= {f"out.{name}": p for name, p in out.named_parameters()}
    kept = layer.state_dict()
    assert list(kept) == list(due)
    assert all(torch.equal(kept[name], p) for name, p in due.items())
    assert kind(C, H).kv_heads == H
    assert list(kind(C, H).state_dict()) == ["qkv.weight", "out.weight"]


def test_queries_keys_and_values_are_the_rows_in_this_order() -> None:
    layer = ops.GroupedLayer(C, H, G, head_dim=D, causal=False)
    x, context = tokens(), tokens().flip(1)[:, :5]
    q, k, v = layer.project(x, context)
    rows_x, rows_context = layer.qkv(x), layer.qkv(context)
    torch.testing.assert_close(q[:, 2], rows_x[..., 2 * D : 3 * D])
    torch.testing.assert_close(k[:, 1], rows_context[..., (H + 1) * D : (H + 2) * D])
    torch.testing.assert_close(v[:, 2], rows_context[..., (H + G + 2) * D :])


def test_a_rotary_layer_turns_queries_and_keys_and_no_values() -> None:
    turning = dict(theta=50.0, layout="interleaved", rotary_dim=4)
    layer: Any = ops.RotaryLayer(C, H, G, head_dim=D, **turning)  # type: ignore[arg-type]
    plain = ops.GroupedLayer(C, H, G, head_dim=D)
    plain.load_state_dict(layer.state_dict())
    rotary, positions = ops.Rotary(D, **turning), torch.arange(T) * 3  # type: ignore[arg-type]
    for asked, at in (({}, dict(offset=0)), (dict(offset=4), dict(offset=4)), (dict(positions=positions),) * 2):
        q, k, v = layer.project(tokens(), **asked)
        due_q, due_k, due_v = plain.project(tokens())
        torch.testing.assert_close(q, rotary(due_q, **at))
        torch.testing.assert_close(k, rotary(due_k, **at))
        torch.testing.assert_close(v, due_v)
        assert not torch.allclose(q, due_q)


def test_a_rotary_layer_takes_positions_and_no_context() -> None:
    layer = ops.RotaryLayer(C, H, causal=False)
    assert layer(tokens(), positions=torch.arange(T)).shape == (B, T, C)
    with pytest.raises(Unsupported, match="context cannot be combined with rotated positions"):
        layer(tokens(), tokens())
    with pytest.raises(Unsupported, match="positions has no effect here"):
        ops.GroupedLayer(C, H)(tokens(), positions=torch.arange(T))


def test_the_options_reach_the_base() -> None:
    conduct = dict(causal=False, scale=0.5, dropout=0.1, max_seq_len=9, backend="eager")
    for kind in (ops.GroupedLayer, ops.RotaryLayer):
        layer: Any = kind(C, H, G, head_dim=D, **conduct)  # type: ignore[arg-type]
        assert {word: getattr(layer, word) for word in conduct} == conduct
    with pytest.raises(ConfigError, match=r"rotary_dim \(3\) must be even"):
        ops.RotaryLayer(C, H, rotary_dim=3)


@pytest.mark.parametrize(("kind", "words"), [(ops.GroupedLayer, ops.Options), (ops.RotaryLayer, ops.RotaryOptions)])
def test_a_layer_takes_its_sizes_and_the_words_of_its_options(kind: type[nn.Module], words: Any) -> None:
    """So that a variant that hands on `**options: Unpack[words]` offers all of them."""
    options = options_of(kind) or {}
    assert options.keys() - {"d_model", "heads", "kv_heads"} == words.__annotations__.keys()
    assert [word for word, option in options.items() if option.default is option.empty] == ["d_model"]
