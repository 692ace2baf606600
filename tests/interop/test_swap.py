"""`swap` on small random models: the same outputs, gradients and caches, and clear words where it cannot."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from attnzoo import ops
from attnzoo.errors import InputError, Unsupported
from attnzoo.interop.transformers import SwappedAttention, swap

LLAMA: dict[str, Any] = dict(
    vocab_size=37,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=64,
    rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
BERT: dict[str, Any] = dict(
    vocab_size=37,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=3,
    max_position_embeddings=64,
    type_vocab_size=2,
    pad_token_id=0,
)
DECODERS: dict[str, Callable[..., Any]] = {
    "llama": lambda **more: hf.LlamaForCausalLM(hf.LlamaConfig(**{**LLAMA, **more})),
    "llama_bias": lambda **more: hf.LlamaForCausalLM(hf.LlamaConfig(**{**LLAMA, "attention_bias": True, **more})),
    "mistral": lambda **more: hf.MistralForCausalLM(hf.MistralConfig(**{**LLAMA, "sliding_window": None, **more})),
    "mixtral": lambda **more: hf.MixtralForCausalLM(
        hf.MixtralConfig(**{**LLAMA, "num_local_experts": 2, "sliding_window": None, **more})
    ),
    "qwen2": lambda **more: hf.Qwen2ForCausalLM(hf.Qwen2Config(**{**LLAMA, **more})),
}
ENCODERS: dict[str, Callable[..., Any]] = {
    "bert": lambda **more: hf.BertModel(hf.BertConfig(**{**BERT, **more})),
    "roberta": lambda **more: hf.RobertaModel(hf.RobertaConfig(**{**BERT, **more})),
    "xlm_roberta": lambda **more: hf.XLMRobertaModel(hf.XLMRobertaConfig(**{**BERT, **more})),
    "camembert": lambda **more: hf.CamembertModel(hf.CamembertConfig(**{**BERT, **more})),
    "electra": lambda **more: hf.ElectraModel(hf.ElectraConfig(**{**BERT, **more})),
}
ROUNDING = 1e-4  # of float32 outputs that go up to 20; a mistake shows from 1e-2 on
ATTENTIONS = ("sdpa", "eager")
IDS = torch.tensor([[0, 0, 5, 9, 31, 2, 11], [7, 3, 30, 8, 8, 19, 4]])
CACHE = "cache" if "cache" in inspect.signature(hf.LlamaModel.forward).parameters else "past_key_values"
REAL = IDS != 0  # the first sequence is padded on the left by two


def tiny(kind: str, *, attention: str = "sdpa", dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """A random model whose softmax is not flat, and whose biases and norms are not at their defaults."""
    torch.manual_seed(0)
    model = {**DECODERS, **ENCODERS}[kind](initializer_range=0.5, **more)
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_()  # the padding token too, whose keys would be zero
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model.set_attn_implementation(attention)
    return model.to(dtype).eval()


@functools.cache
def pair(kind: str, attention: str = "sdpa") -> tuple[Any, Any]:
    """A model and its swapped copy."""
    model = tiny(kind, attention=attention)
    return model, swap(copy.deepcopy(model))


def out(model: Any, ids: Tensor = IDS, **inputs: Any) -> Tensor:
    """Logits, or hidden states of an encoder."""
    first: Tensor = model(ids, **inputs)[0]
    return first


def adapters(model: nn.Module) -> list[SwappedAttention]:
    return [module for module in model.modules() if isinstance(module, SwappedAttention)]


# --- the same numbers ---


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("kind", [*DECODERS, *ENCODERS])
def test_outputs_agree(kind: str, attention: str) -> None:
    original, swapped = pair(kind, attention)
    assert len(adapters(swapped)) == 2
    torch.testing.assert_close(out(swapped), out(original), rtol=0, atol=ROUNDING)
    padded = dict(attention_mask=REAL.long())
    torch.testing.assert_close(out(swapped, **padded)[REAL], out(original, **padded)[REAL], rtol=0, atol=ROUNDING)
    assert (out(original, **padded) - out(original)).abs().max() > 1e-2  # the mask matters


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("kind", ["llama", "llama_bias", "qwen2", "bert"])
def test_gradients_agree(kind: str, attention: str, dtype: torch.dtype) -> None:
    original = tiny(kind, attention=attention, dtype=dtype)
    swapped = swap(copy.deepcopy(original))
    if kind != "bert":
        original.model.rotary_emb = ExactAngles()
    # padded on the right: on the left a padding token sees nothing, where transformers' eager float64 is NaN
    ids, real = IDS.flip(1), REAL.flip(1)
    for model in (original, swapped):
        y = out(model, ids, attention_mask=real.long())[real]
        (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).view_as(y)).sum().backward()  # type: ignore[no-untyped-call]

    share = 5e-5 if dtype == torch.float32 else 1e-12
    if dtype == torch.float64 and attention == "eager" and kind != "bert":
        share = 1e-5  # there transformers takes the softmax in float32, whatever the dtype
    expected = {name: parameter.grad for name, parameter in original.named_parameters()}
    compared = set()
    for name, parameter in swapped.named_parameters():
        old = names_before(name)
        wanted = torch.cat([expected[n] for n in old]) if expected[old[0]] is not None else None
        if wanted is None:  # the pooler of an encoder, which `out` does not reach
            assert parameter.grad is None
        else:
            bound = share * wanted.abs().max().item()
            torch.testing.assert_close(parameter.grad, wanted, rtol=0, atol=bound)
        compared.update(old)
    assert compared == set(expected)


class ExactAngles(nn.Module):
    """Llama's angles in float64; transformers takes them in float32 whatever the dtype of the model."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        d = LLAMA["head_dim"]
        angle = position_ids[..., None] / 100.0 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def names_before(name: str) -> list[str]:
    """The parameters of the original that a parameter of the swapped model stands for."""
    for seat, projections, behind in (
        ("self_attn.layer.", ("q_proj", "k_proj", "v_proj"), "self_attn.o_proj"),
        ("attention.self.layer.", ("query", "key", "value"), "attention.output.dense"),
    ):
        path, found, rest = name.partition(seat)
        if found and rest.startswith("qkv"):
            return [f"{path}{seat.removesuffix('layer.')}{p}{rest.removeprefix('qkv')}" for p in projections]
        if found:
            return [f"{path}{behind}{rest.removeprefix('out')}"]
    return [name]


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_mask_of_four_axes_takes_the_place_of_causality(attention: str) -> None:
    original, swapped = pair("llama", attention)
    visible = torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    visible |= torch.eye(7, dtype=torch.bool)
    mask = visible if attention == "sdpa" else torch.where(visible, 0.0, torch.finfo(torch.float32).min)
    torch.testing.assert_close(
        out(swapped, attention_mask=mask), out(original, attention_mask=mask), rtol=0, atol=ROUNDING
    )
    later = IDS.clone()
    later[:, -1] = 6
    moved = out(swapped, attention_mask=mask) - out(swapped, later, attention_mask=mask)
    assert moved[:, :-1].abs().max() > 1e-2  # the mask lets earlier tokens see the last one


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_is_causal_false_is_honoured(attention: str) -> None:
    original, swapped = pair("llama", attention)
    torch.testing.assert_close(out(swapped, is_causal=False), out(original, is_causal=False), rtol=0, atol=ROUNDING)
    if attention == "sdpa":  # transformers 5.0 knows it there only
        assert (out(swapped, is_causal=False) - out(swapped)).abs().max() > 1e-2


@torch.no_grad()
def test_positions_are_those_that_the_model_passes() -> None:
    original, swapped = pair("llama")
    positions = torch.tensor([[0, 1, 2, 3, 10, 11, 40], [5, 4, 3, 2, 1, 0, 9]])
    torch.testing.assert_close(
        out(swapped, position_ids=positions), out(original, position_ids=positions), rtol=0, atol=ROUNDING
    )
    assert (out(swapped, position_ids=positions) - out(swapped)).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize(("kind", "seat"), [("llama", "self_attn"), ("bert", "self")])
def test_the_scale_is_the_layers_own(kind: str, seat: str) -> None:
    original = tiny(kind)
    for name, module in original.named_modules():
        if name.endswith(f".{seat}"):
            module.scaling = 0.05
    torch.testing.assert_close(out(swap(copy.deepcopy(original))), out(original), rtol=0, atol=ROUNDING)


# --- caches ---


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_cached_chunks_equal_the_whole(static: bool, padded: bool, attention: str) -> None:
    original, swapped = pair("llama", attention)
    cache = hf.StaticCache(original.config, max_cache_len=12) if static else hf.DynamicCache()
    positions = (REAL.cumsum(dim=1) - 1).clamp(min=0) if padded else torch.arange(7).expand(2, 7)
    mask = dict(attention_mask=REAL.long()) if padded else {}
    whole = out(original, position_ids=positions, **mask)

    pieces = []
    for start, stop in [(0, 3), (3, 5), (5, 6), (6, 7)]:
        if padded:
            mask = dict(attention_mask=REAL[:, :stop].long())
        pieces.append(
            out(
                swapped,
                IDS[:, start:stop],
                position_ids=positions[:, start:stop],
                **{CACHE: cache},
                # 5.0 tells a StaticCache where to write by this argument; later versions ignore it
                cache_position=torch.arange(start, stop),
                **mask,
            )
        )
        assert int(cache.get_seq_length()) == stop

    real = REAL if padded else torch.ones_like(REAL)
    torch.testing.assert_close(torch.cat(pieces, dim=1)[real], whole[real], rtol=0, atol=ROUNDING)


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(
    "how",
    [{}, {"num_beams": 3}, {"cache_implementation": "static"}, {"use_cache": False}],
    ids=["greedy", "beams", "static", "no_cache"],
)
@pytest.mark.parametrize("kind", DECODERS)
def test_generation_is_the_same(kind: str, how: dict[str, Any], attention: str) -> None:
    original, swapped = [
        model.generate(IDS, attention_mask=REAL.long(), max_new_tokens=9, do_sample=False, **how)
        for model in pair(kind, attention)
    ]
    assert original.shape[1] == 16
    assert swapped.tolist() == original.tolist()


@torch.no_grad()
def test_decoding_hands_the_layer_one_token_a_step() -> None:
    _, swapped = pair("llama")
    seen: list[int] = []
    qkv = adapters(swapped)[1].layer.get_submodule("qkv")
    hook = qkv.register_forward_hook(lambda module, args, rows: seen.append(rows.shape[1]))
    generated = swapped.generate(IDS[1:], max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    hook.remove()
    assert seen == [7, 1, 1, 1, 1]
    assert isinstance(generated.past_key_values, hf.DynamicCache)
    assert [generated.past_key_values.get_seq_length(layer) for layer in (0, 1)] == [11, 11]


@torch.no_grad()
def test_a_cache_is_handed_what_the_model_passes_down() -> None:
    """In transformers 5.0 a StaticCache learns from there where to write."""

    class Listening(hf.DynamicCache):
        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            heard.append((tuple(key_states.shape), layer_idx, *args))
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    heard: list[Any] = []
    layer, positions = adapters(pair("llama")[1])[1], torch.arange(3)
    for name in ("cache", "past_key_values"):
        layer(torch.zeros(2, 3, 24), position_ids=positions[None], cache_position=positions, **{name: Listening()})
    assert heard == 2 * [((2, 2, 3, 10), 1, {"cache_position": positions})]


# --- weights ---


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_attention_weights_come_when_asked_for(kind: str, when: str, attention: str) -> None:
    expected = pair(kind, "eager")[0](IDS, output_attentions=True).attentions
    swapped = tiny(kind, attention=attention)
    if when == "before":  # transformers now has its hooks on the layers, once and for all
        swapped(IDS, output_attentions=True)
    swap(swapped)
    weights = swapped(IDS, output_attentions=True).attentions
    assert len(weights) == len(expected) == 2
    for ours, theirs in zip(weights, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_layer_returns_weights_under_eager_and_none_under_sdpa() -> None:
    x, positions = torch.randn(2, 3, 24), torch.arange(3)[None]
    for attention in ATTENTIONS:
        y, weights = adapters(pair("llama", attention)[1])[0](x, position_ids=positions)
        assert y.shape == (2, 3, 24)
        assert (weights is None) == (attention == "sdpa")


# --- nothing else changes ---


def test_the_model_comes_back_with_attnzoo_layers_inside() -> None:
    model = tiny("llama")
    assert swap(model) is model
    layer = model.model.layers[0].self_attn.layer
    assert isinstance(layer, ops.AttentionLayer)
    assert layer.variant == "rope"
    assert tiny("bert").encoder.layer[0].attention.output.dense is not None
    bert = swap(tiny("bert")).encoder.layer[0].attention
    assert bert.self.layer.variant == "mha"
    assert not bert.self.layer.causal
    assert isinstance(bert.output.dense, nn.Identity)


@pytest.mark.parametrize("kind", ["llama", "llama_bias", "qwen2", "bert"])
def test_as_many_parameters_as_before(kind: str) -> None:
    model = tiny(kind)
    before = sum(parameter.numel() for parameter in model.parameters())
    assert sum(parameter.numel() for parameter in swap(model).parameters()) == before


def test_dtype_mode_and_requires_grad_are_kept() -> None:
    model = tiny("llama", dtype=torch.bfloat16)
    model.model.layers[0].requires_grad_(False)
    model.model.layers[1].train()
    swap(model)
    first, second = adapters(model)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert [p.requires_grad for p in first.parameters()] == [False, False]
    assert [p.requires_grad for p in second.parameters()] == [True, True]
    assert not any(module.training for module in first.modules())
    assert all(module.training for module in second.modules())
    assert out(model).dtype == torch.bfloat16


def test_dropout_acts_in_training_only() -> None:
    for kind, setting in (("llama", "attention_dropout"), ("bert", "attention_probs_dropout_prob")):
        more: dict[str, Any] = {setting: 0.5} | ({"hidden_dropout_prob": 0.0} if kind == "bert" else {})
        original = tiny(kind, **more)
        model = swap(copy.deepcopy(original))
        torch.testing.assert_close(out(model), out(original), rtol=0, atol=ROUNDING)
        model.train()
        assert (out(model) - out(model)).abs().max() > 1e-2


def test_the_random_state_is_left_alone() -> None:
    model = tiny("llama")
    before = torch.get_rng_state()
    swap(model)
    assert torch.equal(torch.get_rng_state(), before)


# that the inputs of an attention layer come as keywords, so that torch finds none, is transformers' own doing
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_hooks_stay_and_their_handles_still_work() -> None:
    model, calls = tiny("llama"), []
    attention = model.model.layers[0].self_attn
    handles = [
        attention.register_forward_hook(lambda *_: calls.append("after")),
        attention.register_forward_pre_hook(lambda *_: calls.append("before")),
        attention.register_full_backward_hook(lambda *_: calls.append("backward")),
    ]
    out(swap(model)).sum().backward()  # type: ignore[no-untyped-call]
    assert calls == ["before", "after", "backward"]
    for handle in handles:
        handle.remove()
    out(model).sum().backward()  # type: ignore[no-untyped-call]
    assert len(calls) == 3


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_swapped_model_can_be_copied_and_pickled(kind: str) -> None:
    _, swapped = pair(kind)
    for twin in (copy.deepcopy(swapped), pickle.loads(pickle.dumps(swapped))):
        assert torch.equal(out(twin), out(swapped))
        assert [type(layer) for layer in adapters(twin)] == [type(layer) for layer in adapters(swapped)]


@torch.no_grad()
def test_a_second_swap_changes_nothing() -> None:
    model = swap(tiny("llama"))
    before, layers = out(model), adapters(model)
    assert adapters(swap(model)) == layers
    assert torch.equal(out(model), before)


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    grads = []
    for checkpointing in (False, True):
        model = swap(tiny("llama")).train()
        if checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable()
        out(model, use_cache=False).square().mean().backward()  # type: ignore[no-untyped-call]
        grads.append(model.model.layers[0].self_attn.layer.qkv.weight.grad)
    torch.testing.assert_close(grads[1], grads[0])


@torch.no_grad()
def test_a_whole_layer_in_two_places_stays_shared() -> None:
    original = tiny("llama")
    original.model.layers[1] = original.model.layers[0]
    original.spare = nn.ModuleList([original.model.layers[0]])
    swapped = swap(copy.deepcopy(original))
    assert swapped.model.layers[1].self_attn is swapped.model.layers[0].self_attn is adapters(swapped)[0]
    torch.testing.assert_close(out(swapped, use_cache=False), out(original, use_cache=False), rtol=0, atol=ROUNDING)


def test_an_output_projection_keeps_all_that_it_has() -> None:
    model, calls = tiny("llama"), []
    first, second = (layer.self_attn for layer in model.model.layers)
    second.o_proj.weight = first.o_proj.weight
    nn.utils.parametrizations.weight_norm(first.o_proj)
    first.o_proj.register_full_backward_hook(lambda *_: calls.append("backward"))
    second.o_proj.weight.register_hook(lambda grad: calls.append("gradient"))
    first.train()
    first.o_proj.eval()
    expected = out(model).detach()
    swap(model)
    assert not model.model.layers[0].self_attn.layer.out.training
    torch.testing.assert_close(out(model), expected, rtol=0, atol=ROUNDING)
    out(model).sum().backward()  # type: ignore[no-untyped-call]
    assert sorted(calls) == ["backward", "gradient"]


def test_gradients_that_were_collected_are_kept() -> None:
    model = tiny("llama_bias")
    out(model).square().mean().backward()  # type: ignore[no-untyped-call]
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, parameter in swap(model).named_parameters():
        assert torch.equal(parameter.grad, torch.cat([expected[old] for old in names_before(name)]))


def test_a_swap_in_inference_mode_leaves_a_model_that_trains() -> None:
    model = tiny("llama")
    with torch.inference_mode():
        swap(model)
    assert not any(tensor.is_inference() for tensor in (*model.parameters(), *model.buffers()))
    out(model).square().mean().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())


@torch.inference_mode()
def test_a_model_that_was_made_in_inference_mode_is_swapped_too() -> None:
    original = tiny("llama")
    torch.testing.assert_close(out(swap(copy.deepcopy(original))), out(original), rtol=0, atol=ROUNDING)


# --- refusals ---


def llama_with(**more: Any) -> Any:
    return tiny("llama", **more)


def rope(rope_type: str, **more: Any) -> Any:
    return llama_with(rope_parameters={"rope_type": rope_type, "rope_theta": 100.0, "factor": 2.0, **more})


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "linear": (lambda: rope("linear"), r"layers\.0\.self_attn \(LlamaAttention\): rope_type 'linear' is not supported"),
    "dynamic": (lambda: rope("dynamic"), "rope_type 'dynamic' is not supported yet; 'default' is"),
    "yarn": (lambda: rope("yarn", original_max_position_embeddings=32), "rope_type 'yarn'"),
    "llama3": (
        lambda: rope("llama3", original_max_position_embeddings=32, low_freq_factor=1.0, high_freq_factor=4.0),
        "rope_type 'llama3'",
    ),
    "window": (lambda: tiny("mistral", sliding_window=4), r"\(MistralAttention\): it has sliding_window=4, which"),
    "window_by_layer": (
        lambda: tiny("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1),
        r"layers\.1\.self_attn \(Qwen2Attention\): it has sliding_window=4, which the variant attnzoo/rope",
    ),
    "qk_norm": (
        lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**LLAMA)),
        r"\(Qwen3Attention\): it has q_norm, k_norm, and its class is not known; known are LlamaAttention, ",
    ),
    "softcap": (
        lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**LLAMA)),
        r"\(Gemma2Attention\): it has sliding_window=4096, attn_logit_softcapping=50.0, and its class",
    ),
    "sinks": (
        lambda: hf.GptOssForCausalLM(hf.GptOssConfig(**LLAMA, num_local_experts=2, num_experts_per_tok=1)),
        r"\(GptOssAttention\): it has sinks, sliding_window=128, and its class is not known",
    ),
    "other": (
        lambda: hf.GPT2Model(hf.GPT2Config(n_embd=24, n_head=3, n_layer=1, vocab_size=37)),
        r"h\.0\.attn \(GPT2Attention\): it has c_attn, .* its class is not known; known are LlamaAttention, Mist",
    ),
    "torch": (
        lambda: nn.Sequential(nn.MultiheadAttention(8, 2)),
        r"swap cannot take over 0 \(MultiheadAttention\): .* its class is not known; known are LlamaAttention",
    ),
    "none": (
        lambda: nn.Sequential(nn.Linear(2, 2)),
        "swap found no attention layer in Sequential; known are LlamaAttention, .* of transformers",
    ),
    "decoder": (lambda: tiny("bert", is_decoder=True), r"attention\.self \(BertSelfAttention\): it is a decoder"),
    "flex": (
        lambda: tiny("llama", attention="flex_attention"),
        r"attn_implementation='flex_attention' hands over masks .* model.set_attn_implementation\('sdpa'\) or 'eager'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_honoured_is_refused_by_name(case: str) -> None:
    build, words = REFUSED[case]
    model = build()
    with pytest.raises(Unsupported, match=words):
        swap(model)
    assert adapters(model) == []


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match=r"swap takes a loaded model, a torch\.nn\.Module; got str"):
        swap("some/llama")  # type: ignore[type-var]


class Wide(nn.Linear):
    """Computes something else than its weight tells."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Scaled(torch.Tensor):
    """A weight in a form of its own, as a quantized one is inside a layer that is still an nn.Linear."""


def freeze(attention: Any) -> None:
    attention.k_proj.requires_grad_(False)


def collect(attention: Any) -> None:
    attention.k_proj.weight.grad = torch.ones_like(attention.k_proj.weight)


def widen(attention: Any) -> None:
    attention.k_proj.double()


def unbias(attention: Any) -> None:
    attention.k_proj.bias = None


def enclose(attention: Any) -> None:
    attention.v_proj = nn.Sequential(attention.v_proj)


def subclass(attention: Any) -> None:
    attention.v_proj = Wide(24, 20)


def remove(attention: Any) -> None:
    attention.v_proj = None


def quantize(attention: Any) -> None:
    from torch.ao.nn.quantized import dynamic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it will go one day, and is in use today
        attention.v_proj = dynamic.Linear(24, 20)  # type: ignore[no-untyped-call]


def quantize_weight(attention: Any) -> None:
    attention.v_proj.weight = nn.Parameter(attention.v_proj.weight.detach().as_subclass(Scaled))


def adapt(attention: Any) -> None:
    class LoraLinear(nn.Module):
        def __init__(self, base_layer: nn.Linear) -> None:
            super().__init__()
            self.base_layer = base_layer

    attention.q_proj = LoraLinear(attention.q_proj)


def wrap(attention: Any) -> None:
    attention.forward = functools.partial(attention.forward)


def wrap_projection(attention: Any) -> None:
    attention.k_proj.forward = functools.partial(attention.k_proj.forward)


def name_weight_norm(attention: Any) -> None:
    nn.utils.parametrizations.weight_norm(attention.k_proj)


def name_spectral_norm(attention: Any) -> None:
    nn.utils.parametrizations.spectral_norm(attention.k_proj)


def old_weight_norm(attention: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # still in models that are about
        nn.utils.weight_norm(attention.k_proj)


def old_spectral_norm(attention: Any) -> None:
    nn.utils.spectral_norm(attention.k_proj)


def prune(attention: Any) -> None:
    from torch.nn.utils import prune

    prune.l1_unstructured(attention.q_proj, "weight", amount=2)  # type: ignore[no-untyped-call]


def tie_layer(attention: Any) -> None:
    attention.k_proj = attention.v_proj


def tie_weight(attention: Any) -> None:
    attention.k_proj.weight = attention.v_proj.weight


def tie_memory(attention: Any) -> None:
    attention.k_proj.weight.data = attention.v_proj.weight.data


def hold_buffer(attention: Any) -> None:
    attention.register_buffer("seen", torch.zeros(1))


def hooked(method: str, place: str = "q_proj.weight") -> Callable[[Any], None]:
    """Registers a hook by this method."""

    def spoil(attention: Any) -> None:
        getattr(operator.attrgetter(place)(attention) if place else attention, method)(lambda *_: None)

    return spoil


TO_PLAIN = r"torch\.nn\.utils\.parametrize\.remove_parametrizations\(k_proj, 'weight'\)$"
MERGE = r"not a plain nn\.Linear; if it is quantized, load .* if it is an adapter, as LoRA, merge it in first \(peft: "
NORMED = "of which its weight is made; make it plain first: remove_weight_norm, remove_spectral_norm or prune.remove"
LOST = "which would be lost; remove them first"
SPOILT: dict[str, tuple[Callable[[Any], None], str]] = {
    "requires_grad": (freeze, "q_proj, k_proj, v_proj become one layer, but differ in requires_grad; make it the same"),
    "grad": (collect, "q_proj, k_proj, v_proj become one layer, but differ in grad; make it the same first"),
    "dtype": (widen, "q_proj, k_proj, v_proj become one layer, but differ in dtype"),
    "bias": (unbias, "q_proj, k_proj, v_proj become one layer, but differ in bias"),
    "sequence": (enclose, f"v_proj is a Sequential, {MERGE}"),
    "subclass": (subclass, rf"v_proj is a \S*test_swap\.Wide, {MERGE}"),
    "nothing": (remove, rf"v_proj is a builtins\.NoneType, {MERGE}"),
    "int8": (quantize, rf"v_proj is a torch\.ao\.nn\.quantized\.dynamic\.modules\.linear\.Linear, {MERGE}"),
    "int8 weight": (quantize_weight, r"v_proj\.weight is a \S*Scaled, not a plain nn\.Parameter; if it is quantized"),
    "lora": (adapt, rf"q_proj is a \S*LoraLinear, {MERGE}"),
    "wrapped": (wrap, "it is wrapped, as accelerate does for a device_map; load it without, then move it"),
    "wrapped projection": (wrap_projection, "k_proj is wrapped, as accelerate does for a device_map"),
    "weight_norm": (name_weight_norm, rf"k_proj\.weight is parametrized; make it plain first: {TO_PLAIN}"),
    "spectral_norm": (name_spectral_norm, rf"k_proj\.weight is parametrized; make it plain first: {TO_PLAIN}"),
    "old weight_norm": (old_weight_norm, f"k_proj has weight_g, weight_v, {NORMED}"),
    "old spectral_norm": (old_spectral_norm, f"k_proj has weight_orig, weight_u, weight_v, {NORMED}"),
    "pruned": (prune, f"q_proj has weight_orig, weight_mask, {NORMED}"),
    "tied layer": (tie_layer, r"k_proj is tied: it is also model\.layers\.1\.self_attn\.v_proj, and would come apart"),
    "tied weight": (tie_weight, r"k_proj\.weight is tied: it is also model\.layers\.1\.self_attn\.v_proj\.weight, and"),
    "tied memory": (tie_memory, r"k_proj\.weight is tied: it is also model\.layers\.1\.self_attn\.v_proj\.weight, and"),
    "buffer": (hold_buffer, "it has seen, which the variant attnzoo/rope does not honour yet"),
    "gradient": (hooked("register_hook"), f"q_proj has gradient hooks on its weight, {LOST}, and hook the swapped"),
    "gradient of a bias": (hooked("register_hook", "v_proj.bias"), f"v_proj has gradient hooks on its bias, {LOST}"),
    "accumulated": (
        hooked("register_post_accumulate_grad_hook"),
        f"q_proj has post-accumulate-grad hooks on its weight, {LOST}",
    ),
    "forward": (hooked("register_forward_hook", "q_proj"), f"q_proj has forward hooks, {LOST}"),
    "forward pre": (hooked("register_forward_pre_hook", "k_proj"), f"k_proj has forward pre hooks, {LOST}"),
    "backward": (hooked("register_full_backward_hook", "q_proj"), f"q_proj has backward hooks, {LOST}"),
    "backward pre": (hooked("register_full_backward_pre_hook", "q_proj"), f"q_proj has backward pre hooks, {LOST}"),
    "state dict": (hooked("register_state_dict_post_hook", "q_proj"), f"q_proj has state dict hooks, {LOST}"),
    "state dict pre": (hooked("register_state_dict_pre_hook", "q_proj"), f"q_proj has state dict pre hooks, {LOST}"),
    "load": (hooked("register_load_state_dict_pre_hook", ""), f"it has load state dict pre hooks, {LOST}"),
    "loaded": (hooked("register_load_state_dict_post_hook", ""), f"it has load state dict post hooks, {LOST}"),
}


def contents(model: nn.Module) -> dict[str, Any]:
    """What a model holds, to see whether anything changed."""
    held = {f"module {name}": id(module) for name, module in model.named_modules(remove_duplicate=False)}
    return held | {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("case", SPOILT)
def test_one_bad_layer_and_nothing_is_changed(case: str) -> None:
    spoil, words = SPOILT[case]
    model = tiny("llama_bias")
    spoil(model.model.layers[1].self_attn)
    before = contents(model)
    with pytest.raises(Unsupported, match=rf"layers\.1\.self_attn \(LlamaAttention\): {words}"):
        swap(model)
    assert contents(model) == before
    assert adapters(model) == []


def test_what_is_tied_to_another_module_is_refused() -> None:
    model = tiny("llama")
    first, second = (layer.self_attn for layer in model.model.layers)
    second.q_proj.weight = first.q_proj.weight
    with pytest.raises(
        Unsupported, match=r"layers\.0\..* q_proj\.weight is tied: .* also model\.layers\.1\.self_attn\.q_"
    ):
        swap(model)
    second.q_proj.weight = nn.Parameter(first.q_proj.weight.detach().clone())
    model.probe = nn.Linear(24, 60, bias=False)
    model.probe.weight = second.q_proj.weight
    with pytest.raises(Unsupported, match=r"layers\.1\..* q_proj\.weight is tied: it is also probe\.weight, and would"):
        swap(model)
    assert adapters(model) == []


def test_an_attention_in_two_places_is_refused() -> None:
    model = tiny("llama")
    model.model.layers[1].self_attn = model.model.layers[0].self_attn
    with pytest.raises(
        Unsupported, match=r"layers\.0\..*: it is shared: it is also model\.layers\.1\.self_attn; give each"
    ):
        swap(model)
    encoder = tiny("bert")
    first, second = (layer.attention for layer in encoder.encoder.layer)
    second.output = first.output
    words = r"the output behind it is shared: it is also encoder\.layer\.1\.attention\.output; give each place its own"
    with pytest.raises(Unsupported, match=words):
        swap(encoder)
    assert adapters(model) == adapters(encoder) == []


@pytest.mark.parametrize("kind", ["DistributedDataParallel", "FullyShardedDataParallel"])
def test_a_wrapper_that_watches_the_parameters_is_refused(kind: str) -> None:
    wrapper = type(kind, (nn.Sequential,), {"__module__": "torch.nn.parallel.distributed"})
    model = wrapper(tiny("llama"))
    with pytest.raises(Unsupported, match=f"swap cannot reach into {kind}, which holds .*; swap first, and wrap then"):
        swap(model)
    assert adapters(model) == []


@torch.no_grad()
def test_a_call_that_cannot_be_honoured_is_refused() -> None:
    model = swap(tiny("llama"))
    layer = adapters(model)[0]
    with pytest.raises(InputError, match="SwappedLlamaAttention needs position_ids, from which it makes its own"):
        layer(torch.zeros(1, 2, 24))
    model.set_attn_implementation("flex_attention")
    with pytest.raises(Unsupported, match="SwappedLlamaAttention: attn_implementation='flex_attention' hands over"):
        layer(torch.zeros(1, 2, 24), position_ids=torch.arange(2)[None])
    encoder = adapters(swap(tiny("bert")))[0]
    for name in ("cache", "past_key_values"):
        with pytest.raises(Unsupported, match="SwappedBertSelfAttention: an encoder takes no cache"):
            encoder(torch.zeros(1, 2, 24), **{name: hf.DynamicCache()})
