"""Following a real forward pass through a layer, from x to y."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from attnzoo.viz.inside import Part, heads_of, inner_steps
from attnzoo.viz.stages import Watched, line_of, watch
from attnzoo.viz.steps import Step, Trace


def trace(
    layer: nn.Module,
    x: Tensor,
    context: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    positions: Tensor | None = None,
    document: Tensor | None = None,
    name: str = "",
) -> Trace:
    """Follow a real call of a layer, `layer(x, ...)`, and tell every shape on the way.

        print(attnzoo.viz.trace(attnzoo.build("mha", d_model=64, heads=8), torch.randn(1, 10, 64)))

    Projections, split heads, weighted sum, merged heads and output are the call's own tensors. Scores, scale, mask
    and softmax are taken again from its q, k and v (a fused kernel never shows them), and held against its output.
    Dropout sleeps.

    x: (b, t, c)    context: (b, s, c)    mask, key_mask, positions, document: as for the layer's call
    name: of the layer
    q, k and v are as attention gets them, rotated and normed where the variant does that.

    Raises `Unsupported` for a layer that shows no stages, or does not take what was given.
    """
    asked = dict(context=context, mask=mask, key_mask=key_mask, positions=positions, document=document)
    seen = watch(layer, x, **asked)
    inside = inner_steps(layer, seen)
    (b, h, t, d), (_, g, s, _) = seen.q.shape, seen.k.shape
    sizes = {"b": b, "t": t, "s": s, "h": h, "g": g, "d": d, "c": x.shape[-1]}
    project, attend, merge = (line_of(getattr(layer, stage)) for stage in ("project", "attend", "merge"))
    parts = [Part("x", "b t c", x)]
    if context is not None:
        parts.append(Part("context", "b s c", context))
    parts += module_parts(seen, "project", sizes)
    value = "d" if seen.v.shape[-1] == d else str(seen.v.shape[-1])
    parts += [
        Part("q", "b h t d", seen.q, where=project),
        Part("k", "b g s d", seen.k, where=project),
        Part("v", f"b g s {value}", seen.v, where=project),
        *(part.at(attend) for part in inside.parts),
        *module_parts(seen, "attend", sizes),
        *merged(seen, merge, value),
        *module_parts(seen, "merge", sizes),
        Part("y", "b t c", seen.y),
    ]
    steps = [told(part) for part in parts]
    total = sum(parameter.numel() for parameter in layer.parameters())
    return Trace(name or type(layer).__name__, sizes, steps, total, inside.proven, inside.error, inside.note)


def module_parts(seen: Watched, stage: str, sizes: Mapping[str, int]) -> list[Part]:
    """What the submodules made in a stage; parameters are counted at the first call of each."""
    parts, counted_before = [], set[str]()
    for call in seen.calls:
        if call.stage != stage:
            continue
        parameters = sum(p.numel() for p in call.module.parameters()) if call.path not in counted_before else 0
        counted_before.add(call.path)
        name = f"{call.path}: {type(call.module).__name__}"
        made = axes_of(call.made, seen, sizes)
        parts.append(Part(name, made, call.made, parameters=parameters, flops=call.flops, where=call.where))
    return parts


def merged(seen: Watched, where: str, value: str) -> list[Part]:
    """The heads side by side, as the first module of merge is given them."""
    b, heads, t, e = seen.mixed.shape
    first = next((call.given for call in seen.calls if call.stage == "merge"), None)
    if first is None or first.shape != (b, t, heads * e):
        return []
    return [Part("merged", f"b t ({heads_of(seen.mixed, seen)} {value})", first, where=where)]


def axes_of(made: Tensor, seen: Watched, sizes: Mapping[str, int]) -> str:
    """The symbolic shape of what a submodule made, by its role where that is known, else by its size."""
    stages = ((seen.y, "b t c"), (seen.q, "b h t d"), (seen.k, "b g s d"))
    alike = [(stage, axes) for stage, axes in stages if stage.shape == made.shape]
    for stage, axes in alike:
        if stage.data_ptr() == made.data_ptr():
            return axes
    if made.dim() == 4 and alike:
        return alike[0][1]
    if made.dim() != 3 or made.shape[0] != sizes["b"] or made.shape[1] not in (sizes["t"], sizes["s"]):
        return plain(made)
    h, g, d, c = (sizes[letter] for letter in "hgdc")
    widths = {"((h+2g) d)": (h + 2 * g) * d, "(2g d)": 2 * g * d, "(h d)": h * d, "(g d)": g * d, "c": c}
    width = made.shape[2]
    tokens = "t" if made.shape[1] == sizes["t"] else "s"
    return f"b {tokens} {next((axes for axes, size in widths.items() if size == width), width)}"


def plain(made: Tensor) -> str:
    return " ".join(map(str, made.shape))


def told(part: Part) -> Step:
    """A part of the way in numbers."""
    values = part.made if part.visible is None else part.made[part.visible]
    known = values.numel() > 0
    wide = values.to(torch.float64)
    return Step(
        name=part.name,
        axes=part.axes,
        shape=tuple(part.made.shape),
        strides=None if part.made.is_contiguous() else part.made.stride(),
        mean=float(wide.mean()) if known else None,
        spread=float(wide.std(correction=0)) if known else None,
        parameters=part.parameters,
        flops=part.flops,
        where=part.where,
    )
