"""Attention in NumPy float64, forward and backward by hand, slow and plain: the truth that variants are held to.

Nothing here imports torch or `attnzoo.ops`, so that no mistake can be shared. Start with `self_attention.py`.
"""

from attnzoo.oracle.attention import attention, attention_backward, causal
from attnzoo.oracle.gradcheck import central_differences, relative_error, relative_to_largest
from attnzoo.oracle.layer import Layer, raw
from attnzoo.oracle.rope import Rope, rotate, rotate_backward
from attnzoo.oracle.self_attention import SelfAttention

__all__ = [
    "Layer",
    "Rope",
    "SelfAttention",
    "attention",
    "attention_backward",
    "causal",
    "central_differences",
    "raw",
    "relative_error",
    "relative_to_largest",
    "rotate",
    "rotate_backward",
]
