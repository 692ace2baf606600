"""Where matrices come from: weights, layers that return theirs or not, and Hugging Face models."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnzoo
from attnzoo import viz
from attnzoo.errors import InputError, Unsupported
from attnzoo.viz.probe import effective
from attnzoo.viz.tokens import embed, words


class Differential(nn.Module):
    """Two softmaxes, one taken from the other: weights of both signs, which it does not return."""

    def __init__(self, *, bent: bool = False) -> None:
        super().__init__()
        self.qkv, self.bent = nn.Linear(6, 24), bent

    def project(self, x: Tensor, context: Tensor | None = None, **_: Any) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (2, 12)).transpose(1, 2).split([5, 5, 2], dim=-1)
        return q, k, v

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        first, second = (q @ k.mT).softmax(-1).unbind(1)
        return (first - 0.8 * second)[:, None].expand(-1, 2, -1, -1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        mixed = self.matrix(q, k) @ v
        return mixed.exp() if self.bent else mixed

    def merge(self, mixed: Tensor) -> Tensor:
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, *, need_weights: bool = False) -> Tensor:
        if need_weights:
            raise Unsupported("differential: need_weights")
        return self.merge(self.attend(*self.project(x)))


def test_a_fused_kernel_gives_the_same_matrix() -> None:
    """Read off with one-hot values, more keys than a value has channels."""
    torch.manual_seed(0)
    options = dict(d_model=24, heads=4, kv_heads=2)
    plain, fused = attnzoo.build("gqa", **options), attnzoo.build("gqa", **options, backend="sdpa")
    fused.load_state_dict(plain.state_dict())
    x = 3 * torch.randn(1, 17, 24)
    one, other = viz.maps(plain, x), viz.maps(fused, x)
    np.testing.assert_allclose(other.weights, one.weights, atol=1e-6)
    assert (one.visible == np.tri(17, dtype=bool)).all()
    assert (other.visible == one.visible).all()


def test_weights_of_both_signs_are_read_off() -> None:
    torch.manual_seed(0)
    layer, x = Differential(), 2 * torch.randn(1, 7, 6)
    seen = viz.maps(layer, x)
    with torch.no_grad():
        q, k, v = layer.project(x)
        due = layer.matrix(q, k)
        assert torch.allclose(effective(layer, q, k, v), due, atol=1e-6)
    assert seen.signed
    np.testing.assert_allclose(seen.weights[0], due[0].numpy(), atol=1e-6)


def test_what_is_no_matrix_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(Unsupported, match="Differential: attend is no matrix times the values"):
        viz.maps(Differential(bent=True), torch.randn(1, 7, 6))
    with pytest.raises(Unsupported, match="shows no stages"):
        viz.maps(Unwilling(), torch.randn(1, 7, 6))


class Unwilling(nn.Module):
    def forward(self, x: Tensor, *, need_weights: bool = False) -> Tensor:
        if need_weights:
            raise Unsupported("no")
        return x


def test_dropout_neither_shows_nor_wakes() -> None:
    torch.manual_seed(0)
    layer = attnzoo.build("mha", d_model=24, heads=4, dropout=0.5, backend="sdpa").train()
    x = torch.randn(1, 7, 24)
    np.testing.assert_array_equal(viz.maps(layer, x).weights, viz.maps(layer, x).weights)
    assert layer.training


def test_cross_attention_has_two_lists_of_tokens() -> None:
    layer = attnzoo.build("gqa", d_model=24, heads=4, kv_heads=2, causal=False)
    x, context = torch.randn(1, 3, 24), torch.randn(1, 5, 24)
    seen = viz.maps(layer, x, context=context, queries=list("abc"), keys=list("vwxyz"))
    assert seen.weights.shape == (1, 4, 3, 5)
    assert (seen.queries, seen.keys) == (list("abc"), list("vwxyz"))


def test_a_batch_needs_a_choice() -> None:
    weights = np.random.default_rng(0).random((2, 3, 4, 4)).astype(np.float32)
    with pytest.raises(InputError, match="there are 2 samples; say which one to draw: sample=0"):
        viz.maps(weights)
    np.testing.assert_array_equal(viz.maps(weights, sample=1).weights[0], weights[1])
    with pytest.raises(InputError, match="no sample 2 among 2"):
        viz.maps(weights, sample=2)


def test_any_shape_any_type_any_device_of_weights() -> None:
    for weights in (np.eye(3), torch.eye(3, dtype=torch.bfloat16, requires_grad=True), np.eye(3)[None], [np.eye(3)]):
        assert viz.maps(weights).weights.shape == (1, 1, 3, 3)
    with pytest.raises(InputError, match=r"5 axes, \(1, 1, 1, 1, 1\); they take \(t, s\)"):
        viz.maps(np.ones((1,) * 5))
    with pytest.raises(InputError, match="nothing to draw"):
        viz.maps(np.ones((0, 3)))
    with pytest.raises(InputError, match=r"visible is float64 \(2, 2\); it must be boolean"):
        viz.maps(np.ones((2, 2)), visible=np.ones((2, 2)))


def test_a_nan_is_masked() -> None:
    seen = viz.maps(np.array([[1.0, np.nan], [0.5, 0.5]]))
    assert not seen.visible[0, 0, 0, 1]
    assert seen.weights[0, 0, 0, 1] == 0


def test_an_argument_that_means_nothing_here_is_refused() -> None:
    with pytest.raises(InputError, match="key_mask, tokenizer does not go with weights; that takes visible"):
        viz.maps(np.eye(2), tokenizer=object(), key_mask=torch.ones(1, 2))
    with pytest.raises(InputError, match="weights come without an input"):
        viz.maps(np.eye(2), torch.ones(1, 2, 3))
    with pytest.raises(InputError, match="a layer needs its input"):
        viz.maps(Unwilling())
    with pytest.raises(InputError, match="Unwilling is no Hugging Face model"):
        viz.maps(Unwilling(), "text")


class Words:
    """As much of a tokenizer as is used."""

    def __call__(self, text: str, return_tensors: str) -> Any:
        assert return_tensors == "pt"
        ids = torch.tensor([[sum(map(ord, word)) % 97 for word in text.split()]], dtype=torch.long)
        return Encoded(input_ids=ids)

    def decode(self, ids: list[Tensor]) -> str:
        return f" w{int(ids[0])}"


class Encoded(dict[str, Tensor]):
    def to(self, device: object) -> Encoded:
        return self


@pytest.fixture(scope="module")
def llama() -> Any:
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    sizes = dict(hidden_size=24, num_attention_heads=4, num_key_value_heads=2, intermediate_size=8, vocab_size=97)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(num_hidden_layers=3, **sizes, attn_implementation="sdpa")
    ).eval()


def test_a_model_shows_every_layer_and_head(llama: Any) -> None:
    text = "the cat sat on it"
    seen = viz.maps(llama, text, tokenizer=Words())
    assert llama.config._attn_implementation == "sdpa"  # left as it was
    llama.set_attn_implementation("eager")
    with torch.no_grad():
        due = torch.cat(llama(**Words()(text, "pt"), output_attentions=True).attentions)
    llama.set_attn_implementation("sdpa")
    np.testing.assert_allclose(seen.weights, due.numpy())
    assert seen.weights.shape == (3, 4, 5, 5)
    assert (seen.visible == np.tri(5, dtype=bool)).all()
    assert seen.keys[0] == f"w{sum(map(ord, 'the')) % 97}"
    assert len(viz.heatmap(llama, text, tokenizer=Words()).axes[0].images) == 12


def test_a_model_needs_its_tokenizer_and_a_text(llama: Any) -> None:
    with pytest.raises(InputError, match="need the model's tokenizer"):
        viz.maps(llama, "text")
    with pytest.raises(InputError, match="the text '' makes no token"):
        viz.maps(llama, "", tokenizer=Words())


def test_the_same_word_gets_the_same_vector() -> None:
    tokens = words("The cat saw the cat.")
    assert tokens == ["The", "cat", "saw", "the", "cat", "."]
    x = embed(tokens, 8)
    assert x.shape == (1, 6, 8)
    assert torch.equal(x[0, 1], x[0, 4])
    assert not torch.equal(x[0, 0], x[0, 3])
    with pytest.raises(InputError, match="holds no word"):
        words("  ")
