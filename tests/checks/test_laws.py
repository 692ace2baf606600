"""Every law says what it is, and can fail: with its comparisons or its controls put to sleep it is vacuous."""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor, nn

import attnzoo
from attnzoo.checks import LAWS, Law
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Case, option_cases, size_cases
from attnzoo.checks.engine.report import Result
from attnzoo.checks.engine.runner import Run
from attnzoo.checks.exam.faults import SOUND
from attnzoo.variant import Positions

each = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)

cases_of = functools.cache(lambda index: [*option_cases(SOUND[index]), *size_cases(SOUND[index])])


def a_place_for(law: Law) -> tuple[attnzoo.Variant, Case]:
    """A sound specimen, and a case of it, that the law applies to."""
    for index, variant in enumerate(SOUND):
        if law.not_applicable(variant) is None:
            return variant, next(case for case in cases_of(index) if law.where(case))
    raise AssertionError(f"{law.id} applies to no sound specimen")


def alone(law: Law) -> Result:
    """The result of a law that stands on no other, on one case of a sound specimen."""
    variant, case = a_place_for(law)
    return Run(variant, [replace(law, after=())], case=case.name).result(law.id)


@each
def test_a_law_says_what_it_is(law: Law) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", law.id)
    assert re.fullmatch(r"C([1-9]|1\d)", law.clause)
    assert re.fullmatch(r"[A-Za-z`][^\n]+\.", law.title), law.title
    assert law.title.split() == law.doc.split()[: len(law.title.split())]


def test_no_two_laws_have_one_id_and_each_stands_on_laws_that_are_there() -> None:
    ids = [law.id for law in LAWS]
    assert len(set(ids)) == len(ids)
    assert {other for law in LAWS for other in law.after} <= set(ids)
    assert [law.id for law in LAWS if not law.after] == ["build.runs"]


def test_every_clause_has_a_law() -> None:
    assert {law.clause for law in LAWS} == {f"C{number}" for number in range(1, 20)}


class Shapeless(nn.Module):
    """Takes no option, and shows no stages."""

    def __init__(self, d_model: int) -> None:
        super().__init__()


EVERYTHING = attnzoo.Traits(cache="kv", cross=True, positions="relative", document=True, memory="linear", work="linear")
EXEMPT: list[tuple[str, dict[str, Any], str]] = [
    ("causality.no_future", {"causal": "never"}, "is never causal"),
    ("rows.sums", {"weights": False}, "returns no weights"),
    ("mask.blocks", {"mask": False}, "takes no mask"),
    ("mask.padding", {"key_mask": False}, "takes no key_mask"),
    ("mask.intersect", {"key_mask": False}, "takes no key_mask"),
    ("causality.cross_sees_all", {"cross": False}, "no cross-attention"),
    ("causality.cross_sees_all", {"sees": "some"}, "sees only some of the keys"),
    ("causality.dependencies", {"sees": "some"}, "sees only some of the keys"),
    ("cache.equals_whole", {"cache": "none"}, "no cache"),
    ("position.per_sample", {"positions": "none"}, "knows no positions"),
    ("position.shift", {"positions": "absolute"}, "'absolute', not 'relative'"),
    ("position.matters", {"positions": "relative"}, "'relative', not 'absolute'"),
    ("position.permutation", {"positions": "relative"}, "knows relative positions"),
    ("position.permutation", {"positions": "none", "sees": "some"}, "sees only some of the keys"),
    ("position.per_sample", {"positions": "index"}, "takes no positions"),
    ("position.order", {"positions": "relative"}, "'relative', not 'index'"),
    ("document.apart", {"document": False}, "takes no document"),
    ("cost.memory", {"memory": "quadratic"}, "its memory is quadratic"),
    ("cost.work", {"work": "quadratic"}, "its work is quadratic"),
]


@pytest.mark.parametrize(("id", "claims", "reason"), EXEMPT, ids=lambda value: str(value))
def test_a_claim_that_is_not_made_exempts_from_its_laws(id: str, claims: dict[str, Any], reason: str) -> None:
    (law,) = (law for law in LAWS if law.id == id)
    made = attnzoo.Variant(
        name="ours", build=Shapeless, summary="A stand-in.", traits=EVERYTHING, cases=[{"d_model": 4}]
    )
    places: list[Positions] = ["relative", "none", "absolute", "index"]
    kinds = [replace(made, traits=replace(EVERYTHING, positions=kind)) for kind in places]
    assert any(law.not_applicable(kind) is None for kind in kinds)
    exempt = law.not_applicable(replace(made, traits=replace(EVERYTHING, **claims)))
    assert exempt is not None
    assert reason in exempt


@pytest.mark.parametrize(
    ("id", "reason"),
    [
        ("truth.oracle", "brings no oracle"),
        ("truth.sdpa", "shows no stages"),
        ("mode.dropout", "takes no option dropout"),
        ("build.refuses_backend", "takes no option backend"),
        ("backend.agrees", "takes no option backend"),
        ("window.width", "takes no option window"),
        ("softcap.bounds", "takes no option softcap"),
        ("sinks.alike", "has no parameter named sinks"),
        ("alibi.slopes", "brings no oracle"),
        ("ring.counts", "declares cache 'none', not 'ring'"),
        ("cache.grows", "declares no cache"),
    ],
)
def test_what_a_layer_lacks_exempts_from_laws_that_need_it(id: str, reason: str) -> None:
    (law,) = (law for law in LAWS if law.id == id)
    lacking = attnzoo.Variant(name="ours", build=Shapeless, summary="A stand-in.", cases=[{"d_model": 4}])
    assert reason in (law.not_applicable(lacking) or "")


@pytest.mark.parametrize("claims", [{"plain": False}, {"sees": "some"}])
def test_sdpa_is_no_truth_for_what_is_more_or_less_than_it(claims: dict[str, Any]) -> None:
    judged_by_sdpa = {law.id for law in LAWS if law.not_applicable(SOUND[0]) is None}
    other = replace(SOUND[0], traits=replace(SOUND[0].traits, **claims))
    exempt = judged_by_sdpa - {law.id for law in LAWS if law.not_applicable(other) is None}
    assert exempt >= {"truth.sdpa", "mask.adds", "numerics.half_sdpa", "numerics.half_layer", "truth.scale"}


def test_a_cache_of_given_length_only_is_not_asked_to_grow() -> None:
    class Given(SOUND[0].build):  # type: ignore[misc]
        def new_cache(self, batch: int, max_len: int) -> Any:
            return super().new_cache(batch, max_len)

    (law,) = (law for law in LAWS if law.id == "cache.grows")
    assert law.not_applicable(SOUND[0]) is None
    assert law.not_applicable(replace(SOUND[0], build=Given)) == "has caches of a given length only (max_len)"


def test_a_window_that_the_options_tell_is_held_to_the_laws_of_all_keys() -> None:
    windowed = next(variant for variant in SOUND if variant.name == "sound_window")
    untold = replace(windowed, build=lambda d_model: Shapeless(d_model), cases=[{"d_model": 4}])
    for law in LAWS:
        if law.id in ("causality.dependencies", "mask.out_of_reach"):
            assert law.not_applicable(windowed) is None
            assert law.not_applicable(untold) == "declares that it sees only some of the keys"


def test_a_build_that_takes_any_keyword_is_asked_for_what_its_cases_show() -> None:
    def build(**options: Any) -> nn.Module:
        return Shapeless(4)

    (law,) = (law for law in LAWS if law.id == "mode.dropout")
    silent = attnzoo.Variant(name="ours", build=build, summary="A stand-in.", cases=[{"d_model": 4}])
    assert law.not_applicable(silent) == "takes no option dropout"
    assert law.not_applicable(replace(silent, cases=[{"d_model": 4}, {"d_model": 4, "dropout": 0.1}])) is None


@each
def test_a_law_without_its_comparisons_is_vacuous(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    assert alone(law).outcome == "passed"
    for comparison in ("close", "exactly", "holds", "finite", "raises", "differs"):
        monkeypatch.setattr(Evidence, comparison, lambda *_, **__: None)
    result = alone(law)
    assert (result.outcome, result.message) == ("vacuous", "compared nothing")


# Laws that say with what the change must show. One may run its control on some cases only.
CONTROLLED = [law for law in LAWS if "see.reacts(" in inspect.getsource(law.run)]


@pytest.mark.parametrize("law", CONTROLLED, ids=lambda law: law.id)
def test_a_law_whose_control_does_not_react_is_vacuous(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    react = Evidence.reacts

    def asleep(self: Evidence, before: Tensor, after: Tensor, what: str) -> None:
        react(self, before, before, what)

    monkeypatch.setattr(Evidence, "reacts", asleep)
    result = alone(law)
    assert result.outcome == "vacuous"
    assert "nothing moved (0.0e+00), so that the law could not have failed" in result.message


def test_many_laws_have_a_control() -> None:
    assert len(CONTROLLED) > len(LAWS) / 4
