"""Specimens of other kinds: positions, windows, capped logits, biases, sinks and documents. They mix by inheritance."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo import oracle
from attnzoo.checks.engine import reference
from attnzoo.checks.exam.faults.specimen import Specimen, SpecimenCache
from attnzoo.errors import ConfigError, InputError, Unsupported

Layout = Literal["half", "interleaved"]


class RotarySpecimen(Specimen):
    """With rotary positions."""

    places = "rotary"

    def __init__(
        self,
        *args: Any,
        theta: float = 10000.0,
        layout: Layout = "half",
        rotary_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.rope = oracle.Rope(theta=theta, layout=layout, rotary_dim=rotary_dim)

    def place(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotate(q, positions), self.rotate(k, positions)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        width = self.rope.rotary_dim or x.shape[-1]
        return reference.rotate(x, positions, theta=self.rope.theta, layout=self.rope.layout, rotary_dim=width)


class AbsoluteSpecimen(Specimen):
    """With sinusoids added to its input."""

    places = "absolute"

    def place_tokens(self, x: Tensor, positions: Tensor) -> Tensor:
        channel = torch.arange(x.shape[-1], device=x.device, dtype=torch.float64)
        return x + torch.sin(positions[..., None] / 50.0 ** (channel / x.shape[-1]) + channel).to(x.dtype)


class RingCache(SpecimenCache):
    """The newest keys and values only, of a window and of as many tokens more as may be taken back."""

    def __init__(self, batch: int, max_len: int | None, window: int, rollback: int = 0) -> None:
        super().__init__(batch, max_len)
        self.window, self.room, self.seen = window, window + rollback, 0

    @property
    def length(self) -> int:
        return self.seen

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().append(k, v)
        self.seen += k.shape[2]
        self.keep(self.room)
        return keys, values

    def keep(self, newest: int) -> None:
        if self.keys is not None and self.values is not None:
            start = max(0, self.keys.shape[2] - newest)
            self.keys, self.values = self.keys[:, :, start:].clone(), self.values[:, :, start:].clone()

    def reset(self) -> None:
        super().reset()
        self.seen = 0

    def crop(self, n: int) -> None:
        if not 0 <= n <= self.seen:
            raise InputError(f"crop({n}) of {self.seen} tokens")
        held = 0 if self.keys is None else self.keys.shape[2]
        oldest = 0 if held == self.seen else self.seen - held + self.window - 1
        if n < oldest:
            raise InputError(f"crop({n}) is out of reach; the ring goes back to {oldest} at most")
        if self.keys is not None and self.values is not None:
            left = held - (self.seen - n)
            self.keys, self.values, self.seen = self.keys[:, :, :left], self.values[:, :, :left], n


class WindowSpecimen(Specimen):
    """Sees the nearest tokens only; without weights or a mask it goes block by block, in linear time and memory."""

    backends = ("auto", "eager", "banded")
    Ring: type[RingCache] = RingCache

    def __init__(self, *args: Any, window: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asked_window = window
        self.check_window(window)
        self.window = window

    def check_window(self, window: int) -> None:
        if window < 1:
            raise ConfigError(f"window ({window}) must be at least 1: it counts the query's own token")

    def new_cache(self, batch: int, max_len: int | None = None, *, rollback: int = 0) -> SpecimenCache:
        if not self.causal:
            raise Unsupported("cache needs causal=True")
        return self.Ring(batch, max_len, self.window, rollback)

    def refuse(self, context: Tensor | None, positions: Tensor | None, cache: SpecimenCache | None) -> None:
        if context is not None:
            raise Unsupported("context stands at no distance from x, so there is no window on it")
        super().refuse(context, positions, cache)

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether query i is within the window of key j, by index."""
        return (i - j).abs() < self.window

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        t, s = q.shape[2], k.shape[2]
        i, j = torch.arange(s - t, s, device=q.device)[:, None], torch.arange(s, device=q.device)
        return super().visible(q, k, mask, key_mask) & self.near(i, j)

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key_mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor]:
        if need_weights:
            return super().attended(q, k, v, mask, key_mask, need_weights)
        return self.attend(q, k, v, mask=mask, key_mask=key_mask), torch.empty(0)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Any:
        why_not = self.why_not_banded(q, k, mask, need_weights)
        if self.backend == "banded" and why_not:
            raise Unsupported(f"backend='banded' takes no {why_not}; use backend='auto' or 'eager'")
        if self.backend == "eager" or why_not:
            return super().attend(q, k, v, mask=mask, key_mask=key_mask, need_weights=need_weights)
        return self.banded(q, k, v, key_mask)

    def why_not_banded(self, q: Tensor, k: Tensor, mask: Tensor | None, need_weights: bool) -> str:
        other_sizes = q.shape[2] != k.shape[2] or q.numel() == 0
        return "mask" if mask is not None else "need_weights" if need_weights else "t != s" if other_sizes else ""

    def banded(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Queries in blocks as long as the window; each block sees itself and the blocks beside it."""
        b, _, t, _ = q.shape
        n = min(self.window, t)
        blocks = -(-t // n)
        real = torch.ones(b, t, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        real = F.pad(real, (n, blocks * n - t + n)).unfold(1, 3 * n, n)[:, None, :, None]  # (b, 1, blocks, 1, 3 n)
        i = torch.arange(n, device=q.device)[:, None]
        j = torch.arange(-n, 2 * n, device=q.device)
        rule = self.near(i, j) & (j <= i) if self.causal else self.near(i, j)
        q = F.pad(q, (0, 0, 0, blocks * n - t)).reshape(b, -1, blocks, n, q.shape[-1])
        k, v = (F.pad(x, (0, 0, n, blocks * n - t + n)).unfold(2, 3 * n, n).mT for x in (k, v))
        visible = real & rule
        with torch.autocast(q.device.type, enabled=False):
            seen = visible.any(-2, keepdim=True).mT
            k, v = (self.share(x.masked_fill(~seen, 0.0), q.shape[1]) for x in (k, v))
            weights = self.softmax(self.logits(q, k), visible).to(v.dtype)
            return self.mix(self.drop(weights), v).flatten(2, 3)[:, :, :t]


class RotaryWindowSpecimen(WindowSpecimen, RotarySpecimen):
    """A window, and rotary positions."""


class CappedSpecimen(Specimen):
    """The scaled logits are bent into a cap on either side."""

    def __init__(self, *args: Any, softcap: float = 50.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asked_softcap = softcap
        self.check_softcap(softcap)
        self.softcap = softcap

    def check_softcap(self, softcap: float) -> None:
        if not softcap > 0:
            raise ConfigError(f"softcap ({softcap}) must be above 0")

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return self.cap(super().logits(q, k))

    def cap(self, logits: Tensor) -> Tensor:
        return self.softcap * torch.tanh(logits / self.softcap)


class AlibiSpecimen(Specimen):
    """The logits fall with the distance of the tokens, by a slope for each head."""

    places = "index"

    def refuse(self, context: Tensor | None, positions: Tensor | None, cache: SpecimenCache | None) -> None:
        if positions is not None:
            raise Unsupported("positions are not taken: distances go by the index of the tokens")
        super().refuse(context, positions, cache)

    def slopes(self) -> Tensor:
        power = 2 ** (self.heads.bit_length() - 1)
        more = torch.arange(self.heads - power, dtype=torch.float64) + 0.5
        return torch.exp2(-8 / power * torch.cat([torch.arange(1, power + 1, dtype=torch.float64), more]))

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        t, s = q.shape[2], k.shape[2]
        return (torch.arange(s - t, s, device=q.device)[:, None] - torch.arange(s, device=q.device)).abs()

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) + self.bias(q, k)

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        slopes = self.slopes().to(device=q.device, dtype=self.wide(q.dtype))
        return -slopes[:, None, None] * self.distance(q, k)


class SunkSpecimen(Specimen):
    """A learned logit per head joins the softmax and gives nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sinks = nn.Parameter(torch.zeros(self.heads))

    def sink(self, logits: Tensor) -> Tensor:
        return self.sinks.to(logits.dtype)

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        column = self.sink(logits).reshape(-1, 1, 1).expand(*logits.shape[:-1], 1)
        return torch.cat([logits.masked_fill(~visible, float("-inf")), column], dim=-1).softmax(-1)[..., :-1]


class PackedSpecimen(Specimen):
    """Takes document ids: a token sees the tokens of its own document only."""

    document: Tensor | None = None

    def forward(self, x: Tensor, *args: Any, document: Tensor | None = None, **asked: Any) -> Any:
        self.check_document(document, x)
        self.document = document
        try:
            return super().forward(x, *args, **asked)
        finally:
            self.document = None

    def refuse(self, context: Tensor | None, positions: Tensor | None, cache: SpecimenCache | None) -> None:
        if context is not None:
            raise Unsupported("context belongs to no document of x")
        if cache is not None:
            raise Unsupported("cache: packed sequences are for training")
        super().refuse(context, positions, cache)

    def check_document(self, document: Tensor | None, x: Tensor) -> None:
        if document is None:
            return
        if document.dtype not in (torch.int32, torch.int64) or document.shape != x.shape[:2]:
            raise InputError(
                f"document is {document.dtype} {tuple(document.shape)}; it must be integers {tuple(x.shape[:2])}"
            )
        if document.device != x.device:
            raise InputError(f"document is on {document.device}, x on {x.device}")

    def together(self, ids: Tensor) -> Tensor:
        """(b, t, t), whether two tokens are of one document."""
        return ids[:, :, None] == ids[:, None, :]

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        visible = super().visible(q, k, mask, key_mask)
        return visible if self.document is None else visible & self.together(self.document)[:, None]


def as_oracle(layer: Specimen) -> oracle.Layer:
    """The specimen's definition in NumPy float64, by its raw weights and what it was asked to be."""
    return oracle.Layer(
        oracle.raw(layer),
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.asked_head_dim or layer.d_model // layer.heads,
        causal=layer.causal,
        scale=layer.asked_scale,
        rope=layer.rope if isinstance(layer, RotarySpecimen) else None,
        window=layer.asked_window if isinstance(layer, WindowSpecimen) else None,
        softcap=layer.asked_softcap if isinstance(layer, CappedSpecimen) else None,
        alibi=isinstance(layer, AlibiSpecimen),
    )
