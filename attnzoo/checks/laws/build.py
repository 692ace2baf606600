"""Laws of building: what comes out, what is refused, and where the parameters come from."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Case, Lab, Randomness
from attnzoo.checks.engine.law import ROOT, law, option, weights
from attnzoo.errors import ConfigError, InputError


@law(ROOT, "C1")
def builds_and_answers(lab: Lab, see: Evidence) -> None:
    """A variant builds from each of its cases, and the layer answers tokens with tokens of the same shape.

    Every other law stands on this one.
    """
    layer = lab.fresh()
    see.holds(isinstance(layer, nn.Module), f"build returns a torch.nn.Module, not a {type(layer).__name__}")
    x = lab.tokens(dtype=torch.float32)
    y = layer(x)
    see.holds(isinstance(y, torch.Tensor), f"a plain call returns a tensor, not a {type(y).__name__}")
    see.holds(y.shape == x.shape, f"a plain call on {tuple(x.shape)} returns the same shape, not {tuple(y.shape)}")
    see.finite(y, "the output of a fresh layer")


@law("build.seeded", "C16")
def seeded(lab: Lab, see: Evidence) -> None:
    """Two builds with one seed are equal, and only torch's global generator is asked.

    Otherwise a run cannot be repeated, or a library that seeds NumPy changes your model.
    """
    before = Randomness.stirred()
    torch.manual_seed(1)
    first = lab.fresh().state_dict()
    moved = [source for source in before.moved() if source != "torch's"]
    see.holds(not moved, f"building draws from torch's global generator only, not from {', '.join(moved)}")
    torch.manual_seed(1)
    second = lab.fresh().state_dict()
    torch.manual_seed(2)
    other = lab.fresh().state_dict()
    for name, values in first.items():
        see.exactly(second[name], values, f"{name} of a second build with the same seed")
    drawn = [name for name in first if not torch.equal(first[name], other[name])]
    see.holds(bool(drawn), "another seed draws other parameters")


def told_apart(case: Case) -> bool:
    """Cases in which the weights of a head tell its parameters."""
    return case.t > 2 and not case.flat and not case.solitary


@law("build.heads_differ", "C16", needs=[weights], where=told_apart)
def heads_differ(lab: Lab, see: Evidence) -> None:
    """Heads are born different: those that start alike get the same gradients, and stay alike for ever."""
    w = lab.fresh().eval()(lab.tokens(dtype=torch.float32), need_weights=True)[1]
    see.finite(w, "the weights of a fresh layer")
    alike = [h for h in range(1, w.shape[1]) if torch.equal(w[:, h], w[:, 0])]
    see.holds(not alike, f"each head of a fresh layer has weights of its own; as the first has head {alike}")


@law("build.apart", "C18")
def instances_apart(lab: Lab, see: Evidence) -> None:
    """Two layers share nothing: calling or changing one leaves the other as it was."""
    one, two = lab.layer(), lab.layer()
    x = lab.tokens()
    y = one(x)
    pointers = {tensor.data_ptr() for tensor in [*one.parameters(), *one.buffers()] if tensor.numel()}
    shared = [n for n, t in [*two.named_parameters(), *two.named_buffers()] if t.numel() and t.data_ptr() in pointers]
    see.holds(not shared, f"two layers share no memory, but share {', '.join(shared)}")
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.mul_(1.5)
    see.reacts(y, two(lab.tokens(draw=1)), "the other layer, changed and called")
    see.exactly(one(x), y, "a layer after another one was changed and called")


@law("build.refuses_dropout", "C11", needs=[option("dropout")], cases="default")
def refuses_dropout(lab: Lab, see: Evidence) -> None:
    """A dropout that is no share of the weights is refused: negative, one, or more."""
    for dropout in (-0.1, 1.0, 1.5):
        words = ("dropout", dropout)
        see.raises(ConfigError, partial(lab.fresh, dropout=dropout), f"dropout={dropout}", words=words)


@law("build.refuses_uneven_width", "C2", needs=[option("heads"), option("head_dim")], cases="default")
def refuses_uneven_width(lab: Lab, see: Evidence) -> None:
    """Only when head_dim is left out must heads divide d_model; the refusal states both numbers and a way out."""
    heads = {"heads": 5, **({"kv_heads": 5} if "kv_heads" in lab.case.options else {})}
    see.raises(
        ConfigError,
        lambda: lab.fresh(d_model=24, head_dim=None, **heads),
        "5 heads for d_model=24",
        words=("heads", 5, 24, "head_dim"),
    )
    layer = lab.fresh(d_model=24, head_dim=10, **heads)
    x = lab.normal(2, 3, 24).float()
    see.holds(layer(x).shape == x.shape, "5 heads of head_dim=10 for d_model=24 build and answer")


@law("build.refuses_uneven_groups", "C7", needs=[option("heads"), option("kv_heads")], cases="default")
def refuses_uneven_groups(lab: Lab, see: Evidence) -> None:
    """Heads that cannot share the key-value heads evenly are refused, with both numbers."""
    see.raises(
        ConfigError,
        lambda: lab.fresh(heads=6, kv_heads=4),
        "6 heads on 4 key-value heads",
        words=("heads", 6, "kv_heads", 4),
    )


@law("build.refuses_backend", "C12", needs=[option("backend")], cases="default")
def refuses_backend(lab: Lab, see: Evidence) -> None:
    """A backend that does not exist is refused at build, not replaced by another."""
    see.raises(ConfigError, lambda: lab.fresh(backend="nonesuch"), "backend='nonesuch'", words=("nonesuch", "auto"))


@law("build.refuses_window", "C8", needs=[option("window")], cases="default")
def refuses_window(lab: Lab, see: Evidence) -> None:
    """A window counts the query's own token: one of no keys, or fewer, is refused."""
    for window in (0, -3):
        see.raises(ConfigError, partial(lab.fresh, window=window), f"window={window}", words=("window", window))


@law("build.refuses_softcap", "C2", needs=[option("softcap")], cases="default")
def refuses_softcap(lab: Lab, see: Evidence) -> None:
    """A softcap of zero, or below, is refused: it would bend all logits to nothing, or turn them over."""
    for softcap in (0.0, -2.0):
        see.raises(ConfigError, partial(lab.fresh, softcap=softcap), f"softcap={softcap}", words=("softcap", softcap))


@law("build.max_seq_len", "C1", needs=[option("max_seq_len")])
def max_seq_len(lab: Lab, see: Evidence) -> None:
    """A given max_seq_len is enforced, and nothing of its size is stored: weights load under another one."""
    short, long = lab.layer(max_seq_len=8), lab.layer(max_seq_len=64)
    x = lab.tokens(t=9)
    see.close(short(x[:, :8]), long(x[:, :8]), "8 tokens under max_seq_len=8 and under 64")
    see.raises(InputError, lambda: short(x), "9 tokens under max_seq_len=8", words=(9, 8, "max_seq_len"))
    if lab.variant.traits.positions == "relative":
        far = torch.arange(8, device=lab.device) * 3 + 50
        see.close(
            short(x[:, :8], positions=far),
            long(x[:, :8], positions=far),
            "8 tokens at far positions, under max_seq_len=8 and under 64: it bounds tokens, not where they stand",
        )
    long.load_state_dict(short.state_dict(), strict=True)
    see.exactly(long(x), lab.layer(max_seq_len=64)(x), "weights loaded from max_seq_len=8 into 64")


@law("build.options_matter", "C14", cases="default")
def options_matter(lab: Lab, see: Evidence) -> None:
    """No option is ignored: two values of it make two layers.

    Tried for the standard names that the variant takes, each where it can show: not under scale=0, nor in a window of
    one key; and how angles are made where there is more than one pair to turn.
    """
    pairs: dict[str, tuple[Any, Any]] = {
        "scale": (0.3, -0.3),
        "causal": (True, False),
        "bias": (True, False),
        "head_dim": (8, 12),
        "kv_heads": (1, lab.case.options.get("heads")),
        "theta": (100.0, 10000.0),
        "layout": ("half", "interleaved"),
        "rotary_dim": (2, 4),
        "window": (2, 4),
        "softcap": (2.0, 50.0),
    }
    x = lab.tokens()
    takes = lab.variant.options or {word for case in lab.variant.cases for word in case}
    for word in (word for word in pairs if word in takes):
        if word == "causal" and lab.variant.traits.causal != "optional":
            continue
        if pairs[word][0] == pairs[word][1]:  # a single head has no two ways to share keys
            continue
        shown: dict[str, Any] = {"scale": None} if lab.case.flat else {}
        shown |= {"window": 4} if lab.case.solitary else {}
        shown |= (
            {"head_dim": 8}
            if word in ("theta", "layout", "rotary_dim") and lab.case.options.get("head_dim", 8) < 4
            else {}
        )
        one, two = (lab.layer(**{**shown, word: value}) for value in pairs[word])
        sizes = [[tuple(p.shape) for p in layer.parameters()] for layer in (one, two)]
        same = sizes[0] == sizes[1] and torch.equal(one(x), two(x))
        see.holds(not same, f"{word}={pairs[word][0]} and {word}={pairs[word][1]} make different layers")
    see.holds(lab.fresh()(x.float()).shape == x.shape, "the default options answer")
