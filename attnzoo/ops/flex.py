"""Attention by torch's FlexAttention, compiled: score changes and rules become one generated kernel."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnzoo.errors import Unsupported
from attnzoo.ops.masks import hide
from attnzoo.ops.rules import Rule
from attnzoo.ops.terms import Terms

KINDS = 256  # as many kernels may be compiled


def why_not(q: Tensor, k: Tensor, terms: Terms) -> str | None:
    """Why FlexAttention cannot do what was asked, or None where it can."""
    if terms.dropout > 0:
        return "has no dropout"
    if not q.is_cuda and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        return f"has no backward pass on {q.device.type}"
    if q.dtype == torch.float64:
        return "computes in float32, which is less than the float64 of the input"
    if isinstance(terms.mask, Tensor) or isinstance(terms.bias, Tensor):
        return "takes rules and functions of indices; a mask or bias of its own is a tensor"
    if terms.sinks is not None and not q.is_cuda:
        return f"does not return the sum of the softmax on {q.device.type}, which sinks need"
    if min(q.shape[2], k.shape[2]) == 0 or q.shape[0] == 0:
        return "takes no empty input"
    return no_compiler(q.device.type)


@cache
def no_compiler(device: str) -> str | None:
    """Why nothing can be compiled here, or None where it can."""
    try:
        from torch.nn.attention.flex_attention import flex_attention  # noqa: F401
    except ImportError:
        return "is not part of this torch"
    if device == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            return "needs a C++ compiler, and none was found; install g++ or clang"
    return None


@cache
def compiled() -> Any:
    """FlexAttention, compiled; as a whole, so that it cannot fall back to its unfused form without a word."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def call(*inputs: Tensor, **asked: Any) -> Any:
    """One kernel for each kind of call, sizes counted, up to KINDS of them; torch's own limit is 8.

    Raises `Unsupported` beyond.
    """
    config, errors = torch._dynamo.config, torch._dynamo.exc
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # until torch 2.6
    names = ("FailOnRecompileLimitHit", "RecompileLimitExceeded")  # the latter until torch 2.6
    beyond = tuple(getattr(errors, name) for name in names if hasattr(errors, name))
    try:
        with config.patch({limit: KINDS}):
            return compiled()(*inputs, **asked)
    except beyond as error:
        raise Unsupported(
            f"backend='flex' has compiled {KINDS} kernels, one for each kind of call; pad the tokens to few lengths, "
            "or use backend='auto'"
        ) from error


def run(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
    """q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)    returns: (b, h, t, e)"""
    from torch.nn.attention.flex_attention import create_block_mask

    t, s = q.shape[2], k.shape[2]
    if terms.key_mask is not None:
        k, v = hide(k, terms.key_mask[:, None, None]), hide(v, terms.key_mask[:, None, None])
    rule, block_mask = terms.every_rule(), None
    if rule is not None:
        block_mask = create_block_mask(mask_mod(rule, terms), rule.samples, None, t, s, device=q.device)
    asked = dict(score_mod=score_mod(terms), block_mask=block_mask, scale=terms.scale, enable_gqa=True)
    if terms.sinks is None:
        mixed: Tensor = call(q, k, v, **asked)
        return mixed
    # Softmax with a sink is softmax without, times the share that the sink leaves.
    mixed, lse = call(q, k, v, **asked, return_lse=True)
    return mixed * torch.sigmoid(lse - terms.sinks[:, None])[..., None].to(mixed.dtype)


def mask_mod(rule: Rule, terms: Terms) -> Any:
    """A rule in FlexAttention's words."""
    first_query, first_key = terms.first_query, terms.first_key

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return rule.sees(b, q + first_query, k + first_key)

    return sees


def score_mod(terms: Terms) -> Any:
    """Cap and bias in FlexAttention's words; None where there are none."""
    softcap, bias, first_query, first_key = terms.softcap, terms.bias, terms.first_query, terms.first_key
    if softcap is None and bias is None:
        return None

    def change(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is not None:
            assert not isinstance(bias, Tensor)
            score = score + bias(h, q + first_query, k + first_key, torch.float32)
        return score

    return change
