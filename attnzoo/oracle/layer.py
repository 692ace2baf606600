"""A whole attention layer from raw weights, forward and backward: what a variant's own output is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnzoo.errors import AttnZooError, ConfigError, InputError, Unsupported, did_you_mean
from attnzoo.oracle.alibi import alibi
from attnzoo.oracle.arrays import Array, sum_to
from attnzoo.oracle.attention import attention, attention_backward, sinks_backward
from attnzoo.oracle.rope import Rope
from attnzoo.oracle.visible import causal, same_document, within

SIZES = ("heads", "kv_heads", "head_dim", "causal", "scale")  # what `Layer.of` reads from a module


class Layer:
    """Project, split into heads, rotate, attend, merge, project: an `attnzoo.protocol.Oracle`.

    params: raw weights by name. Either a fused "qkv.weight" ((h + 2 g) * d, c) with the rows [q | k | v], or
        "q.weight" (h * d, c), "k.weight" (g * d, c) and "v.weight" (g * d, c); and "out.weight" (c, h * d). Each may
        have a ".bias" beside it. As in torch, a projection is y = x @ weight.T + bias. And, where the layer has them,
        "sinks" (h,).
    heads, kv_heads, head_dim, causal, scale, window, softcap: as in `attnzoo.build`.
    rope: rotates q and k, where given.    alibi: True for attention with linear biases.
    names: for params that go by other names, what each is here: {"q_proj": "q", "o_proj": "out"} for the weight and the
        bias of projections, {"in_proj_weight": "qkv.weight"} for one parameter.

    After `backward`, `grads` holds one array per entry of params, under its own name, and `dmask` the gradient of a
    floating mask.

    >>> rng = np.random.default_rng(0)
    >>> params = {"qkv.weight": rng.standard_normal((4 * 3, 5)), "out.weight": rng.standard_normal((5, 2 * 3))}
    >>> layer = Layer(params, heads=2, kv_heads=1, head_dim=3)
    >>> y, weights = layer.forward(rng.standard_normal((1, 7, 5)))
    >>> y.shape, weights.shape
    ((1, 7, 5), (1, 2, 7, 7))
    >>> dx, _ = layer.backward(y)
    >>> dx.shape, layer.grads["qkv.weight"].shape
    ((1, 7, 5), (12, 5))
    """

    grads: Mapping[str, Array]
    dmask: Array | None

    def __init__(
        self,
        params: Mapping[str, NDArray[Any]],
        *,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int,
        causal: bool = True,
        scale: float | None = None,
        rope: Rope | None = None,
        window: int | None = None,
        softcap: float | None = None,
        alibi: bool = False,
        names: Mapping[str, str] | None = None,
    ) -> None:
        kv_heads = heads if kv_heads is None else kv_heads
        if heads % kv_heads:
            raise ConfigError(f"heads ({heads}) must be a multiple of kv_heads ({kv_heads})")
        if softcap is not None and not softcap > 0:
            raise ConfigError(f"softcap ({softcap}) must be above 0; leave it out for none")
        self.heads, self.head_dim, self.causal, self.scale, self.rope = heads, head_dim, causal, scale, rope
        self.window, self.softcap, self.alibi = window, softcap, alibi
        self._own_names = _renamed(params, names or {})
        self.params = {ours: np.array(params[own], dtype=np.float64) for ours, own in self._own_names.items()}
        self.grads, self.dmask = {}, None
        self._kept: _Kept | None = None

        q, kv = heads * head_dim, kv_heads * head_dim
        # Where each projection lives: the name of its parameter, and its rows there.
        self._home = {"q": ("q", slice(q)), "k": ("k", slice(kv)), "v": ("v", slice(kv)), "out": ("out", slice(None))}
        rows = {"q": q, "k": kv, "v": kv}
        if "qkv.weight" in self.params:
            self._home |= {"q": ("qkv", slice(q)), "k": ("qkv", slice(q, q + kv)), "v": ("qkv", slice(q + kv, None))}
            rows = {"qkv": q + 2 * kv}
        _check_shapes(self.params, rows, merged=q, heads=heads)

    def forward(
        self,
        x: NDArray[Any],
        context: NDArray[Any] | None = None,
        *,
        mask: NDArray[Any] | None = None,
        key_mask: NDArray[np.bool_] | None = None,
        positions: NDArray[np.int64] | None = None,
        document: NDArray[np.int64] | None = None,
    ) -> tuple[Array, Array]:
        """x: (b, t, c)    context: (b, s, c), keys and values come from it; from x where not given
        mask: (t, s), or 4 axes that broadcast to (b, h, t, s); boolean (True = allowed) or floating (added)
        key_mask: (b, s), True = a real token    positions: (t,) or (b, t), feed the rotation; 0, 1, ... where not given
        document: (b, t), ids; a token sees the tokens of its own document only
        returns: y (b, t, c), weights (b, h, t, s)
        """
        x = np.asarray(x, dtype=np.float64)
        source = x if context is None else np.asarray(context, dtype=np.float64)  # where keys and values come from
        if context is not None and (self.causal or self.rope):
            raise Unsupported("context has no order to share with x: build with causal=False and without rope")
        if context is not None and (self.window or self.alibi or document is not None):
            raise Unsupported("context stands at no distance from x: build without window and alibi, give no document")
        if positions is not None and not self.rope:
            raise Unsupported("positions feed a rotation and this layer has none: build with rope, or leave them out")

        q = self._split(self._project("q", x))
        k = self._split(self._project("k", source))
        v = self._split(self._project("v", source))
        (b, h, t, _), s = q.shape, k.shape[2]
        positions = np.arange(t) if positions is None else positions
        if self.rope:
            q, k = self.rope.rotate(q, positions), self.rope.rotate(k, positions)
        visible, added = self._masking((b, h, t, s), mask, key_mask, document)
        bias = alibi(h, t, s) if self.alibi else None
        if added is not None:
            bias = added if bias is None else bias + added
        sinks = self.params.get("sinks")
        mixed, weights = attention(
            q, k, v, visible=visible, bias=bias, scale=self.scale, softcap=self.softcap, sinks=sinks
        )
        merged = self._merge(mixed)
        y = self._project("out", merged)

        self._kept = _Kept(x, source, q, k, v, weights, merged, added, positions, cross=context is not None)
        return y, weights

    def backward(self, dy: NDArray[Any]) -> tuple[Array, Array | None]:
        """dy: (b, t, c)    returns: dx (b, t, c), dcontext (b, s, c) or None. Fills `grads` and `dmask`."""
        if self._kept is None:
            raise AttnZooError("Layer.backward needs what forward keeps: call forward(x) first")
        kept, dy = self._kept, np.asarray(dy, dtype=np.float64)
        if dy.shape != kept.x.shape:
            raise InputError(f"dy must have the shape of the output, {kept.x.shape}, got {dy.shape}")
        grads = {name: np.zeros_like(value) for name, value in self.params.items()}

        dmixed = self._split(self._project_backward("out", kept.merged, dy, grads))
        dq, dk, dv, dbias = attention_backward(
            dmixed, kept.q, kept.k, kept.v, kept.weights, scale=self.scale, softcap=self.softcap
        )
        if "sinks" in grads:
            grads["sinks"] += sinks_backward(dmixed, kept.v, kept.weights)
        if self.rope:
            dq, dk = self.rope.backward(dq, kept.positions), self.rope.backward(dk, kept.positions)
        dx = self._project_backward("q", kept.x, self._merge(dq), grads)
        dsource = self._project_backward("k", kept.source, self._merge(dk), grads)
        dsource += self._project_backward("v", kept.source, self._merge(dv), grads)

        self.grads = {self._own_names[name]: grad for name, grad in grads.items()}
        self.dmask = None if kept.added is None else sum_to(dbias, kept.added.shape)
        return (dx, dsource) if kept.cross else (dx + dsource, None)

    @classmethod
    def of(cls, module: Any, **more: Any) -> Layer:
        """The oracle of a torch layer: its raw weights, and its heads, kv_heads, head_dim, causal and scale as they
        stand among its attributes.

        more: what else `Layer` takes, such as `rope`; also a size that the module does not keep, or keeps by another
            name

        Raises `ConfigError` where one of them is neither kept nor given.
        """
        absent = [word for word in SIZES if word not in more and not hasattr(module, word)]
        if absent:
            raise ConfigError(
                f"{type(module).__name__} keeps no {' and no '.join(absent)}; give what it lacks: "
                f"Layer.of(module, {', '.join(f'{word}=…' for word in absent)})"
            )
        return cls(raw(module), **{word: getattr(module, word) for word in SIZES if word not in more} | more)

    def projection(self, part: str) -> tuple[Array, Array | None]:
        """Weight and bias, or None, of one projection: "q", "k", "v" or "out"; also out of a fused one."""
        name, rows = self._home[part]
        bias = self.params.get(f"{name}.bias")
        return self.params[f"{name}.weight"][rows], None if bias is None else bias[rows]

    def _project(self, part: str, x: Array) -> Array:
        weight, bias = self.projection(part)
        if x.ndim != 3 or x.shape[-1] != weight.shape[1]:
            name = self._home[part][0]
            raise InputError(f"{name}.weight reads arrays of shape (b, t, {weight.shape[1]}), got {x.shape}")
        y: Array = x @ weight.T
        return y if bias is None else y + bias

    def _project_backward(self, part: str, x: Array, dy: Array, grads: Mapping[str, Array]) -> Array:
        """Add this projection's share to `grads`; return dx."""
        name, rows = self._home[part]
        grads[f"{name}.weight"][rows] += np.einsum("bto,btc->oc", dy, x)
        if f"{name}.bias" in grads:
            grads[f"{name}.bias"][rows] += dy.sum(axis=(0, 1))
        dx: Array = dy @ self.params[f"{name}.weight"][rows]
        return dx

    def _split(self, x: Array) -> Array:
        """(b, t, n * d) -> (b, n, t, d)"""
        b, t, width = x.shape
        heads: Array = x.reshape(b, t, width // self.head_dim, self.head_dim).transpose(0, 2, 1, 3)
        return heads

    def _merge(self, x: Array) -> Array:
        """(b, n, t, d) -> (b, t, n * d)"""
        b, n, t, d = x.shape
        merged: Array = x.transpose(0, 2, 1, 3).reshape(b, t, n * d)
        return merged

    def _masking(
        self,
        shape: tuple[int, int, int, int],
        mask: NDArray[Any] | None,
        key_mask: NDArray[np.bool_] | None,
        document: NDArray[np.int64] | None,
    ) -> tuple[NDArray[np.bool_], Array | None]:
        """What may be seen, all rules met (C3), and what is added to the logits."""
        b, _, t, s = shape
        visible = np.ones(shape, dtype=np.bool_)
        if self.causal:
            visible &= causal(t, s)
        if self.window is not None:
            visible &= within(self.window, t, s)
        if document is not None:
            if document.shape != (b, s):
                raise InputError(f"document must have shape {(b, s)}, got {document.shape}")
            visible &= same_document(document, t)
        if key_mask is not None:
            if key_mask.dtype != np.bool_ or key_mask.shape != (b, s):
                raise InputError(f"key_mask must be bool of shape {(b, s)}, got {key_mask.dtype} {key_mask.shape}")
            visible &= key_mask[:, None, None, :]
        if mask is None:
            return visible, None
        broadcasts = mask.ndim == 4 and all(size in (1, full) for size, full in zip(mask.shape, shape, strict=True))
        if mask.shape != (t, s) and not broadcasts:
            raise InputError(f"mask must have 2 axes {(t, s)} or 4 that broadcast to {shape}, got {mask.shape}")
        if mask.dtype == np.bool_:
            visible &= mask
            return visible, None
        if not np.issubdtype(mask.dtype, np.floating):
            raise InputError(f"mask must be bool (True = allowed) or floating (added), got {mask.dtype}")
        return visible, np.asarray(mask, dtype=np.float64)


@dataclass(frozen=True)
class _Kept:
    """What `backward` needs of the last `forward`. q and k are rotated."""

    x: Array
    source: Array
    q: Array
    k: Array
    v: Array
    weights: Array
    merged: Array
    added: Array | None
    positions: NDArray[np.int64]
    cross: bool


def _renamed(params: Mapping[str, NDArray[Any]], names: Mapping[str, str]) -> dict[str, str]:
    """The name of each of the params here -> its own name."""
    projections = {name.rpartition(".")[0] for name in params} - {""}
    known = {*params, *projections}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"names speak of {name!r}, which is not among the params{did_you_mean(name, known) or '.'} "
                f"They hold {', '.join(sorted(params))}"
            )
    renamed: dict[str, str] = {}
    for own in params:
        projection, dot, kind = own.rpartition(".")
        ours = names.get(own) or names.get(projection, projection) + dot + kind
        if ours in renamed:
            raise ConfigError(f"names make {ours!r} of both {renamed[ours]!r} and {own!r}")
        renamed[ours] = own
    return renamed


def _check_shapes(params: Mapping[str, Array], rows: Mapping[str, int], *, merged: int, heads: int) -> None:
    """Refuse params that lack a weight, hold one too many, or one whose shape does not fit the heads."""
    width = len(params.get("out.weight", ()))
    weights = {f"{name}.weight": (n, width) for name, n in rows.items()} | {"out.weight": (width, merged)}
    optional: dict[str, tuple[int, ...]] = {name.replace("weight", "bias"): (n,) for name, (n, _) in weights.items()}
    optional["sinks"] = (heads,)
    if missing := sorted(weights.keys() - params.keys()):
        raise ConfigError(
            f"params lack {', '.join(missing)}; they hold {', '.join(sorted(params))}. "
            f"Where they go by other names, say which is which: names={{'q_proj': 'q', …}}"
        )
    if unknown := sorted(params.keys() - weights.keys() - optional.keys()):
        raise ConfigError(f"params hold {', '.join(unknown)}, which this layer has no use for")
    for name, value in params.items():
        if value.shape != (expected := weights.get(name) or optional[name]):
            raise ConfigError(f"{name} must have shape {expected} for these heads, got {value.shape}")


def raw(module: Any) -> dict[str, Array]:
    """Every parameter of a torch module by name, as a float64 copy: `Layer(raw(module), ...)`."""
    return {name: np.array(p.detach().cpu().double().numpy()) for name, p in module.named_parameters()}
