"""The suite: the laws, the engine that runs them, and the exam that they themselves are put to.

Three rooms, and arrows only downward: `exam` knows `laws`, `laws` know the `engine`. Here they meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnzoo.checks.engine.law import Law
from attnzoo.checks.engine.report import Report, Result
from attnzoo.checks.engine.runner import Progress, Run
from attnzoo.checks.exam.diagnosis import diagnose
from attnzoo.checks.laws import LAWS
from attnzoo.variant import Variant

__all__ = ["LAWS", "Law", "Report", "Result", "check"]


def judge(variant: Variant, **asked: Any) -> Run:
    """A variant before every law: results when they are asked for, failures shrunk and diagnosed. asked: see `Run`."""
    return Run(variant, LAWS, diagnose=diagnose, **asked)


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
    return judge(variant, device=device, depth=depth, seed=seed, case=case, called=called).report(only, progress)
