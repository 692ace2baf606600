"""Laws of dropout: it acts on the weights, in training only, on each by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab, seed_torch
from attnzoo.checks.engine.law import law, option, staged, weights
from attnzoo.checks.laws.truth import questions


@law("mode.dropout", "C11", needs=[option("dropout")], cases="default")
def dropout(lab: Lab, see: Evidence) -> None:
    """Dropout acts on the weights in training only; in eval it is off, and dropout=0 is bitwise the same as none.

    torch's fused kernel drops whenever it is told a probability, whatever the mode.
    """
    x = lab.tokens()
    without, with_zero, with_half = lab.layer(), lab.layer(dropout=0.0), lab.layer(dropout=0.5)
    y = without(x)
    see.exactly(with_half(x), y, "the output in eval with dropout=0.5 and with none")
    for layer in (without, with_zero, with_half):
        layer.train()
    takes = lab.variant.options
    if not lab.case.options.get("dropout", takes["dropout"].default if takes else 0.0):
        see.exactly(with_zero(x), without(x), "the output in training with dropout=0 and with none")
    for how, asked in questions(lab, x).items():
        first, second = with_half(x, **asked), with_half(x, **asked)
        see.differs(first, second, f"two outputs in training with dropout=0.5, {how}")
    if lab.variant.traits.cache != "none" and lab.causal:
        first, second = (with_half(x, cache=with_half.new_cache(x.shape[0], x.shape[1])) for _ in range(2))
        see.differs(first, second, "two outputs in training with dropout=0.5 and a cache")
    seed_torch(1, lab.device)
    first, second = with_half(x), with_half(x)
    see.differs(y, first, "the outputs in eval and in training with dropout=0.5")
    see.differs(first, second, "two outputs in training with dropout=0.5")
    seed_torch(1, lab.device)
    see.exactly(with_half(x), first, "the output in training under the same seed")


@law("mode.dropout_pattern", "C11", needs=[option("dropout"), staged, weights], cases="default")
def dropout_pattern(lab: Lab, see: Evidence) -> None:
    """Each weight is dropped by itself, or kept and scaled up by 1 / (1 - p); nothing else is dropped.

    Read by one-hot values, which make the weighted sum the dropped weights. Dropping values, channels of the output or
    whole rows, or the same in each head, sample or query, keeps the mean as well.
    """
    p = 0.4
    layer = lab.layer(dropout=p)
    x = lab.tokens(3, 11)
    w = layer(x, need_weights=True)[1]
    layer.train()
    q, k, _ = layer.project(x)
    one_hot = torch.eye(k.shape[2], dtype=x.dtype, device=x.device).expand(*k.shape[:3], -1)
    seed_torch(lab.seed, lab.device)
    draws = torch.stack([layer.attend(q, k, one_hot) for _ in range(40)])
    kept = draws != 0
    sums = layer.attend(q, k, torch.ones_like(one_hot))
    see.close(sums, sums[..., :1].expand_as(sums), "the channels of a weighted sum of ones: none is dropped by itself")
    see.close(draws, torch.where(kept, w / (1 - p), 0.0), "dropped weights, each zero or scaled up")
    seen = (w > 0).expand_as(kept)
    share = float(kept[seen].double().mean())
    error = (p * (1 - p) / int(seen.sum())) ** 0.5
    see.holds(abs(share - (1 - p)) < 7 * error, f"a share of {1 - p:g} of the weights is kept, not {share:.3f}")
    last = kept[..., -1, :] & seen[..., -1, :]
    for what, one, other in (
        ("heads", last[:, :, :1], last[:, :, 1:]),
        ("samples", last[:, :1], last[:, 1:]),
        ("draws", last[:1], last[1:]),
        ("queries", kept[..., -2, :-1] & seen[..., -2, :-1], last[..., :-1]),
        ("keys", last[..., :1], last[..., 1:]),
    ):
        alike = bool((one == other).all()) and other.numel() > 0
        see.holds(not alike, f"{what} are dropped each by themselves, not alike")
    y = layer(x)
    zero = y == 0
    see.holds(not (zero & ~zero.all(-1, keepdim=True)).any(), "no channel of the output is dropped by itself")
    see.reacts(layer.eval()(x), y, "the output in training")


@law("mode.dropout_mean", "C11", needs=[option("dropout")], cases="default")
def dropout_mean(lab: Lab, see: Evidence) -> None:
    """Dropout keeps the mean: over many draws the output in training is the output in eval, within 7 standard errors.

    Kept weights are scaled up by 1 / (1 - p); forgetting that, or doing it twice, changes what the next layer expects.
    Beyond 7 a sound layer strays with one number in some 10^11; beyond 5 with one in a million, which happens.
    """
    layer = lab.layer(dropout=0.4)
    x = lab.tokens(b=1)
    seed_torch(lab.seed, lab.device)
    with torch.no_grad():
        y = layer(x)
        layer.train()
        draws = torch.cat([layer(x.expand(400, -1, -1)) for _ in range(10)])
    keeps_the_mean(see, draws, y, "in training")
    see.differs(y.expand(2, -1, -1), draws[:2], "the outputs in eval, and in training without gradients")


def keeps_the_mean(see: Evidence, draws: Tensor, due: Tensor, what: str) -> None:
    """draws: (n, t, c), outputs in training    due: (1, t, c), the output in eval"""
    error = draws.std(dim=0) / len(draws) ** 0.5
    see.holds(bool((error > 1e-9).any()), f"{len(draws)} draws are not all alike, {what}")
    off = float(((draws.mean(dim=0) - due[0]).abs() / error.clamp(min=1e-12)).max())
    mean = f"the mean of {len(draws)} draws lies within 7 standard errors of eval, {what}"
    see.holds(off < 7, f"{mean}; the worst is {off:.1f} off")


@law("mode.dropout_weights", "C12", needs=[option("dropout"), weights], cases="default")
def dropout_weights(lab: Lab, see: Evidence) -> None:
    """The returned weights are those before dropout: in training as in eval."""
    layer = lab.layer(dropout=0.5)
    x = lab.tokens()
    w = layer(x, need_weights=True)[1]
    layer.train()
    y, trained = layer(x, need_weights=True)
    see.close(trained, w, "the weights in training with dropout=0.5 and in eval")
    see.differs(layer.eval()(x), y, "the outputs in eval, and in training with weights asked for")
