"""Scaled dot-product attention with all its terms: one call, and the kernel that serves it best."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor
from typing_extensions import TypedDict, Unpack

from attnzoo.errors import ConfigError, InputError, Unsupported, did_you_mean
from attnzoo.ops import banded, blocks, eager, flex, masks, rules, sdpa
from attnzoo.ops.biases import Alibi, Bias
from attnzoo.ops.heads import check_groups
from attnzoo.ops.rules import Rule
from attnzoo.ops.terms import Terms, both

BACKENDS = ("auto", "eager", "sdpa", "banded", "blocks", "flex")


class Asked(TypedDict, total=False):
    """What may be asked of attention besides q, k and v, with its types. The defaults stand in `terms_of`."""

    mask: Tensor | Rule | None
    key_mask: Tensor | None
    causal: bool
    window: int | None
    document: Tensor | None
    scale: float | None
    softcap: float | None
    bias: Tensor | Bias | None
    sinks: Tensor | None
    dropout: float
    q_offset: int | None


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    need_weights: Literal[False] = False,
    backend: str = "auto",
    **asked: Unpack[Asked],
) -> Tensor: ...
@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, need_weights: Literal[True], backend: str = "auto", **asked: Unpack[Asked]
) -> tuple[Tensor, Tensor]: ...
@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, need_weights: bool, backend: str = "auto", **asked: Unpack[Asked]
) -> Tensor | tuple[Tensor, Tensor]: ...
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, need_weights: bool = False, backend: str = "auto", **asked: Unpack[Asked]
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale * q kᵀ, capped, biased, masked) v for grouped heads, by every rule of C2 to C8 (arXiv:1706.03762).

    >>> import torch
    >>> q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 4, 4), torch.eye(4).reshape(1, 1, 4, 4)
    >>> attend(q, k, v, causal=True)
    tensor([[[[0.3333, 0.3333, 0.3333, 0.0000],
              [0.2500, 0.2500, 0.2500, 0.2500]]]])
    >>> attend(q, k, v, causal=True, window=2)
    tensor([[[[0.0000, 0.5000, 0.5000, 0.0000],
              [0.0000, 0.0000, 0.5000, 0.5000]]]])

    q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)    returns: (b, h, t, e)
    mask: (t, s), or 4 axes that broadcast to (b, h, t, s): boolean, True = may attend; or floating, added; or a rule,
        such as `ops.prefix(3) | ops.causal()`
    key_mask: (b, s), boolean, True = a real token
    causal: query i of t is token s - t + i and sees no later token
    window: sees only keys less than so many tokens away: with `causal` so many keys, its own included
    document: (b, s), integers: sees only keys of the same document
    scale: `d ** -0.5` where not given    softcap: c tanh(logit / c) after the scale (arXiv:2408.00118, section 2)
    bias: added after the cap: a tensor that broadcasts to (b, h, t, s), or a function of indices such as `ops.Alibi`
    sinks: (h,), one more logit per head, neither scaled nor capped, whose weight is dropped (arXiv:2508.10925)
    dropout: the share of weights dropped; the caller passes 0 in eval
    q_offset: the index of the first query among the s tokens, `s - t` where not given
    need_weights: returns also the weights before dropout, (b, h, t, s)
    backend: "eager" is the definition; "sdpa" torch's fused kernel; "banded" windows and documents as blocks over it;
        "blocks" any scores, block by block, recomputed in the backward pass; "flex" torch's FlexAttention, compiled;
        "auto" the fastest that does what was asked, without compiling. `ops.explain` tells which one and why

    Computed in the type of q, k and v, logits and softmax at least in float32 (C10); autocast changes none of it.

    Limit: torch's kernel adds -inf to a logit that a boolean mask blocks, so one that overflows the wide type (beyond
    3e38 in float32) is NaN there, unless no query at all sees its key. Eager has no such limit.

    Raises `InputError` for shapes, dtypes or devices that do not fit, `Unsupported` for a named backend that cannot
    do what was asked, `ConfigError` for an unknown backend, a dropout that is no share, a window without a key, a
    softcap that caps everything, or heads that do not share the key-value heads evenly.
    """
    for word in asked.keys() - Asked.__annotations__.keys():
        raise TypeError(f"attend() takes no {word!r}{did_you_mean(word, Asked.__annotations__)}")
    check(q, k, v)
    terms = terms_of(q, k, **asked)
    return serve(q, k, v, terms, need_weights, backend)


def serve(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms, need_weights: bool, backend: str
) -> Tensor | tuple[Tensor, Tensor]:
    """What `attend` does once all is checked."""
    if not q.is_meta and torch.is_autocast_enabled(q.device.type):
        # It would take the logits in half precision, by some kernels and not by others.
        with torch.autocast(q.device.type, enabled=False):
            return serve(q, k, v, terms, need_weights, backend)
    if backend == "auto":
        name = choose(q, k, terms, need_weights)
    else:
        name = check_backend(backend)
        reason = why_not(backend, q, k, terms, need_weights)
        if reason is not None:
            raise Unsupported(f"backend={backend!r} {reason}; use backend='auto' or 'eager'")
    if name == "eager":
        mixed, weights = eager.run(q, k, v, terms)
        return (mixed, weights) if need_weights else mixed
    return KERNELS[name](q, k, v, terms)


KERNELS = {"sdpa": sdpa.run, "banded": banded.run, "blocks": blocks.run, "flex": flex.run}


def choose(q: Tensor, k: Tensor, terms: Terms, need_weights: bool) -> str:
    """The backend that serves a call best."""
    if need_weights or q.is_meta:
        return "eager"
    if terms.changes_scores:
        return "eager" if q.shape[2] <= blocks.block_size(q, k, terms) else "blocks"
    return "banded" if banded.why_not(q, k, terms) is None and banded.pays(q, k, terms) else "sdpa"


def why_not(backend: str, q: Tensor, k: Tensor, terms: Terms, need_weights: bool) -> str | None:
    """Why this backend cannot do what was asked, or None where it can."""
    if backend == "eager":
        return None
    if need_weights:
        return "returns no weights, and need_weights asks for them"
    if backend == "sdpa":
        return sdpa.why_not(terms)
    if backend == "banded":
        return banded.why_not(q, k, terms)
    return flex.why_not(q, k, terms) if backend == "flex" else None


def terms_of(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | Rule | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    document: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | Bias | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    q_offset: int | None = None,
) -> Terms:
    """The terms of a call, checked; q, k and v are not. Arguments and errors as in `attend`."""
    (b, h, t, d), s = q.shape, k.shape[2]
    given = mask if isinstance(mask, Rule) else None
    if isinstance(mask, Tensor):
        masks.check_mask(mask, b=b, h=h, t=t, s=s, like=q)
    if key_mask is not None:
        masks.check_key_mask(key_mask, b=b, s=s, like=q)
    if document is not None:
        masks.check_document(document, b=b, s=s, like=q)
    if isinstance(bias, Alibi) and bias.heads != h:
        raise InputError(f"bias has the slopes of {bias.heads} heads, {bias}; q has {h} heads")
    if isinstance(bias, Tensor):
        masks.check_bias(bias, b=b, h=h, t=t, s=s, like=q)
    if given is not None and given.samples not in (None, b):
        raise InputError(f"mask is a rule for {given.samples} samples, {given}; the input is a batch of {b}")
    if sinks is not None and (tuple(sinks.shape) != (h,) or sinks.device != q.device):
        raise InputError(f"sinks are {tuple(sinks.shape)} on {sinks.device}; they must be (h,) = ({h},) on {q.device}")
    first_query = s - t if q_offset is None else q_offset
    if document is not None and t and not 0 <= first_query <= s - t:
        raise InputError(
            f"document tells the documents of tokens 0 to {s - 1}; the queries are tokens {first_query} to "
            f"{first_query + t - 1}, which have none"
        )
    check_dropout(dropout)
    if softcap is not None:
        check_softcap(softcap)
    rule = given
    if causal and first_query < s - 1:  # later than every key, nothing is later
        rule = both(given, rules.causal())
    if window is not None:
        rule = both(rule, rules.window(window))
    return Terms(
        scale=d**-0.5 if scale is None else scale,
        mask=mask if isinstance(mask, Tensor) else None,
        key_mask=key_mask,
        rule=rule,
        document=document,
        softcap=softcap,
        bias=bias,
        sinks=None if sinks is None else sinks.to(masks.wide_type(q.dtype)),  # its gradient sums over all queries
        dropout=dropout,
        first_query=first_query,
    )


def check_backend(backend: str) -> str:
    """Raises `ConfigError` for a backend that does not exist."""
    if backend not in BACKENDS:
        raise ConfigError(
            f"unknown backend {backend!r}; it takes {', '.join(BACKENDS)}{did_you_mean(backend, BACKENDS)}"
        )
    return backend


def check_dropout(dropout: float) -> None:
    """Raises `ConfigError` for a dropout that is no share of the weights, or all of them."""
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout ({dropout}) is a share of weights: it must be at least 0 and below 1")


def check_scale(scale: float) -> float:
    """The scale. Raises `ConfigError` for one that leaves no logit."""
    if not math.isfinite(scale):
        raise ConfigError(
            f"scale ({scale}) multiplies the logits: it must be finite, and None stands for 1/sqrt(head_dim)"
        )
    return scale


def check_softcap(softcap: float) -> float:
    """The softcap. Raises `ConfigError` for one that leaves no logit."""
    if not 0 < softcap < math.inf:
        raise ConfigError(
            f"softcap ({softcap}) bounds the logits: it must be above 0 and finite, and None stands for no cap"
        )
    return softcap


def check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises `InputError` or `ConfigError` for queries, keys and values that do not fit together."""
    if not q.dim() == k.dim() == v.dim() == 4:
        raise InputError(f"q, k, v need 4 axes, (b, h, t, d); got {q.dim()}, {k.dim()} and {v.dim()}")
    (b, h, _, d), (_, g, s, _) = q.shape, k.shape
    if k.shape != (b, g, s, d) or v.shape[:3] != (b, g, s):
        raise InputError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit (b, h, t, d), (b, g, s, d), "
            "(b, g, s, e)"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise InputError(f"q, k and v must share one dtype; got {q.dtype}, {k.dtype} and {v.dtype}")
    if not q.is_floating_point():
        raise InputError(f"q, k and v are {q.dtype}; weights are shares, so they need a floating type; try q.float()")
    if not q.device == k.device == v.device:
        raise InputError(f"q, k and v must share one device; got {q.device}, {k.device} and {v.device}")
    if h != g:
        check_groups(h, g)
