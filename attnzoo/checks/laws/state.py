"""Laws of what is kept: state_dict, copies, pickles, moves between types and devices."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.checks.engine.evidence import Evidence
from attnzoo.checks.engine.lab import Lab
from attnzoo.checks.engine.law import law
from attnzoo.checks.laws.caches import fed
from attnzoo.checks.laws.truth import questions


@law("state.dict", "C16")
def state_dict(lab: Lab, see: Evidence) -> None:
    """A state_dict holds what is learned and nothing else, and loads strictly into a fresh build.

    Derived tables and masks that are saved break loading under another length.
    """
    layer = lab.layer(torch.float32)
    x = lab.tokens(dtype=torch.float32)
    y = layer(x)
    extra = set(layer.state_dict()) - {name for name, _ in layer.named_parameters()}
    see.holds(not extra, f"the state_dict holds parameters only, not {', '.join(sorted(extra))}")
    fresh = lab.fresh().eval()
    see.reacts(y, fresh(x), "the output of a fresh build")
    fresh.load_state_dict(layer.state_dict(), strict=True)
    see.exactly(fresh(x), y, "the output of a fresh build after loading")
    see.raises(RuntimeError, lambda: fresh.load_state_dict({}, strict=True), "a state_dict that lacks everything")


@law("state.copies", "C18")
def copies(lab: Lab, see: Evidence) -> None:
    """deepcopy, pickle and torch.save give the same layer again, before and after a call, a backward pass, and a call
    in inference mode; and training goes on after it.

    A class that was made inside a function cannot be pickled, whatever it does: its layers are held to deepcopy alone.
    """
    layer = lab.layer()
    x = lab.tokens()
    untouched = copy.deepcopy(layer)
    with torch.inference_mode():
        layer(x)
    layer(x.clone().requires_grad_()).sum().backward()
    layer(x.clone().requires_grad_()).sum().backward()
    y = layer(x)
    see.exactly(untouched(x), y, "the output of a deepcopy made before any call")
    see.exactly(copy.deepcopy(layer)(x), y, "the output of a deepcopy made after calls")
    if not any("<locals>" in type(module).__qualname__ for module in layer.modules()):
        see.exactly(_pickled(see, layer)(x), y, "the output of a pickled layer")
    see.holds(bool(repr(layer)), "a layer can be printed")


def _pickled(see: Evidence, layer: nn.Module) -> Any:
    saved = io.BytesIO()
    try:
        torch.save(layer, saved)
    except Exception as refusal:
        see.holds(False, f"a layer can be pickled; instead {type(refusal).__name__}: {refusal}")
    saved.seek(0)
    return torch.load(saved, weights_only=False)


@law("state.casts", "C19")
def casts(lab: Lab, see: Evidence) -> None:
    """A layer that is cast is the layer built in that type: down to half and back, nothing is left behind.

    Before a call and after one, which may have left a table in the old type. Where float64 is the default type, all of
    a new layer is float64.
    """
    layer = lab.layer(torch.float32)
    x = lab.tokens(dtype=torch.float32)
    y = layer(x)
    wide = copy.deepcopy(layer).double()
    single = 16 * torch.finfo(torch.float32).eps  # what the float32 layer itself may be off by
    see.close(wide(x.double()), y.double(), "the output after .double()", dtype=torch.float32, plain=single)
    uncalled = lab.layer(torch.float32).double()
    see.exactly(wide(x.double()), uncalled(x.double()), "the output after a call and .double(), and after .double()")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        others = {str(values.dtype) for values in lab.fresh().parameters()} - {"torch.float64"}
    finally:
        torch.set_default_dtype(default)
    see.holds(not others, f"built under a default type of float64, no parameter is {', '.join(sorted(others))}")
    exact = {name: values.bfloat16().float() for name, values in layer.state_dict().items()}
    layer.load_state_dict(exact)
    rounded = layer(x)
    back = copy.deepcopy(layer).bfloat16().float()
    see.exactly(back(x), rounded, "the output after .bfloat16().float(), of weights that fit bfloat16")


@law("state.functional", "C16")
def functional(lab: Lab, see: Evidence) -> None:
    """Called with other parameters (`torch.func.functional_call`), a layer computes with these, and keeps its own.

    So ensembles, gradients per sample and sharded training call it; a view of a weight that was kept is another's.
    """
    layer, twin, x = lab.layer(), lab.layer(), lab.tokens()
    others = {name: 0.8 * values.detach() + 0.01 for name, values in layer.named_parameters()}
    twin.load_state_dict(others)
    y, due = layer(x), twin(x)
    see.close(torch.func.functional_call(layer, others, (x,)), due, "the output with other parameters")
    see.exactly(layer(x), y, "the output after a call with other parameters")
    see.reacts(y, due, "the output with other parameters")


@law("state.meta", "C19")
def meta(lab: Lab, see: Evidence) -> None:
    """A layer built on the meta device and filled from a checkpoint is the layer: nothing else has to be restored.

    Tables computed in the constructor are lost there, and in no checkpoint. Here memory is filled with NaN first.
    """
    layer = lab.layer()
    with torch.device("meta"):
        empty = lab.variant.build(**lab.case.options)
    filled = empty.to_empty(device=lab.device).double().eval()
    with torch.no_grad():
        for values in [*filled.parameters(), *filled.buffers()]:
            if values.is_floating_point():
                values.fill_(float("nan"))
    filled.load_state_dict(layer.state_dict(), strict=True)
    x = lab.tokens()
    see.exactly(filled(x), layer(x), "the output of a layer built on meta and filled from a checkpoint")


@law("state.autocast", "C19", cases="default")
def autocast(lab: Lab, see: Evidence) -> None:
    """Under autocast a float32 layer runs, however it is asked, and is within bfloat16's rounding of itself.

    For the weights and the gradient too, and in cached steps, where the cache may be of the other type.
    """
    layer = lab.layer(torch.float32)
    ways: dict[str, dict[str, Any]] = {**questions(lab, lab.tokens(dtype=torch.float32))}
    if lab.variant.traits.weights:
        ways["for the weights"] = {"need_weights": True}
    for how, asked in ways.items():
        whole, mixed = (_with_slope(lab, layer, enabled, asked) for enabled in (False, True))
        for name, due in whole.items():
            what = f"the {name} under autocast, {how}"
            if name == "gradient" and lab.variant.traits.rows == "free":  # sums without a softmax, which cancel
                see.finite(mixed[name], what)
            else:
                _near(see, mixed[name], due, what)
    if lab.variant.traits.cache != "none" and lab.case.causal:
        steps, mixed_steps = (_decoded(lab, layer, enabled) for enabled in (False, True))
        _near(see, mixed_steps, steps, "the output of cached steps under autocast")


def _with_slope(lab: Lab, layer: nn.Module, enabled: bool, asked: dict[str, Any]) -> dict[str, Tensor]:
    x = lab.tokens(dtype=torch.float32).requires_grad_()
    with torch.autocast(lab.device.type, dtype=torch.bfloat16, enabled=enabled):
        results = layer(x, **asked)
    names = ("output", "weights") if isinstance(results, tuple) else ("output",)
    told = dict(zip(names, results if isinstance(results, tuple) else (results,), strict=True))
    (slope,) = torch.autograd.grad(told["output"].float(), x, lab.tokens(dtype=torch.float32, draw=2))
    return {**told, "gradient": slope}


def _decoded(lab: Lab, layer: Any, enabled: bool) -> Tensor:
    x = lab.tokens(dtype=torch.float32)
    with torch.autocast(lab.device.type, dtype=torch.bfloat16, enabled=enabled):
        return fed(layer, layer.new_cache(*x.shape[:2]), x, 3)


def _near(see: Evidence, mixed: Tensor, due: Tensor, what: str) -> None:
    off = float((mixed.float() - due).detach().abs().mean() / due.detach().abs().mean())
    allowed = 8 * torch.finfo(torch.bfloat16).eps
    see.holds(off <= allowed, f"{what} errs by {off:.1e} of its mean, at most {allowed:.1e}")
