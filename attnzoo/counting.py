"""What a call costs, counted instead of timed: the same numbers on every machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Size, Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode


def flops(call: Callable[[], Any]) -> int:
    """Floating point operations of a call, two a multiplication with its addition; a fused kernel counts as the whole.

    >>> flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60
    """
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=_FUSED) as counter:
        call()
    return int(counter.get_total_flops())


def kept(call: Callable[[], Any], *, beside: Iterable[Tensor] = ()) -> int:
    """Bytes that a call keeps for its backward pass. beside: tensors that are there anyway.

    >>> x = torch.ones(5, requires_grad=True)
    >>> kept(lambda: x.exp()), kept(lambda: x + 1)  # the slope of exp is its value, that of a sum is 1
    (20, 0)
    """
    return sum(storages(call, beside=beside))


def storages(call: Callable[[], Any], *, beside: Iterable[Tensor] = ()) -> list[int]:
    """The bytes of each storage that a call keeps for its backward pass, however many tensors lie in it.

    >>> x = torch.ones(5, requires_grad=True)
    >>> storages(lambda: x[:2].exp() * x[2:4].exp())
    [8, 8]
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in beside}
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        alive = call()  # until here: a freed storage would give its address to the next one
    del alive
    return list(held.values())


def _attention_flops(q: Size, k: Size, v: Size, *rest: Any, out_shape: Any = None, **more: Any) -> int:
    """q kᵀ and the weighted sum. q: (b, h, t, d)    k: (b, g, s, d)    v: (b, g, s, e)"""
    b, h, t, d = q
    return 2 * b * h * t * k[2] * (d + v[3])


_FUSED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}  # unknown to torch's counter
