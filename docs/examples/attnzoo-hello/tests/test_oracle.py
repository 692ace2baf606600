"""The oracle's gradients are the slopes of its own output: who judges must be judged first."""

from __future__ import annotations

import numpy as np
from attnzoo_hello.oracle import NormedOracle

from attnzoo.oracle import central_differences, relative_to_largest

B, T, H, G, D, C = 2, 5, 4, 2, 3, 7


def test_every_gradient_is_a_slope() -> None:
    rng = np.random.default_rng(0)
    shapes = {"qkv.weight": ((H + 2 * G) * D, C), "qkv.bias": ((H + 2 * G) * D,), "out.weight": (C, H * D)}
    shapes |= {"q_gain": (D,), "k_gain": (D,)}
    params = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    x, pull = rng.standard_normal((B, T, C)), rng.standard_normal((B, T, C))
    layer = NormedOracle(params, heads=H, kv_heads=G, causal=True, scale=None)

    def loss() -> float:
        return float((layer.forward(x)[0] * pull).sum())

    loss()
    dx, _ = layer.backward(pull)
    for name, tensor, gradient in [("x", x, dx), *((name, params[name], layer.grads[name]) for name in params)]:
        assert relative_to_largest(gradient, central_differences(loss, tensor)) < 1e-7, name
