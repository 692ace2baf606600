"""Runs laws over a variant's cases and says how each came out."""

from __future__ import annotations

import fnmatch
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Literal, get_args

import torch

from attnzoo.checks.evidence import Broken, Evidence, NoReaction
from attnzoo.checks.lab import Case, Lab, option_cases, size_cases
from attnzoo.checks.law import Law
from attnzoo.checks.report import RED, Outcome, Report, Result
from attnzoo.errors import ConfigError, did_you_mean
from attnzoo.variant import Variant

Depth = Literal["quick", "full"]

# Called before each law with how many are done, how many there are, and the law's id.
Progress = Callable[[int, int, str], None]

SEEDS = {"quick": 1, "full": 5}


def run(
    variant: Variant,
    laws: Sequence[Law],
    *,
    device: str = "cpu",
    depth: str = "quick",
    only: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Hold a variant to the laws, or to those that `only` names (ids or globs). torch's generators stay as they were.

    Raises `ConfigError` for a device that is not there, an unknown depth, or an `only` that names no law.
    """
    place = find_device(device)
    if depth not in get_args(Depth):
        raise ConfigError(f"unknown depth {depth!r}; it takes {' or '.join(map(repr, get_args(Depth)))}")
    chosen = select(laws, only)
    unknown = [f"known failure {id!r} names no law" for id in variant.known if id not in {law.id for law in laws}]
    cases = Cases(variant)
    results: dict[str, Result] = {}
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []), one_thread():
        for done, law in enumerate(chosen):
            if progress:
                progress(done, len(chosen), law.id)
            results[law.id] = judge(law, variant, cases, place, range(seed, seed + SEEDS[depth]), results)
    if progress:
        progress(len(chosen), len(chosen), "")
    told = [Result("suite.known", "C14", "Every known failure names a law.", "failed", message=m) for m in unknown]
    return Report(variant.name, version("attnzoo"), str(place), depth, seed, [*results.values(), *told])


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: on tensors this small a second one only waits, and fights with its neighbours."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def select(laws: Sequence[Law], only: Iterable[str]) -> list[Law]:
    """The laws that these ids or globs name, and those they stand on; all where there are none."""
    ids = [law.id for law in laws]
    wanted: set[str] = set()
    for pattern in only:
        found = fnmatch.filter(ids, pattern)
        if not found:
            raise ConfigError(f"no law is called {pattern!r}{did_you_mean(pattern, ids)}; laws: {', '.join(ids)}")
        wanted.update(found)
    needed = wanted | {other for law in laws if law.id in wanted for other in law.after}
    return [law for law in laws if law.id in needed] if wanted else list(laws)


def find_device(name: str) -> torch.device:
    """The device of this name. Raises `ConfigError` where it is unknown or not there."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} was asked for and is not there: {str(error).splitlines()[0]}") from error
    return device


class Cases:
    """The cases of a variant, made when first asked for: a factory that raises must fail a law, not the suite."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self._options: list[Case] | None = None

    def of(self, law: Law) -> list[Case]:
        """The cases on which a law runs."""
        if self._options is None:
            self._options = option_cases(self.variant)
        listed = {
            "default": self._options[:1],
            "options": self._options,
            "all": [*self._options, *size_cases(self.variant)],
        }[law.cases]
        found = [case for case in listed if law.where(case)]
        if found or law.cases != "default":
            return found
        return [case for case in self._options if law.where(case)][:1]


def judge(
    law: Law,
    variant: Variant,
    cases: Cases,
    device: torch.device,
    seeds: Iterable[int],
    before: Mapping[str, Result],
) -> Result:
    """How one law comes out, given how those it stands on did."""
    started = time.perf_counter()
    evidence, tried = Evidence(), 0

    def result(outcome: Outcome, message: str = "", case: str = "", seed: int = 0) -> Result:
        line = f"attnzoo check {variant.name} --only {law.id} --seed {seed}" if outcome in RED else ""
        return Result(
            law=law.id,
            clause=law.clause,
            title=law.title,
            outcome=outcome,
            message=message,
            case=case,
            cases=tried,
            comparisons=evidence.comparisons,
            worst=evidence.worst,
            worst_of=evidence.worst_of,
            seconds=time.perf_counter() - started,
            reproduce=line,
        )

    blocker = next((id for id in law.after if id in before and before[id].outcome in (*RED, "blocked")), None)
    if blocker:
        return result("blocked", f"stands on {blocker}, which did not pass")
    try:
        reason = law.not_applicable(variant)
        listed = [] if reason else cases.of(law)
    except Exception as error:
        return result("error", _short(error))
    if reason or not listed:
        return result("not-applicable", reason or "has no case of the kind the law needs")
    for seed in seeds:
        for case in listed:
            tried += 1
            outcome, message = attempt(law, Lab(variant, case, device, seed), evidence)
            if outcome != "passed":
                outcome, message = against_known(variant.known.get(law.id), outcome, message)
                return result(outcome, message, case.name, seed)
    if law.id in variant.known:
        return result("unexpected-pass", f"declared as a known failure ({variant.known[law.id]!r}), but it holds")
    return result("passed")


def attempt(law: Law, lab: Lab, evidence: Evidence) -> tuple[Outcome, str]:
    """One law on one case."""
    compared = evidence.comparisons
    torch.manual_seed(lab.seed)
    try:
        law.run(lab, evidence)
    except Broken as broken:
        return "failed", str(broken)
    except NoReaction as still:
        return "vacuous", str(still)
    except Exception as error:
        return "error", _short(error)
    if evidence.comparisons == compared:
        return "vacuous", "compared nothing"
    return "passed", ""


def against_known(words: str | None, outcome: Outcome, message: str) -> tuple[Outcome, str]:
    """A failure that was declared, for the reason that was declared, is known; for another it is a failure."""
    if words is None or outcome not in ("failed", "error"):
        return outcome, message
    if words in message:
        return "known", message
    return outcome, f"{message} (declared as known to fail with {words!r}: another reason)"


def _short(error: Exception) -> str:
    """An unexpected exception with the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.name}, line {last.lineno} of {last.filename.rsplit('/', 1)[-1]})"
