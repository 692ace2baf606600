"""Rules for who may see whom, told by token index. Rules combine with `&`, `|` and `~`.

A rule is one small function of the sample, the query's index and the key's index. Because it sees indices, the same
rule serves a whole sequence, the newest tokens on a cache, one block of a band, a compiled kernel, and a picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from numbers import Integral

import torch
from torch import Tensor

from attnzoo.errors import ConfigError, InputError
from attnzoo.ops.numbers import holds_integers

# (sample, query, key), integers that broadcast -> True where the query may see the key
Sees = Callable[[Tensor, Tensor, Tensor], Tensor]

FAR = 2**62  # no bound


@dataclass(frozen=True)
class Rule:
    """Who may see whom.

    >>> print((causal() & window(2)).mask(3, 4).int())
    tensor([[1, 1, 0, 0],
            [0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)

    name: as it is told    sees: (sample, query, key) -> bool
    behind, ahead: how many tokens a query can look back and forward at most
    exact: it sees all of them    samples: how many there are, where the answer depends on the sample
    """

    name: str
    sees: Sees
    behind: int = FAR
    ahead: int = FAR
    exact: bool = False
    samples: int | None = None

    def __and__(self, other: Rule) -> Rule:
        return Rule(
            f"{self.name} & {other.name}",
            lambda b, q, k: self.sees(b, q, k) & other.sees(b, q, k),
            behind=min(self.behind, other.behind),
            ahead=min(self.ahead, other.ahead),
            exact=self.exact and other.exact,
            samples=_samples(self, other),
        )

    def __or__(self, other: Rule) -> Rule:
        return Rule(
            f"({self.name} | {other.name})",
            lambda b, q, k: self.sees(b, q, k) | other.sees(b, q, k),
            behind=max(self.behind, other.behind),
            ahead=max(self.ahead, other.ahead),
            samples=_samples(self, other),
        )

    def __invert__(self) -> Rule:
        return Rule(f"~({self.name})", lambda b, q, k: ~self.sees(b, q, k), samples=self.samples)

    def mask(
        self,
        t: int,
        s: int,
        *,
        first_query: int | None = None,
        first_key: int = 0,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """The rule as a mask: (t, s), or (b, 1, t, s) where it depends on the sample.

        The queries are the last t of the s tokens, unless `first_query` tells the index of the first.
        """
        first_query = first_key + s - t if first_query is None else first_query
        query = torch.arange(first_query, first_query + t, device=device)[:, None]
        key = torch.arange(first_key, first_key + s, device=device)
        if self.samples is None:
            return self.sees(key.new_zeros(()), query, key).expand(t, s)
        sample = torch.arange(self.samples, device=device)[:, None, None, None]
        return self.sees(sample, query, key).expand(self.samples, 1, t, s)

    def of_sample(self, i: int) -> Rule:
        """The same for sample i alone."""
        if self.samples is None:
            return self
        return replace(self, sees=lambda b, q, k: self.sees(b + i, q, k), samples=1)

    def __repr__(self) -> str:
        return self.name


@cache
def causal() -> Rule:
    """No query sees past itself (C5)."""
    return Rule("causal()", lambda b, q, k: k <= q, ahead=0, exact=True)


@lru_cache
def window(n: int) -> Rule:
    """Less than n tokens apart, on both sides (C8): with `causal()`, n keys, the query's own included.

    Raises `ConfigError` for a window without a key.
    """
    check_window(n)
    return Rule(f"window({n})", lambda b, q, k: (q - k).abs() < n, behind=n - 1, ahead=n - 1, exact=True)


def chunk(n: int) -> Rule:
    """In the same chunk of n tokens, counted from the first token of the sequence.

    Raises `ConfigError` for a chunk without a token.
    """
    check_window(n, "chunk")
    return Rule(f"chunk({n})", lambda b, q, k: q // n == k // n, behind=n - 1, ahead=n - 1)


def prefix(n: int) -> Rule:
    """Everybody sees the first n tokens: `prefix(n) | causal()` is a prefix language model."""
    return Rule(f"prefix({n})", lambda b, q, k: (k < n) & (q >= 0))


def document(ids: Tensor) -> Rule:
    """Only tokens of the same document. ids: (b, s), integers, one id for the tokens of one document.

    Raises `InputError` for what are no ids.
    """
    check_document(ids)
    return Rule("document(ids)", lambda b, q, k: ids[b, q] == ids[b, k], samples=ids.shape[0])


def key_mask(real: Tensor) -> Rule:
    """Only keys that are real tokens. real: (b, s), boolean.

    Raises `InputError` for what is no boolean mask with two axes.
    """
    if real.dtype != torch.bool or real.dim() != 2:
        raise InputError(f"key_mask is {real.dtype} {tuple(real.shape)}; it must be torch.bool of shape (b, s)")
    return Rule("key_mask(real)", lambda b, q, k: real[b, k] & (q >= 0), samples=real.shape[0])


def check_window(n: int, word: str = "window") -> int:
    """The window. Raises `ConfigError` unless it is a number of tokens."""
    if not isinstance(n, Integral) or isinstance(n, bool) or n < 1:
        raise ConfigError(f"{word} ({n!r}) counts tokens, the query's own included: a whole number, 1 or more")
    return n


def check_document(ids: Tensor) -> None:
    """Raises `InputError` unless these are ids of documents, (b, s)."""
    if not holds_integers(ids) or ids.dim() != 2:
        raise InputError(
            f"document is {ids.dtype} {tuple(ids.shape)}; it must hold integers of shape (b, t), one id per document"
        )


def _samples(one: Rule, other: Rule) -> int | None:
    if None not in (one.samples, other.samples) and one.samples != other.samples:
        raise InputError(
            f"{one} tells of {one.samples} samples and {other} of {other.samples}; joined, they must be as many"
        )
    return one.samples if other.samples is None else other.samples
