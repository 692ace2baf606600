"""The clock: all contenders in turn, round after round, so that whatever slows the machine slows them alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

SAMPLE = 0.005  # seconds that one sample takes at least: a short call is repeated within it


def in_turn(
    calls: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    least: int = 5,
    most: int = 300,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[int, int, str], None] = lambda turn, rounds, name: None,
) -> dict[str, list[float]]:
    """Seconds a call, one number a round: about `seconds` of rounds in all, between `least` and `most` of them.

    calls: by name, each already warm    clock: waits for the device, where work runs behind the caller's back
    tell: hears of every sample: which round of how many, and whose
    """
    if not calls:
        return {}
    once = {name: max(sample(call, 1, clock), 1e-7) for name, call in calls.items()}
    repeats = {name: max(1, round(SAMPLE / once[name])) for name in calls}
    rounds = int(seconds / sum(once[name] * repeats[name] for name in calls))
    rounds = min(max(rounds, least), most)
    found: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    sweeps = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds):
            for name in order(names, turn):
                tell(turn, rounds, name)
                found[name].append(sample(calls[name], repeats[name], clock))
    finally:
        if sweeps:
            gc.enable()
    return found


def order(names: Sequence[str], turn: int) -> list[str]:
    """Who is timed after whom in this round.

    Each goes first in its turn, and in every other cycle all go backwards: nobody always follows the one that leaves
    the caches full of its own.

    >>> [" ".join(order("abc", turn)) for turn in range(6)]
    ['a b c', 'b c a', 'c a b', 'c b a', 'b a c', 'a c b']
    """
    cycle, first = divmod(turn, len(names))
    line = list(names) if cycle % 2 == 0 else list(reversed(names))
    return line[first:] + line[:first]


def sample(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """Seconds a call, the mean of some in a row."""
    begin = clock()
    for _ in range(repeats):
        call()
    return (clock() - begin) / repeats


def median_ratio(seconds: Sequence[float], against: Sequence[float]) -> float:
    """How many times as long the first takes: of each round's ratio the median, so that a slow spell cancels out.

    >>> median_ratio([2.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    2.0
    """
    return statistics.median(mine / theirs for mine, theirs in zip(seconds, against, strict=True))


def slope(ts: Sequence[int], seconds: Sequence[float]) -> float:
    """The power of t that a cost grows with: the line of least squares through the logarithms.

    >>> slope([1024, 2048, 4096], [1.0, 4.0, 16.0])
    2.0
    """
    x, y = [math.log2(t) for t in ts], [math.log2(second) for second in seconds]
    return round(statistics.linear_regression(x, y).slope, 12)
