import re
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attnzoo.errors import AttnZooError, ConfigError, InputError, Unsupported
from attnzoo.oracle import Layer, Rope, central_differences, raw
from attnzoo.oracle.arrays import Array
from attnzoo.protocol import Oracle

B, T, S, C, H, G, D = 2, 5, 7, 11, 6, 3, 4
ROPE = Rope(theta=100.0, layout="interleaved", rotary_dim=2)


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def separate(*, bias: bool = True) -> dict[str, Array]:
    """Random weights; the logits spread by about 2, so the softmax is not flat."""
    shapes = {"q": (H * D, C), "k": (G * D, C), "v": (G * D, C), "out": (C, H * D)}
    params = {f"{name}.weight": draw(*shape, seed=i) / 2 for i, (name, shape) in enumerate(shapes.items())}
    if bias:
        params |= {f"{name}.bias": draw(shape[0], seed=9 + i) for i, (name, shape) in enumerate(shapes.items())}
    return params


def fused(*, bias: bool = True) -> dict[str, Array]:
    """The same weights with q, k and v stacked into one."""
    params = separate(bias=bias)
    for kind in ("weight", "bias") if bias else ("weight",):
        params[f"qkv.{kind}"] = np.concatenate([params.pop(f"{name}.{kind}") for name in "qkv"])
    return params


def layer(params: dict[str, Array] | None = None, **options: Any) -> Layer:
    return Layer(fused() if params is None else params, heads=H, kv_heads=G, head_dim=D, **options)


def with_sinks() -> dict[str, Array]:
    return fused() | {"sinks": draw(H, seed=20)}


def per_head_mask() -> NDArray[np.bool_]:
    mask = np.random.default_rng(3).random((1, H, T, T)) < 0.7
    mask[..., 3, :] = False
    return mask


def floating_mask(*shape: int) -> Array:
    mask = draw(*shape, seed=4)
    mask[..., 1, 0] = -np.inf
    return mask


DOCUMENT = np.array([[4, 4, -1, -1, -1], [900, 3, 3, 3, 4]])
KEY_MASK = np.array([[True] * 5, [False, False, True, True, False]])

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({}, {}),
    "not causal": ({"causal": False}, {}),
    "separate weights": ({"params": separate()}, {}),
    "no bias": ({"params": fused(bias=False)}, {}),
    "scale": ({"scale": 0.3}, {}),
    "scale zero": ({"scale": 0.0}, {}),
    "rope": ({"rope": ROPE}, {}),
    "rope, own positions": ({"rope": ROPE}, {"positions": np.array([[0, 2, 3, 7, 11], [5, 6, 8, 9, 13]])}),
    "boolean mask": ({}, {"mask": per_head_mask()}),
    "key mask": ({"causal": False}, {"key_mask": KEY_MASK}),
    "floating mask (t, s)": ({"causal": False}, {"mask": floating_mask(T, T)}),
    "floating mask (1, h, t, s)": ({}, {"mask": floating_mask(1, H, T, T), "key_mask": KEY_MASK}),
    "context": ({"causal": False}, {"context": draw(B, S, C, seed=6)}),
    "context, floating mask": (
        {"causal": False, "params": separate()},
        {"context": draw(B, S, C, seed=6), "mask": floating_mask(B, 1, T, S)},
    ),
    "window": ({"window": 2, "rope": ROPE}, {}),
    "window, not causal": ({"window": 3, "causal": False}, {"mask": floating_mask(T, T)}),
    "softcap": ({"softcap": 1.5, "rope": ROPE}, {"mask": floating_mask(1, H, T, T)}),
    "alibi": ({"alibi": True}, {}),
    "alibi, not causal": ({"alibi": True, "causal": False}, {"mask": floating_mask(B, 1, T, T)}),
    "sinks": ({"params": with_sinks(), "rope": ROPE}, {"key_mask": KEY_MASK}),
    "documents": ({"rope": ROPE}, {"document": DOCUMENT}),
    "everything": (
        {"params": with_sinks(), "window": 3, "softcap": 2.0, "alibi": True, "scale": 0.7},
        {"document": DOCUMENT, "mask": floating_mask(T, T), "key_mask": KEY_MASK},
    ),
}
cases = pytest.mark.parametrize(("options", "call"), CASES.values(), ids=CASES.keys())


def in_torch(
    ours: Layer,
    x: torch.Tensor,
    params: dict[str, torch.Tensor],
    *,
    context: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    key_mask: NDArray[np.bool_] | None = None,
    positions: NDArray[np.int64] | None = None,
    document: NDArray[np.int64] | None = None,
) -> torch.Tensor:
    """The same layer, written in torch on complex numbers and whole tensors, for autograd to differentiate."""
    source = x if context is None else context
    if "qkv.weight" in params:
        sizes = [H * D, G * D, G * D]
        weights = torch.split(params["qkv.weight"], sizes)
        biases = torch.split(params["qkv.bias"], sizes) if "qkv.bias" in params else (None, None, None)
    else:
        weights = tuple(params[f"{name}.weight"] for name in "qkv")
        biases = tuple(params[f"{name}.bias"] for name in "qkv")
    q, k, v = (
        torch.unflatten(torch.nn.functional.linear(y, weight, bias), -1, (-1, D)).transpose(1, 2)
        for y, weight, bias in zip((x, source, source), weights, biases, strict=True)
    )
    if ours.rope is not None:
        n = ours.rope.rotary_dim or D
        places = torch.tensor(np.broadcast_to(np.arange(T) if positions is None else positions, (B, T)).copy())
        angle = places[:, None, :, None] * ours.rope.theta ** (-torch.arange(0, n, 2).double() / n)
        turn = torch.polar(torch.ones_like(angle), angle)
        q, k = (
            torch.cat(
                [torch.view_as_real(torch.complex(y[..., 0:n:2], y[..., 1:n:2]) * turn).flatten(-2), y[..., n:]], -1
            )
            for y in (q, k)
        )
    logits = q @ k.repeat_interleave(H // G, dim=1).mT * (D**-0.5 if ours.scale is None else ours.scale)
    if ours.softcap is not None:
        logits = torch.tanh(logits / ours.softcap) * ours.softcap
    far = (torch.arange(T)[:, None] - torch.arange(logits.shape[-1])).abs()
    if ours.alibi:
        slopes = torch.tensor([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3], dtype=torch.float64)  # of six heads
        logits = logits - slopes[:, None, None] * far
    hidden = torch.zeros(logits.shape, dtype=torch.bool)
    if ours.window is not None:
        hidden |= far >= ours.window
    if document is not None:
        names = torch.tensor(document)
        hidden |= (names[:, :, None] != names[:, None, :])[:, None]
    if ours.causal:
        hidden |= torch.ones(T, T, dtype=torch.bool).triu(1)
    if key_mask is not None:
        hidden |= ~torch.tensor(key_mask)[:, None, None, :]
    if mask is not None and mask.dtype == torch.bool:
        hidden |= ~mask
    elif mask is not None:
        hidden |= mask == -torch.inf
        logits = logits + mask.masked_fill(mask == -torch.inf, 0.0)
    blind = hidden.all(-1, keepdim=True)
    logits = logits.masked_fill(hidden & ~blind, -torch.inf)
    if "sinks" in params:
        column = params["sinks"][None, :, None, None].expand(*logits.shape[:3], 1)
        attended = torch.cat([logits, column], dim=-1).softmax(-1)[..., :-1]
    else:
        attended = logits.softmax(-1)
    attended = attended.masked_fill(blind, 0.0)
    mixed = attended @ v.repeat_interleave(H // G, dim=1)
    return torch.nn.functional.linear(mixed.transpose(1, 2).flatten(2), params["out.weight"], params.get("out.bias"))


@cases
def test_torch_gives_the_same(options: dict[str, Any], call: dict[str, Any]) -> None:
    ours, x, dy = layer(**options), draw(B, T, C, seed=7), draw(B, T, C, seed=8)
    y, _ = ours.forward(x, **call)
    dx, dcontext = ours.backward(dy)

    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in ours.params.items()}
    theirs = dict(call)
    for name in {"context", "mask"} & call.keys():
        theirs[name] = torch.tensor(call[name], requires_grad=call[name].dtype == np.float64)
    their_x = torch.tensor(x, requires_grad=True)
    their_y = in_torch(ours, their_x, leaves, **theirs)
    their_y.backward(torch.tensor(dy))  # type: ignore[no-untyped-call]

    np.testing.assert_allclose(y, their_y.detach().numpy(), rtol=0, atol=1e-12)
    gradients = {"x": (dx, their_x)} | {name: (ours.grads[name], leaf) for name, leaf in leaves.items()}
    if "context" in call:
        assert dcontext is not None
        gradients["context"] = (dcontext, theirs["context"])
    if ours.dmask is not None:
        gradients["mask"] = (ours.dmask, theirs["mask"])
    for name, (gradient, leaf) in gradients.items():
        assert leaf.grad is not None
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=0, atol=1e-11, err_msg=name)


@cases
def test_every_gradient_agrees_with_central_differences(options: dict[str, Any], call: dict[str, Any]) -> None:
    """Every fourth column of each array, to save time: torch's autograd has judged all of them above."""
    ours, x, dy = layer(**options), draw(B, T, C, seed=7), draw(B, T, C, seed=8)
    ours.forward(x, **call)
    dx, dcontext = ours.backward(dy)
    assert ours.grads.keys() == ours.params.keys()
    assert (dcontext is None) == ("context" not in call)

    def loss() -> float:
        return float(np.sum(ours.forward(x, **call)[0] * dy))

    by_hand = {"x": (x, dx)} | {name: (ours.params[name], ours.grads[name]) for name in ours.params}
    if dcontext is not None:
        by_hand["context"] = (call["context"], dcontext)
    if "mask" in call and call["mask"].dtype == np.float64:
        assert ours.dmask is not None
        by_hand["mask"] = (call["mask"], ours.dmask)
    for name, (array, gradient) in by_hand.items():
        numeric = central_differences(loss, array[..., ::4])
        assert np.abs(gradient[..., ::4] - numeric).max() <= 1e-7 * max(1.0, float(np.abs(numeric).max())), name


@cases
def test_weights_say_what_was_mixed(options: dict[str, Any], call: dict[str, Any]) -> None:
    ours, x = layer(**options), draw(B, T, C, seed=7)
    _, weights = ours.forward(x, **call)
    s = call["context"].shape[1] if "context" in call else T
    assert weights.shape == (B, H, T, s)
    sums = weights.sum(-1)
    full = (sums < 1.0) if "sinks" in ours.params else np.isclose(sums, 1.0)
    assert (full | (sums == 0.0)).all()
    if ours.causal:
        assert (np.triu(weights, 1) == 0).all()


def test_fused_rows_are_all_q_then_all_k_then_all_v() -> None:
    x, dy = draw(B, T, C, seed=7), draw(B, T, C, seed=8)
    one, three = layer(fused(), rope=ROPE), layer(separate(), rope=ROPE)
    np.testing.assert_allclose(one.forward(x)[0], three.forward(x)[0], rtol=1e-12)
    one.backward(dy)
    three.backward(dy)
    for kind in ("weight", "bias"):
        stacked = np.concatenate([three.grads[f"{name}.{kind}"] for name in "qkv"])
        np.testing.assert_allclose(one.grads[f"qkv.{kind}"], stacked, rtol=1e-10, atol=1e-12)


def test_per_head_outputs_by_hand() -> None:
    """Four heads of width 1 over two key-value heads that hold 10 and 20; the output projection is the identity."""
    params = {"q.weight": np.zeros((4, 4)), "k.weight": np.zeros((2, 4)), "out.weight": np.eye(4)}
    params["v.weight"] = np.array([[10.0, 0.0, 0.0, 0.0], [20.0, 0.0, 0.0, 0.0]])
    y, _ = Layer(params, heads=4, kv_heads=2, head_dim=1).forward(np.array([[[1.0, 0.0, 0.0, 0.0]]]))
    assert y.ravel().tolist() == [10.0, 10.0, 20.0, 20.0]


def test_heads_are_neighbouring_columns_of_each_token() -> None:
    """Values 0..7 of two tokens, seen alone: each token gets its own row back, heads in order."""
    params = {name: np.zeros((4, 4)) for name in ("q.weight", "k.weight")} | {
        name: np.eye(4) for name in ("v.weight", "out.weight")
    }
    x = np.arange(8.0).reshape(1, 2, 4)
    y, _ = Layer(params, heads=2, head_dim=2).forward(x, mask=np.eye(2, dtype=bool))
    np.testing.assert_array_equal(y, x)


def test_positions_default_to_counting_and_only_distance_matters() -> None:
    ours, x = layer(rope=ROPE), draw(B, T, C, seed=7)
    counted, _ = ours.forward(x)
    np.testing.assert_array_equal(counted, ours.forward(x, positions=np.arange(T))[0])
    np.testing.assert_allclose(counted, ours.forward(x, positions=np.arange(T) + 100)[0], rtol=1e-10, atol=1e-11)
    assert np.abs(counted - ours.forward(x, positions=2 * np.arange(T))[0]).max() > 1e-3


def test_positions_never_decide_who_is_seen() -> None:
    _, weights = layer(rope=ROPE).forward(draw(B, T, C, seed=7), positions=np.arange(T)[::-1].copy())
    assert (np.triu(weights, 1) == 0).all()
    assert (weights[:, :, -1] > 0).all()


def test_masks_intersect() -> None:
    mask = np.ones((T, T), dtype=bool)
    mask[4, 0] = False
    _, weights = layer().forward(draw(B, T, C, seed=7), mask=mask, key_mask=KEY_MASK)
    seen = np.tril(mask) & KEY_MASK[:, None, None, :]
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(seen, weights.shape))


def test_a_blind_query_gives_only_the_output_bias() -> None:
    ours, x, key_mask = layer(), draw(B, T, C, seed=7), np.ones((B, T), dtype=bool)
    key_mask[1, 0] = False
    y, weights = ours.forward(x, key_mask=key_mask)
    np.testing.assert_array_equal(y[1, 0], ours.params["out.bias"])
    assert not weights[1, :, 0].any()
    dy = np.zeros_like(y)
    dy[1, 0] = 1.0
    dx, _ = ours.backward(dy)
    assert not dx.any()
    assert all(not ours.grads[name].any() for name in ours.grads if name != "out.bias")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_everything_is_float64_and_nothing_is_changed(dtype: Any) -> None:
    params: dict[str, NDArray[Any]] = {name: value.astype(dtype) for name, value in fused().items()}
    ours = layer(params)
    x: NDArray[Any] = draw(B, T, C, seed=7).astype(dtype)
    before = {name: value.copy() for name, value in params.items()} | {"x": x.copy()}
    y, weights = ours.forward(x, mask=np.zeros((T, T), dtype=dtype))
    dx, _ = ours.backward(y.astype(dtype))
    assert ours.dmask is not None
    for array in (y, weights, dx, ours.dmask, *ours.grads.values(), *ours.params.values()):
        assert array.dtype == np.float64
    for name, array in (params | {"x": x}).items():
        np.testing.assert_array_equal(array, before[name])
    assert not any(np.shares_memory(ours.params[name], params[name]) for name in params)


def test_a_second_backward_starts_afresh() -> None:
    ours, x, dy = layer(), draw(B, T, C, seed=7), draw(B, T, C, seed=8)
    ours.forward(x, mask=np.zeros((T, T)))
    ours.backward(dy)
    first = ours.grads
    ours.forward(x)
    ours.backward(dy)
    for name in first:
        np.testing.assert_allclose(ours.grads[name], first[name], rtol=1e-12, atol=1e-13)
    assert ours.dmask is None


def test_x_as_its_own_context_gets_two_gradients() -> None:
    ours, x, dy = layer(causal=False), draw(B, T, C, seed=7), draw(B, T, C, seed=8)
    ours.forward(x)
    whole, _ = ours.backward(dy)
    ours.forward(x, x)
    dx, dcontext = ours.backward(dy)
    assert dcontext is not None
    np.testing.assert_allclose(dx + dcontext, whole)


@pytest.mark.parametrize(("b", "t"), [(0, 5), (2, 0)])
def test_nothing_in_gives_nothing_out(b: int, t: int) -> None:
    ours = layer(rope=ROPE)
    y, weights = ours.forward(np.ones((b, t, C)))
    assert y.shape == (b, t, C)
    assert weights.shape == (b, H, t, t)
    dx, _ = ours.backward(y)
    assert dx.shape == (b, t, C)
    assert not any(gradient.any() for gradient in ours.grads.values())


def test_raw_reads_a_module_by_name_and_copies() -> None:
    module = torch.nn.ModuleDict({"qkv": torch.nn.Linear(C, (H + 2 * G) * D), "out": torch.nn.Linear(H * D, C)})
    for dtype in (torch.float64, torch.bfloat16):
        params = raw(module.to(dtype))
        assert params.keys() == {"qkv.weight", "qkv.bias", "out.weight", "out.bias"}
        assert all(value.dtype == np.float64 for value in params.values())
        weight = module["out"].weight
        assert isinstance(weight, torch.Tensor)
        np.testing.assert_array_equal(params["out.weight"], weight.detach().double().numpy())
        params["out.weight"][...] = 0.0
        assert weight.any()


def test_layer_is_an_oracle_in_types() -> None:
    oracle: Oracle = layer()
    assert oracle.grads == {}


def test_the_call_is_refused_where_it_asks_for_what_the_layer_has_not() -> None:
    x, context = draw(B, T, C), draw(B, S, C)
    for ours in (layer(), layer(causal=False, rope=ROPE)):
        with pytest.raises(Unsupported, match="causal=False and without rope"):
            ours.forward(x, context)
    with pytest.raises(Unsupported, match="positions"):
        layer().forward(x, positions=np.arange(T))
    for ours, more in (
        (layer(causal=False, window=3), {}),
        (layer(causal=False, alibi=True), {}),
        (layer(causal=False), {"document": DOCUMENT}),
    ):
        with pytest.raises(Unsupported, match="without window and alibi, give no document"):
            ours.forward(x, context, **more)


def test_inputs_that_do_not_fit_are_named() -> None:
    ours, x = layer(), draw(B, T, C)
    with pytest.raises(AttnZooError, match=r"call forward\(x\) first"):
        ours.backward(x)
    for wrong in (draw(B, T, C + 2), draw(T, C), draw(C)):
        with pytest.raises(InputError, match=r"qkv\.weight reads arrays of shape \(b, t, 11\), got"):
            ours.forward(wrong)
    for shape in ((T, T + 1), (1, 1), (B, T, T), (B, H, T), (B, 2, T, T), (T,)):
        with pytest.raises(InputError, match=r"2 axes \(5, 5\) or 4 that broadcast to \(2, 6, 5, 5\)"):
            ours.forward(x, mask=np.ones(shape))
    with pytest.raises(InputError, match=r"True = allowed.*int64"):
        ours.forward(x, mask=np.ones((T, T), dtype=np.int64))
    with pytest.raises(InputError, match=r"bool of shape \(2, 5\), got float64"):
        ours.forward(x, key_mask=np.ones((B, T)))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"bool of shape \(2, 5\), got bool \(2, 1\)"):
        ours.forward(x, key_mask=np.ones((B, 1), dtype=bool))
    with pytest.raises(InputError, match=r"got \(2, 6, 5, 4\), \(1, 3, 7, 4\)"):
        layer(causal=False).forward(x, draw(1, S, C))
    with pytest.raises(InputError, match=r"document must have shape \(2, 5\), got \(5,\)"):
        ours.forward(x, document=np.zeros(T, dtype=int))
    ours.forward(x)
    with pytest.raises(InputError, match=r"\(2, 5, 11\), got \(5, 11\)"):
        ours.backward(draw(T, C))


def test_params_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match=r"heads \(6\) must be a multiple of kv_heads \(4\)"):
        Layer(fused(), heads=6, kv_heads=4, head_dim=D)
    with pytest.raises(ConfigError, match=r"lack k\.weight, out\.weight, q\.weight, v\.weight; they hold w"):
        layer({"w": np.ones(2)})
    with pytest.raises(ConfigError, match=r"hold norm\.weight, which"):
        layer(fused() | {"norm.weight": np.ones(D)})
    with pytest.raises(ConfigError, match=r"qkv\.weight must have shape \(48, 11\).*got \(47, 11\)"):
        layer(fused() | {"qkv.weight": np.ones((47, C))})
    with pytest.raises(ConfigError, match=r"out\.bias must have shape \(11,\).*got \(1,\)"):
        layer(fused() | {"out.bias": np.ones(1)})
    with pytest.raises(ConfigError, match=r"sinks must have shape \(6,\).*got \(3,\)"):
        layer(fused() | {"sinks": np.ones(G)})


NAMES = {"q_proj": "q", "attn.k": "k", "value_weight": "v.weight", "o_proj": "out"}


def renamed() -> dict[str, Array]:
    params = separate(bias=False)
    return {
        {"q": "q_proj.weight", "k": "attn.k.weight", "v": "value_weight", "out": "o_proj.weight"}[name[:-7]]: value
        for name, value in params.items()
    }


def test_params_of_other_names_are_the_same_layer_and_keep_their_names_in_grads() -> None:
    ours, theirs = layer(separate(bias=False)), layer(renamed(), names=NAMES)
    x = draw(B, T, C)
    np.testing.assert_array_equal(theirs.forward(x)[0], ours.forward(x)[0])
    for one in (ours, theirs):
        one.backward(draw(B, T, C, seed=1))
    assert set(theirs.grads) == set(renamed())
    np.testing.assert_array_equal(theirs.grads["q_proj.weight"], ours.grads["q.weight"])
    np.testing.assert_array_equal(theirs.grads["value_weight"], ours.grads["v.weight"])
    np.testing.assert_array_equal(theirs.projection("k")[0], ours.projection("k")[0])


def test_a_fused_projection_of_another_name_keeps_its_bias() -> None:
    params = {f"c_attn{name[3:]}" if name.startswith("qkv") else name: value for name, value in fused().items()}
    x = draw(B, T, C)
    np.testing.assert_array_equal(layer(params, names={"c_attn": "qkv"}).forward(x)[0], layer().forward(x)[0])


def test_names_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match=r"speak of 'q_prj', which is not among the params; did you mean 'q_proj'"):
        layer(renamed(), names={"q_prj": "q"})
    with pytest.raises(ConfigError, match=r"make 'q\.weight' of both 'q_proj\.weight' and 'attn\.k\.weight'"):
        layer(renamed(), names={"q_proj": "q", "attn.k": "q"})
    with pytest.raises(ConfigError, match=r"lack k\.weight.*say which is which: names=\{'q_proj': 'q', …\}"):
        layer(renamed())


def test_options_that_do_not_fit_are_named() -> None:
    for softcap in (0.0, -1.0):
        with pytest.raises(ConfigError, match=rf"softcap \({softcap}\) must be above 0"):
            layer(softcap=softcap)
    with pytest.raises(ConfigError, match=r"window \(0\)"):
        layer(window=0).forward(draw(B, T, C))


class Kept(torch.nn.Module):
    """A layer that keeps its sizes, and a weight for each projection."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(C, (H + 2 * G) * D), torch.nn.Linear(H * D, C)
        for word, value in sizes.items():
            setattr(self, word, value)


SIZES: dict[str, Any] = dict(heads=H, kv_heads=G, head_dim=D, causal=False, scale=0.3)


def test_of_reads_the_sizes_from_the_layer() -> None:
    module = Kept(**SIZES).double()
    read, given = Layer.of(module, rope=ROPE, softcap=1.5), Layer(raw(module), **SIZES, rope=ROPE, softcap=1.5)
    np.testing.assert_array_equal(read.forward(draw(B, T, C))[0], given.forward(draw(B, T, C))[0])
    for word, other in {"causal": True, "scale": 2.0}.items():
        changed = Layer(raw(module), **{**SIZES, word: other}, rope=ROPE, softcap=1.5)
        assert not np.allclose(read.forward(draw(B, T, C))[0], changed.forward(draw(B, T, C))[0])


def test_what_is_given_to_of_goes_before_what_the_layer_keeps() -> None:
    module = Kept(**SIZES).double()
    assert Layer.of(module, scale=2.0).scale == 2.0
    assert Layer.of(module).scale == 0.3


def test_of_says_which_sizes_a_layer_does_not_keep() -> None:
    module = Kept(heads=H, head_dim=D, causal=True)
    words = "Kept keeps no kv_heads and no scale; give what it lacks: Layer.of(module, kv_heads=…, scale=…)"
    with pytest.raises(ConfigError, match=re.escape(words)):
        Layer.of(module)
    assert Layer.of(module, kv_heads=G, scale=None).scale is None


def test_a_rope_is_read_from_what_a_layer_rotates_with() -> None:
    class Turns:
        theta, layout, rotary_dim = 500.0, "interleaved", 4

    assert Rope.of(Turns()) == Rope(theta=500.0, layout="interleaved", rotary_dim=4)
