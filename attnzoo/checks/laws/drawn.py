"""The law of chance: whatever is drawn, the layer is its definition. Adds to the named cases, and replaces none.

Drawn by hypothesis, derandomised: the same examples on every run, and the smallest one when the law does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnzoo.checks.engine import tolerance
from attnzoo.checks.engine.evidence import Broken, Evidence
from attnzoo.checks.engine.lab import Case, Lab, array, option_cases, tensor
from attnzoo.checks.engine.law import ROOT, law, with_oracle
from attnzoo.variant import Variant

# How many examples are drawn at each depth.
EXAMPLES = {"quick": 10, "full": 100, "soak": 2000}

LAYOUTS = ("contiguous", "transposed", "sliced")


@dataclass(frozen=True)
class Example:
    """One drawn call. `lengths` are those of a left-padded batch; `cuts` where a cache is fed, () for no cache."""

    case: Case
    dtype: torch.dtype
    layout: str
    mask: str
    lengths: tuple[int, ...]
    cuts: tuple[int, ...]
    first: int
    packed: bool = False

    def __str__(self) -> str:
        padded = f", lengths {self.lengths}" if self.lengths else ""
        cached = f", cache fed at {self.cuts}" if self.cuts else ""
        moved = f", positions from {self.first}" if self.first else ""
        packed = ", documents" if self.packed else ""
        return f"{self.case.words}, {self.dtype}, {self.layout}, mask {self.mask}{padded}{cached}{moved}{packed}"


@st.composite
def examples(draw: st.DrawFn, variant: Variant) -> Example:
    """Sizes, heads, type, memory layout, masks, padding, cache cuts and positions that the variant takes."""
    traits = variant.traits
    case = draw(st.sampled_from(option_cases(variant)))
    case = case.change(b=draw(st.integers(1, 4)), t=draw(st.integers(1, 20) | st.integers(63, 67)))
    takes = variant.options or {}
    if {"heads", "head_dim"} <= set(takes) and "rotary_dim" not in case.options and draw(st.booleans()):
        groups = draw(st.integers(1, 3))
        heads = groups * draw(st.integers(1, 3))
        shared = {"kv_heads": groups} if "kv_heads" in takes else {}
        case = case.change(heads=heads, head_dim=draw(st.sampled_from([2, 4, 6, 8])), **shared)
    if "window" in takes and draw(st.booleans()):
        case = case.change(window=draw(st.sampled_from([1, 2, 3, 5, 16, 64, 1000])))
    if "softcap" in takes and draw(st.booleans()):
        case = case.change(softcap=draw(st.sampled_from([0.5, 3.0, 50.0])))
    causal = case.causal and traits.causal != "never"
    cached = causal and traits.cache != "none" and draw(st.booleans())
    padded = traits.key_mask and not cached and draw(st.booleans())
    lengths = st.tuples(*[st.integers(1, case.t)] * case.b)
    return Example(
        case=case,
        dtype=draw(st.sampled_from([torch.float64, torch.float32])),
        layout=draw(st.sampled_from(LAYOUTS)),
        mask=draw(
            st.sampled_from(["none", "boolean", "per sample", "floating"] if traits.mask and not cached else ["none"])
        ),
        lengths=draw(lengths) if padded else (),
        cuts=tuple(sorted(draw(st.sets(st.integers(1, case.t), max_size=4)))) if cached else (),
        first=draw(st.sampled_from([0, 3, 1000])) if traits.takes_positions and not cached else 0,
        packed=traits.document and draw(st.booleans()),
    )


@law("drawn.oracle", "C2", needs=[with_oracle], cases="default", after=(ROOT, "truth.oracle"))
def drawn_oracle(lab: Lab, see: Evidence) -> None:
    """Whatever is drawn, the output is that of the definition: sizes, heads, types, memory layouts, masks, padding,
    positions, and the cuts at which a cache is fed.

    Ten examples in a quick run, a hundred in a full one. The smallest example that fails is the one that is told.
    """

    @settings(
        max_examples=EXAMPLES[lab.depth],
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(examples(lab.variant))
    def hold(example: Example) -> None:
        try:
            _compare(Lab(lab.variant, example.case, lab.device, lab.seed), see, example)
        except Broken as broken:
            raise Broken(f"{broken} (drawn: {example})") from broken

    hold()


def _compare(lab: Lab, see: Evidence, example: Example) -> None:
    make = lab.variant.oracle
    assert make is not None  # the law needs it
    layer = lab.layer(example.dtype)
    x, asked = _laid_out(lab.tokens(dtype=example.dtype), example.layout), _asked(lab, example)
    due, _ = make(layer).forward(array(x), **{word: array(value) for word, value in asked.items()})
    got = _fed(layer, x, example.cuts) if example.cuts else layer(x, **asked)
    order = tolerance.rounding(example.dtype, tolerance.ROUNDINGS_OF_OUTPUT)
    see.close(got, tensor(due), "the output", dtype=example.dtype, plain=order)


def _asked(lab: Lab, example: Example) -> dict[str, Tensor]:
    """The arguments of the call."""
    b, t = example.case.b, example.case.t
    asked = {}
    if example.mask == "boolean":
        asked["mask"] = lab.mask(t, t)
    elif example.mask == "per sample":
        asked["mask"] = lab.mask(b, 1, t, t)
    elif example.mask == "floating":
        asked["mask"] = 2 * lab.normal(b, 1, t, t, draw=3).to(example.dtype)
    if example.lengths:
        asked["key_mask"] = lab.padding(list(example.lengths), t, left=True)
    if example.packed:
        asked["document"] = lab.documents(b, t)
    if example.first:
        asked["positions"] = torch.arange(t, device=lab.device) + example.first
    return asked


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers, lying otherwise in memory."""
    if layout == "transposed":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "sliced":
        return x.repeat_interleave(2, dim=-1)[..., ::2]
    return x


def _fed(layer: Any, x: Tensor, cuts: tuple[int, ...]) -> Tensor:
    """The output, fed to a cache in pieces."""
    cache, edges = layer.new_cache(x.shape[0], x.shape[1]), [0, *cuts, x.shape[1]]
    pieces = [layer(x[:, a:e], cache=cache) for a, e in pairwise(edges) if e > a]
    return torch.cat(pieces, dim=1)
