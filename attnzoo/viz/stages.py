"""A layer seen from outside: its stages watched during a real call, and its matrix read off with one-hot values."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnzoo.errors import InputError, Unsupported
from attnzoo.protocol import Staged


@dataclass(frozen=True)
class Call:
    """One call of an innermost submodule: its path, the stage it served, what it made, and the line that called it."""

    path: str
    module: nn.Module
    stage: str
    given: Tensor
    made: Tensor
    flops: int
    where: str


@dataclass
class Watched:
    """One forward pass: what passed between the stages, and every submodule that was called on the way.

    q: (b, h, t, d)    k, v: (b, g, s, d)    mixed: (b, h, t, d)    y: (b, t, c)    asked: attend's mask and key_mask
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mixed: Tensor
    y: Tensor
    calls: list[Call] = field(default_factory=list)
    asked: dict[str, Tensor | None] = field(default_factory=dict)


def watch(layer: nn.Module, x: Tensor, **asked: Tensor | None) -> Watched:
    """Run `layer(x, **asked)` in eval mode, and keep what its stages and submodules were given and made.

    Raises `Unsupported` for a layer without stages, or whose forward pass goes around them.
    """
    require_stages(layer)
    stage, seen, calls = [""], dict[str, Any](), list[Call]()

    def note_stage(name: str) -> Callable[..., Any]:
        def run(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
            stage[0] = name
            seen[name] = (given, named, made := method(*given, **named))
            stage[0] = ""
            return made

        return run

    def note_call(path: str, module: nn.Module) -> Callable[..., Any]:
        def run(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
            with FlopCounterMode(display=False) as counter:
                made = method(*given, **named)
            if given and isinstance(given[0], Tensor) and isinstance(made, Tensor):
                flops = counter.get_total_flops()
                calls.append(Call(path, module, stage[0], given[0], made, flops, line_within(layer)))
            return made

        return run

    with evaluating(layer), torch.no_grad(), ExitStack() as spies:
        for name in ("project", "attend", "merge"):
            spies.enter_context(spied(layer, name, note_stage(name)))
        for path, module in layer.named_modules():
            if path and not list(module.children()):
                spies.enter_context(spied(module, "forward", note_call(path, module)))
        y = layer(x, **{word: value for word, value in asked.items() if value is not None})
    if missing := [name for name in ("project", "attend", "merge") if name not in seen]:
        raise Unsupported(f"the forward pass of {type(layer).__name__} does not go through its {' and '.join(missing)}")
    given, named, mixed = seen["attend"]
    q, k, v = inspect.signature(type(layer).attend).bind(layer, *given, **named).args[1:4]
    masks = {word: named.get(word) for word in ("mask", "key_mask")}
    return Watched(q, k, v, mixed[0] if isinstance(mixed, tuple) else mixed, y, calls, masks)


def effective(layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, **masks: Tensor | None) -> Tensor:
    """The matrix M of `attend(q, k, v) == M @ v`, read off with one-hot values: from any kernel, of any family.

    q: (b, h, t, d)    k, v: (b, g, s, d)    masks: mask and key_mask, as for `attend`    returns: (b, h, t, s)
    """
    attend = cast(Staged, layer).attend
    tokens, width = v.shape[-2:]
    columns = [q.new_zeros(*q.shape[:3], 0)]
    with evaluating(layer), torch.no_grad():
        for start in range(0, tokens, width):  # as many keys at once as a value has channels
            shown = min(width, tokens - start)
            one_hot = torch.zeros_like(v)
            one_hot[..., start : start + shown, :shown] = torch.eye(shown, dtype=v.dtype, device=v.device)
            columns.append(attend(q, k, one_hot, **masks)[..., :shown])
    return torch.cat(columns, dim=-1)


def visibility(layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, **masks: Tensor | None) -> Tensor:
    """Who may see whom, by the layer's own rules: True where a key gets a weight from small random queries and keys.

    Shapes as in `effective`, of which only q, k and v's shapes matter here.    returns: boolean, (b, h, t, s)
    """
    generator = torch.Generator(q.device).manual_seed(0)
    visible = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.bool, device=q.device)
    for _ in range(3):  # a weight may be zero by chance, but not three times
        small_q, small_k = (0.1 * torch.empty_like(x).normal_(generator=generator) for x in (q, k))
        visible |= effective(layer, small_q, small_k, v, **masks) != 0
    return visible


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """weights: (b, h, t, s)    v: (b, g, s, d)    returns: weights @ v, (b, h, t, d); query head h reads h // (h / g)"""
    return weights @ share(v, weights.shape[1])


def share(x: Tensor, heads: int) -> Tensor:
    """x: (b, g, s, d)    returns: (b, h, s, d)"""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def tolerance(like: Tensor) -> float:
    """How far two sound ways to the same tensor may lie apart."""
    return 32 * torch.finfo(like.dtype).eps * max(1.0, float(like.abs().max()) if like.numel() else 1.0)


def require_stages(layer: nn.Module) -> None:
    """Raises `Unsupported` for a layer without stages, `InputError` for what is no layer."""
    if not isinstance(layer, nn.Module):
        raise InputError(f"expected a layer, a torch.nn.Module; got {type(layer).__name__}")
    missing = [name for name in ("project", "attend", "merge") if not callable(getattr(layer, name, None))]
    if missing:
        raise Unsupported(
            f"{type(layer).__name__} shows no stages: it has no {' or '.join(missing)}; "
            "what happens inside can be seen of layers with project, attend and merge"
        )


@contextmanager
def evaluating(layer: nn.Module) -> Iterator[None]:
    """Dropout sleeps inside; afterwards every submodule is in the mode it was in."""
    modes = {module: module.training for module in layer.modules()}
    layer.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def spied(owner: nn.Module, name: str, run: Callable[..., Any]) -> Iterator[None]:
    """Have `owner.name(...)` answered by `run(method, ...)` inside; afterwards all is as it was."""
    own = vars(owner).get(name)
    method = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: run(method, *given, **named))
    try:
        yield
    finally:
        delattr(owner, name)
        if own is not None:
            setattr(owner, name, own)


def line_within(layer: nn.Module) -> str:
    """The line of the layer's own code that is running now, as module/path.py:number."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        module = str(frame.f_globals.get("__name__", ""))
        if frame.f_locals.get("self") is layer and not module.startswith("torch."):
            return place(module, frame.f_lineno)
    return ""


def line_of(method: Callable[..., Any]) -> str:
    """Where a method is written."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    code = getattr(function, "__code__", None)
    return place(function.__module__, code.co_firstlineno) if code else ""


def place(module: str, line: int) -> str:
    """
    >>> place("attnzoo_builtins.mha", 56)
    'attnzoo_builtins/mha.py:56'
    """
    return f"{module.replace('.', '/')}.py:{line}"
