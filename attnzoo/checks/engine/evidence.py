"""What a law saw: every comparison is counted and measured, so that a check that compared nothing cannot pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import tolerance

# A positive control moves a result of unit scale by far more than rounding; less than this is no reaction.
REACTION = 1e-3


class Broken(Exception):
    """The law does not hold."""


class NoReaction(Exception):
    """A positive control did not react, so that the law could not have failed."""


@dataclass
class Evidence:
    """Collects the comparisons of one law on one case. `worst` is the largest error over its budget."""

    comparisons: int = 0
    worst: float = 0.0
    worst_of: str = ""
    controls: int = 0

    def close(
        self, actual: Tensor, expected: Tensor, what: str, *, plain: float = 0.0, dtype: torch.dtype | None = None
    ) -> None:
        """Equal within the budget of `dtype` (that of `actual` where not given)."""
        if actual.shape != expected.shape:
            raise Broken(f"{what}: shape {tuple(actual.shape)} where {tuple(expected.shape)} is due")
        if actual.numel() == 0:
            return
        error, where = tolerance.error(actual, expected)
        budget = tolerance.budget(dtype or actual.dtype, plain)
        self._record(error / budget, what)
        if not error <= budget:
            got, due = float(actual.detach()[where]), float(expected.detach()[where])
            raise Broken(
                f"{what}: off by {error:.1e}, {error / budget:.3g} times its budget of {budget:.1e}, worst at {where}: "
                f"{got:.6g} where {due:.6g} is due"
            )

    def exactly(self, actual: Tensor, expected: Tensor, what: str) -> None:
        """The same bits, shape and dtype."""
        if actual.dtype != expected.dtype or actual.shape != expected.shape:
            raise Broken(
                f"{what}: {actual.dtype} {tuple(actual.shape)} where {expected.dtype} {tuple(expected.shape)} is due"
            )
        self._record(0.0, what)
        if not torch.equal(actual, expected):
            error, where = tolerance.error(actual, expected)
            raise Broken(f"{what}: must be the same to the bit, but differs by {error:.1e} at {where}")

    def holds(self, fact: bool, what: str) -> None:
        """A fact that is true or not; `what` says it as it should be, and what was seen."""
        self._record(0.0, what)
        if not fact:
            raise Broken(what)

    def finite(self, values: Tensor, what: str) -> None:
        """No NaN and no infinity."""
        self.holds(bool(torch.isfinite(values).all()), f"{what}: must be finite, but holds NaN or infinity")

    def raises(
        self,
        kind: type[Exception] | tuple[type[Exception], ...],
        call: Callable[[], Any],
        what: str,
        *,
        words: tuple[object, ...] = (),
    ) -> None:
        """The call is refused with this error, or one of these, whose text holds the words that help."""
        due = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
        try:
            call()
        except kind as refusal:
            missing = [str(word) for word in words if str(word) not in str(refusal)]
            self.holds(not missing, f"{what}: the error must name {', '.join(missing)}; it says: {refusal}")
        except Exception as other:
            raise Broken(f"{what}: must raise {due}, but raised {type(other).__name__}: {other}") from other
        else:
            raise Broken(f"{what}: must raise {due}, but was accepted")

    def differs(self, one: Tensor, other: Tensor, what: str) -> None:
        """The law asks for a difference, and there is one."""
        change = tolerance.error(other, one)[0]
        self.holds(change > REACTION, f"{what}: must differ, but by {change:.1e} only")

    def reacts(self, before: Tensor, after: Tensor, what: str) -> None:
        """Positive control: the change must show."""
        self.controls += 1
        change = tolerance.error(after, before)[0]
        if not change > REACTION:
            raise NoReaction(f"{what}: nothing moved ({change:.1e}), so that the law could not have failed")

    def _record(self, ratio: float, what: str) -> None:
        self.comparisons += 1
        if ratio >= self.worst:
            self.worst, self.worst_of = ratio, what
