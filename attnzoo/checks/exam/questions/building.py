"""Questions about building."""

from __future__ import annotations

from typing import Any

import torch

from attnzoo.checks.engine import law
from attnzoo.checks.exam.questions.witness import Witness, fact, question, taken


@question(law.option("max_seq_len"))
def length_limit(w: Witness) -> Any:
    return taken(lambda: w.layer(max_seq_len=6)(w.tokens()))


@question(law.option("bias"))
def bias_made(w: Witness) -> Any:
    with_bias, without = (
        sum(values.numel() for values in w.make(torch.float64, redrawn=False, bias=bias).parameters())
        for bias in (True, False)
    )
    return fact(with_bias > without)


@question(law.option("scale"))
def given_scale(w: Witness) -> Any:
    return w.layer(scale=0.9)(w.tokens())


@question(law.option("scale"))
def no_scale(w: Witness) -> Any:
    return w.layer(scale=0.0)(w.tokens())


@question(law.option("scale"))
def default_scale(w: Witness) -> Any:
    return w.layer(scale=None)(w.tokens())


@question(law.option("causal"))
def causality_given(w: Witness) -> Any:
    return w.layer(causal=not w.lab.causal)(w.tokens())


@question(law.option("causal"), law.masked)
def causality_masked(w: Witness) -> Any:
    rows = torch.ones(7, 7, dtype=torch.bool, device=w.lab.device)
    return w.layer(causal=not w.lab.causal)(w.tokens(), mask=rows)


@question(law.option("heads"), law.option("head_dim"))
def uneven_width(w: Witness) -> Any:
    groups = {"kv_heads": 5} if "kv_heads" in w.lab.case.options else {}
    return taken(lambda: w.make(torch.float64, redrawn=False, d_model=24, heads=5, head_dim=None, **groups))


@question(law.option("kv_heads"))
def uneven_groups(w: Witness) -> Any:
    return taken(lambda: w.make(torch.float64, redrawn=False, heads=6, kv_heads=4))


@question(law.option("dropout"))
def odd_dropout(w: Witness) -> Any:
    return taken(lambda: w.make(torch.float64, redrawn=False, dropout=1.5))


@question(law.option("backend"))
def odd_backend(w: Witness) -> Any:
    return taken(lambda: w.make(torch.float64, redrawn=False, backend="nonesuch"))


@question(law.option("scale"))
def scale_below_zero(w: Witness) -> Any:
    return w.layer(scale=-0.4)(w.tokens())


@question(law.option("max_seq_len"), law.positional)
def places_beyond_the_length(w: Witness) -> Any:
    return w.layer(max_seq_len=8)(w.tokens(), positions=3 * torch.arange(7, device=w.lab.device) + 5)
