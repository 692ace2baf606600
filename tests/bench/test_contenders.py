"""All contenders of a work compute the same numbers, those of the reference; and who does not is caught."""

from __future__ import annotations

import importlib.util
import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import attnzoo
from attnzoo.bench import handwritten, peers
from attnzoo.bench.contender import Contender, Skip
from attnzoo.bench.motion import Motion, answer
from attnzoo.bench.ours import ours
from attnzoo.bench.problem import Given, Problem, draw, slopes
from attnzoo.bench.reference import ROWS, reference
from attnzoo.bench.results import Row
from attnzoo.bench.runner import check
from attnzoo.bench.works import BY_HAND, FLEX, Work, all_works

GROUPED = Problem(b=2, t=11, d_model=48, heads=6, kv_heads=2)
SMALLER = {
    "forward": replace(GROUPED, t=11, d_model=40, heads=5, kv_heads=5, rope=False),
    "prefill": GROUPED,
    "train": GROUPED,
    "decode": GROUPED,
    "window": replace(GROUPED, t=7 + 2 * handwritten.BLOCK, window=7),
    "softcap": replace(GROUPED, softcap=5.0),
    "alibi": replace(GROUPED, heads=4, rope=False, alibi=True),
    "sinks": replace(GROUPED, sinks=True),
    "packed": replace(GROUPED, b=1, t=12, documents=(5, 1, 6)),
}
WORKS = {work.id: work for work in all_works(attnzoo.build)}
ENTRIES = [(work.id, contender) for work in WORKS.values() for contender in work.contenders if contender is not FLEX]
PACKAGES = {"x-transformers": "x_transformers", "torchtune": "torchtune", "transformers": "transformers"}


def small(id: str) -> Problem:
    return SMALLER[id.removesuffix("-train") or id]


def judged(motion: Motion, problem: Problem, contender: Contender, dtype: torch.dtype = torch.float32) -> Row:
    given = draw(problem, dtype=dtype)
    work = Work("w", "", motion, problem, [contender])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check(work, contender, problem, given, answer(motion, problem, given))[0]


def is_here(contender: Contender) -> bool:
    """Whether all that a contender needs is installed, read from its name."""
    if contender.kind == "attnzoo":
        return contender.name.split()[1].rstrip(",") in attnzoo.variants()
    package = PACKAGES.get(contender.name.split()[0])
    return package is None or importlib.util.find_spec(package) is not None


@pytest.mark.parametrize(("id", "contender"), ENTRIES, ids=[f"{id}-{contender.name}" for id, contender in ENTRIES])
def test_every_contender_computes_the_same_numbers(id: str, contender: Contender) -> None:
    row = judged(WORKS[id].motion, small(id), contender)
    if is_here(contender):
        assert (row.outcome, row.note) == ("timed", "")
    else:
        assert row.outcome == "skipped"
        assert row.note.endswith("not installed")


def test_flex_computes_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not compiled, which takes tens of seconds and changes no number."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr("shutil.which", lambda name: name)
    row = judged("forward", small("softcap"), FLEX)
    assert (row.outcome, row.note) == ("timed", "")


def test_without_a_compiler_flex_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    row = judged("forward", small("softcap"), FLEX)
    assert (row.outcome, row.note) == ("skipped", "torch.compile needs a C++ compiler, and there is none here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("id", ["window", "softcap", "alibi", "sinks", "packed"])
def test_who_forgets_what_the_work_is_about_is_caught(id: str, dtype: torch.dtype) -> None:
    """Plain causal attention on each of them: no window, no cap, no bias, no sink, no documents."""
    row = judged("forward", replace(small(id), t=71 if id == "window" else small(id).t), BY_HAND, dtype)
    assert row.outcome == "wrong"
    assert "y is off by" in row.note


def test_who_forgets_to_turn_is_caught() -> None:
    straight = Contender("", "plain", lambda problem, given: BY_HAND.build(replace(problem, rope=False), given))
    assert judged("forward", GROUPED, straight).outcome == "wrong"


class NoGradient(nn.Module):
    """Right forward; backward as the flag says."""

    def __init__(self, layer: nn.Module, idle: bool) -> None:
        super().__init__()
        self.layer, self.idle = layer, idle
        self.more = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if self.idle else y.detach() * self.more + (x * 0).sum()


def test_a_backward_pass_that_is_wrong_or_left_out_is_caught() -> None:
    def build(idle: bool) -> Contender:
        return Contender("", "plain", lambda problem, given: NoGradient(BY_HAND.build(problem, given), idle))

    idle = judged("train", GROUPED, build(True))
    assert (idle.outcome, idle.note) == ("failed", "AssertionError: no gradient came to more")
    cut = judged("train", GROUPED, build(False))
    assert cut.outcome == "failed"
    assert "no gradient came to layer" in cut.note
    twice = Contender("", "plain", lambda problem, given: Doubled(BY_HAND.build(problem, given)))
    assert judged("train", GROUPED, twice).note.startswith("dx is off by 1.0e+00")


class Doubled(nn.Module):
    """Right forward; the input's gradient is twice what it should be."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(2 * x - x.detach())
        return y


def test_a_failure_is_told_by_name_and_reason() -> None:
    def build(problem: Problem, given: Given) -> nn.Module:
        raise RuntimeError("no\n  luck")

    assert judged("forward", GROUPED, Contender("", "peer", build)).note == "RuntimeError: no luck"


def test_a_wrong_shape_is_told() -> None:
    class Longer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, x], dim=1)

    row = judged("forward", GROUPED, Contender("", "peer", lambda problem, given: Longer()))
    assert (row.outcome, row.note) == ("wrong", "y is (2, 22, 48), not (2, 11, 48)")


def test_decoding_leaves_the_cache_as_it_found_it() -> None:
    given = draw(GROUPED)
    for layer in (handwritten.decoding(GROUPED, given), ours(attnzoo.build, "rope", decode=True).build(GROUPED, given)):
        layer.start(given.x[:, :-1])  # type: ignore[operator]
        with torch.no_grad():
            first, again = layer(given.x[:, -1:]), layer(given.x[:, -1:])
        assert torch.equal(first, again)


# The reference itself, on paper: zero weights for queries make every visible key weigh the same.


def blank(problem: Problem) -> Given:
    """No queries and keys; values and output are the input, one head of the whole width."""
    c, given = problem.d_model, draw(problem)
    qkv = torch.cat([torch.zeros(2 * c, c), torch.eye(c)])
    return replace(given, qkv=qkv, out=torch.eye(c), sinks=torch.tensor([math.log(2.0)]))


def means(problem: Problem) -> list[float]:
    """The first channel of each token's output, where token i holds the number i + 1."""
    x = torch.arange(1.0, problem.t + 1).double()[None, :, None].expand(1, problem.t, problem.d_model)
    found: list[float] = reference(problem, blank(problem), x)[0, :, 0].tolist()
    return found


ONE_HEAD = Problem(t=4, d_model=2, heads=1, kv_heads=1)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, [1, 3 / 2, 2, 5 / 2]),
        ({"window": 2}, [1, 3 / 2, 5 / 2, 7 / 2]),
        ({"documents": (1, 3)}, [1, 2, 5 / 2, 3]),
        ({"sinks": True}, [1 / 3, 3 / 4, 6 / 5, 10 / 6]),  # a sink of log 2 weighs as much as two keys
        ({"alibi": True}, [1, None, None, None]),
    ],
    ids=["plain", "window", "documents", "sinks", "alibi"],
)
def test_the_reference_on_paper(more: dict[str, object], expected: list[float | None]) -> None:
    found = means(replace(ONE_HEAD, **more))  # type: ignore[arg-type]
    if "alibi" in more:
        r = math.exp(-(2.0**-8))  # one step of distance costs one head 2^-8
        expected = [1.0, (r + 2) / (r + 1), (r**2 + 2 * r + 3) / (r**2 + r + 1), None]
    assert [a for a, e in zip(found, expected, strict=True) if e is not None] == pytest.approx(
        [e for e in expected if e is not None]
    )


def test_slopes_as_the_paper_lists_them() -> None:
    eight = slopes(replace(ONE_HEAD, heads=8))
    assert eight.tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_the_reference_goes_over_its_rows_in_pieces() -> None:
    long = replace(ONE_HEAD, t=2 * ROWS + 3)
    assert means(long) == pytest.approx([(i + 2) / 2 for i in range(long.t)])
    given, x = blank(long), draw(long).x.double()
    assert torch.equal(reference(long, given, x, first=long.t - 1), reference(long, given, x)[:, -1:])


# What a contender is not given by name


def test_a_peer_that_is_missing_or_broken_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Skip, match=r"^no_such_library is not installed$"):
        peers.load("no_such_library.part")

    def broken(module: str) -> None:
        raise RuntimeError("a torch that\n it does not know")

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(Skip, match=r"^some does not load here: a torch that it does not know$"):
        peers.load("some.part")


def test_the_works_are_asked_for_by_variant_and_option() -> None:
    """Variants that are not installed yet are asked for by the words that they will take."""
    asked: list[tuple[str, dict[str, object]]] = []

    def make(name: str, **options: object) -> nn.Module:
        asked.append((name, options))
        raise attnzoo.errors.UnknownVariant(name)

    for work in all_works(make):
        for contender in work.contenders:
            if contender.kind == "attnzoo":
                with pytest.raises(Skip, match=r"^not installed$"):
                    contender.build(small(work.id), draw(small(work.id)))
    grouped = {"d_model": 48, "heads": 6, "kv_heads": 2}
    assert ("mha", {"d_model": 40, "heads": 5}) in asked
    assert ("sliding_window", {**grouped, "window": 7}) in asked
    assert ("softcap", {**grouped, "softcap": 5.0, "backend": "eager"}) in asked
    assert {name for name, _ in asked} == {"mha", "rope", "sliding_window", "softcap", "alibi", "sinks", "packed"}


def test_draws_are_the_same_for_everyone() -> None:
    first, again = draw(GROUPED), draw(GROUPED)
    assert torch.equal(first.qkv, again.qkv)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, draw(GROUPED, seed=1).x)
    assert draw(small("packed")).document.tolist() == [[0] * 5 + [1] + [2] * 6]
