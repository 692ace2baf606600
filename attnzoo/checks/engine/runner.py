"""Runs laws over a variant's cases and says how each came out."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch

from attnzoo.checks.engine.evidence import Broken, Evidence, NoReaction
from attnzoo.checks.engine.lab import Case, Lab, Switches, find_case, option_cases, seed_torch, size_cases
from attnzoo.checks.engine.law import Law
from attnzoo.checks.engine.report import RED, Diagnosis, Outcome, Report, Result
from attnzoo.checks.engine.shrink import shrink
from attnzoo.errors import ConfigError, did_you_mean
from attnzoo.variant import Variant

# Called before each law with how many are done, how many there are, and the law's id.
Progress = Callable[[int, int, str], None]

# Says which planted fault the variant of a run looks like.
Diagnose = Callable[["Run"], Diagnosis]

# How many seeds each depth tries.
SEEDS = {"quick": 1, "full": 5, "soak": 20}


class Run:
    """One variant held to the laws on one device. Results are made when asked for, each once.

    case: only this case, by its name, and after it what is to differ, as in "options-0,b=1,t=2"
    explain: shrink the cases of failures
    diagnose: tells which planted fault a failing variant looks like
    called: what Python calls the variant, in words for `attnzoo.check`, where the shell does not find it by its name
    Raises `ConfigError` for a device that is not there, an unknown depth, or a case that there is not.
    """

    def __init__(
        self,
        variant: Variant,
        laws: Sequence[Law],
        *,
        device: str = "cpu",
        depth: str = "quick",
        seed: int = 0,
        case: str = "",
        explain: bool = True,
        diagnose: Diagnose | None = None,
        called: str = "",
    ) -> None:
        if depth not in SEEDS:
            raise ConfigError(f"unknown depth {depth!r}; it takes {' or '.join(map(repr, SEEDS))}")
        self.variant, self.depth, self.seed, self.case = variant, depth, seed, case
        self.explain, self.diagnose = explain, diagnose
        self.called = called
        self.laws = {law.id: law for law in laws}
        self.device = find_device(device)
        self._results: dict[str, Result] = {}

    def report(self, only: Sequence[str] = (), progress: Progress | None = None) -> Report:
        """All results, or those of the laws that `only` names and of those they stand on.

        Raises `ConfigError` for an `only` that names no law.
        """
        chosen = select(list(self.laws.values()), only)
        results = []
        for done, law in enumerate(chosen):
            if progress:
                progress(done, len(chosen), law.id)
            results.append(self.result(law.id))
        if progress:
            progress(len(chosen), len(chosen), "")
        results += self._unknown_failures()
        return Report(
            variant=self.variant.name,
            version=version("attnzoo"),
            device=str(self.device),
            depth=self.depth,
            seed=self.seed,
            results=results,
            diagnosis=self.diagnosis if self.failing else None,
        )

    def result(self, id: str) -> Result:
        """How one law comes out. torch's generators stay as they were."""
        if id not in self._results:
            with self._quietly():
                self._results[id] = self._judge(self.laws[id])
        return self._results[id]

    @property
    def failing(self) -> bool:
        """Whether a law, of those asked for so far, did not hold on a case."""
        return any(result.outcome in ("failed", "error") and result.case for result in self._results.values())

    @functools.cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Which planted fault the variant looks like, made when first asked for; None where nobody can tell."""
        if self.diagnose is None:
            return None
        with self._quietly():
            try:
                return self.diagnose(self)
            except Exception as error:
                return Diagnosis(reason=f"the layer could not be questioned: {_short(error)}")

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """On one thread, with torch's generators put back afterwards; a warning is no verdict, whatever the filters."""
        cuda = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda), one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            switches = Switches()
            try:
                yield
            finally:
                switches.restore()

    def _judge(self, law: Law) -> Result:
        blocker = next((id for id in law.after if self.result(id).outcome in (*RED, "blocked")), None)
        if blocker:
            return _result(law, "blocked", f"stands on {blocker}, which did not pass")
        try:
            reason = law.not_applicable(self.variant)
            cases = [] if reason else self._cases(law)
        except ConfigError:
            raise
        except Exception as error:
            return _result(law, "error", _short(error))
        if not cases:
            return _result(law, "not-applicable", reason or "has no case of the kind the law needs")
        return self._try(law, cases)

    def _try(self, law: Law, cases: Sequence[Case]) -> Result:
        """The law on its cases, up to the first on which it does not hold."""
        started, evidence, tried = time.perf_counter(), Evidence(), 0
        outcome: Outcome = "passed"
        message, at, known = "", {}, self.variant.known.get(law.id)
        for seed, case in itertools.product(range(self.seed, self.seed + SEEDS[self.depth]), cases):
            tried += 1
            outcome, message = attempt(law, Lab(self.variant, case, self.device, seed, self.depth), evidence)
            if outcome != "passed":
                at = self._place(law, case, seed, outcome)
                break
        if known is not None:
            outcome, message = against_known(known, outcome, message)
        return _result(
            law,
            outcome,
            message,
            **at,
            cases=tried,
            comparisons=evidence.comparisons,
            worst=evidence.worst,
            worst_of=evidence.worst_of,
            seconds=time.perf_counter() - started,
        )

    def _place(self, law: Law, case: Case, seed: int, outcome: Outcome) -> dict[str, str]:
        """Where a law did not hold: the case, the smallest that still fails alike, and the line that shows it."""

        def fails(smaller: Case) -> bool:
            again = Lab(self.variant, smaller, self.device, seed, self.depth)
            return law.where(smaller) and attempt(law, again, Evidence())[0] == outcome

        smallest = shrink(case, fails) if self.explain and outcome == "failed" else case
        return {"case": case.words, "smallest": smallest.words, "reproduce": self._again(law, smallest, seed)}

    def _again(self, law: Law, case: Case, seed: int) -> str:
        """The line that shows a failure again: for the shell, or for Python where only that has the variant at hand."""
        device, depth = self.device.type != "cpu" and str(self.device), self.depth != "quick" and self.depth
        if self.called:
            line = f"{self.called}, only=[{law.id!r}], case={case.words!r}, seed={seed}"
            line += (f", device={device!r}" if device else "") + (f", depth={depth!r}" if depth else "")
            return f"print(attnzoo.check({line}))"
        line = f"attnzoo check {self.variant.name} --only {law.id} --case {case.words} --seed {seed}"
        return line + (f" --device {device}" if device else "") + (f" --depth {depth}" if depth else "")

    @functools.cached_property
    def _option_cases(self) -> list[Case]:
        return option_cases(self.variant)

    def _cases(self, law: Law) -> list[Case]:
        """The cases on which a law runs; for "default", the first of its kind."""
        every = [*self._option_cases, *size_cases(self.variant)]
        if self.case:
            return [case for case in [find_case(self.case, every)] if law.where(case)]
        listed = every if law.cases == "all" else self._option_cases
        found = [case for case in listed if law.where(case)]
        return found[:1] if law.cases == "default" else found

    def _unknown_failures(self) -> list[Result]:
        unknown = [id for id in self.variant.known if id not in self.laws]
        title = "Every known failure names a law."
        return [
            Result("suite.known", "C14", title, "failed", message=f"the known failure {id!r} names no law")
            for id in unknown
        ]


def _result(law: Law, outcome: Outcome, message: str = "", **more: Any) -> Result:
    return Result(law.id, law.clause, law.title, outcome, message, **more)


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
            raise ConfigError(f"no law is called {pattern!r}{did_you_mean(pattern, ids) or '.'} Laws: {', '.join(ids)}")
        wanted.update(found)
    needed = wanted | {other for law in laws if law.id in wanted for other in law.after}
    return [law for law in laws if law.id in needed] if wanted else list(laws)


def devices(asked: str) -> list[str]:
    """Where to run: the device that was asked for; without one the CPU, and a GPU where there is one."""
    if asked:
        return [asked]
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def find_device(name: str) -> torch.device:
    """The device of this name. Raises `ConfigError` where it is unknown or not there."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} was asked for and is not there: {str(error).splitlines()[0]}") from error
    return device


def attempt(law: Law, lab: Lab, evidence: Evidence) -> tuple[Outcome, str]:
    """One law on one case."""
    compared = evidence.comparisons
    seed_torch(lab.seed, lab.device)
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


def against_known(words: str, outcome: Outcome, message: str) -> tuple[Outcome, str]:
    """A failure that was declared, for the reason that was declared, is known; for another, or none, it is not."""
    if outcome == "passed":
        return "unexpected-pass", f"declared as a known failure ({words!r}), but it holds"
    if outcome in ("failed", "error") and words in message:
        return "known", message
    return outcome, f"{message} (declared as known to fail with {words!r}: another reason)"


def _short(error: Exception) -> str:
    """An unexpected exception with the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.name}, line {last.lineno} of {last.filename.rsplit('/', 1)[-1]})"
