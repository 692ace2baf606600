"""The front of a model: token ids to vectors, and a first real sentence through it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnzoo
from attnzoo import ops
from attnzoo.errors import ConfigError, InputError

KINDS = pytest.mark.parametrize("positions", ["learned", "sinusoidal"])


def embedding(positions: str = "learned", **options: Any) -> ops.TokenEmbedding:
    torch.manual_seed(0)
    return ops.TokenEmbedding(**{"vocab_size": 11, "d_model": 6, "max_seq_len": 7, **options}, positions=positions)


def ids(*tokens: int) -> Tensor:
    return torch.tensor([tokens])


def test_a_learned_vector_is_that_of_the_token_plus_that_of_the_place() -> None:
    front = embedding()
    assert front.positions is not None
    y = front(torch.tensor([[5, 1, 5], [0, 10, 2]]))
    assert y.shape == (2, 3, 6)
    for b, row in enumerate([[5, 1, 5], [0, 10, 2]]):
        for place, token in enumerate(row):
            assert torch.equal(y[b, place], front.tokens.weight[token] + front.positions.weight[place])


def test_sinusoids_are_sine_and_cosine_of_ever_slower_angles() -> None:
    front = embedding("sinusoidal", d_model=4)
    nn.init.zeros_(front.tokens.weight)
    first, second, third = front(ids(3, 3, 3))[0]
    assert first.tolist() == [0, 1, 0, 1]
    expected = [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]  # .8415 .5403 .0100 1.0000
    assert second.tolist() == pytest.approx(expected, abs=1e-7)
    assert third.tolist() == pytest.approx([math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)], abs=1e-7)


def test_sinusoids_are_added_to_the_token_as_it_is() -> None:
    front = embedding("sinusoidal")
    at_zero = front(ids(3))[0, 0]
    assert torch.equal(at_zero, front.tokens.weight[3] + torch.tensor([0.0, 1.0] * 3))


def test_a_far_place_is_exact_to_float32() -> None:
    front = embedding("sinusoidal", d_model=8, max_seq_len=200_000)
    nn.init.zeros_(front.tokens.weight)
    angles = [100_003, 10_000.3, 1_000.03, 100.003]
    expected = [turn(angle) for angle in angles for turn in (math.sin, math.cos)]
    assert front(ids(0), offset=100_003)[0, 0].tolist() == pytest.approx(expected, abs=1e-7)


@KINDS
def test_the_offset_is_the_place_of_the_first_id(positions: str) -> None:
    front = embedding(positions)
    whole = front(ids(4, 9, 2, 7, 1))
    assert torch.equal(front(ids(2, 7, 1), offset=2), whole[:, 2:])
    assert not torch.equal(front(ids(2, 7, 1)), whole[:, 2:])


@KINDS
def test_an_embedding_may_be_filled_to_the_brim(positions: str) -> None:
    assert embedding(positions)(ids(*range(7))).shape == (1, 7, 6)
    assert embedding(positions)(ids(1, 2), offset=5).shape == (1, 2, 6)


@KINDS
@pytest.mark.parametrize(("t", "offset"), [(8, 0), (2, 6), (1, 7)])
def test_ids_beyond_max_seq_len_are_refused_with_both_numbers(positions: str, t: int, offset: int) -> None:
    words = rf"ids of {t} tokens from position {offset} on do not fit max_seq_len \(7\)"
    with pytest.raises(InputError, match=words):
        embedding(positions)(ids(*[1] * t), offset=offset)


@KINDS
def test_an_offset_below_zero_is_refused(positions: str) -> None:
    with pytest.raises(InputError, match=r"from position -1 on do not fit max_seq_len \(7\)"):
        embedding(positions)(ids(1, 2), offset=-1)


@KINDS
@pytest.mark.parametrize(("tokens", "low", "high"), [((3, 11), 3, 11), ((-1, 4), -1, 4)])
def test_ids_outside_the_vocabulary_are_refused_with_its_range(
    positions: str, tokens: tuple[int, ...], low: int, high: int
) -> None:
    with pytest.raises(InputError, match=rf"ids run from {low} to {high}; the vocabulary has 0 to 10"):
        embedding(positions)(ids(*tokens))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (torch.tensor([[1.0, 2.0]]), r"ids must be integers of shape \(b, t\); got torch.float32 of shape \(1, 2\)"),
        (torch.tensor([[True, False]]), r"got torch.bool of shape \(1, 2\)"),
        (torch.tensor([1, 2]), r"got torch.int64 of shape \(2,\)"),
        (torch.tensor([[[1, 2]]]), r"got torch.int64 of shape \(1, 1, 2\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ids_of_another_type_or_rank_are_refused(wrong: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        embedding()(wrong)


@KINDS
def test_ids_on_another_device_are_refused_with_both(positions: str) -> None:
    """torch's lookup takes ids on the meta device without a word, and reads memory that is not there."""
    with pytest.raises(InputError, match="ids are on meta, the token table on cpu"):
        embedding(positions)(torch.zeros(1, 2, dtype=torch.int64, device="meta"))


@KINDS
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=str)
def test_no_ids_give_no_vectors(positions: str, shape: tuple[int, int]) -> None:
    assert embedding(positions)(torch.zeros(shape, dtype=torch.int64)).shape == (*shape, 6)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_vectors_have_the_type_of_the_table(positions: str, dtype: torch.dtype) -> None:
    assert embedding(positions).to(dtype)(ids(1, 2)).dtype is dtype


def test_ids_of_int32_are_as_those_of_int64() -> None:
    front = embedding()
    assert torch.equal(front(ids(4, 9).int()), front(ids(4, 9)))


@pytest.mark.parametrize(
    ("positions", "saved"),
    [("learned", ["tokens.weight", "positions.weight"]), ("sinusoidal", ["tokens.weight"])],
)
def test_only_what_is_learned_is_saved(positions: str, saved: list[str]) -> None:
    assert list(embedding(positions).state_dict()) == saved


def test_sinusoids_load_under_another_length() -> None:
    short, long = embedding("sinusoidal"), embedding("sinusoidal", max_seq_len=64)
    nn.init.zeros_(long.tokens.weight)
    long.load_state_dict(short.state_dict(), strict=True)
    assert torch.equal(long(ids(4, 9, 2)), short(ids(4, 9, 2)))


def test_sizes_of_one_are_sizes() -> None:
    assert ops.TokenEmbedding(1, 1, 1)(torch.tensor([[0]])).shape == (1, 1, 1)


@pytest.mark.parametrize("word", ["vocab_size", "d_model", "max_seq_len"])
@pytest.mark.parametrize("number", [0, -2])
def test_a_size_below_one_is_refused_by_its_name(word: str, number: int) -> None:
    with pytest.raises(ConfigError, match=rf"{word} must be above 0; got {number}"):
        embedding("learned", **{word: number})


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        ("sinus", r"unknown positions 'sinus'; it takes 'learned' or 'sinusoidal'; did you mean 'sinusoidal'\?"),
        ("rope", r"unknown positions 'rope'; it takes 'learned' or 'sinusoidal'"),
    ],
)
def test_an_unknown_kind_of_positions_is_refused_with_those_there_are(positions: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        embedding(positions)


def test_sinusoids_come_in_pairs() -> None:
    with pytest.raises(ConfigError, match="sinusoidal positions need an even d_model; got 5"):
        embedding("sinusoidal", d_model=5)
    assert embedding("learned", d_model=5)(ids(1)).shape == (1, 1, 5)


# Moby-Dick, chapter 1
SENTENCE = "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse"


def reader(positions: str) -> tuple[nn.Module, Tensor]:
    """A one-layer model of characters, and the sentence as ids."""
    alphabet = sorted(set(SENTENCE))
    torch.manual_seed(0)
    model = nn.Sequential(
        ops.TokenEmbedding(len(alphabet), 24, len(SENTENCE), positions),
        attnzoo.build("mha", d_model=24, heads=3),
        nn.Linear(24, len(alphabet)),
    )
    return model, torch.tensor([[alphabet.index(letter) for letter in SENTENCE]])


def next_letter_loss(model: nn.Module, text: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


@KINDS
def test_the_loss_on_a_real_sentence_falls(positions: str) -> None:
    model, text = reader(positions)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for _ in range(30):
        loss = next_letter_loss(model, text)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        losses.append(loss.item())
    letters = Counter(SENTENCE[1:])
    frequencies_alone = -sum(n / letters.total() * math.log(n / letters.total()) for n in letters.values())  # 2.83
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > frequencies_alone > losses[-1]  # it learns more than how often each letter comes


def test_every_part_of_the_reader_is_taught() -> None:
    model, text = reader("learned")
    torch.autograd.backward(next_letter_loss(model, text))
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_a_later_letter_changes_no_earlier_guess() -> None:
    model, text = reader("learned")
    changed = text.clone()
    changed[0, 60:] = text[0, 0]
    before, after = model(text), model(changed)
    assert torch.equal(before[:, :60], after[:, :60])
    assert not torch.equal(before[:, 60:], after[:, 60:])
