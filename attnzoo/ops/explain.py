"""Which kernel runs for a call, why the others do not, and what it costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from attnzoo import counting
from attnzoo.errors import Unsupported
from attnzoo.ops.attend import BACKENDS, KERNELS, Asked, check, check_backend, choose, terms_of, why_not
from attnzoo.ops.eager import run as eager
from attnzoo.ops.terms import Terms

# What a backend costs or lacks where it could do the work and is passed over.
PASSED_OVER = {
    "eager": "the definition: it writes the whole (t, s) matrix",
    "sdpa": "it would compute, and mask, what the blocks leave out",
    "banded": "nothing to leave out that pays for the blocks",
    "blocks": "a fused kernel can do this, in one pass",
    "flex": "compiles for seconds at the first call, so only where it is asked for by name",
}


@dataclass(frozen=True)
class Explanation:
    """What one call of `attend` does.

    backend: the one that runs    others: why each other one does not
    scale: what the logits are multiplied by    visible: keys that a query sees: least, mean, most
    flops: of the forward pass    kept: bytes kept for the backward pass, 0 where no gradient flows
    flops_grow, kept_grow: their factor when the tokens double, measured from half of them to all; None below 2 tokens
    """

    backend: str
    others: dict[str, str]
    scale: float
    visible: tuple[int, float, int]
    flops: int
    kept: int
    flops_grow: float | None
    kept_grow: float | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """What there is to say, and what is said, for a table."""
        least, mean, most = self.visible
        return [
            ("backend", self.backend),
            *((f"not {name}", reason) for name, reason in self.others.items()),
            ("scale", f"{self.scale:g}"),
            ("visible", f"{least} to {most} keys a query, {mean:.1f} in the mean"),
            ("FLOPs", f"{self.flops:,}{_times(self.flops_grow)}"),
            ("kept", f"{self.kept:,} bytes for the backward pass{_times(self.kept_grow)}"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{what:<11} {said}" for what, said in self.rows())


def explain(
    q: Tensor, k: Tensor, v: Tensor, *, need_weights: bool = False, backend: str = "auto", **asked: Unpack[Asked]
) -> Explanation:
    """Explain the call `attend(q, k, v, ...)` with the same arguments, by making it: once whole, once at half length.

    >>> q = torch.zeros(1, 2, 1024, 8)
    >>> explained = explain(q, q, q, causal=True, window=16)
    >>> explained.backend, explained.visible, round(explained.flops_grow, 1)
    ('banded', (1, 15.8828125, 16), 2.0)

    Raises what `attend` raises; `Unsupported` too for a named backend that cannot do what was asked.
    """
    check(q, k, v)
    terms = terms_of(q, k, **asked)
    chosen = choose(q, k, terms, need_weights) if check_backend(backend) == "auto" else backend
    reasons = {name: why_not(name, q, k, terms, need_weights) for name in BACKENDS if name != "auto"}
    if reasons[chosen] is not None:
        raise Unsupported(f"backend={chosen!r} {reasons[chosen]}; use backend='auto' or 'eager'")
    others = {name: reason or PASSED_OVER[name] for name, reason in reasons.items() if name != chosen}
    flops, kept = cost(q, k, v, terms, chosen)
    flops_grow = kept_grow = None
    t, s = q.shape[2], k.shape[2]
    if min(t, s) > 1:
        half = slice(0, t // 2), slice(0, s // 2)
        less = replace(terms.part(*half), document=None if terms.document is None else terms.document[:, half[1]])
        fewer = _apart(q, half[0]), _apart(k, half[1]), _apart(v, half[1])
        half_flops, half_kept = cost(*fewer, less, chosen)
        flops_grow = flops / half_flops if half_flops else None
        kept_grow = kept / half_kept if half_kept else None
    return Explanation(chosen, others, terms.scale, visible(terms, t, s, q), flops, kept, flops_grow, kept_grow)


def cost(q: Tensor, k: Tensor, v: Tensor, terms: Terms, backend: str) -> tuple[int, int]:
    """FLOPs of the call, and bytes kept where gradients flow."""
    kernel = eager if backend == "eager" else KERNELS[backend]
    flops = counting.flops(lambda: kernel(q, k, v, terms))
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in (q, k, v)):
        return flops, 0
    return flops, counting.kept(lambda: kernel(q, k, v, terms))


def visible(terms: Terms, t: int, s: int, like: Tensor, block: int = 256) -> tuple[int, float, int]:
    """How many keys a query sees: least, mean and most; counted block by block."""
    least, most, total, rows = s, 0, 0.0, 0
    for start in range(0, t, block):
        here = slice(start, min(start + block, t))
        seen = terms.part(here, slice(0, s)).visible(here.stop - here.start, s, like.device)
        keys = torch.full((1,), s) if seen is None else seen.expand(*seen.shape[:-1], s).sum(-1)
        least, most = min(least, int(keys.min())), max(most, int(keys.max()))
        total += float(keys.float().mean()) * (here.stop - here.start)
        rows += here.stop - here.start
    return least if rows else 0, total / max(1, rows), most


def _apart(x: Tensor, tokens: slice) -> Tensor:
    """Some of the tokens, in memory of their own."""
    return x[:, :, tokens].detach().clone().requires_grad_(x.requires_grad)


def _times(grow: float | None) -> str:
    return "" if grow is None else f", {grow:.2f} times when the tokens double"
