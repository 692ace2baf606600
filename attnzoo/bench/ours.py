"""attnzoo's layers as contenders: built by name, with the given weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from attnzoo.bench.contender import Adapted, Contender, Skip
from attnzoo.bench.problem import Given, Problem
from attnzoo.errors import UnknownVariant

Make = Callable[..., nn.Module]  # a name and options -> a layer, as `attnzoo.build` does


def ours(make: Make, variant: str, *, backend: str = "", decode: bool = False) -> Contender:
    """The variant of this name; called by its name, and by the backend where one is asked for."""

    def build(problem: Problem, given: Given) -> Any:
        asked: dict[str, Any] = {"window": problem.window, "softcap": problem.softcap, "backend": backend}
        asked["kv_heads"] = problem.kv_heads if problem.group > 1 else None
        options = {option: value for option, value in asked.items() if value}
        try:
            layer = make(variant, d_model=problem.d_model, heads=problem.heads, **options)
        except UnknownVariant:
            raise Skip("not installed") from None
        layer.to(given.x.device, given.x.dtype).eval()
        weights = {"qkv.weight": given.qkv, "out.weight": given.out}
        layer.load_state_dict(weights | ({"sinks": given.sinks} if problem.sinks else {}))
        if decode:
            return Decoding(layer)
        if problem.documents:
            return Adapted(layer, lambda layer, x: layer(x, document=given.document))
        return layer

    return Contender(f"attnzoo {variant}{f', {backend}' if backend else ''}", "attnzoo", build)


class Decoding:
    """A layer and its cache: each call is the next token after the same prompt."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def start(self, prompt: Tensor) -> None:
        self.held = prompt.shape[1]
        self.cache = self.layer.new_cache(prompt.shape[0], self.held + 1)
        self.layer(prompt, cache=self.cache)

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x, cache=self.cache)
        self.cache.crop(self.held)
        return y
