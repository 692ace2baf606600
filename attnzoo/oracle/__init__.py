"""Attention in NumPy float64, forward and backward by hand, slow and plain: the truth that variants are held to.

Nothing here imports torch or `attnzoo.ops`, so that no mistake can be shared. Start with `self_attention.py`.
"""

from attnzoo.oracle.alibi import alibi, alibi_slopes
from attnzoo.oracle.attention import attention, attention_backward, sinks_backward
from attnzoo.oracle.gradcheck import central_differences, relative_error, relative_to_largest
from attnzoo.oracle.layer import Layer, raw
from attnzoo.oracle.rope import Rope, rotate, rotate_backward
from attnzoo.oracle.self_attention import SelfAttention
from attnzoo.oracle.visible import causal, same_document, within

__all__ = [
    "Layer",
    "Rope",
    "SelfAttention",
    "alibi",
    "alibi_slopes",
    "attention",
    "attention_backward",
    "causal",
    "central_differences",
    "raw",
    "relative_error",
    "relative_to_largest",
    "rotate",
    "rotate_backward",
    "same_document",
    "sinks_backward",
    "within",
]
