"""The laws as pytest tests.

In any project, with `-p attnzoo.testing` among pytest's options:

    pytest --variant=gqa                 # every law on one variant; globs, and more than one --variant, are fine
    pytest --variant=gqa --device=cuda --depth=full

and, to have the laws beside one's own tests:

    from attnzoo.testing import conformance
    test_conforms = conformance("mine")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import attnzoo
from attnzoo.checks import LAWS, Result, judge
from attnzoo.checks.engine.report import RED, tell
from attnzoo.checks.engine.runner import SEEDS, Run, devices, find_device
from attnzoo.errors import AttnZooError
from attnzoo.registry import zoo

# What a test's report carries along, from the process of a worker of pytest-xdist too: its law's outcome, and of a
# layer that did not hold to it the variant and the device.
OUTCOME, BROKEN = "attnzoo outcome", "attnzoo broken"

# How pytest's summary names an outcome that is neither a plain pass nor a failure: category, letter, word.
TOLD = {
    "not-applicable": ("not applicable", "n", "NOT APPLICABLE"),
    "known": ("known", "k", "KNOWN"),
    "blocked": ("blocked", "b", "BLOCKED"),
}


def conformance(*names: str) -> Callable[[Result], None]:
    """A test function that holds these variants, by name or glob, to every law: one test a law.

    >>> test_conforms = conformance("gqa")
    """

    def test_conforms(attnzoo_result: Result) -> None:
        if attnzoo_result.outcome in RED:
            pytest.fail(tell(attnzoo_result), pytrace=False)

    test_conforms.attnzoo_names = names  # type: ignore[attr-defined]
    return test_conforms


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attnzoo", "attention conformance")
    group.addoption(
        "--variant", action="append", default=[], metavar="NAME", help="run every law on this variant, and nothing else"
    )
    group.addoption(
        "--device", default="", help="where the laws run: cpu, cuda, … (default: the CPU, and a GPU if any)"
    )
    group.addoption("--depth", default="quick", choices=list(SEEDS), help="quick, or full or soak for more")


def pytest_configure(config: pytest.Config) -> None:
    try:
        for device in devices(config.option.device):
            find_device(device)
        for pattern in config.option.variant:
            zoo().matching(pattern)
    except AttnZooError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(Conformance(config))
    if config.option.variant:
        config.args = [__file__]  # this file as the only test file: its test stands at the end


class Conformance:
    """Makes one test for each variant and law, and tells their outcomes in pytest's words."""

    def __init__(self, config: pytest.Config) -> None:
        self.option = config.option
        self.devices = devices(config.option.device)
        self.runs: dict[tuple[str, str], Run] = {}
        self.broken: dict[tuple[str, str], None] = {}
        self.passed = 0

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "attnzoo_result" not in metafunc.fixturenames:
            return
        patterns = self.option.variant or metafunc.function.attnzoo_names
        names = dict.fromkeys(name for pattern in patterns for name in zoo().matching(pattern))
        asked = [(name, device, law.id) for name in names for device in self.devices for law in LAWS]
        metafunc.parametrize("attnzoo_result", asked, ids=[self._id(*one) for one in asked], indirect=True)

    def _id(self, name: str, device: str, law: str) -> str:
        """A test's name: the variant and the law, and the device if there are several."""
        return f"{name}-{law}" if len(self.devices) == 1 else f"{name}-{device}-{law}"

    @pytest.fixture
    def attnzoo_result(self, request: pytest.FixtureRequest) -> Result:
        """How the law of this test came out for its variant."""
        name, device, law = request.param
        result = self._run(name, device).result(law)
        request.node.user_properties.append((OUTCOME, result.outcome))
        if result.outcome in ("failed", "error") and result.case:
            request.node.user_properties.append((BROKEN, [name, device]))
        return result

    def _run(self, name: str, device: str) -> Run:
        if (name, device) not in self.runs:
            self.runs[name, device] = judge(attnzoo.describe(name), device=device, depth=self.option.depth)
        return self.runs[name, device]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
        if report.when == "call":
            self.passed += told.get(OUTCOME) == "passed"
            if BROKEN in told:
                name, device = map(str, told[BROKEN])  # type: ignore[call-overload]
                self.broken[name, device] = None

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        outcome = dict(getattr(report, "user_properties", ())).get(OUTCOME)
        if report.when != "call" or outcome is None:
            return None
        return TOLD.get(str(outcome))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Which mistake each failing variant looks like."""
        for name, device in self.broken:
            terminalreporter.write_line(f"{name} on {device}: {self._run(name, device).diagnosis}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A run on a variant in which no law passed is no success."""
        if self.option.variant and exitstatus == 0 and not self.passed:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


test_conforms: Any = conformance("*")
