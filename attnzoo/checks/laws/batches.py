"""The law of strangers: samples of a batch do not meet."""

from __future__ import annotations

import torch

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import law


@law("batch.independent", "C1", cases="all", where=lambda case: case.b > 1)
def independent(lab: Lab, see: Evidence) -> None:
    """A sample in a batch is as it is alone, and changing it changes no other: forward and backward.

    Control: the changed sample itself reacts.
    """
    for dtype in lab.dtypes():
        layer = lab.layer(dtype)
        x, other = lab.tokens(dtype=dtype), lab.tokens(dtype=dtype, draw=1)
        y = layer(x)
        alone = torch.cat([layer(sample[None]) for sample in x])
        see.close(y, alone, f"samples in a batch, and alone, {dtype}")
        changed = x.clone()
        changed[0] = other[0]
        after = layer(changed)
        see.close(after[1:], y[1:], f"samples beside one that changed, {dtype}")
        see.reacts(y[:1], after[:1], "the sample that changed")
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(leaf)[0].sum(), leaf)
        see.exactly(gradient[1:], torch.zeros_like(gradient[1:]), "what the first output asks of the other samples")


@law("batch.order", "C1", where=lambda case: case.b > 1)
def order(lab: Lab, see: Evidence) -> None:
    """Reordering the samples reorders the outputs."""
    layer = lab.layer()
    x = lab.tokens()
    turned = list(reversed(range(x.shape[0])))
    see.close(layer(x[turned]), layer(x)[turned], "outputs of the reversed batch")
    see.reacts(layer(x), layer(x[turned]), "the output when the batch is reversed")
