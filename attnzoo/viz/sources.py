"""Where matrices come from: weights, a layer and its input, or a model that reads a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnzoo.errors import InputError, Unsupported
from attnzoo.viz.matrices import Maps, array, four_axes, labelled, pick, stretch
from attnzoo.viz.probe import effective, evaluating, mix, tolerance, visibility
from attnzoo.viz.stages import require_stages, watch


def maps(
    source: Maps | nn.Module | Tensor | NDArray[Any] | Sequence[Any],
    given: Tensor | str | None = None,
    *,
    tokenizer: Any = None,
    context: Tensor | None = None,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    positions: Tensor | None = None,
    document: Tensor | None = None,
    visible: Tensor | NDArray[Any] | None = None,
    sample: int | None = None,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    name: str = "",
) -> Maps:
    """The matrices of weights, of a layer and its input, or of a Hugging Face model and a text.

    >>> maps(np.eye(2), queries=["I", "am"]).keys
    ['I', 'am']

    source: weights (t, s), (h, t, s) or (b, h, t, s), or a list of the last, one a layer; or a layer, with its input
        (b, t, c) and what else its call takes; or a model with `set_attn_implementation`, with a text and `tokenizer`
    visible: for weights, boolean, broadcasting to them: False where a query may not see a key
    sample: which of a batch    queries, keys: labels, t and s of them; `keys` may be left out where t == s

    Raises `InputError` for shapes and labels that do not fit, `Unsupported` for a layer whose matrix cannot be had.
    """
    asked = {"context": context, "mask": mask, "key_mask": key_mask, "positions": positions, "document": document}
    words = {**asked, "tokenizer": tokenizer, "visible": visible, "sample": sample, "queries": queries, "keys": keys}

    def allow(*taken: str) -> None:
        if surplus := [word for word, value in words.items() if value is not None and word not in taken]:
            raise InputError(f"{', '.join(surplus)} does not go with {describe(source)}; that takes {', '.join(taken)}")

    if isinstance(source, Maps):
        allow("nothing")
        return source
    if isinstance(source, nn.Module) and isinstance(given, str):
        allow("tokenizer")
        return of_model(source, given, tokenizer, name)
    if isinstance(source, nn.Module):
        allow(*asked, "sample", "queries", "keys")
        if not isinstance(given, Tensor) or given.dim() != 3:
            raise InputError("a layer needs its input: heatmap(layer, x) with x (b, t, c), or heatmap(model, text)")
        weights, seen = of_layer(source, given, asked)
        return labelled([pick(weights, sample)], [pick(seen, sample)], queries, keys, name or type(source).__name__)
    allow("visible", "sample", "queries", "keys")
    if given is not None:
        raise InputError("weights come without an input; the second argument belongs to a layer or a model")
    stack = [four_axes(one) for one in (source if isinstance(source, Sequence) else [source])]
    seen = [stretch(visible, one.shape) & ~np.isnan(one) for one in stack]
    return labelled([pick(one, sample) for one in stack], [pick(one, sample) for one in seen], queries, keys, name)


def of_layer(layer: nn.Module, x: Tensor, asked: dict[str, Tensor | None]) -> tuple[Any, Any]:
    """The weights that the layer returns, or else its effective matrix; and who may see whom, where stages show it.

    returns: two arrays (b, h, t, s)
    """
    given = {word: value for word, value in asked.items() if value is not None}
    weights = returned_weights(layer, x, given)
    if weights is None or callable(getattr(layer, "attend", None)):
        require_stages(layer)
        seen = watch(layer, x, **given)
        if weights is None:
            weights = effective(layer, seen.q, seen.k, seen.v, **seen.rules)
            error = float((mix(weights, seen.v) - seen.mixed).abs().max()) if weights.numel() else 0.0
            if not error <= tolerance(seen.mixed):
                raise Unsupported(f"{type(layer).__name__}: attend is no matrix times the values (off by {error:.1e})")
        return array(weights), array(visibility(layer, seen.q, seen.k, seen.v, **seen.rules))
    return array(weights), np.ones(weights.shape, dtype=bool)


def returned_weights(layer: nn.Module, x: Tensor, given: dict[str, Tensor]) -> Tensor | None:
    """The weights that the layer used; None where it returns none. (b, h, t, s)"""
    try:
        with evaluating(layer), torch.no_grad():
            weights: Tensor = layer(x, **given, need_weights=True)[1]
    except Unsupported:
        return None
    return weights


def of_model(model: Any, text: str, tokenizer: Any, name: str = "") -> Maps:
    """Every layer and head of a Hugging Face model that reads a text.

    A key is taken to be hidden where all heads of a layer give it a weight of exactly zero.
    """
    if not hasattr(model, "set_attn_implementation"):
        raise InputError(f"{type(model).__name__} is no Hugging Face model, so that it cannot read a text; give it x")
    if tokenizer is None:
        raise InputError("a model and a text need the model's tokenizer: heatmap(model, text, tokenizer=tokenizer)")
    encoded = tokenizer(text, return_tensors="pt").to(model.device)
    if encoded["input_ids"].shape[1] == 0:
        raise InputError(f"the text {text!r} makes no token")
    used = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the fused kernels return no weights
    try:
        with evaluating(model), torch.no_grad():
            weights = np.concatenate([array(one) for one in model(**encoded, output_attentions=True).attentions])
    finally:
        model.set_attn_implementation(used)
    visible = np.broadcast_to((weights != 0).any(axis=1, keepdims=True), weights.shape)
    tokens = [tokenizer.decode([token]) for token in encoded["input_ids"][0]]
    return labelled(list(weights), list(visible), tokens, tokens, name or type(model).__name__)


def describe(source: Any) -> str:
    if isinstance(source, Maps):
        return "maps"
    return f"a {type(source).__name__}" if isinstance(source, nn.Module) else "weights"
