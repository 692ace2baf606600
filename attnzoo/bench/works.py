"""The works: what is timed, who takes part, and how fast attnzoo has to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnzoo.bench import handwritten, peers
from attnzoo.bench.contender import Contender
from attnzoo.bench.handwritten import by_hand
from attnzoo.bench.motion import Motion
from attnzoo.bench.ours import Make, ours
from attnzoo.bench.problem import Problem


@dataclass(frozen=True)
class Target:
    """attnzoo's time over another's must be at most this; below 1 it has to be faster.

    against: a contender's name, or "by hand" for the best of that kind, at the same t
    times: how many times as much t the other one is given; 0.5 compares attnzoo with itself at half of t
    """

    at_most: float
    against: str = "by hand"
    times: float = 1

    def __str__(self) -> str:
        who = "the best by hand" if self.against == "by hand" else self.against
        who += f" at {self.times:g} t" if self.times != 1 else ""
        if self.at_most == 1:
            return f"no slower than {who}"
        if self.at_most < 1:
            return f"at least {1 / self.at_most:g} times as fast as {who}"
        return f"at most {self.at_most:g} times {who}"


@dataclass(frozen=True)
class Work:
    """Some contenders at one problem, or at the same one for several t. The first contender is attnzoo's.

    ts: the numbers of tokens, rising; the problem's own where not given. Targets are judged at the last.
    """

    id: str
    title: str
    motion: Motion
    problem: Problem
    contenders: Sequence[Contender]
    targets: Sequence[Target] = ()
    ts: tuple[int, ...] = ()

    @property
    def problems(self) -> list[Problem]:
        return [self.problem.at(t) for t in self.ts or (self.problem.t,)]

    def quick(self) -> Work:
        """The same with a quarter of the tokens; too small to judge."""
        ts = tuple(t // 4 for t in self.ts)
        return replace(self, problem=self.problem.at(max(self.problem.t // 4, 16)), ts=ts, targets=())


SMALL = Problem(b=2, t=16, d_model=64, heads=8, kv_heads=8, rope=False)
LONG = Problem(t=2048, d_model=1024, heads=16, kv_heads=4)
STEP = Problem(b=4, t=512, d_model=512, heads=8, kv_heads=2)
WINDOW = Problem(t=8192, d_model=512, heads=8, kv_heads=2, window=256)
CAPPED = replace(LONG, softcap=5.0)  # low, so that to forget it shows
PACKED = Problem(t=4096, d_model=512, heads=8, kv_heads=2, documents=(1024, 768, 256, 512, 640, 128, 512, 256))

BY_HAND = Contender("by hand", "by hand", by_hand(handwritten.causal))
BLOCKS = Contender("blocks by hand", "by hand", by_hand(handwritten.band_in_blocks))
BAND = Contender("dense band mask", "plain", by_hand(handwritten.band))
FLEX = Contender("flex by hand, compiled", "by hand", by_hand(handwritten.capped_flex))
LOOP = Contender("document by document, by hand", "by hand", by_hand(handwritten.documents_one_by_one))
BLOCK_MASK = Contender("dense block mask", "plain", by_hand(handwritten.documents_masked))
SINK_KEY = Contender("sink key by hand", "by hand", handwritten.with_sinks)
BIAS = Contender("dense bias by hand", "by hand", by_hand(handwritten.alibi))
CAP_STEPS = Contender("step by step", "plain", by_hand(handwritten.capped))

TORCH = Contender("nn.MultiheadAttention", "peer", peers.torch_mha)
LLAMA = Contender("transformers Llama", "peer", peers.llama)
GEMMA = Contender("transformers Gemma2, eager", "peer", peers.gemma2_eager)
X_TRANSFORMERS = Contender("x-transformers", "peer", peers.x_transformers)
TORCHTUNE = Contender("torchtune", "peer", peers.torchtune)


def all_works(make: Make) -> list[Work]:
    """All of them. make: builds attnzoo's layers by name, as `attnzoo.build` does."""

    def variant(name: str, backend: str = "") -> Contender:
        return ours(make, name, backend=backend)

    eager = "attnzoo {}, eager".format
    return [
        Work(
            "forward",
            "A small forward pass",
            "forward",
            SMALL,
            [
                variant("mha"),
                BY_HAND,
                TORCH,
                X_TRANSFORMERS,
                LLAMA,
            ],
            [Target(1.5)],
        ),
        Work(
            "prefill",
            "A long prompt, forward",
            "forward",
            LONG,
            [variant("rope"), BY_HAND, LLAMA, X_TRANSFORMERS, TORCHTUNE],
            [Target(1.02)],
        ),
        Work(
            "train",
            "A training step: forward and backward",
            "train",
            STEP,
            [variant("rope"), BY_HAND, LLAMA, X_TRANSFORMERS, TORCHTUNE],
            [Target(1.02)],
        ),
        Work(
            "decode",
            "One token, all others cached",
            "decode",
            LONG.at(4097),
            [
                ours(make, "rope", decode=True),
                Contender("preallocated cache by hand", "by hand", handwritten.decoding),
                Contender("transformers Llama, DynamicCache", "peer", peers.llama_decoding),
            ],
            [Target(1.15)],
        ),
        Work(
            "window",
            "A window of 256, forward",
            "forward",
            WINDOW,
            [variant("sliding_window"), BLOCKS, BAND],
            [Target(1.0), Target(1 / 5, BAND.name), Target(2.2, "attnzoo sliding_window", times=0.5)],
            ts=(1024, 2048, 4096, 8192),
        ),
        Work(
            "window-train",
            "A window of 256, forward and backward",
            "train",
            WINDOW,
            [variant("sliding_window"), BLOCKS, BAND],
            [Target(1 / 4, BAND.name)],
            ts=(2048, 4096, 8192),
        ),
        Work(
            "softcap",
            "A softcap, forward",
            "forward",
            CAPPED,
            [variant("softcap"), FLEX, CAP_STEPS, GEMMA],
            [Target(1.1, FLEX.name), Target(1 / 4, GEMMA.name)],
        ),
        Work(
            "softcap-train",
            "A softcap, forward and backward",
            "train",
            CAPPED,
            [variant("softcap"), variant("softcap", "eager"), CAP_STEPS],
            [Target(1.0, eager("softcap"))],
        ),
        Work(
            "alibi-train",
            "ALiBi, forward and backward",
            "train",
            replace(LONG, rope=False, alibi=True),
            [variant("alibi"), variant("alibi", "eager"), BIAS],
            [Target(1.0, eager("alibi"))],
        ),
        Work(
            "sinks-train",
            "Sinks, forward and backward",
            "train",
            replace(LONG, sinks=True),
            [variant("sinks"), variant("sinks", "eager"), SINK_KEY],
            [Target(1.0, eager("sinks"))],
        ),
        Work(
            "packed",
            "Eight packed documents, forward",
            "forward",
            PACKED,
            [variant("packed"), LOOP, BLOCK_MASK],
            [Target(1.15)],
        ),
        Work(
            "packed-train",
            "Eight packed documents, forward and backward",
            "train",
            PACKED,
            [variant("packed"), LOOP, BLOCK_MASK],
            [Target(1.15)],
        ),
    ]
