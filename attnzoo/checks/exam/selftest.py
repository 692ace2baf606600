"""The suite's own exam: does it find what is wrong, spare what is right, and notice when it looks at nothing?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnzoo import oracle
from attnzoo.checks.engine import reference, tolerance
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab, array, option_cases, tensor
from attnzoo.checks.engine.law import Law
from attnzoo.checks.engine.report import RED
from attnzoo.checks.engine.runner import Run, attempt, one_thread
from attnzoo.checks.exam.diagnosis import compare
from attnzoo.checks.exam.faults import FAULTS, SOUND, Fault
from attnzoo.errors import ConfigError
from attnzoo.variant import Variant

# Called with how much is done, how much there is, and what is being tried.
Progress = Callable[[int, int, str], None]

# At each depth: how many seeds a sound variant is tried with, and every how many faults one is diagnosed.
SOUND_SEEDS = {"quick": 1, "full": 20}
DIAGNOSED = {"quick": 60, "full": 1}

# The share of planted faults that the diagnosis must name first.
ACCURACY = 0.95

# What the options of the planted faults become when these are redrawn.
OTHERS: dict[str, dict[Any, Any]] = {
    "d_model": {24: 36},
    "heads": {6: 8, 4: 6},
    "kv_heads": {3: 2, 2: 3},
    "head_dim": {10: 12},
    "rotary_dim": {4: 6},
    "theta": {500.0: 50.0},
    "window": {4: 3, 5: 6},
    "softcap": {5.0: 3.0, 1.5: 2.0},
    "scale": {0.5: 0.7},
}

# A law that no planted fault is for, with the reason why it is kept.
DIAGNOSTIC: dict[str, str] = {}


@dataclass(frozen=True)
class Answer:
    """One question of the exam: what was tried, how often it was right, and what was missed."""

    question: str
    tried: int
    misses: Sequence[str]

    @property
    def passed(self) -> bool:
        return self.tried > 0 and not self.misses


@dataclass(frozen=True)
class Exam:
    """The whole exam. `passed` when every answer is."""

    depth: str
    answers: Sequence[Answer] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Every question was asked, and nothing was missed."""
        return all(answer.passed for answer in self.answers)

    def to_dict(self) -> dict[str, Any]:
        """The exam as plain data."""
        answers = [{**asdict(answer), "passed": answer.passed} for answer in self.answers]
        return {"schema": 1, "depth": self.depth, "passed": self.passed, "answers": answers}


def selftest(
    laws: Sequence[Law], variants: Sequence[Variant], *, depth: str = "quick", progress: Progress | None = None
) -> Exam:
    """Examine the suite. variants: layers that are known to be sound, beside the specimens.

    Raises `ConfigError` for an unknown depth.
    """
    if depth not in SOUND_SEEDS:
        raise ConfigError(f"unknown depth {depth!r}; it takes {' or '.join(map(repr, SOUND_SEEDS))}")
    sound = [*SOUND, *variants]
    questions: list[tuple[str, Callable[[Any], str], Sequence[Any]]] = [
        ("every planted fault is killed by the law it names", _killed(laws), FAULTS),
        ("no sound variant is accused", _spared(laws, depth), sound),
        ("every law kills a fault, or says why it is kept", _useful, laws),
        ("every law that compares nothing is found vacuous", _noticed, laws),
        ("the NumPy oracle and torch's SDPA agree", _agreed, range(20)),
        ("a fault is named by the diagnosis", _named, _diagnosable()[:: DIAGNOSED[depth]]),
        ("a sound variant is named no fault", _unnamed, [variant for variant in sound if variant.oracle]),
    ]
    total, done, answers = sum(len(things) for _, _, things in questions), 0, []
    with one_thread(), torch.random.fork_rng(devices=[]):
        for question, judge, things in questions:
            misses = []
            for thing in things:
                if progress:
                    progress(done, total, question)
                miss = judge(thing)
                misses += [miss] if miss else []
                done += 1
            answers.append(Answer(question, len(things), _allowed(question, misses, len(things))))
    return Exam(depth, answers)


def _allowed(question: str, misses: list[str], tried: int) -> list[str]:
    """The diagnosis may miss a share; everything else nothing."""
    fine = question.startswith("a fault is named") and len(misses) <= (1 - ACCURACY) * tried
    return [] if fine else misses


def _killed(laws: Sequence[Law]) -> Callable[[Fault], str]:
    def judge(fault: Fault) -> str:
        result = Run(fault.variant, laws, explain=False).result(fault.killed_by)
        if result.outcome in ("failed", "error"):
            return ""
        return f"{fault.id}: {fault.killed_by} came out {result.outcome}"

    return judge


def _spared(laws: Sequence[Law], depth: str) -> Callable[[Variant], str]:
    def judge(variant: Variant) -> str:
        case = "options-0" if depth == "quick" else ""  # of many cases a quick exam tries the first
        for seed in range(SOUND_SEEDS[depth]):
            for result in Run(variant, laws, seed=seed, case=case, explain=False).report().results:
                if result.outcome in RED:
                    return f"{variant.name}, seed {seed}: {result.law} came out {result.outcome}: {result.message}"
        return ""

    return judge


def _useful(law: Law) -> str:
    if any(fault.killed_by == law.id for fault in FAULTS) or law.id in DIAGNOSTIC:
        return ""
    return f"{law.id} kills no planted fault"


class Blindfold(Evidence):
    """Evidence that compares nothing: what a check would be whose comparison was taken out."""

    def close(self, actual: Tensor, expected: Tensor, what: str, **_: Any) -> None:
        pass

    def exactly(self, actual: Tensor, expected: Tensor, what: str) -> None:
        pass

    def holds(self, fact: bool, what: str) -> None:
        pass

    def raises(self, kind: Any, call: Callable[[], Any], what: str, **_: Any) -> None:
        pass


def _noticed(law: Law) -> str:
    """The law under a blindfold, on the first sound specimen that it applies to."""
    for variant in SOUND:
        if law.not_applicable(variant):
            continue
        for case in option_cases(variant):
            if law.where(case):
                outcome, _ = attempt(law, Lab(variant, case, torch.device("cpu")), Blindfold())
                return "" if outcome == "vacuous" else f"{law.id} without its comparisons came out {outcome}"
    return f"{law.id} applies to no sound specimen"


def _agreed(seed: int) -> str:
    """The two sides of the truth, on drawn sizes, masks and groups."""
    draw = torch.Generator().manual_seed(seed)
    b, g, group, t, s, d = (int(torch.randint(1, top, (1,), generator=draw)) for top in (4, 4, 4, 9, 9, 9))
    q, k, v = (
        torch.randn(b, heads, tokens, d, generator=draw, dtype=torch.float64)
        for heads, tokens in ((g * group, t), (g, s), (g, s))
    )
    visible = torch.rand(b, 1, t, s, generator=draw) < 0.7
    mixed, weights = oracle.attention(array(q), array(k), array(v), visible=array(visible), scale=0.7)
    for name, ours, torchs in (
        ("weighted sum", mixed, reference.attention(q, k, v, visible=visible, scale=0.7)),
        ("weights", weights, reference.weights(q, k, visible=visible, scale=0.7)),
    ):
        error, _ = tolerance.error(torchs, tensor(ours))
        if error > tolerance.FLOOR[torch.float64]:
            return f"seed {seed}: the {name} differs by {error:.1e}"
    return ""


def _diagnosable() -> list[Fault]:
    """The faults of specimens that have an oracle, which the diagnosis needs."""
    return [fault for fault in FAULTS if fault.variant.oracle]


def _named(fault: Fault) -> str:
    found = compare(redrawn(fault.variant), torch.device("cpu"), seed=1000 + len(fault.id))
    return "" if found.fault == fault.id else f"{fault.id}: {found}"


def redrawn(variant: Variant) -> Variant:
    """A planted fault as it would be met elsewhere: in other sizes, with other options."""
    return replace(
        variant,
        cases=[
            {word: OTHERS.get(word, {}).get(value, value) for word, value in case.items()} for case in variant.cases
        ],
    )


def _unnamed(variant: Variant) -> str:
    found = compare(variant, torch.device("cpu"), seed=7)
    return "" if not found.fault else f"{variant.name}: {found}"


def kill_table(laws: Sequence[Law], progress: Progress | None = None) -> dict[str, list[str]]:
    """Fault id -> the ids of all laws that kill it."""
    table = {}
    for done, fault in enumerate(FAULTS):
        if progress:
            progress(done, len(FAULTS), fault.id)
        results = Run(fault.variant, laws, explain=False).report().results
        table[fault.id] = [result.law for result in results if result.outcome in ("failed", "error", "vacuous")]
    return table
