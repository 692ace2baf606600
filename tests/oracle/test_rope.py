import numpy as np
import pytest

from attnzoo.errors import ConfigError, InputError
from attnzoo.oracle import Rope, central_differences, relative_to_largest, rotate, rotate_backward
from attnzoo.oracle.arrays import Array
from attnzoo.oracle.rope import Layout

B, H, T, D = 2, 3, 5, 6


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def one(*row: float) -> Array:
    return np.array(row).reshape(1, 1, 1, -1)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [("half", [0.5403, 0.0, 0.8415, 0.0]), ("interleaved", [0.5403, 0.8415, 0.0, 0.0])],
)
def test_the_first_dim_turns_into_its_partner(layout: Layout, expected: list[float]) -> None:
    turned = rotate(one(1.0, 0.0, 0.0, 0.0), np.array([1]), layout=layout)
    np.testing.assert_allclose(turned[0, 0, 0], expected, atol=5e-5)


@pytest.mark.parametrize(("theta", "angle"), [(1e4, 0.01), (5e5, 1 / np.sqrt(5e5))])
@pytest.mark.parametrize(("layout", "first", "second"), [("half", 1, 3), ("interleaved", 2, 3)])
def test_theta_sets_the_angle_of_the_second_pair(
    theta: float, angle: float, layout: Layout, first: int, second: int
) -> None:
    x = np.zeros((1, 1, 1, 4))
    x[..., first] = 1.0
    turned = rotate(x, np.array([1]), theta=theta, layout=layout)[0, 0, 0]
    np.testing.assert_allclose(np.arctan2(turned[second], turned[first]), angle, rtol=1e-12)


def test_positions_divided_by_a_factor_are_nearer_positions() -> None:
    """Linear scaling: with factor 4, position 8 turns as far as position 2."""
    x = draw(B, H, T, D)
    near, far = np.arange(T), 4 * np.arange(T)
    np.testing.assert_array_equal(rotate(x, far / 4), rotate(x, near))


def test_the_layouts_differ_by_a_permutation_of_dims() -> None:
    x, positions = draw(B, H, T, D), np.arange(T)
    order = np.array([0, 2, 4, 1, 3, 5])  # the first of each pair, then the second of each
    halves = rotate(x[..., order], positions, layout="half")
    np.testing.assert_array_equal(halves, rotate(x, positions, layout="interleaved")[..., order])
    assert np.abs(halves - rotate(x, positions, layout="half")[..., order]).max() > 0.1


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_scores_see_only_the_distance(layout: Layout) -> None:
    q, k = one(*draw(D, seed=1)), one(*draw(D, seed=2))

    def score(i: int, j: int) -> float:
        return float(np.sum(rotate(q, np.array([i]), layout=layout) * rotate(k, np.array([j]), layout=layout)))

    np.testing.assert_allclose(score(7, 3), score(104, 100))
    assert abs(score(7, 3) - score(7, 4)) > 0.01


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_dims_behind_rotary_dim_pass_and_those_before_turn_as_if_alone(layout: Layout) -> None:
    x, positions = draw(B, H, T, D), np.arange(T) + 3
    turned = rotate(x, positions, layout=layout, rotary_dim=4)
    np.testing.assert_array_equal(turned[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(turned[..., :4], rotate(x[..., :4], positions, layout=layout))
    assert (turned[..., :4] != x[..., :4]).all()


def test_each_row_of_the_batch_may_have_its_own_positions() -> None:
    x, positions = draw(B, H, T, D), np.array([[0, 2, 3, 7, 11], [5, 1, 0, 13, 4]])
    turned = rotate(x, positions)
    for n in range(B):
        np.testing.assert_array_equal(turned[n : n + 1], rotate(x[n : n + 1], positions[n]))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_backward_agrees_with_central_differences(layout: Layout) -> None:
    x, G, positions = draw(B, H, T, D), draw(B, H, T, D, seed=1), np.array([[0, 2, 3, 7, 11], [5, 1, 0, 13, 4]])
    rope = Rope(theta=100.0, layout=layout, rotary_dim=4)
    numeric = central_differences(lambda: float(np.sum(rope.rotate(x, positions) * G)), x)
    assert relative_to_largest(rope.backward(G, positions), numeric) < 1e-8
    np.testing.assert_array_equal(
        rope.backward(G, positions), rotate_backward(G, positions, theta=100.0, layout=layout, rotary_dim=4)
    )


def test_the_input_is_left_as_it_was() -> None:
    x = draw(B, H, T, D)
    before = x.copy()
    rotate(x, np.arange(T))
    np.testing.assert_array_equal(x, before)


def test_errors_say_what_came_and_what_would_work() -> None:
    x = draw(B, H, T, D)
    with pytest.raises(ConfigError, match="'half' or 'interleaved', got 'neox'"):
        rotate(x, np.arange(T), layout="neox")  # type: ignore[arg-type]
    for rotary_dim in (3, 8, 0):
        with pytest.raises(ConfigError, match=rf"rotary_dim \({rotary_dim}\).*even.*\(6\)"):
            rotate(x, np.arange(T), rotary_dim=rotary_dim)
    for shape in ((1,), (T + 1,), (1, T), (T, B)):
        with pytest.raises(InputError, match=r"\(5,\) or \(2, 5\)"):
            rotate(x, np.zeros(shape))
