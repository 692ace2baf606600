"""Bands: windows as blocks, with work that grows with the tokens, and what has no band."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnzoo import ops
from attnzoo.errors import Unsupported
from attnzoo.ops import banded
from attnzoo.ops.terms import Terms


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def band(n: int, causal: bool = True) -> ops.Rule:
    return ops.causal() & ops.window(n) if causal else ops.window(n)


def held(t: int, s: int, *, n: int, causal: bool = True, g: int = 2, **more: Any) -> None:
    """Hold a band, whether it pays or not, to the definition."""
    q, k, v = normal(2, 4, t, 6), normal(2, g, s, 6, seed=1), normal(2, g, s, 5, seed=2)
    terms = Terms(scale=0.4, rule=band(n, causal), first_query=s - t, **more)
    expected = ops.attend(q, k, v, scale=0.4, window=n, causal=causal, backend="eager", **more)
    torch.testing.assert_close(banded.band(q, k, v, terms), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("t", [1, 15, 16, 17, 47, 48, 49, 80, 81])
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_meet_at_their_borders_without_a_seam(t: int, causal: bool) -> None:
    """16 queries go apart, and blocks are of 32: none, one, one less, one more, and two of them."""
    assert banded.block_sizes(band(7)) == (32, 16)
    held(t, t, n=7 if causal else 4, causal=causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("t", "s"), [(70, 200), (3, 200), (200, 70), (70, 71)])
def test_the_newest_queries_and_queries_older_than_the_keys_have_their_band(t: int, s: int, causal: bool) -> None:
    held(t, s, n=5, causal=causal)


@pytest.mark.parametrize("n", [1, 2, 40, 129, 200])
def test_windows_from_one_key_to_all_of_them(n: int) -> None:
    held(130, 130, n=n)
    held(130, 130, n=n, causal=False)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_and_sinks_go_into_the_bands(causal: bool) -> None:
    real = torch.rand(2, 130, generator=torch.Generator().manual_seed(3)) < 0.7
    real[0, 40:60] = False  # wider than the window: some queries see nothing
    held(130, 130, n=5, causal=causal, key_mask=real)
    held(130, 130, n=5, causal=causal, sinks=normal(4))
    held(130, 130, n=5, causal=causal, key_mask=real, sinks=normal(4))


def test_poison_behind_padding_reaches_no_band() -> None:
    q, k = normal(1, 2, 200, 4), normal(1, 2, 200, 4, seed=1)
    real = torch.ones(1, 200, dtype=torch.bool)
    real[:, 100] = False
    expected = ops.attend(q, k, k, window=5, key_mask=real, backend="banded")
    k[:, :, 100] = float("nan")
    assert torch.equal(ops.attend(q, k, k, window=5, key_mask=real, backend="banded"), expected)


# Work


def operations(backend: str, t: int, **asked: Any) -> int:
    """Floating-point operations of the products, in torch's kernel that is made of them: only these are counted."""
    q, k = torch.zeros(1, 2, t, 16), torch.zeros(1, 1, t, 16)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        ops.attend(q, k, k, causal=True, backend=backend, **asked)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("sinks", [None, torch.zeros(2)], ids=["plain", "sinks"])
def test_the_work_of_a_window_grows_with_the_tokens(sinks: Tensor | None) -> None:
    short, long = (operations("auto", t, window=16, sinks=sinks) for t in (1024, 2048))
    assert short > 0
    assert long / short < 2.2  # without bands it is four times as much
    assert operations("sdpa", 2048, window=16, sinks=sinks) > 8 * long


def test_the_work_of_documents_grows_with_their_number() -> None:
    def packed(n: int) -> int:
        ids = torch.arange(n).repeat_interleave(64)[None]
        return operations("auto", 64 * n, document=ids)

    assert packed(16) / packed(8) == 2.0


@pytest.mark.parametrize(
    ("width", "size"),
    [(1, 32), (8, 32), (255, 32), (257, 32), (511, 32), (512, 64), (1023, 64), (1024, 128), (4096, 256)],
)
def test_a_block_is_an_eighth_of_the_window_between_32_and_256(width: int, size: int) -> None:
    assert banded.block_sizes(band(width))[0] == size


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [1, 2, 5, 16, 17, 100, 256, 257, 1000])
def test_a_block_reads_the_keys_it_needs_filled_up_to_a_multiple_of_16(width: int, causal: bool) -> None:
    rule = band(width, causal)
    n, back = banded.block_sizes(rule)
    assert 0 <= back - rule.behind < 16
    assert (back + n + rule.ahead) % 16 == 0


# When it pays, and when there is no band


@pytest.mark.parametrize(
    ("t", "s", "n", "causal", "paying"),
    [
        (300, 300, 5, True, True),
        (300, 300, 5, False, True),
        (96, 96, 5, True, False),  # twice 16 behind and a block of 32
        (97, 97, 5, True, True),
        (96, 96, 5, False, False),  # twice 12 behind, a block of 32, and 4 ahead
        (97, 97, 5, False, True),
        (1, 300, 5, True, False),  # a lone query
        (2, 300, 5, True, False),  # the keys that two of them see are few anyway
        (300, 300, 300, True, False),
        (1088, 1088, 511, True, False),  # twice 512 behind and a block of 32
        (1089, 1089, 511, True, True),
        (1152, 1152, 512, True, False),  # twice 512 behind and a block of 64
        (1153, 1153, 512, True, True),
    ],
)
def test_bands_pay_where_there_is_more_to_leave_out_than_they_cost(
    t: int, s: int, n: int, causal: bool, paying: bool
) -> None:
    q, k = normal(1, 2, t, 4), normal(1, 2, s, 4)
    assert banded.pays(q, k, Terms(scale=1.0, rule=band(n, causal), first_query=s - t)) is paying


def test_documents_always_pay() -> None:
    q = normal(1, 2, 4, 4)
    assert banded.pays(q, q, Terms(scale=1.0, document=torch.zeros(1, 4).long()))


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples went into each call of torch's kernel."""
    seen: list[int] = []
    kernel = F.scaled_dot_product_attention

    def spy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        seen.append(q.shape[0])
        return kernel(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return seen


@pytest.mark.parametrize(
    ("t", "s", "n", "causal", "calls"),
    [
        (72, 72, 5, True, [1]),
        (200, 200, 5, True, [1, 5, 1]),  # 16 queries apart, 5 blocks of 32 in one call, as samples, and 24 queries more
        (1279, 1279, 512, True, [1, 11, 1]),  # blocks of 64
        (1400, 1400, 257, False, [1, 13, 1]),
        (1288, 1288, 257, True, [1, 32, 1]),
        (96, 300, 5, True, [3]),  # the newest queries: each has all the keys of its band
    ],
)
def test_a_band_that_does_not_pay_goes_to_the_kernel_whole(
    samples: list[int], t: int, s: int, n: int, causal: bool, calls: list[int]
) -> None:
    q, k = normal(1, 2, t, 4), normal(1, 2, s, 4)
    ops.attend(q, k, k, causal=causal, window=n, backend="banded")
    assert samples == calls


def test_every_document_has_bands_of_its_own(samples: list[int]) -> None:
    q, ids = normal(1, 2, 400, 4), torch.arange(2).repeat_interleave(200)[None]
    mixed = ops.attend(q, q, q, causal=True, window=5, document=ids, backend="banded")
    assert samples == [1, 5, 1] * 2
    expected = ops.attend(q, q, q, causal=True, window=5, document=ids, backend="eager")
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-13)


NO_BAND: dict[str, tuple[dict[str, Any], str]] = {
    "nothing to leave out": ({"causal": True}, "needs a window, or documents"),
    "no rule": ({}, "needs a window, or documents"),
    "a rule with holes": ({"mask": ops.chunk(4)}, "needs a window, or documents"),
    "a window with holes": ({"window": 4, "mask": ops.chunk(4)}, "needs a window, or documents"),
    "a mask": (
        {"window": 4, "mask": torch.ones(9, 9) > 0},
        r"follows rules; a mask of its own may be any",
    ),
    "a softcap": ({"window": 4, "softcap": 1.0}, "works by torch's kernel, which knows no softcap"),
    "a bias": ({"window": 4, "bias": ops.Alibi(2)}, "works by torch's kernel, which adds a bias only as a tensor"),
    "a floating mask": (
        {"window": 4, "mask": torch.zeros(9, 9)},
        "works by torch's kernel, which does not add",
    ),
    "weights": ({"window": 4, "need_weights": True}, "returns no weights, and need_weights asks for them"),
    "documents here and there": (
        {"document": torch.arange(9)[None] % 2},
        "cuts documents out of the sequence, but the tokens of one do not stand together",
    ),
}


@pytest.mark.parametrize(("asked", "words"), NO_BAND.values(), ids=NO_BAND.keys())
def test_what_has_no_band_is_refused_with_the_reason(asked: dict[str, Any], words: str) -> None:
    q = normal(1, 2, 9, 4)
    with pytest.raises(Unsupported, match=rf"backend='banded' {words}.*; use backend='auto' or 'eager'"):
        ops.attend(q, q, q, backend="banded", **asked)


def test_documents_of_whole_sequences_only() -> None:
    q, k = normal(1, 2, 3, 4), normal(1, 2, 9, 4)
    words = "backend='banded' cuts whole sequences into documents, but there are 3 queries for 9 keys"
    with pytest.raises(Unsupported, match=words):
        ops.attend(q, k, k, document=torch.zeros(1, 9).long(), backend="banded")


@pytest.mark.parametrize(
    ("rule", "is_one"),
    [
        (band(4), True),
        (band(4, causal=False), True),
        (ops.causal(), False),
        (None, False),
        (ops.chunk(4), False),
        (ops.window(4) & ops.prefix(2), False),
        (ops.Rule("ahead", lambda b, q, k: k >= q, behind=0, exact=True), False),  # to the end of the sequence
    ],
)
def test_a_band_is_bounded_on_both_sides_and_has_no_holes(rule: ops.Rule | None, is_one: bool) -> None:
    assert banded.is_band(Terms(scale=1.0, rule=rule)) is is_one
