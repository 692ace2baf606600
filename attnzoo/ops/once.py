"""All or nothing: what a call that fails half-way must leave as it was, and how one that runs twice is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Where what is done inside fails, the generator of this device is as it was before."""
    one_for_all = device.type in ("cpu", "meta", "mps")
    generators = torch.mps if device.type == "mps" else torch if one_for_all else torch.get_device_module(device)
    which = () if one_for_all else (device,)
    state = generators.get_rng_state(*which)
    try:
        yield
    except BaseException:
        generators.set_rng_state(state, *which)
        raise


def in_backward() -> bool:
    """Whether autograd is running a backward pass right now: what is computed then was computed before."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
