"""Laws of windows: how many keys they are, and that nothing but the order of the tokens decides which."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.engine import reference
from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import law, option, positional
from attnzoo.checks.laws.causality import depends

TOKENS = 9


@law("window.width", "C8", needs=[option("window")], cases="default")
def width(lab: Lab, see: Evidence) -> None:
    """A window of n is exactly n keys, the query's own included; where nothing is causal, those with |i - j| < n.

    For windows of one key, of some, of all, and far beyond; plain, with weights, under masks and in training. Read
    from the gradient, which tells each key that an output hears. Many libraries count the keys before the own one.
    """
    x = lab.tokens(b=1, t=TOKENS)
    for causal in (True, False) if lab.variant.traits.causal == "optional" else (lab.causal,):
        more = {"causal": causal} if lab.variant.traits.causal == "optional" else {}
        for window in (1, 2, 5, TOKENS - 1, TOKENS, TOKENS + 4, 1000):
            layer = lab.layer(window=window, **more)
            rule = reference.visible(TOKENS, TOKENS, lab.device, causal=causal, window=window)
            assert rule is not None
            for how, call in _calls(lab, layer).items():
                what = f"{how}: who hears whom, with a window of {window}{'' if causal else ', not causal'}"
                see.exactly(depends(call, x), rule, what)
            if lab.variant.traits.weights:
                beyond = layer(x, need_weights=True)[1].masked_select(~rule)
                see.exactly(beyond, torch.zeros_like(beyond), f"weights beyond a window of {window}")


def _calls(lab: Lab, layer: Any) -> dict[str, Callable[[Tensor], Tensor]]:
    """The ways to call a layer in which its window must hold."""
    traits = lab.variant.traits
    calls: dict[str, Callable[[Tensor], Tensor]] = {"plain": layer}
    full = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=lab.device)
    if traits.weights:
        calls["need_weights"] = lambda x: layer(x, need_weights=True)[0]
    if traits.mask:
        calls["mask"] = lambda x: layer(x, mask=full)
        calls["floating mask"] = lambda x: layer(x, mask=full.to(x.dtype))
    if traits.key_mask:
        calls["key_mask"] = lambda x: layer(x, key_mask=full[:1])
    return calls


@law(
    "window.by_index",
    "C5",
    needs=[option("window"), positional],
    cases="default",
    where=lambda case: not case.flat,
)
def by_index(lab: Lab, see: Evidence) -> None:
    """A window goes by the order of the tokens, whatever positions they bear."""
    layer = lab.layer(window=3)
    x = lab.tokens(b=1, t=TOKENS)
    rule = reference.visible(TOKENS, TOKENS, lab.device, causal=lab.causal, window=3)
    assert rule is not None
    index = torch.arange(TOKENS, device=lab.device)
    for how, places in {"far apart": 50 * index, "all the same": 0 * index, "counting down": index.flip(0)}.items():
        see.exactly(depends(partial(layer, positions=places), x), rule, f"positions {how}")
    see.reacts(layer(x), layer(x, positions=50 * index), "the output under positions far apart")


@law("window.far_is_all", "C8", needs=[option("window")], cases="default")
def far_is_all(lab: Lab, see: Evidence) -> None:
    """A window as long as the sequence is no window: one key more, or a thousand, change nothing."""
    for dtype in lab.dtypes():
        x = lab.tokens(dtype=dtype)
        t = x.shape[1]
        y = lab.layer(dtype, window=t)(x)
        for window in (t + 1, 1000):
            see.close(lab.layer(dtype, window=window)(x), y, f"windows of {window} and of {t} on {t} tokens, {dtype}")
    see.reacts(lab.layer(dtype, window=2)(x), y, "the output when the window shrinks to 2")
