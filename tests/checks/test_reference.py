"""The reference in torch against loops and literal values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnzoo.checks.engine import reference

B, H, G, T, S, D = 2, 6, 3, 4, 7, 5
CPU = torch.device("cpu")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


Q, K, V = draw(B, H, T, D), draw(B, G, S, D, seed=1), draw(B, G, S, D, seed=2)
SCALE = 0.7


def by_hand(visible: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and weighted sums, number by number."""
    weights = torch.zeros(B, H, T, S, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for i in range(T):
                logits = {
                    j: SCALE * float(Q[b, h, i] @ K[b, h // 2, j]) + float(bias[b, h, i, j])
                    for j in range(S)
                    if visible[b, h, i, j]
                }
                total = sum(math.exp(logit) for logit in logits.values())
                for j, logit in logits.items():
                    weights[b, h, i, j] = math.exp(logit) / total
    values = torch.stack([V[:, h // 2] for h in range(H)], dim=1)
    return weights, torch.stack(
        [torch.stack([w @ v for w, v in zip(*pair, strict=True)]) for pair in zip(weights, values, strict=True)]
    )


CAUSAL = reference.causal(T, S, CPU)
PADDED = torch.arange(S) < torch.tensor([7, 4])[:, None, None, None]
CASES = {
    "plain": (None, None),
    "causal": (CAUSAL, None),
    "visible": (CAUSAL & PADDED, None),
    "bias": (None, draw(1, H, T, S, seed=3)),
    "both": (CAUSAL & PADDED, draw(B, 1, 1, S, seed=4)),
}


@pytest.mark.parametrize(("visible", "bias"), CASES.values(), ids=CASES.keys())
def test_attention_is_its_formula_number_by_number(visible: Tensor | None, bias: Tensor | None) -> None:
    seen = torch.ones(B, H, T, S, dtype=torch.bool) if visible is None else visible.expand(B, H, T, S)
    added = torch.zeros(B, H, T, S) if bias is None else bias.expand(B, H, T, S)
    weights, mixed = by_hand(seen, added)
    asked = {"visible": visible, "bias": bias}
    torch.testing.assert_close(reference.attention(Q, K, V, **asked, scale=SCALE), mixed, rtol=0, atol=1e-12)
    torch.testing.assert_close(reference.weights(Q, K, **asked, scale=SCALE), weights, rtol=0, atol=1e-12)


def test_the_triangle_is_at_the_bottom_right() -> None:
    assert reference.causal(2, 5, CPU).tolist() == [[True] * 4 + [False], [True] * 5]
    assert reference.causal(3, 1, CPU).tolist() == [[False], [False], [True]]


DOCUMENT = torch.tensor([[4, 4, 9, 4]])


@pytest.mark.parametrize(
    ("rules", "due"),
    [
        ({"causal": True}, [[1, 1, 1, 0], [1, 1, 1, 1]]),
        ({"causal": True, "window": 2}, [[0, 1, 1, 0], [0, 0, 1, 1]]),
        ({"causal": False, "window": 2}, [[0, 1, 1, 1], [0, 0, 1, 1]]),
        ({"causal": True, "window": 1}, [[0, 0, 1, 0], [0, 0, 0, 1]]),
        ({"causal": False, "document": DOCUMENT}, [[[[0, 0, 1, 0], [1, 1, 0, 1]]]]),
        ({"causal": True, "window": 3, "document": DOCUMENT}, [[[[0, 0, 1, 0], [0, 1, 0, 1]]]]),
    ],
    ids=str,
)
def test_who_may_see_whom_written_out(rules: dict[str, Any], due: list[Any]) -> None:
    """The last two of four tokens."""
    visible = reference.visible(2, 4, CPU, **rules)
    assert visible is not None
    assert visible.int().tolist() == due


def test_without_a_rule_all_is_seen() -> None:
    assert reference.visible(2, 4, CPU, causal=False) is None


E0 = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)[None, None, None]
COS, SIN = math.cos(1), math.sin(1)


@pytest.mark.parametrize(("layout", "due"), [("half", [COS, 0.0, SIN, 0.0]), ("interleaved", [COS, SIN, 0.0, 0.0])])
def test_the_layouts_pair_other_channels(layout: str, due: list[float]) -> None:
    turned = reference.rotate(E0, torch.tensor([1]), theta=1e4, layout=layout, rotary_dim=4)
    assert turned.flatten().tolist() == pytest.approx(due, abs=1e-15)
    assert due[0] == pytest.approx(0.5403, abs=1e-4)


@pytest.mark.parametrize(("layout", "partner"), [("half", 3), ("interleaved", 3)])
def test_the_second_pair_turns_by_the_root_of_the_base(layout: str, partner: int) -> None:
    first = 1 if layout == "half" else 2
    x = torch.eye(4, dtype=torch.float64)[first][None, None, None]
    turned = reference.rotate(x, torch.tensor([50]), theta=1e4, layout=layout, rotary_dim=4).flatten()
    assert turned[first] == pytest.approx(math.cos(0.5))
    assert turned[partner] == pytest.approx(math.sin(0.5))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_channels_beyond_rotary_dim_stay_and_norms_are_kept(layout: str) -> None:
    x = draw(B, H, T, 6)
    turned = reference.rotate(x, torch.arange(3, 3 + T), theta=100.0, layout=layout, rotary_dim=4)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert not torch.isclose(turned[..., :4], x[..., :4]).any()
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=0, atol=1e-12)


def test_positions_may_differ_from_sample_to_sample() -> None:
    x, positions = draw(2, H, T, 4), torch.tensor([[0, 1, 2, 3], [9, 4, 4, 0]])
    asked = {"theta": 100.0, "layout": "half", "rotary_dim": 4}
    together = reference.rotate(x, positions, **asked)  # type: ignore[arg-type]
    for row in range(2):
        assert torch.equal(together[row], reference.rotate(x[row : row + 1], positions[row], **asked)[0])  # type: ignore[arg-type]


def test_angles_are_made_in_float64_whatever_the_type() -> None:
    far = torch.tensor([100_003])
    turned = reference.rotate(E0.float(), far, theta=1e4, layout="half", rotary_dim=4)
    assert turned.dtype == torch.float32
    assert float(turned[..., 0]) == pytest.approx(math.cos(100_003), abs=1e-7)
