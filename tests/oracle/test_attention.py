from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention

from attnzoo.errors import InputError
from attnzoo.oracle import (
    attention,
    attention_backward,
    causal,
    central_differences,
    relative_to_largest,
    sinks_backward,
    within,
)
from attnzoo.oracle.arrays import Array, sum_to

B, H, G, T, S, D, E = 2, 6, 3, 5, 7, 4, 11
BLIND = (1, slice(None), 2)  # batch row 1, query 2


def draw(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def inputs(kv_heads: int = G) -> tuple[Array, Array, Array]:
    return draw(B, H, T, D, seed=0), draw(B, kv_heads, S, D, seed=1), draw(B, kv_heads, S, E, seed=2)


def some_visible() -> NDArray[np.bool_]:
    """Random, but every query sees something, save one that is blind in all heads."""
    visible = np.random.default_rng(3).random((B, H, T, S)) < 0.6
    visible[..., 1] = True
    visible[BLIND] = False
    return visible


def some_bias() -> Array:
    bias = draw(1, H, T, S, seed=4)
    bias[0, 0, 0, :3] = -np.inf
    return bias


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 1.7},
    "scale zero": {"scale": 0.0},
    "causal": {"visible": causal(T, S)},
    "visible": {"visible": some_visible()},
    "bias": {"bias": some_bias()},
    "bias and visible": {"bias": some_bias(), "visible": some_visible()},
}
# What torch's kernel knows nothing of.
SCORED: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 0.8},
    "softcap, bias, visible": {"softcap": 1.5, "bias": some_bias(), "visible": some_visible(), "scale": 1.7},
    "sinks": {"sinks": draw(H, seed=6)},
    "sinks, visible": {"sinks": draw(H, seed=6), "visible": some_visible()},
    "sinks, softcap, window": {"sinks": 3 * draw(H, seed=6), "softcap": 2.0, "visible": within(2, T, S) & causal(T, S)},
}
cases = pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())


def sdpa(
    q: Array, k: Array, v: Array, *, visible: Any = None, bias: Any = None, scale: float | None = None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """torch's own attention on the same numbers, and the leaves whose gradients it can tell."""
    leaves = {name: torch.tensor(x, requires_grad=True) for name, x in (("q", q), ("k", k), ("v", v))}
    mask = None
    if bias is not None:
        leaves["bias"] = torch.tensor(bias, requires_grad=True)
        mask = leaves["bias"].expand(B, H, T, S)
    if visible is not None:
        allowed = torch.tensor(np.broadcast_to(visible, (B, H, T, S)).copy())
        mask = allowed if mask is None else mask.masked_fill(~allowed, -torch.inf)
    mixed = scaled_dot_product_attention(
        leaves["q"], leaves["k"], leaves["v"], attn_mask=mask, scale=scale, enable_gqa=True
    )
    return mixed, leaves


@cases
@pytest.mark.parametrize("kv_heads", [1, G, H])
def test_torch_gives_the_same(kv_heads: int, options: dict[str, Any]) -> None:
    q, k, v = inputs(kv_heads)
    mixed, weights = attention(q, k, v, **options)
    theirs, leaves = sdpa(q, k, v, **options)
    np.testing.assert_allclose(mixed, theirs.detach().numpy(), rtol=0, atol=1e-13)

    dmixed = draw(B, H, T, E, seed=5)
    theirs.backward(torch.tensor(dmixed))  # type: ignore[no-untyped-call]
    ours = dict(
        zip(
            ("q", "k", "v", "bias"),
            attention_backward(dmixed, q, k, v, weights, scale=options.get("scale")),
            strict=True,
        )
    )
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        gradient = sum_to(ours[name], tuple(leaf.shape))
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("options", (CASES | SCORED).values(), ids=(CASES | SCORED).keys())
def test_backward_agrees_with_central_differences(options: dict[str, Any]) -> None:
    """Every third column of each array, to save time."""
    q, k, v = inputs()
    dmixed = draw(B, H, T, E, seed=5)
    _, weights = attention(q, k, v, **options)
    asked = {word: options.get(word) for word in ("scale", "softcap")}
    dq, dk, dv, dbias = attention_backward(dmixed, q, k, v, weights, **asked)

    def loss() -> float:
        return float(np.sum(attention(q, k, v, **options)[0] * dmixed))

    for name, array, gradient in (("q", q, dq), ("k", k, dk), ("v", v, dv)):
        numeric = central_differences(loss, array[..., ::3])
        assert relative_to_largest(gradient[..., ::3], numeric) < 1e-7, name
    if "bias" in options:
        bias, summed = options["bias"], sum_to(dbias, options["bias"].shape)
        numeric = central_differences(loss, bias[..., ::3])
        assert relative_to_largest(summed[..., ::3], numeric) < 1e-7
        assert (summed[bias == -np.inf] == 0).all()
    if "sinks" in options:
        numeric = central_differences(loss, options["sinks"])
        assert np.abs(numeric).min() > 1e-4
        assert relative_to_largest(sinks_backward(dmixed, v, weights), numeric) < 1e-7


def one_by_one(q: Array, k: Array, v: Array, dmixed: Array, **options: Any) -> tuple[Array, ...]:
    """The formulas again, a query of a head at a time, over nothing but the keys that it sees."""
    group, scale = q.shape[1] // k.shape[1], options.get("scale", q.shape[-1] ** -0.5)
    bias = np.broadcast_to(options.get("bias", 0.0), (B, H, T, S))
    visible = np.broadcast_to(options.get("visible", True), (B, H, T, S)) & (bias != -np.inf)
    softcap, sinks = options.get("softcap"), options.get("sinks")
    mixed, weights, dsinks = np.zeros((B, H, T, E)), np.zeros((B, H, T, S)), np.zeros(H)
    dq, dk, dv, dbias = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), np.zeros((B, H, T, S))
    for n, head, i in np.ndindex(B, H, T):
        g, seen = head // group, np.flatnonzero(visible[n, head, i])
        if not seen.size:
            continue
        scaled = scale * k[n, g, seen] @ q[n, head, i]
        capped = scaled if softcap is None else softcap * np.tanh(scaled / softcap)
        logits = capped + bias[n, head, i, seen]
        top = logits.max() if sinks is None else max(logits.max(), sinks[head])
        sink = 0.0 if sinks is None else np.exp(sinks[head] - top)
        w = np.exp(logits - top) / (np.exp(logits - top).sum() + sink)
        weights[n, head, i, seen], mixed[n, head, i] = w, w @ v[n, g, seen]
        dw = v[n, g, seen] @ dmixed[n, head, i]
        dlogits = w * (dw - w @ dw)
        dbias[n, head, i, seen], dsinks[head] = dlogits, dsinks[head] - (1 - w.sum()) * (w @ dw)
        dscaled = scale * (dlogits if softcap is None else dlogits * (1 - (capped / softcap) ** 2))
        dq[n, head, i] = dscaled @ k[n, g, seen]
        dk[n, g, seen] += np.outer(dscaled, q[n, head, i])
        dv[n, g, seen] += np.outer(w, dmixed[n, head, i])
    return mixed, weights, dq, dk, dv, dbias, dsinks


@pytest.mark.parametrize("options", (CASES | SCORED).values(), ids=(CASES | SCORED).keys())
@pytest.mark.parametrize("poison", [None, 1e308, np.inf, np.nan])
def test_all_at_once_is_one_by_one_whatever_stands_behind_the_mask(
    poison: float | None, options: dict[str, Any]
) -> None:
    """A key that nobody sees, the query of a row that sees nothing, and what is sent back to it: any numbers do."""
    (q, k, v), dmixed, asked = inputs(), draw(B, H, T, E, seed=5), dict(options)
    if poison is not None:
        hidden = np.ones((B, H, T, S), dtype=bool)
        hidden[..., 2], hidden[BLIND] = False, False
        asked["visible"] = np.broadcast_to(options.get("visible", True), hidden.shape) & hidden
        k[:, :, 2] = v[:, :, 2] = q[BLIND] = dmixed[BLIND] = poison
    mixed, weights = attention(q, k, v, **asked)
    words = {word: options[word] for word in ("scale", "softcap") if word in options}
    gradients = attention_backward(dmixed, q, k, v, weights, **words)
    ours = (mixed, weights, *gradients, sinks_backward(dmixed, v, weights))
    due = one_by_one(q, k, v, dmixed, **asked)
    due = due if "sinks" in options else (*due[:-1], np.zeros(H))
    for name, got, expected in zip(("mixed", "w", "q", "k", "v", "bias", "sinks"), ours, due, strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13, err_msg=name)


def test_a_softcap_comes_after_the_scale_and_before_the_mask() -> None:
    """q . k = 8 and 0, scale 1/2, cap 2: the logits are 2 tanh 2 and 0. A blocked key stays blocked."""
    q, k, v = np.ones((1, 1, 1, 4)), np.zeros((1, 1, 3, 4)), np.eye(3)[None, None]
    k[0, 0, 0] = 2.0
    _, weights = attention(q, k, v, scale=0.5, softcap=2.0, visible=np.array([True, True, False]))
    odds = np.exp(2 * np.tanh(2.0))
    np.testing.assert_allclose(weights[0, 0, 0], [odds / (1 + odds), 1 / (1 + odds), 0.0])


def test_a_softcap_leaves_a_bias_alone() -> None:
    q, k, v = np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 2, 4)), np.ones((1, 1, 2, 1))
    _, weights = attention(q, k, v, softcap=0.1, bias=np.array([np.log(3.0), 0.0]))
    np.testing.assert_allclose(weights[0, 0, 0], [0.75, 0.25])


@pytest.mark.parametrize(("logit", "sink", "due"), [(0.0, np.log(4), 0.5), (100.0, 0.0, 1.0), (-100.0, 0.0, 0.0)])
def test_a_sink_takes_its_share_and_gives_nothing(logit: float, sink: float, due: float) -> None:
    """Four equal keys of value 1 beside a sink: four e^logit out of four e^logit + e^sink. Never scaled or capped."""
    q, k, v = np.full((1, 1, 1, 1), logit), np.ones((1, 1, 4, 1)), np.ones((1, 1, 4, 1))
    for softcap in (None, 1e9):
        mixed, weights = attention(q, k, v, sinks=np.array([sink]), scale=1.0, softcap=softcap)
        assert weights.shape == (1, 1, 1, 4)
        np.testing.assert_allclose(mixed.item(), due, atol=1e-12)
        np.testing.assert_allclose(weights.sum(), due, atol=1e-12)


def test_a_sink_far_below_is_none_and_each_head_has_its_own() -> None:
    q, k, v = inputs()
    plain, _ = attention(q, k, v)
    sinks = np.full(H, -1e4)
    np.testing.assert_allclose(attention(q, k, v, sinks=sinks)[0], plain, rtol=1e-13)
    sinks[4] = 1e4
    mixed, _ = attention(q, k, v, sinks=sinks)
    np.testing.assert_allclose(np.delete(mixed, 4, axis=1), np.delete(plain, 4, axis=1), rtol=1e-13)
    assert not mixed[:, 4].any()


def test_weights_are_the_ones_used() -> None:
    q, k, v = inputs()
    mixed, weights = attention(q, k, v)
    np.testing.assert_allclose(weights.sum(-1), 1.0)
    for head in range(H):
        np.testing.assert_allclose(mixed[:, head], weights[:, head] @ v[:, head // (H // G)])


@pytest.mark.parametrize(
    ("t", "s", "rows"),
    [
        (2, 5, [[0.25, 0.25, 0.25, 0.25, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2]]),
        (5, 2, [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.5, 0.5]]),
    ],
)
def test_the_last_query_stands_at_the_last_key(t: int, s: int, rows: list[list[float]]) -> None:
    zeros = np.zeros((1, 1, t, 3)), np.zeros((1, 1, s, 3))
    mixed, weights = attention(*zeros, np.eye(s)[None, None], visible=causal(t, s))
    np.testing.assert_array_equal(mixed[0, 0], rows)
    np.testing.assert_array_equal(weights[0, 0], rows)


def test_true_means_may_be_seen() -> None:
    q, k, v = np.zeros((1, 1, 1, 3)), np.zeros((1, 1, 4, 3)), np.array([1.0, 2.0, 3.0, 100.0]).reshape(1, 1, 4, 1)
    mixed, _ = attention(q, k, v, visible=np.array([True, True, True, False]))
    np.testing.assert_allclose(mixed.item(), 2.0)


def test_neighbouring_query_heads_share_a_key_value_head() -> None:
    v = np.array([10.0, 20.0]).reshape(1, 2, 1, 1)
    mixed, _ = attention(np.zeros((1, 4, 1, 3)), np.zeros((1, 2, 1, 3)), v)
    assert mixed.ravel().tolist() == [10.0, 10.0, 20.0, 20.0]


def test_the_default_scale_is_the_root_of_the_head_width() -> None:
    q, k = np.zeros((1, 4, 1, 16)), np.zeros((1, 4, 2, 16))
    q[..., 0], k[:, :, 0, 0] = 1.0, 4 * np.log(3.0)
    _, weights = attention(q, k, np.ones((1, 4, 2, 1)))
    np.testing.assert_allclose(weights[0, :, 0], [[0.75, 0.25]] * 4)


@pytest.mark.parametrize("how", ["visible", "bias", "both in part"])
def test_a_row_with_nothing_to_see_is_zero(how: str) -> None:
    """Also where two constraints, none of them empty alone, leave nothing together."""
    q, k = draw(1, 1, 3, 2, seed=0), draw(1, 1, 4, 2, seed=1)
    v = np.arange(4.0).reshape(1, 1, 4, 1)
    visible, bias = np.ones((3, 4), dtype=bool), np.zeros((3, 4))
    if how != "bias":
        visible[1, : 4 if how == "visible" else 2] = False
    if how != "visible":
        bias[1, 0 if how == "bias" else 2 :] = -np.inf
    mixed, weights = attention(q, k, v, visible=visible, bias=bias)
    assert mixed[0, 0, 1] == 0
    assert (weights[0, 0, 1] == 0).all()
    open_mixed, _ = attention(q, k, v)
    np.testing.assert_array_equal(mixed[0, 0, [0, 2]], open_mixed[0, 0, [0, 2]])

    gradients = attention_backward(np.ones((1, 1, 3, 1)), q, k, v, weights)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    dq, _, _, dbias = gradients
    assert (dq[0, 0, 1] == 0).all()
    assert (dbias[0, 0, 1] == 0).all()


def test_only_minus_infinity_blocks() -> None:
    q, k, v = np.zeros((1, 1, 1, 3)), np.zeros((1, 1, 2, 3)), np.array([1.0, 3.0]).reshape(1, 1, 2, 1)
    lowest = np.full(2, np.finfo(np.float64).min)
    assert attention(q, k, v, bias=lowest)[0].item() == 2.0
    assert attention(q, k, v, bias=np.array([-np.inf, lowest[0]]))[0].item() == 3.0


def test_values_behind_a_mask_never_leak() -> None:
    q, k, v = inputs()
    visible = np.arange(S) < 5
    clean, weights = attention(q, k, v, visible=visible)
    k[:, :, 5:], v[:, :, 5:] = 1e308, -1e308
    poisoned, same_weights = attention(q, k, v, visible=visible)
    np.testing.assert_array_equal(poisoned, clean)
    np.testing.assert_array_equal(same_weights, weights)
    dq, dk, dv, dbias = attention_backward(clean, q, k, v, weights)
    assert np.isfinite(dq).all()
    assert all((gradient[:, :, 5:] == 0).all() for gradient in (dk, dv))
    assert (dbias[..., 5:] == 0).all()


def test_large_logits_stay_finite() -> None:
    q, k, v = inputs()
    mixed, weights = attention(1e5 * q, 1e5 * k, v)
    assert np.isfinite(mixed).all()
    np.testing.assert_allclose(weights.sum(-1), 1.0)


@pytest.mark.parametrize(("b", "t", "s"), [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_nothing_in_gives_zeros_out(b: int, t: int, s: int) -> None:
    q, k, v = np.ones((b, H, t, D)), np.ones((b, G, s, D)), np.ones((b, G, s, E))
    mixed, weights = attention(q, k, v, visible=causal(t, s))
    assert mixed.shape == (b, H, t, E)
    assert weights.shape == (b, H, t, s)
    assert not mixed.any()
    assert [g.shape for g in attention_backward(mixed, q, k, v, weights)] == [q.shape, k.shape, v.shape, weights.shape]


def test_inputs_are_left_as_they_were() -> None:
    q, k, v = inputs()
    before = q.copy(), k.copy(), v.copy()
    _, weights = attention(q, k, v, bias=some_bias(), visible=some_visible())
    attention_backward(draw(B, H, T, E, seed=5), q, k, v, weights)
    for array, copy in zip((q, k, v), before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_errors_say_what_came_and_what_would_work() -> None:
    q, k, v = inputs()
    with pytest.raises(InputError, match=r"heads \(6\) must be a multiple of kv_heads \(4\)"):
        attention(q, np.ones((B, 4, S, D)), np.ones((B, 4, S, E)))
    for wrong in (k[:1], k[..., :3], k[:, :, :5]):
        with pytest.raises(InputError, match=r"k \(b, g, s, d\).*got \(2, 6, 5, 4\)"):
            attention(q, wrong, v)
