"""Whether the linear layers of a model can become one, with nothing lost that they hold or share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Places = Mapping[Hashable, Sequence[str]]


def places(model: nn.Module) -> Places:
    """Each module, and the memory of each parameter and buffer -> all the names under which the model holds it."""
    found: dict[Hashable, list[str]] = defaultdict(list)
    for path, module in model.named_modules():
        for name, held in (*module._modules.items(), *module._parameters.items(), *module._buffers.items()):
            if held is not None:
                found[identity(held)].append(f"{path}.{name}" if path else name)
    return found


def identity(held: nn.Module | Tensor) -> Hashable:
    """Two parameters are the same, too, if they are two doors to one memory; a meta tensor has none."""
    if type(held) in (Tensor, nn.Parameter) and isinstance(held, Tensor) and held.layout == torch.strided:
        address = held.data_ptr()
        return (held.device, address) if address else id(held)
    return id(held)


def elsewhere(held: nn.Module | Tensor, path: str, known: Places) -> str:
    """Where else the model holds it, or nothing."""
    return ", ".join(place for place in known[identity(held)] if place != path)


def troubles(owner: Any, path: str, names: Sequence[str], known: Places) -> Iterator[str]:
    """Why the projections `names` of `owner`, which stands at `path`, cannot become one, and the way out."""
    projections: dict[str, Any] = {name: getattr(owner, name, None) for name in names}
    for name, layer in projections.items():
        yield from kind_troubles(name, layer)
    for name, layer in projections.items():
        yield from hook_troubles(name, layer)
        yield from tie_troubles(name, layer, path, known)
    first, *others = projections.values()
    for what, tell in dict[str, Callable[[Any], object]](
        bias=lambda layer: layer.bias is not None,
        dtype=lambda layer: layer.weight.dtype,
        device=lambda layer: layer.weight.device,
        requires_grad=lambda layer: [parameter.requires_grad for parameter in layer.parameters()],
        grad=lambda layer: [parameter.grad is None for parameter in layer.parameters()],
    ).items():
        if any(tell(layer) != tell(first) for layer in others):
            yield f"{', '.join(names)} become one layer, but differ in {what}; make it the same first"


def kind_troubles(name: str, layer: Any) -> Iterator[str]:
    """What is not `nn.Linear` to the letter may compute something else, or keep its weight in another form."""
    if getattr(getattr(layer, "forward", None), "__func__", None) is not getattr(type(layer), "forward", None):
        yield f"{name} is wrapped, as accelerate does for a device_map; load it without, then move it"
    if isinstance(layer, nn.Module) and parametrize.is_parametrized(layer):
        for tensor in layer.parametrizations:  # type: ignore[union-attr]
            yield (
                f"{name}.{tensor} is parametrized; make it plain first: "
                f"torch.nn.utils.parametrize.remove_parametrizations({name}, {tensor!r})"
            )
    if type(layer) is not nn.Linear:
        kind = type(layer)
        called = kind.__qualname__ if kind.__module__.startswith("torch.nn.modules.") else full_name(kind)
        yield (
            f"{name} is a {called}, not a plain nn.Linear; if it is quantized, load the model without; if it is an "
            f"adapter, as LoRA, merge it in first (peft: model.merge_and_unload())"
        )
        return
    own = [held for held in (*layer._parameters, *layer._buffers) if held not in ("weight", "bias")]
    if own:
        yield (
            f"{name} has {', '.join(own)}, of which its weight is made; make it plain first: remove_weight_norm, "
            f"remove_spectral_norm or prune.remove of torch.nn.utils"
        )
    for tensor, value in dict(weight=layer.weight, bias=layer.bias).items():
        if value is not None and type(value) is not nn.Parameter:
            yield (
                f"{name}.{tensor} is a {full_name(type(value))}, not a plain nn.Parameter; if it is quantized or "
                f"sharded, load the model without"
            )


def hook_troubles(name: str, layer: nn.Linear) -> Iterator[str]:
    lost = [*hooks(layer)]
    for tensor, parameter in layer.named_parameters():
        lost += [f"gradient hooks on its {tensor}"] if parameter._backward_hooks else []
        lost += [f"post-accumulate-grad hooks on its {tensor}"] if parameter._post_accumulate_grad_hooks else []
    if lost:
        yield f"{name} has {' and '.join(lost)}, which would be lost; remove them first, and hook the swapped layer"


def hooks(module: nn.Module, but: tuple[str, ...] = ()) -> Iterator[str]:
    """The kinds of hooks that a module has, in words, but those whose attribute begins so."""
    for attribute, held in vars(module).items():
        if attribute.endswith("_hooks") and held and not (but and attribute.startswith(but)):
            yield attribute.strip("_").replace("_", " ")


def tie_troubles(name: str, layer: nn.Linear, path: str, known: Places) -> Iterator[str]:
    held_here: dict[str, nn.Module | Tensor] = {name: layer}
    held_here |= {f"{name}.{tensor}": parameter for tensor, parameter in layer.named_parameters()}
    for what, held in held_here.items():
        if others := elsewhere(held, f"{path}.{what}", known):
            yield f"{what} is tied: it is also {others}, and would come apart; untie it first (copy.deepcopy)"


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
