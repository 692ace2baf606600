"""Sound layers of other kinds are not accused: each with the claims that are true of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attnzoo
from attnzoo.checks.exam.faults.kinds import AbsoluteSpecimen, as_oracle
from attnzoo.checks.exam.faults.specimen import Specimen, SpecimenCache
from attnzoo.errors import ConfigError, InputError, Unsupported


def index(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The places of queries (t, 1) and keys (s,) in the sequence."""
    t, s = q.shape[2], k.shape[2]
    return torch.arange(s - t, s, device=q.device)[:, None], torch.arange(s, device=q.device)


class Kin(Specimen):
    """The sound specimen with few options: two query heads to a key-value head."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True) -> None:
        super().__init__(d_model, heads, heads // 2, causal=causal)


class Windowed(Kin):
    """A query sees the 4 tokens nearest to it; a context has no such order."""

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        i, j = index(q, k)
        return super().visible(q, k, mask, key_mask) & ((i - j).abs() < 4)

    def refuse(self, context: Tensor | None, *given: Any) -> None:
        if context is not None:
            raise Unsupported("context has no window")
        super().refuse(context, *given)


class Sunk(Kin):
    """A learned logit per head joins the softmax."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True) -> None:
        super().__init__(d_model, heads, causal=causal)
        self.sinks = nn.Parameter(torch.zeros(heads))

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        sinks = self.sinks.to(logits.dtype)[:, None, None].expand(*logits.shape[:3], 1)
        return torch.cat([logits.masked_fill(~visible, float("-inf")), sinks], dim=-1).softmax(-1)[..., :-1]


class Sigmoid(Kin):
    """Each weight by itself."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return logits.sigmoid().masked_fill(~visible, 0.0)


class Differential(Kin):
    """One softmax less a share of another: weights may be negative."""

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return super().softmax(logits, visible) - 0.4 * super().softmax(-logits, visible)


class Capped(Kin):
    """Logits bend towards 5."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return 5 * (super().logits(q, k) / 5).tanh()


class Linear(Kin):
    """Products of positive features, normalised: no softmax, and no mask for single pairs."""

    def check_mask(self, mask: Tensor | None, x: Tensor, s: int) -> None:
        if mask is not None:
            raise Unsupported("mask cannot be had from sums over keys; use key_mask")

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        wide = self.wide(q.dtype)
        return (F.elu(q.to(wide)) + 1) @ (F.elu(k.to(wide)) + 1).mT

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        weights = logits.masked_fill(~visible, 0.0)
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


class Alibi(Kin):
    """Logits fall with the distance of the given positions, or of the tokens."""

    places = "rotary"
    given: Tensor | None = None

    def forward(self, x: Tensor, context: Tensor | None = None, **asked: Any) -> Any:
        if asked.get("cache") is not None and asked.get("positions") is not None:
            raise Unsupported("positions with a cache")
        self.given = asked.get("positions")
        try:
            return super().forward(x, context, **asked)
        finally:
            self.given = None

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        i, j = index(q, k) if self.given is None else (self.given[..., :, None], self.given[..., None, :])
        far = (i - j).abs().expand(q.shape[0], -1, -1)[:, None]
        slopes = 0.5 ** torch.arange(1, q.shape[1] + 1, device=q.device)[:, None, None]
        logits = super().logits(q, k)
        return logits - (slopes * far).to(logits.dtype)


class Normed(Kin):
    """Queries and keys are normed, with learned gains."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True) -> None:
        super().__init__(d_model, heads, causal=causal)
        self.gains = nn.Parameter(torch.ones(self.head_dim))

    def place(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return F.rms_norm(q, (self.head_dim,)) * self.gains, F.rms_norm(k, (self.head_dim,)) * self.gains


class NarrowValues(Kin):
    """Values are not as wide as keys."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True) -> None:
        super().__init__(d_model, heads, causal=causal)
        self.v = nn.Linear(d_model, self.kv_heads * 5, bias=False)
        self.out = nn.Linear(heads * 5, d_model, bias=False)

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        source = self.source(x, context)
        v = self.v(source).unflatten(-1, (self.kv_heads, 5)).transpose(1, 2)
        return self.split(self.q(x)), self.split(self.k(source)), v


class Learned(AbsoluteSpecimen):
    """Learned positions are added to the tokens."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True) -> None:
        super().__init__(d_model, heads, heads // 2, causal=causal)
        self.table = nn.Parameter(torch.randn(3000, d_model))

    def place_tokens(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]


class Sliding(Kin):
    """A window that is an option, over a cache that holds everything."""

    def __init__(self, d_model: int, heads: int, *, window: int, causal: bool = True) -> None:
        super().__init__(d_model, heads, causal=causal)
        if window < 1:
            raise ConfigError(f"a window of {window} keys")
        self.window = window

    def visible(self, q: Tensor, k: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        i, j = index(q, k)
        return super().visible(q, k, mask, key_mask) & ((i - j).abs() < self.window)

    def refuse(self, context: Tensor | None, *given: Any) -> None:
        if context is not None:
            raise Unsupported("context has no window")
        super().refuse(context, *given)


class SlidingSunk(Sliding, Sunk):
    """A window and sinks, as in gpt-oss."""


class Ranked(Kin):
    """Logits fall with the logarithm of the distance, by index: an order that is not ALiBi's."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        i, j = index(q, k)
        logits = super().logits(q, k)
        return logits - (i - j).abs().to(logits.dtype).log1p()

    def refuse(self, context: Tensor | None, *given: Any) -> None:
        if context is not None:
            raise Unsupported("context stands at no distance")
        super().refuse(context, *given)


class Packed(Kin):
    """Documents are written into the mask, by a loop over their names."""

    def forward(self, x: Tensor, context: Tensor | None = None, *, document: Tensor | None = None, **asked: Any) -> Any:
        for word in ("cache", "positions"):
            if asked.get(word) is not None:
                raise Unsupported(f"{word} is not taken here")
        if context is not None:
            raise Unsupported("context is of no document")
        if document is None:
            return super().forward(x, **asked)
        if document.is_floating_point() or document.dtype == torch.bool or document.shape != x.shape[:2]:
            raise InputError(f"document of {document.dtype} {tuple(document.shape)}, not integers {tuple(x.shape[:2])}")
        together = torch.zeros(*document.shape, document.shape[1], dtype=torch.bool, device=x.device)
        for name in set(document.flatten().tolist()):
            own = document == name
            together |= own[:, :, None] & own[:, None, :]
        mask, together = asked.pop("mask", None), together[:, None]
        if mask is not None:
            floats = mask.is_floating_point()
            together = mask.expand_as(together).masked_fill(~together, float("-inf")) if floats else mask & together
        return super().forward(x, mask=together, **asked)


class Bare(Kin):
    """Causal attention, and nothing to ask for."""

    def __init__(self, d_model: int = 24) -> None:
        super().__init__(d_model, 4)

    def forward(self, x: Tensor, context: Tensor | None = None, **asked: Any) -> Any:
        asked["context"] = context
        for word, given in asked.items():
            if given is not None and given is not False:
                raise Unsupported(f"{word} is not taken here")
        return super().forward(x)


class ShortUnlessTold(Kin):
    """Takes 16 tokens where no other length is asked for."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True, max_seq_len: int = 16) -> None:
        super().__init__(d_model, heads, causal=causal)
        self.max_seq_len = max_seq_len


class BothWaysUnlessTold(Kin):
    """Not causal where nothing is said."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = False) -> None:
        super().__init__(d_model, heads, causal=causal)


class DropsUnlessTold(Kin):
    """Drops a tenth of the weights in training where nothing is said."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = True, dropout: float = 0.1) -> None:
        super().__init__(d_model, heads, causal=causal)
        self.check_options(dropout, "auto")
        self.dropout = dropout


class OfFewHeads(Kin):
    """Takes no more than 8 heads, of a width that it chooses."""

    def __init__(self, d_model: int, heads: int, *, head_dim: int | None = None, causal: bool = True) -> None:
        if heads > 8:
            raise ConfigError(f"heads ({heads}) must be 8 at most")
        Specimen.__init__(self, d_model, heads, heads, head_dim=head_dim, causal=causal)


class Latents(SpecimenCache):
    """What keys and values are made from, (b, s, r), instead of them."""

    latents: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.latents is None else self.latents.shape[1]

    @property
    def nbytes(self) -> int:
        return 0 if self.latents is None else self.latents.numel() * self.latents.element_size()

    def hold(self, new: Tensor) -> Tensor:
        latents = new if self.latents is None else torch.cat([self.latents, new], dim=1)
        self.latents = latents.detach()
        return latents

    def reset(self) -> None:
        self.latents = None

    def crop(self, n: int) -> None:
        if not 0 <= n <= self.length:
            raise InputError(f"crop({n}) of {self.length} tokens")
        self.latents = None if self.latents is None else self.latents[:, :n]

    def reorder(self, index: Tensor) -> None:
        self.latents = None if self.latents is None else self.latents[index]


class Latent(Kin):
    """Keys and values are made from a narrow latent, which is all that the cache holds."""

    Cache = Latents
    new: Tensor

    def __init__(self, d_model: int, heads: int, *, causal: bool = True) -> None:
        super().__init__(d_model, heads, causal=causal)
        self.down = nn.Linear(d_model, 5, bias=False)
        self.k, self.v = (nn.Linear(5, self.kv_heads * self.head_dim, bias=False) for _ in "kv")

    def source(self, x: Tensor, context: Tensor | None) -> Tensor:
        latent: Tensor = self.down(super().source(x, context))
        return latent

    def forward(self, x: Tensor, context: Tensor | None = None, **asked: Any) -> Any:
        self.new = x
        try:
            return super().forward(x, context, **asked)
        finally:
            del self.new

    def remember(self, cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        latents = cache.hold(self.down(self.new))
        return self.split(self.k(latents)), self.split(self.v(latents))


class Retention(Linear):
    """Products that fade with the distance, without a softmax; what is mixed is normed, head by head."""

    def refuse(self, context: Tensor | None, *given: Any) -> None:
        if context is not None:
            raise Unsupported("context has no distance")
        super().refuse(context, *given)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        i, j = index(q, k)
        return Kin.logits(self, q, k) * 0.9 ** (i - j).abs()

    def softmax(self, logits: Tensor, visible: Tensor) -> Tensor:
        return logits.masked_fill(~visible, 0.0)

    def join(self, mixed: Tensor) -> Tensor:
        return super().join(F.rms_norm(mixed, mixed.shape[-1:], eps=1e-3))


def encoder(d_model: int, heads: int) -> Kin:
    return Kin(d_model, heads, causal=False)


def anything(**options: Any) -> Kin:
    assert options.keys() <= {"d_model", "heads", "causal"}
    return Kin(**options)


KIN: dict[str, tuple[Callable[..., nn.Module], attnzoo.Traits]] = {
    "windowed": (Windowed, attnzoo.Traits(cache="kv", sees="some")),
    "sunk": (Sunk, attnzoo.Traits(cache="kv", cross=True, rows="at_most_one", plain=False)),
    "sigmoid": (Sigmoid, attnzoo.Traits(cache="kv", cross=True, rows="free", plain=False)),
    "differential": (Differential, attnzoo.Traits(cache="kv", cross=True, rows="free", plain=False)),
    "capped": (Capped, attnzoo.Traits(cache="kv", cross=True, plain=False)),
    "linear": (Linear, attnzoo.Traits(cache="kv", cross=True, mask=False, rows="at_most_one", plain=False)),
    "alibi": (Alibi, attnzoo.Traits(cache="kv", positions="relative", plain=False)),
    "normed": (Normed, attnzoo.Traits(cache="kv", cross=True)),
    "narrow_values": (NarrowValues, attnzoo.Traits(cache="kv", cross=True)),
    "learned": (Learned, attnzoo.Traits(cache="kv", positions="absolute")),
    "encoder": (encoder, attnzoo.Traits(causal="never", cross=True)),
    "anything": (anything, attnzoo.Traits(cache="kv", cross=True)),
    "sliding": (Sliding, attnzoo.Traits(cache="kv", sees="some")),
    "sliding_sunk": (SlidingSunk, attnzoo.Traits(cache="kv", sees="some", rows="at_most_one", plain=False)),
    "ranked": (Ranked, attnzoo.Traits(cache="kv", positions="index", plain=False)),
    "packed": (Packed, attnzoo.Traits(document=True)),
    "short_unless_told": (ShortUnlessTold, attnzoo.Traits(cache="kv", cross=True)),
    "both_ways_unless_told": (BothWaysUnlessTold, attnzoo.Traits(cache="kv", cross=True)),
    "drops_unless_told": (DropsUnlessTold, attnzoo.Traits(cache="kv", cross=True)),
    "of_few_heads": (OfFewHeads, attnzoo.Traits(cache="kv", cross=True)),
    "latent": (Latent, attnzoo.Traits(cache="kv", cross=True)),
    "retention": (Retention, attnzoo.Traits(cache="kv", positions="index", mask=False, rows="free", plain=False)),
    "bare": (Bare, attnzoo.Traits(causal="always", mask=False, key_mask=False, weights=False)),
}


@pytest.mark.parametrize("name", KIN)
def test_a_sound_layer_with_other_claims_is_not_accused(name: str) -> None:
    build, traits = KIN[name]
    window = {"window": 3} if name.startswith("sliding") else {}
    cases: list[dict[str, Any]] = [{}] if name == "bare" else [dict(d_model=24, heads=4, **window)]
    cases += [dict(d_model=24, heads=4, dropout=0.3)] if name == "drops_unless_told" else []
    oracle = as_oracle if name == "of_few_heads" else None
    variant = attnzoo.Variant(name=name, build=build, summary="Sound.", traits=traits, cases=cases, oracle=oracle)
    report = attnzoo.check(variant)
    assert report.passed, str(report)
