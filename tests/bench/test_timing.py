"""The clock, on a clock that is made up."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from attnzoo.bench.timing import in_turn, median_ratio, order, slope


class Clock:
    """Time passes only in calls; a slow spell makes everything cost more."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, [""]

    def read(self) -> float:
        return self.now

    def call(self, name: str, cost: float) -> Callable[[], None]:
        def run() -> None:
            self.now += cost
            self.calls.append(name)

        return run


@pytest.mark.parametrize("names", ["ab", "abc", "abcde"])
def test_in_two_cycles_each_has_every_place_and_either_neighbour_before_it_as_often(names: str) -> None:
    n = len(names)
    rounds = [order(names, turn) for turn in range(2 * n)]
    for place in zip(*rounds, strict=True):
        assert Counter(place) == dict.fromkeys(names, 2)
    before = Counter(pair for line in rounds for pair in itertools.pairwise(line))
    assert {(two, one) for one, two in before} == set(before)
    assert len(set(before.values())) == 1
    assert order(names, 2 * n) == order(names, 0)


def test_all_are_timed_in_turn_and_each_goes_first_once_in_a_while() -> None:
    clock, heard = Clock(), []
    calls = {name: clock.call(name, 1.0) for name in "abc"}
    found = in_turn(calls, seconds=9.0, least=1, clock=clock.read, tell=lambda turn, rounds, name: heard.append(name))
    assert found == {"a": [1.0] * 3, "b": [1.0] * 3, "c": [1.0] * 3}
    assert "".join(heard) == "abc" + "bca" + "cab"
    assert "".join(clock.calls).endswith("abcbcacab")


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 5), (8.0, 8), (1000.0, 20)])
def test_the_budget_sets_the_rounds_within_bounds(seconds: float, rounds: int) -> None:
    clock = Clock()
    calls = {"a": clock.call("a", 0.25), "b": clock.call("b", 0.75)}
    found = in_turn(calls, seconds=seconds, least=5, most=20, clock=clock.read)
    assert [len(times) for times in found.values()] == [rounds, rounds]


def test_a_short_call_is_repeated_within_a_sample() -> None:
    clock = Clock()
    found = in_turn({"a": clock.call("a", 1e-4)}, seconds=0.0, least=2, clock=clock.read)
    assert found["a"] == pytest.approx([1e-4, 1e-4])
    assert clock.calls.count("a") == 1 + 2 * 50  # a first look, and two rounds of 5 ms each


def test_nobody_to_time_is_no_error() -> None:
    assert in_turn({}, seconds=1.0) == {}


def test_the_ratio_is_taken_within_each_round() -> None:
    """In the second round the machine is ten times as slow for both. Medians alone would say 3 / 2."""
    assert median_ratio([3.0, 30.0, 3.0, 40.0], [1.0, 10.0, 2.0, 20.0]) == pytest.approx(2.5)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_slope_is_the_power_of_t(power: float) -> None:
    ts = [512, 1024, 2048, 4096]
    assert slope(ts, [7e-3 * t**power for t in ts]) == pytest.approx(power)
