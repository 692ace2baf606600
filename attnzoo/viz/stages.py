"""A layer watched from outside during a real call: what passes between its stages, and every submodule it uses."""

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
from attnzoo.viz.probe import evaluating


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

    q: (b, h, t, d)    k, v: (b, g, s, d)    mixed: (b, h, t, d)    y: (b, t, c)
    rules: what else attend was given, such as mask and key_mask
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mixed: Tensor
    y: Tensor
    calls: list[Call] = field(default_factory=list)
    rules: dict[str, Any] = field(default_factory=dict)


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
    bound = inspect.signature(cast(Staged, layer).attend).bind(*given, **named).arguments
    q, k, v = (bound[word] for word in "qkv")
    rules = {word: value for word, value in bound.items() if word not in ("q", "k", "v", "need_weights")}
    return Watched(q, k, v, mixed[0] if isinstance(mixed, tuple) else mixed, y, calls, rules)


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
    >>> place("my_plugin.mine", 56)
    'my_plugin/mine.py:56'
    """
    return f"{module.replace('.', '/')}.py:{line}"
