import ast
from pathlib import Path

import numpy as np
import pytest

import attnzoo.oracle
from attnzoo.errors import AttnZooError, ConfigError, InputError
from attnzoo.oracle import SelfAttention, central_differences, relative_error, relative_to_largest
from attnzoo.oracle.arrays import Array

LOSSES = [0.6470, 0.6077, 0.5770, 0.5530, 0.5340, 0.5190, 0.5070, 0.4974, 0.4897, 0.4835]


def train(*, frozen: tuple[str, ...] = ()) -> list[float]:
    """The loss before each of ten plain gradient steps."""
    np.random.seed(0)
    X, Y = np.random.randn(2, 5, 8), np.random.randn(2, 5, 4)
    layer, losses = SelfAttention(8, 4), []
    for _ in range(10):
        out = layer.forward(X)
        losses.append(float(0.5 * np.mean((out - Y) ** 2)))
        layer.zero_grad()
        layer.backward((out - Y) / out.size)
        for name in {"Wq", "Wk", "Wv"} - set(frozen):
            setattr(layer, name, getattr(layer, name) - 0.5 * getattr(layer, f"d{name}"))
    return losses


def gradients(B: int, T: int, C: int, hs: int) -> dict[str, tuple[Array, Array]]:
    """By hand and by central differences, for each parameter and the input, of the loss sum(out * G)."""
    np.random.seed(42)
    X, G = np.random.randn(B, T, C), np.random.randn(B, T, hs)
    layer = SelfAttention(C, hs)
    layer.forward(X)
    dX = layer.backward(G)
    assert layer.dWq is not None
    assert layer.dWk is not None
    assert layer.dWv is not None
    by_hand = {"Wq": (layer.Wq, layer.dWq), "Wk": (layer.Wk, layer.dWk), "Wv": (layer.Wv, layer.dWv), "X": (X, dX)}

    def loss() -> float:
        return float(np.sum(layer.forward(X) * G))

    return {name: (gradient, central_differences(loss, array)) for name, (array, gradient) in by_hand.items()}


def test_ten_steps_give_the_known_losses() -> None:
    assert [round(loss, 4) for loss in train()] == LOSSES


def test_with_the_values_frozen_the_loss_stays() -> None:
    """Queries and keys only share out what Wv provides; from near-flat weights they alone change nothing in sight."""
    assert [round(loss, 4) for loss in train(frozen=("Wv",))] == [0.6470] * 10


def test_gradients_agree_with_central_differences_entry_by_entry() -> None:
    errors = {name: float(relative_error(*pair).max()) for name, pair in gradients(2, 5, 8, 4).items()}
    assert errors.keys() == {"Wq", "Wk", "Wv", "X"}
    assert max(errors.values()) < 1e-5, errors


def test_gradients_of_a_larger_layer_agree_relative_to_the_largest_entry() -> None:
    errors = {name: relative_to_largest(*pair) for name, pair in gradients(3, 7, 16, 8).items()}
    assert max(errors.values()) < 1e-7, errors


def test_parameters_are_drawn_in_the_order_q_k_v() -> None:
    layer, rng = SelfAttention(7, 3, seed=5), np.random.default_rng(5)
    for W in (layer.Wq, layer.Wk, layer.Wv):
        np.testing.assert_array_equal(W, rng.standard_normal((7, 3)) * 0.02)


def test_the_formula_by_hand() -> None:
    """One sequence, two tokens, width 1: logits 0 and ln 3 for the second query, so weights 1/4 and 3/4."""
    layer = SelfAttention(1, 1)
    layer.Wq, layer.Wk, layer.Wv = np.array([[1.0]]), np.array([[np.log(3.0)]]), np.array([[8.0]])
    out = layer.forward(np.array([[[0.0], [1.0]]]))
    np.testing.assert_allclose(out, [[[4.0], [6.0]]])


def test_the_scale_is_the_root_of_the_head_width() -> None:
    layer = SelfAttention(3, 4)
    layer.Wq = layer.Wk = np.eye(3, 4) * np.sqrt(2 * np.log(3.0))
    layer.forward(np.array([[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]))
    assert layer.cache is not None
    np.testing.assert_allclose(layer.cache[-1][0, 0], [0.75, 0.25])


def test_forward_keeps_exactly_x_q_k_v_a() -> None:
    X = np.random.default_rng(0).standard_normal((2, 5, 7))
    layer = SelfAttention(7, 3)
    assert layer.cache is None
    out = layer.forward(X)
    assert layer.cache is not None
    kept_X, Q, K, V, A = layer.cache
    np.testing.assert_array_equal(kept_X, X)
    for kept, W in ((Q, layer.Wq), (K, layer.Wk), (V, layer.Wv)):
        np.testing.assert_array_equal(kept, X @ W)
    assert A.shape == (2, 5, 5)
    np.testing.assert_allclose(A.sum(-1), 1.0)
    np.testing.assert_array_equal(A @ V, out)


def test_one_object_takes_any_batch_and_length() -> None:
    layer = SelfAttention(7, 3)
    for B, T in ((2, 5), (1, 1), (3, 2), (0, 5), (2, 0)):
        out = layer.forward(np.ones((B, T, 7)))
        assert out.shape == (B, T, 3)
        assert layer.backward(out).shape == (B, T, 7)


def test_large_logits_stay_finite() -> None:
    layer = SelfAttention(7, 3)
    out = layer.forward(1e6 * np.random.default_rng(0).standard_normal((2, 5, 7)))
    assert np.isfinite(out).all()
    assert np.isfinite(layer.backward(out)).all()


def test_zero_grad_forgets_and_backward_does_not_pile_up() -> None:
    layer = SelfAttention(7, 3)
    out = layer.forward(np.random.default_rng(0).standard_normal((2, 5, 7)))
    assert layer.dWq is None
    assert layer.dWk is None
    assert layer.dWv is None
    layer.backward(out)
    once = layer.dWv
    assert once is not None
    layer.backward(out)
    assert layer.dWv is not None
    np.testing.assert_array_equal(layer.dWv, once)
    layer.zero_grad()
    assert (layer.dWq, layer.dWk, layer.dWv) == (None, None, None)


def test_float32_is_taken_as_float64() -> None:
    layer = SelfAttention(7, 3)
    layer.forward(np.ones((2, 5, 7), dtype=np.float32))
    assert layer.cache is not None
    assert {kept.dtype for kept in layer.cache} == {np.dtype(np.float64)}


def test_errors_say_what_came_and_what_would_work() -> None:
    layer = SelfAttention(7, 3)
    with pytest.raises(AttnZooError, match=r"call forward\(X\) first"):
        layer.backward(np.ones((2, 5, 3)))
    with pytest.raises(InputError, match=r"\(B, T, 7\).*\(2, 5, 11\)"):
        layer.forward(np.ones((2, 5, 11)))
    with pytest.raises(InputError, match=r"\(B, T, 7\).*\(5, 7\)"):
        layer.forward(np.ones((5, 7)))
    layer.forward(np.ones((2, 5, 7)))
    with pytest.raises(InputError, match=r"\(2, 5, 3\).*\(5, 3\)"):
        layer.backward(np.ones((5, 3)))
    with pytest.raises(ConfigError, match="C=7 and hs=0"):
        SelfAttention(7, 0)


def test_the_oracle_imports_numpy_and_itself_only() -> None:
    """A definition that shared code with what it judges would share its mistakes."""
    imported = set()
    files = sorted(Path(attnzoo.oracle.__file__).parent.glob("*.py"))
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file.name}: write imports out in full"
                imported.add(node.module or "")
    standard = {"__future__", "collections.abc", "dataclasses", "typing"}
    ours = {f"attnzoo.oracle.{file.stem}" for file in files} | {"attnzoo.errors"}
    assert imported - standard - ours == {"numpy", "numpy.typing"}
