"""The laws, and the runner that holds a variant to them. Imports no bricks and no registry."""

from __future__ import annotations

from collections.abc import Sequence

from attnzoo.checks import (
    backends,
    batches,
    blind,
    build,
    caches,
    causality,
    claims,
    costs,
    documents,
    drawn,
    dropout,
    learning,
    masks,
    modes,
    numerics,
    places,
    rings,
    rows,
    scores,
    shapes,
    state,
    truth,
    windows,
)
from attnzoo.checks.law import Law, laws_in
from attnzoo.checks.report import Report, Result
from attnzoo.checks.runner import Progress, Run
from attnzoo.variant import Variant

__all__ = ["LAWS", "Law", "Report", "Result", "check"]

LAWS = laws_in(
    build,
    shapes,
    causality,
    windows,
    rows,
    masks,
    blind,
    documents,
    truth,
    scores,
    learning,
    batches,
    places,
    caches,
    rings,
    numerics,
    backends,
    costs,
    modes,
    dropout,
    state,
    claims,
    drawn,
)


def check(
    variant: Variant,
    *,
    device: str = "cpu",
    depth: str = "quick",
    only: Sequence[str] = (),
    case: str = "",
    seed: int = 0,
    progress: Progress | None = None,
    called: str = "",
) -> Report:
    """Hold a variant to every law, or to those that `only` names.

    device: "cpu", "cuda", …    only: law ids or globs    depth: "quick"; "full" or "soak" for more seeds and examples
    case: one case only, by name, and after it what is to differ, as in "options-0,b=1,t=2"
    called: what Python calls the variant, where the shell does not find it by its name
    Raises `ConfigError` for a device, depth, law or case that there is not.
    """
    return Run(variant, LAWS, device=device, depth=depth, seed=seed, case=case, called=called).report(only, progress)
