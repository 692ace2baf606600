"""`attend` refuses what does not fit, by every backend in the same words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo import ops
from attnzoo.errors import ConfigError, InputError

BACKENDS = pytest.mark.parametrize("backend", ["eager", "sdpa"])


def zeros(t: int, *, b: int = 1, h: int = 1, d: int = 1) -> Tensor:
    return torch.zeros(b, h, t, d, dtype=torch.float64)


@BACKENDS
@pytest.mark.parametrize(
    ("q", "k", "v", "words"),
    [
        ((2, 3, 4), (2, 1, 3, 4), (2, 1, 3, 4), r"q, k, v need 4 axes, \(b, h, t, d\); got 3, 4 and 4"),
        ((2, 1, 3, 4), (1, 1, 3, 4), (2, 1, 3, 4), r"q \(2, 1, 3, 4\), k \(1, 1, 3, 4\) and v \(2, 1, 3, 4\) do not"),
        ((2, 1, 3, 4), (2, 1, 3, 5), (2, 1, 3, 5), r"k \(2, 1, 3, 5\).* do not fit \(b, h, t, d\), \(b, g, s, d\)"),
        ((2, 1, 3, 4), (2, 1, 3, 4), (2, 1, 5, 4), r"v \(2, 1, 5, 4\) do not fit"),
        ((2, 2, 3, 4), (2, 2, 3, 4), (2, 1, 3, 4), r"v \(2, 1, 3, 4\) do not fit"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_all_of_them(
    backend: str, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        ops.attend(torch.zeros(q), torch.zeros(k), torch.zeros(v), backend=backend)


@BACKENDS
def test_heads_that_do_not_fall_into_groups_are_refused(backend: str) -> None:
    with pytest.raises(ConfigError, match=r"heads \(4\) must be a multiple of kv_heads \(3\); try kv_heads=2"):
        ops.attend(zeros(2, h=4), zeros(2, h=3), zeros(2, h=3), backend=backend)


@BACKENDS
def test_mixed_types_are_refused_with_each_of_them(backend: str) -> None:
    words = "must share one dtype; got torch.float64, torch.float32 and torch.bfloat16"
    with pytest.raises(InputError, match=words):
        ops.attend(zeros(2), zeros(2).float(), zeros(2).bfloat16(), backend=backend)


@BACKENDS
def test_whole_numbers_are_refused(backend: str) -> None:
    """Cast back to integers, every weight below one would be zero."""
    q = zeros(2).long()
    with pytest.raises(InputError, match=r"q, k and v are torch.int64; .* floating"):
        ops.attend(q, q, q, backend=backend)


@BACKENDS
def test_mixed_devices_are_refused_with_each_of_them(backend: str) -> None:
    with pytest.raises(InputError, match="must share one device; got cpu, meta and cpu"):
        ops.attend(zeros(2), zeros(2).to("meta"), zeros(2), backend=backend)


@BACKENDS
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"mask": torch.ones(3, 2) > 0}, r"mask is \(3, 2\); with 2 axes it must be \(t, s\) = \(2, 3\)"),
        ({"mask": torch.ones(1, 2, 3) > 0}, r"mask has 3 axes"),
        ({"key_mask": torch.ones(1, 2) > 0}, r"key_mask is \(1, 2\); it must be \(b, s\) = \(1, 3\)"),
        ({"key_mask": torch.ones(1, 3)}, r"key_mask is torch.float32; it must be torch.bool"),
    ],
)
def test_masks_are_held_to_the_sizes_of_the_call(backend: str, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ops.attend(zeros(2), zeros(3), zeros(3), backend=backend, **asked)
