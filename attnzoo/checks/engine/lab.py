"""Where a law is tried: a named case, layers with redrawn parameters, inputs, and the evidence."""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnzoo.checks.engine import reference
from attnzoo.errors import ConfigError, did_you_mean
from attnzoo.variant import Variant

# No law asks for more tokens than this.
LONGEST = 2048


@dataclass(frozen=True)
class Case:
    """A named set of build options with the batch and length of its input."""

    name: str
    options: Mapping[str, Any]
    b: int
    t: int
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def causal(self) -> bool:
        """Built causal, as far as the options tell."""
        return bool(self.options.get("causal", True))

    @property
    def words(self) -> str:
        """The case as `--case` takes it: its name, and what differs from the case of that name."""
        return ",".join([self.name, *(f"{word}={value}" for word, value in self.changed.items())])

    def change(self, **sizes: Any) -> Case:
        """The same case with other options, or another b or t."""
        own = {"b": self.b, "t": self.t, **sizes}
        options = {**self.options, **{word: value for word, value in sizes.items() if word not in ("b", "t")}}
        return Case(self.name, options, own["b"], own["t"], {**self.changed, **sizes})

    @property
    def solitary(self) -> bool:
        """Built with a window of 1: each token sees itself only, and what comes from others does not show."""
        return self.options.get("window") == 1

    @property
    def flat(self) -> bool:
        """Built with scale 0: every logit is zero, and what only moves logits does not show."""
        return self.options.get("scale") == 0


def option_cases(variant: Variant) -> list[Case]:
    """The variant's own option sets, then the coincidences that hide bugs, where its options allow them.

    The input's batch and length differ from every size among the options, and from each other.
    """
    own = [{**_room(variant), **options} for options in variant.cases]
    named: dict[str, dict[str, Any]] = {f"options-{i}": options for i, options in enumerate(own)}
    first = own[0]
    takes = variant.options or {}
    if variant.traits.causal == "optional":
        causal = bool(first.get("causal", True))
        named["not-causal" if causal else "causal"] = {**first, "causal": not causal}
    if "scale" in takes:
        named["scale-0"] = {**first, "scale": 0.0}
    if "bias" in takes:
        named["bias"] = {**first, "bias": True}
    if "heads" in takes and "head_dim" in takes:
        groups: dict[str, Any] = {"kv_heads": 1} if "kv_heads" in takes else {}
        named["heads-odd"] = {**first, "heads": 5, "head_dim": 8, **groups}
    if "heads" in takes and "kv_heads" in takes and "heads" in first:
        named["kv-heads-1"] = {**first, "kv_heads": 1}
        named["kv-heads-all"] = {**first, "kv_heads": first["heads"]}
    if "window" in takes and "window" in first:
        named["window-1"] = {**first, "window": 1}
    if "softcap" in takes:
        named["softcap-1"] = {**first, "softcap": 1.0}
    return [
        Case(name, options, *_free_sizes(options))
        for name, options in named.items()
        # The variant's own cases must build; a coincidence that it refuses is not among its kinds.
        if name.startswith("options-") or _builds(variant, options)
    ]


def size_cases(variant: Variant) -> list[Case]:
    """The default options on the sizes at which code takes another path."""
    options = {**_room(variant), **variant.cases[0]}
    heads = int(options.get("heads", 2))
    sizes = {
        "one-token": (2, 1),
        "batch-1": (1, 7),
        "batch-3": (3, 7),
        "batch-9": (9, 5),
        "batch-heads": (heads, 7),
        "batch-tokens": (5, 5),
        "length-17": (2, 17),
        "length-71": (2, 71),
    }
    return [Case(name, options, b, t) for name, (b, t) in sizes.items()]


def _room(variant: Variant) -> dict[str, Any]:
    """What a build takes for granted and the laws must know: a causality that is off, a length that ends too early."""
    takes = variant.options or {}
    given: dict[str, Any] = {}
    if "causal" in takes and takes["causal"].default is False:
        given["causal"] = False
    if "max_seq_len" in takes and isinstance(takes["max_seq_len"].default, int):
        given["max_seq_len"] = LONGEST
    return given


def find_case(words: str, cases: Sequence[Case]) -> Case:
    """The case that these words name: one of `cases`, and after its name what is to differ, as in "options-0,b=1,t=2".

    Raises `ConfigError` for a name that there is not, or words that are no option.
    """
    name, *changes = [word.strip() for word in words.split(",")]
    found = next((case for case in cases if case.name == name), None)
    if found is None:
        names = [case.name for case in cases]
        raise ConfigError(f"no case is called {name!r}{did_you_mean(name, names) or '.'} Cases: {', '.join(names)}")
    sizes = {}
    for change in changes:
        word, equals, value = change.partition("=")
        if not equals:
            raise ConfigError(f"--case: {change!r} must be word=value, as in {name},b=1,t=2")
        try:
            sizes[word] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            sizes[word] = value
    return found.change(**sizes)


def _builds(variant: Variant, options: Mapping[str, Any]) -> bool:
    """Whether a factory takes these options."""
    try:
        variant.build(**options)
    except Exception:  # a stranger's factory refuses in its own words, by an assert even, as it may to the registry
        return False
    return True


def _free_sizes(options: Mapping[str, Any]) -> tuple[int, int]:
    taken = {value for value in options.values() if isinstance(value, int)}
    b = next(size for size in (2, 3, 5, 7) if size not in taken)
    t = next(size for size in (7, 11, 13, 17) if size not in taken | {b})
    return b, t


@dataclass
class Lab:
    """Builds layers and inputs for a case. Everything drawn depends on the seed and the case alone."""

    variant: Variant
    case: Case
    device: torch.device
    seed: int = 0
    depth: str = "quick"

    def layer(self, dtype: torch.dtype = torch.float64, /, **changed: Any) -> Any:
        """A layer of the case in eval mode, its parameters redrawn so that the logits have a spread of about 2.

        With the small weights of a fresh layer softmax is flat, and wrong code passes.
        """
        seed_torch(self.seed, self.device)
        layer = self.variant.build(**{**self.case.options, **changed})
        redraw(layer, self.seed)
        return layer.to(device=self.device, dtype=dtype).eval()

    def builds(self, **changed: Any) -> bool:
        """Whether the variant takes the case's options with these changed."""
        return _builds(self.variant, {**self.case.options, **changed})

    def fresh(self, **changed: Any) -> Any:
        """A layer of the case as it is built, not redrawn."""
        return self.variant.build(**{**self.case.options, **changed}).to(self.device)

    @property
    def width(self) -> int:
        """The layer's d_model."""
        options = self.case.options
        return int(options["d_model"] if "d_model" in options else (self.variant.options or {})["d_model"].default)

    @property
    def causal(self) -> bool:
        """Whether the case's layer is causal."""
        return self.variant.traits.causal != "never" and self.case.causal

    @property
    def window(self) -> int | None:
        """The window of the case's layer, where its variant has one."""
        options = self.case.options
        takes = (self.variant.options or {}).get("window")
        given = options.get("window", takes.default if takes else None)
        return int(given) if isinstance(given, int) else None

    def visible(self, t: int, s: int) -> Tensor | None:
        """(t, s), which keys the rules of the case's layer allow to the newest t of s tokens; None for all."""
        return reference.visible(t, s, self.device, causal=self.causal, window=self.window)

    def documents(self, b: int, t: int) -> Tensor:
        """Ids (b, t) of packed documents, in pieces of 1 to 5 tokens that differ from sample to sample.

        The names are any integers: two that are one number in float32, two that are one in a byte, -1, 0. Each
        sample's first name comes again at its end: a document is known by its id, not by its borders.
        """
        names = [2**25, 2**25 + 1, -1, 5, 261, 0, 8, -41]
        generator = torch.Generator().manual_seed(1000 * self.seed + 11)
        rows = []
        for sample in range(b):
            row: list[int] = []
            while len(row) < t:
                size = 1 if len(row) == sample + 1 else int(torch.randint(1, 6, (1,), generator=generator))
                row += [names[(sample + len(set(row))) % 8]] * size
            row = row[:t]
            row[-1] = row[0] if t > 6 else row[-1]
            rows.append(row)
        return torch.tensor(rows, dtype=torch.long, device=self.device).reshape(b, t)

    def scale(self, q: Tensor) -> float:
        """The scale that the case's layer must use (C2). q: (b, h, t, d)"""
        given = self.case.options.get("scale")
        return float(q.shape[-1] ** -0.5 if given is None else given)

    def tokens(
        self, b: int | None = None, t: int | None = None, dtype: torch.dtype = torch.float64, *, draw: int = 0
    ) -> Tensor:
        """Random tokens (b, t, c) of unit spread; `draw` picks another sample."""
        shape = (self.case.b if b is None else b, self.case.t if t is None else t, self.width)
        return self.normal(*shape, draw=draw).to(dtype)

    def normal(self, *shape: int, draw: int = 0) -> Tensor:
        """Random numbers of unit spread in float64."""
        generator = torch.Generator().manual_seed(1000 * self.seed + draw)
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.device)

    def mask(self, *shape: int, draw: int = 0) -> Tensor:
        """A random boolean mask, two thirds True: every row sees its own index, and the last one misses the first key
        and the one before its own.

        The certain misses keep a control alive: on few tokens chance alone may block nothing at all, or nothing that a
        window lets be seen.
        """
        generator = torch.Generator().manual_seed(1000 * self.seed + draw + 7)
        mask = torch.rand(*shape, generator=generator) < 2 / 3
        mask[..., -1, 0] = mask[..., -1, max(0, shape[-1] - 2)] = False
        eye = torch.eye(shape[-2], shape[-1], dtype=torch.bool)
        return (mask | eye).to(self.device)

    def padding(self, lengths: list[int], s: int, *, left: bool) -> Tensor:
        """A key_mask (b, s), True on the real tokens of samples of these lengths."""
        index = torch.arange(s, device=self.device)
        length = torch.tensor(lengths, device=self.device)[:, None]
        return index >= s - length if left else index < length

    def dtypes(self) -> Iterator[torch.dtype]:
        """The types in which a result is held to its full precision."""
        yield torch.float64
        yield torch.float32


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch's global generator: that of the CPU, and those of other devices where one is used.

    `torch.manual_seed` seeds every kind of device, and for each that sleeps it queues the seed with the stack as text.
    Called thousands of times, that is a fifth of a run's time, and memory that is never given back.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def redraw(layer: nn.Module, seed: int) -> None:
    """Matrices: normal, spread √2 / √fan_in, so that unit inputs give logits of spread 2. Vectors (biases, gains,
    sinks): half a unit off where they were, so that none stands at its default."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.dim() >= 2:
                parameter.copy_(noise * math.sqrt(2 / parameter.shape[-1]))
            else:
                parameter.add_(0.5 * noise.to(parameter.device, parameter.dtype))


def array(tensor: Tensor | None) -> Any:
    """A tensor as NumPy: booleans and integers as they are, floats as float64."""
    if tensor is None:
        return None
    tensor = tensor.detach().cpu()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def tensor(values: np.ndarray[Any, Any]) -> Tensor:
    """NumPy float64 as a tensor on the CPU."""
    return torch.from_numpy(np.ascontiguousarray(values))


class Randomness:
    """The state of every random source a layer could touch; `stirred`, so that it is no seed's first one."""

    @classmethod
    def stirred(cls) -> Randomness:
        """The state after a draw: a source that a layer seeds has moved then, even if it was seeded so before."""
        torch.rand(()), random.random(), np.random.random()
        return cls()

    def __init__(self) -> None:
        self.torch, self.python = torch.random.get_rng_state(), random.getstate()
        self.numpy = np.random.get_state(legacy=True)

    def moved(self) -> list[str]:
        """The names of the sources that have moved since."""
        now = Randomness()
        moved = []
        if not torch.equal(self.torch, now.torch):
            moved.append("torch's")
        if self.python != now.python:
            moved.append("Python's")
        if repr(self.numpy) != repr(now.numpy):
            moved.append("NumPy's")
        return moved


class Switches:
    """What is set for the whole process, and is nobody's to leave changed."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {
            "gradients": torch.is_grad_enabled(),
            "the default dtype": torch.get_default_dtype(),
            "float32 matmul precision": torch.get_float32_matmul_precision(),
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "the number of threads": torch.get_num_threads(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "anomaly detection": torch.is_anomaly_enabled(),
        }

    def moved(self) -> list[str]:
        """The names of the switches that are set otherwise now."""
        now = Switches().values
        return [name for name, value in self.values.items() if now[name] != value]

    def restore(self) -> None:
        """Set back those that moved: of one of them to set what it is takes seconds, by all that torch imports."""
        for name in self.moved():
            SETTERS[name](self.values[name])


SETTERS: dict[str, Callable[[Any], object]] = {
    "gradients": torch.set_grad_enabled,
    "the default dtype": torch.set_default_dtype,
    "float32 matmul precision": torch.set_float32_matmul_precision,
    "deterministic algorithms": torch.use_deterministic_algorithms,
    "the number of threads": torch.set_num_threads,
    "autocast": lambda on: torch.set_autocast_enabled("cpu", on),
    "anomaly detection": torch.autograd.set_detect_anomaly,
}
