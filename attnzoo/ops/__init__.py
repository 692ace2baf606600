"""Bricks for authors of variants: pure torch, no knowledge of the zoo. Axes as in `attnzoo.protocol`."""

from attnzoo.ops.attend import BACKENDS, attend
from attnzoo.ops.cache import KVCache
from attnzoo.ops.embedding import TokenEmbedding
from attnzoo.ops.heads import merge_heads, project_qkv, share_kv, split_heads
from attnzoo.ops.layer import AttentionLayer
from attnzoo.ops.masks import causal, hide, visibility
from attnzoo.ops.rope import Rotary, rotate

__all__ = [
    "BACKENDS",
    "AttentionLayer",
    "KVCache",
    "Rotary",
    "TokenEmbedding",
    "attend",
    "causal",
    "hide",
    "merge_heads",
    "project_qkv",
    "rotate",
    "share_kv",
    "split_heads",
    "visibility",
]
