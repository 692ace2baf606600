"""Bricks for authors of variants: pure torch, no knowledge of the zoo. Axes as in `attnzoo.protocol`."""

from attnzoo.ops.attend import BACKENDS, Asked, attend, check_softcap
from attnzoo.ops.biases import Alibi, alibi_slopes
from attnzoo.ops.cache import KVCache, WindowCache
from attnzoo.ops.embedding import TokenEmbedding
from attnzoo.ops.explain import Explanation, explain
from attnzoo.ops.grouped import GroupedLayer, RotaryLayer
from attnzoo.ops.heads import merge_heads, project_qkv, project_turned_qkv, share_kv, split_heads
from attnzoo.ops.layer import AttentionLayer
from attnzoo.ops.masks import hide
from attnzoo.ops.options import Conduct, Options, Projections, RotaryOptions, Rotation
from attnzoo.ops.rope import Rotary, rotate
from attnzoo.ops.rules import Rule, causal, check_window, chunk, document, key_mask, prefix, window

__all__ = [
    "BACKENDS",
    "Alibi",
    "Asked",
    "AttentionLayer",
    "Conduct",
    "Explanation",
    "GroupedLayer",
    "KVCache",
    "Options",
    "Projections",
    "Rotary",
    "RotaryLayer",
    "RotaryOptions",
    "Rotation",
    "Rule",
    "TokenEmbedding",
    "WindowCache",
    "alibi_slopes",
    "attend",
    "causal",
    "check_softcap",
    "check_window",
    "chunk",
    "document",
    "explain",
    "hide",
    "key_mask",
    "merge_heads",
    "prefix",
    "project_qkv",
    "project_turned_qkv",
    "rotate",
    "share_kv",
    "split_heads",
    "window",
]
