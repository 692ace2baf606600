"""What is asked of attention besides q, k and v: the terms of its formula, in one bundle."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnzoo.ops import rules
from attnzoo.ops.biases import Bias
from attnzoo.ops.masks import wide_type
from attnzoo.ops.rules import Rule


@dataclass(slots=True)
class Terms:
    """The arguments of `attend` besides q, k, v, checked. `part` gives those of some queries and keys only.

    rule: causality, window and rules of the caller's own, as one; documents stand apart, for they cut the sequence
    first_query, first_key: where in the sequence the queries, and the keys, begin
    """

    scale: float
    mask: Tensor | None = None
    key_mask: Tensor | None = None
    rule: Rule | None = None
    document: Tensor | None = None
    softcap: float | None = None
    bias: Tensor | Bias | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0
    first_query: int = 0
    first_key: int = 0

    @property
    def adds_mask(self) -> bool:
        """The mask is floating, so that it is added."""
        return self.mask is not None and self.mask.is_floating_point()

    @property
    def changes_scores(self) -> bool:
        """The scores are changed as no fused kernel does it."""
        return self.softcap is not None or self.bias is not None or (self.mask is not None and self.adds_mask)

    @property
    def has_mask(self) -> bool:
        """There are masks beside the rule."""
        return self.mask is not None or self.key_mask is not None or self.document is not None

    @property
    def has_holes(self) -> bool:
        """Within the span there may be keys that no query sees."""
        return self.has_mask or (self.rule is not None and not self.rule.exact)

    def span(self, t: int, s: int) -> slice:
        """Of the s keys that are here, those that any of the t queries could see."""
        if self.rule is None or t == 0:
            return slice(0, s)
        ahead = self.first_query - self.first_key  # of the first key, the first query is
        start = min(max(0, ahead - self.rule.behind), s)
        return slice(start, max(start, min(s, ahead + t + self.rule.ahead)))

    def part(self, queries: slice, keys: slice) -> Terms:
        """The same for some of the queries and some of the keys."""
        return replace(
            self,
            mask=None if self.mask is None else _part(self.mask, queries, keys),
            key_mask=None if self.key_mask is None else self.key_mask[:, keys],
            bias=_part(self.bias, queries, keys) if isinstance(self.bias, Tensor) else self.bias,
            first_query=self.first_query + queries.start,
            first_key=self.first_key + keys.start,
        )

    def row(self, i: int) -> Terms:
        """The same for one sample."""
        one = slice(i, i + 1)

        def own(x: Tensor) -> Tensor:
            return x[one] if x.dim() == 4 and x.shape[0] > 1 else x

        return replace(
            self,
            mask=None if self.mask is None else own(self.mask),
            key_mask=None if self.key_mask is None else self.key_mask[one],
            rule=None if self.rule is None else self.rule.of_sample(i),
            document=None if self.document is None else self.document[one],
            bias=own(self.bias) if isinstance(self.bias, Tensor) else self.bias,
        )

    def allows_all(self, t: int, s: int) -> bool:
        """The rule lets each of the t queries see each of the s keys."""
        if self.rule is None or t == 0 or s == 0:
            return True
        ahead = self.first_query - self.first_key
        return self.rule.exact and self.rule.behind >= ahead + t - 1 and self.rule.ahead >= s - 1 - ahead

    def edge(self, t: int, s: int) -> int | None:
        """How many of the first keys all queries see, where the rule alone hides some of the rest, and blinds no query.

        None where more may be hidden.
        """
        rule = self.rule
        if rule is None or self.has_mask:
            return None if self.has_mask else s
        ahead = self.first_query - self.first_key
        if not rule.exact or rule.behind < ahead + t - 1 or ahead < 0 or ahead + t > s:
            return None
        return min(s, ahead + rule.ahead + 1)

    def is_triangle(self, t: int, s: int) -> bool:
        """Causality from the first token on and nothing else: what torch's flag, anchored top-left, stands for."""
        rule = self.rule
        if t != s or rule is None or self.first_query != self.first_key or self.has_mask:
            return False
        return rule.exact and rule.ahead == 0 and rule.behind >= t - 1

    def every_rule(self) -> Rule | None:
        """Causality, window, documents and padding as one rule; not a mask that is a tensor of its own."""
        return rule_of(
            self.rule,
            None if self.document is None else rules.document(self.document),
            None if self.key_mask is None else rules.key_mask(self.key_mask),
        )

    def visible(self, t: int, s: int, device: torch.device) -> Tensor | None:
        """All rules at once: boolean, broadcastable to (b, h, t, s); None where every query sees every key."""
        given = []
        if self.mask is not None:
            given.append(self.mask if self.mask.dtype == torch.bool else self.mask != float("-inf"))
        if self.key_mask is not None:
            given.append(self.key_mask[:, None, None, :])
        rule = None if self.allows_all(t, s) else self.rule
        if self.document is not None:
            rule = both(rule, rules.document(self.document))
        if rule is not None:
            given.append(rule.mask(t, s, first_query=self.first_query, first_key=self.first_key, device=device))
        visible = None
        for one in given:
            visible = one if visible is None else visible & one
        return visible

    def seen(self, t: int, s: int, device: torch.device) -> Tensor:
        """The same, written out where every query sees every key."""
        visible = self.visible(t, s, device)
        return torch.ones(t, s, dtype=torch.bool, device=device) if visible is None else visible

    def added(self, h: int, t: int, s: int, like: Tensor) -> Tensor | None:
        """What is added to the logits, in the wide type, broadcastable to (b, h, t, s)."""
        added, wide = None, wide_type(like.dtype)
        if isinstance(self.bias, Tensor):
            added = self.bias.to(wide)
        elif self.bias is not None:
            head = torch.arange(h, device=like.device)[:, None, None]
            query = torch.arange(self.first_query, self.first_query + t, device=like.device)[:, None]
            key = torch.arange(self.first_key, self.first_key + s, device=like.device)
            added = self.bias(head, query, key, wide)
        if self.mask is not None and self.adds_mask:
            mask = self.mask.to(wide)
            added = mask if added is None else added + mask
        return added


def rule_of(*asked: Rule | None) -> Rule | None:
    """The rules that were asked for, as one."""
    whole = None
    for rule in asked:
        whole = both(whole, rule)
    return whole


def both(one: Rule | None, other: Rule | None) -> Rule | None:
    """Two rules as one, where there are two."""
    if one is None or other is None:
        return one or other
    return one & other


def _part(x: Tensor, queries: slice, keys: slice) -> Tensor:
    """Rows and columns of a mask that may broadcast over either."""
    x = x[..., queries, :] if x.shape[-2] > 1 else x
    return x[..., keys] if x.shape[-1] > 1 else x
