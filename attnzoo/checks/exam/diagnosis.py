"""Which mistake a layer looks like: its answers to fixed questions, against those of every planted fault.

The faults are planted in a layer with the suspect's own weights, as its oracle reads them: so a layer is compared with
what it would be if it had made that very mistake.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from attnzoo import oracle
from attnzoo.checks.engine import law
from attnzoo.checks.engine.lab import Lab, option_cases
from attnzoo.checks.engine.report import Diagnosis
from attnzoo.checks.engine.runner import Run
from attnzoo.checks.exam.faults import FAULTS
from attnzoo.checks.exam.faults.kinds import (
    AbsoluteSpecimen,
    AlibiSpecimen,
    CappedSpecimen,
    PackedSpecimen,
    RingCache,
    RotarySpecimen,
    SunkSpecimen,
    WindowSpecimen,
)
from attnzoo.checks.exam.faults.specimen import Specimen
from attnzoo.checks.exam.questions import QUESTIONS, Answer, Question, Witness
from attnzoo.variant import Variant

# Differences below this share are rounding.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 0.06, torch.float16: 0.01}

# A layer looks like the nearest fault when it differs from it by no more than FAR, in the mean over all it is asked, or
# when the fault leaves no more than this share of what sets the layer apart from a sound one unexplained.
FAR, UNEXPLAINED = 0.05, 0.25

# How many more answers are heard for the sake of a runner-up.
PATIENCE = 1500

# What a layer has only where this option is given.
OPTIONAL: dict[type[Specimen], str] = {WindowSpecimen: "window", CappedSpecimen: "softcap"}

# The questions that every case is asked, for they tell options apart; all the others go to the default case only.
SHORT = (
    "plain",
    "gradient",
    "weights",
    "mask",
    "padded_left",
    "steps",
    "context",
    "context_of_one",
    "context_of_as_many",
    "context_gradient",
    "context_masked",
    "context_weights",
    "context_learned",
    "cache_bytes",
)


def diagnose(run: Run) -> Diagnosis:
    """The planted fault that the variant of this run looks like."""
    return compare(run.variant, run.device, run.seed)


def compare(variant: Variant, device: torch.device, seed: int = 0) -> Diagnosis:
    """Compare a variant's layers with those of every planted fault. Needs an oracle of the standard kind."""
    if variant.oracle is None:
        return Diagnosis(reason="the variant brings no oracle, which would tell how its weights are to be read")
    labs = [Lab(variant, case, device, seed) for case in option_cases(variant)]
    made = [variant.oracle(lab.layer()) for lab in labs]
    definitions = [definition for definition in made if isinstance(definition, oracle.Layer)]
    if len(definitions) < len(made):
        return Diagnosis(reason="its oracle is not an attnzoo.oracle.Layer, in which faults can be planted")
    has = features(variant, definitions[0])
    asked = {word: 1 for word in OPTIONAL.values() if law.option(word)(variant) is None}
    could_have = features(variant, definitions[0], **asked)
    possible = [fault for fault in FAULTS if _possible(fault.layer, could_have)]
    # Of two that answer alike, the one that was planted in a layer of this very kind comes first.
    possible.sort(key=lambda fault: sum(not issubclass(fault.layer, feature) for feature in has))
    kinds: dict[str, type[Specimen]] = {"": Specimen, **{fault.id: fault.layer for fault in possible}}
    questions = {name: question for name, question in QUESTIONS.items() if question.applies(variant)}
    candidates = {
        name: interview(
            questions, [_planted(lab, definition, kind) for lab, definition in zip(labs, definitions, strict=True)]
        )
        for name, kind in kinds.items()
    }
    suspect = interview(questions, [_suspect(lab) for lab in labs])
    far = max(FAR, UNEXPLAINED * _residual(suspect, candidates[""]))
    nearest = _nearest(suspect, candidates, far)
    best, residual = nearest[0]
    if not best:
        why = (
            "what it is asked it answers as a sound layer does"
            if residual == 0
            else "it is nearer to a sound layer than to any"
        )
        return Diagnosis(residual=residual, reason=why)
    if residual > far:
        residual = _residual(suspect, candidates[best])  # until here it was the mean over those few that it was asked
        why = f"the nearest found, {best}, is off by {residual:.3f} in the mean"
        return Diagnosis(residual=residual, runner_up=best, runner_up_residual=residual, reason=why)
    truth = next(fault.truth for fault in FAULTS if fault.id == best)
    second, second_residual = nearest[1]
    return Diagnosis(best, truth, residual, second or "a sound layer", second_residual)


@dataclass
class Interview:
    """Answers to the questions in order, each asked when it is first wanted."""

    asked: Sequence[Callable[[], Answer]]

    def __post_init__(self) -> None:
        self._answers: dict[int, Answer] = {}

    def answer(self, number: int) -> Answer:
        """The answer to this question."""
        if number not in self._answers:
            self._answers[number] = self.asked[number]()
        return self._answers[number]


def _residual(suspect: Interview, candidate: Interview) -> float:
    """The mean difference of all answers."""
    total = len(suspect.asked)
    return sum(_difference(candidate.answer(number), suspect.answer(number)) for number in range(total)) / total


def _nearest(suspect: Interview, candidates: dict[str, Interview], far: float) -> list[tuple[str, float]]:
    """The nearest candidate and the one after it, with their mean difference; only one where it is sound or far.

    Best first: the one that differs least so far is asked the next question, so that most are never asked many. The
    second is looked for with some patience only; then it is the one with the least mean so far.
    """
    total, patience = len(suspect.asked), PATIENCE
    queue = [(0.0, 0, place, name) for place, name in enumerate(candidates)]
    found: list[tuple[str, float]] = []
    while len(found) < 2:
        off, minus_answered, place, name = heapq.heappop(queue)
        number = -minus_answered
        if number == total:
            found.append((name, off / total))
            if not name:
                break
        elif found and patience == 0:
            found.append(
                min(((other, so_far / -heard) for so_far, heard, _, other in queue if heard), key=itemgetter(1))
            )
        elif not found and off > far * total:
            found.append((name, off / number))
            break
        else:
            patience -= bool(found)
            off += _difference(candidates[name].answer(number), suspect.answer(number))
            heapq.heappush(queue, (off, minus_answered - 1, place, name))
    return found


def _difference(one: Answer, other: Answer) -> float:
    """0 for the same, 1 for nothing in common."""
    if isinstance(one, str) or isinstance(other, str):
        return float(one is not other if not isinstance(one, type(other)) else one != other)
    if one.shape != other.shape or one.dtype != other.dtype or bool((one.isfinite() != other.isfinite()).any()):
        return 1.0
    if one.numel() == 0:
        return 0.0
    a, b = (answer.double().nan_to_num(0.0, 0.0, 0.0) for answer in (one, other))
    off = float((a - b).abs().max()) / max(1e-3, float(a.abs().max()), float(b.abs().max()))
    return 0.0 if off < ROUNDING.get(one.dtype, 0.0) else min(1.0, 0.001 + off)


def interview(questions: dict[str, Question], witnesses: Sequence[Witness]) -> Interview:
    """Every question to the first witness, who stands for the default case, and the short list to the others."""
    first, *others = witnesses
    asked = [functools.partial(question, first) for question in questions.values()]
    asked += [functools.partial(questions[name], witness) for name in SHORT if name in questions for witness in others]
    return Interview(asked)


def _suspect(lab: Lab) -> Witness:
    def make(dtype: torch.dtype, /, *, redrawn: bool = True, **options: Any) -> Any:
        return lab.layer(dtype, **options) if redrawn else lab.fresh(**options).to(dtype)

    return Witness(lab, make)


def features(variant: Variant, definition: oracle.Layer, **asked: Any) -> list[type[Specimen]]:
    """What the specimen must have to be a layer of this definition, built with what is asked for beside it.

    A window and a softcap come with an option: a layer whose default case has none has one when it is asked to.
    """
    options = {"window": definition.window, "softcap": definition.softcap, **asked}
    has: dict[type[Specimen], bool] = {
        **{feature: options[word] is not None for feature, word in OPTIONAL.items()},
        AlibiSpecimen: definition.alibi,
        SunkSpecimen: "sinks" in definition.params,
        PackedSpecimen: variant.traits.document,
        RotarySpecimen: definition.rope is not None,
    }
    return [feature for feature, there in has.items() if there]


class EndlessRing(RingCache):
    """A ring that lets nothing go."""

    def keep(self, newest: int) -> None:
        pass


class GrowingWindowSpecimen(WindowSpecimen):
    """A window over a cache that grows, for variants that claim no ring."""

    Ring = EndlessRing


class WholeWindowSpecimen(WindowSpecimen):
    """A window without blocks, which know nothing of what else there is to logits than scores."""

    def why_not_banded(self, q: Tensor, k: Tensor, mask: Tensor | None, need_weights: bool) -> str:
        return super().why_not_banded(q, k, mask, need_weights) or "bias, sinks or documents"


def _planted(lab: Lab, definition: oracle.Layer, layer: type[Specimen]) -> Witness:
    """A layer with the suspect's weights and the fault in it, and all else that the suspect has."""

    def make(dtype: torch.dtype, /, *, redrawn: bool = True, **options: Any) -> Any:
        needed = features(lab.variant, definition, **options)
        kind, plain = _kind(layer, needed, ring=lab.variant.traits.cache == "ring")
        built = kind(**{**_options(definition), **plain, **options}).to(lab.device)
        if redrawn:
            _load(built, definition)
        return built.to(dtype).eval()

    return Witness(lab, make)


def _kind(
    layer: type[Specimen], needed: Sequence[type[Specimen]], *, ring: bool
) -> tuple[type[Specimen], dict[str, Any]]:
    """The faulty layer with all that is needed, and the options that this takes."""
    if any(issubclass(layer, feature) and feature not in needed for feature in OPTIONAL):
        layer = Specimen  # a fault of windows is none in a layer that is asked for no window
    windowed = WindowSpecimen in needed
    window: list[type[Specimen]] = [WindowSpecimen if ring else GrowingWindowSpecimen] if windowed else []
    if windowed and {AlibiSpecimen, SunkSpecimen, PackedSpecimen} & {*needed}:
        window.append(WholeWindowSpecimen)
    needed = [*window, *(feature for feature in needed if feature is not WindowSpecimen)]
    missing = [feature for feature in needed if not issubclass(layer, feature)]
    own = () if layer is Specimen and missing else (layer,)
    kind = layer if not missing else type(layer.__name__, (*own, *missing), {})
    # A step that is wrong is wrong in the plain path of a window; its blocks take the steps in another way.
    wrong_step = layer is not Specimen and not issubclass(layer, WindowSpecimen)
    return kind, {"backend": "eager"} if windowed and wrong_step else {}


def _options(definition: oracle.Layer) -> dict[str, Any]:
    """The build options of a specimen like this."""
    d = definition.head_dim
    weight, bias = definition.projection("k")
    usual = definition.scale is not None and abs(definition.scale - d**-0.5) < 1e-12
    rope = definition.rope
    return {
        "d_model": weight.shape[1],
        "heads": definition.heads,
        "kv_heads": weight.shape[0] // d,
        "head_dim": d,
        "bias": bias is not None,
        "causal": definition.causal,
        "scale": None if usual else definition.scale,
        **({"theta": rope.theta, "layout": rope.layout, "rotary_dim": rope.rotary_dim} if rope else {}),
        **({} if definition.window is None else {"window": definition.window}),
        **({} if definition.softcap is None else {"softcap": definition.softcap}),
    }


def _load(layer: Specimen, definition: oracle.Layer) -> None:
    with torch.no_grad():
        for part in ("q", "k", "v", "out"):
            weight, bias = definition.projection(part)
            linear = layer.get_submodule(part)
            for values, name in ((weight, "weight"), (bias, "bias")):
                if values is not None and getattr(linear, name) is not None:
                    getattr(linear, name).copy_(torch.from_numpy(values))
        if isinstance(layer, SunkSpecimen):
            layer.sinks.copy_(torch.from_numpy(definition.params["sinks"]))


def _possible(layer: type[Specimen], has: Sequence[type[Specimen]]) -> bool:
    """Whether a layer of these features could have this fault: it takes no feature that they lack."""
    features = [WindowSpecimen, CappedSpecimen, AlibiSpecimen, SunkSpecimen, PackedSpecimen, RotarySpecimen]
    return all(feature in has for feature in (*features, AbsoluteSpecimen) if issubclass(layer, feature))
