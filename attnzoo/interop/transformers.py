"""Hugging Face models on attnzoo's layers: `swap` replaces every attention layer of a loaded model, in place.

    model = AutoModelForCausalLM.from_pretrained(...)
    attnzoo.interop.transformers.swap(model)
    model.generate(...)                                  # as before, tokens and all

transformers itself is not imported here: a model that is handed in brings it along.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

import attnzoo
from attnzoo import ops
from attnzoo.errors import InputError, Unsupported
from attnzoo.interop.fusible import Places, elsewhere, hooks, places, troubles

if TYPE_CHECKING:
    from transformers import Cache

M = TypeVar("M", bound=nn.Module)

IMPLEMENTATIONS = ("sdpa", "eager")
WATCHERS = ("DistributedDataParallel", "FullyShardedDataParallel")
KEPT_HOOKS = ("_forward", "_backward", "_is_full_backward")  # the attributes that hold them begin so


def swap(model: M) -> M:
    """Replace, in place, each attention layer of a Hugging Face model by the attnzoo layer of the same formula.

        swap(AutoModelForCausalLM.from_pretrained("some/llama")).generate(...)

    Weights keep values, dtype, device, `grad` and `requires_grad`; the model keeps its mode, hooks, caches and calls.
    Queries, keys and values become one fused parameter, so build an optimizer after the swap, and save before it: the
    names in `state_dict()` are no longer Hugging Face's. `output_attentions=True` gives weights with "sdpa" too. A
    layer that is already swapped stays as it is.

    Known: Llama, Mistral and Mixtral (without a sliding window), Qwen2; BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA.

    Raises, before anything is changed, `InputError` for what is no module, and `Unsupported` for a model without
    attention, with an attention layer that is not known, with a setting that attnzoo does not honour, or with
    projections that cannot be fused without a loss: hooked, tied, parametrized, quantized, adapted, or unlike.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"swap takes a loaded model, a torch.nn.Module; got {type(model).__name__}")
    seats = list(find_seats(model))
    if not seats:
        raise Unsupported(f"swap found no attention layer in {type(model).__name__}; {known_families()}")
    check_watchers(model)
    known = places(model)
    with torch.inference_mode(False), torch.no_grad():  # a tensor that is made in inference mode never trains
        taken = [(seat, successor(seat, known)) for seat in seats if not isinstance(seat.attention, SwappedAttention)]
        for seat, adapter in taken:
            adapter.take(seat)
    return model


def check_watchers(model: nn.Module) -> None:
    """Raises `Unsupported` for a wrapper that goes on with the parameters that it found when it was built."""
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in WATCHERS and kind.__module__.startswith("torch."):
                raise Unsupported(
                    f"swap cannot reach into {kind.__name__}, which holds the parameters that it was built with; "
                    f"swap first, and wrap then"
                )


@dataclass(frozen=True)
class Seat:
    """Where an attention layer stands: `parent.name is attention`; `path` is its name in the model."""

    parent: nn.Module
    name: str
    path: str

    @property
    def attention(self) -> Any:
        return getattr(self.parent, self.name)

    def refuse(self, what: str) -> Unsupported:
        return Unsupported(f"swap cannot take over {self.path} ({type(self.attention).__name__}): {what}")


def find_seats(parent: nn.Module, path: str = "", seen: set[nn.Module] | None = None) -> Iterator[Seat]:
    """The innermost modules whose class calls itself an attention, and what was swapped before; each once."""
    seen = set() if seen is None else seen
    for name, child in parent.named_children():
        if child in seen:
            continue
        seen.add(child)
        seat = Seat(parent, name, f"{path}{name}")
        if isinstance(child, SwappedAttention):
            yield seat
            continue
        within = list(find_seats(child, f"{seat.path}.", seen))
        if not within and "Attention" in type(child).__name__:
            within = [seat]
        yield from within


def successor(seat: Seat, known: Places) -> SwappedAttention:
    """The layer for a seat, still without weights. Raises `Unsupported` for what it could not do as the old one did."""
    attention = seat.attention
    replaced: Any = type(attention)
    family: Any = FAMILIES.get(replaced.__name__) if replaced.__module__.startswith("transformers.models.") else None
    if family is None:
        more = beyond(attention, (*SwappedLlama.parts, *SwappedBert.parts))
        hint = f"it has {', '.join(more)}, and " if more else ""
        raise seat.refuse(f"{hint}its class is not known; {known_families()}")
    more = beyond(attention, family.parts)
    if more:
        raise seat.refuse(f"it has {', '.join(more)}, which the variant {family.variant} does not honour yet")
    if implementation(attention) not in IMPLEMENTATIONS:
        raise seat.refuse(wrong_implementation(attention))
    check_movable(seat, family, known)
    options = family.options(seat)
    return cast(SwappedAttention, in_place_of(family, replaced)(attention, **options))


def beyond(attention: Any, parts: Sequence[str]) -> list[str]:
    """What an attention layer has besides `parts`: modules, tensors, and settings that change its formula."""
    own = [*attention._modules, *attention._parameters, *attention._buffers]
    more = [name for name in own if name not in parts]
    for setting in ("sliding_window", "attn_logit_softcapping"):
        value = getattr(attention, setting, getattr(getattr(attention, "config", None), setting, None))
        more += [f"{setting}={value}"] if value is not None else []
    return more


def check_movable(seat: Seat, family: Any, known: Places) -> None:
    """Raises `Unsupported` unless the attention layer can move, with all that it holds and shares."""
    attention = seat.attention
    if getattr(attention.forward, "__func__", None) is not type(attention).forward:
        raise seat.refuse("it is wrapped, as accelerate does for a device_map; load it without, then move it")
    if lost := [*hooks(attention, but=KEPT_HOOKS)]:
        raise seat.refuse(f"it has {' and '.join(lost)}, which would be lost; remove them first")
    for what, module, path in ("it", attention, seat.path), *family.emptied(seat):
        if others := elsewhere(module, path, known):
            raise seat.refuse(f"{what} is shared: it is also {others}; give each place its own first (copy.deepcopy)")
    for trouble in troubles(attention, seat.path, family.parts[:3], known):
        raise seat.refuse(trouble)


def implementation(attention: Any) -> str:
    return str(attention.config._attn_implementation)


def wrong_implementation(attention: Any) -> str:
    return (
        f"attn_implementation={implementation(attention)!r} hands over masks in a form of its own; "
        f"use model.set_attn_implementation('sdpa') or 'eager'"
    )


class SwappedAttention(nn.Module):
    """An attnzoo layer in the place of a Hugging Face one: their call, caches and masks around our formula.

    Their mask, where there is one, is the whole visibility and takes the place of causality.

    hidden_states: (b, t, c)    attention_mask: broadcasts to (b, h, t, s); boolean, True = may attend, or added
    returns: y (b, t, c), and the weights (b, h, t, s) where they are asked for, else None
    """

    variant: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]  # of the replaced layer, the projections of queries, keys and values first

    def __init__(self, replaced: Any, **options: Any) -> None:
        nn.Module.__init__(self)  # not super(): past this class stands the replaced one, which would build itself anew
        attnzoo.describe(self.variant)  # loads the plugins: inside the block below, tensors of theirs would be lost
        with torch.device("meta"):  # no memory, and no random numbers, for weights that are about to be replaced
            self.layer = cast(ops.AttentionLayer, attnzoo.build(self.variant, **options))
        self.config = replaced.config
        self.layer_idx = replaced.layer_idx
        self.is_causal = replaced.is_causal

    @staticmethod
    def options(seat: Seat) -> dict[str, Any]:
        """What to build for a seat. Raises `Unsupported` for a setting that the variant does not honour."""
        raise NotImplementedError

    @staticmethod
    def emptied(seat: Seat) -> Sequence[tuple[str, nn.Module, str]]:
        """Modules beside the seat that `out_of` takes from: (what to call it, the module, its name in the model)."""
        return ()

    def out_of(self, seat: Seat) -> nn.Module:
        """The output projection that belongs to the seat, taken from where it stood."""
        raise NotImplementedError

    def take(self, seat: Seat) -> None:
        """Take over the weights, the mode and the hooks of a layer, and then its place.

        Whole linear layers move in, so that a bias is there or not as it was (Qwen2 has none behind the heads).
        """
        replaced = seat.attention
        self.layer.qkv = stacked([getattr(replaced, name) for name in self.parts[:3]])
        self.train(replaced.training)
        self.layer.out = self.out_of(seat)  # after the line above: it has a mode of its own
        for name, value in vars(replaced).items():
            if name.startswith(KEPT_HOOKS):
                setattr(self, name, value)  # shared, so that a handle still removes its own
        setattr(seat.parent, seat.name, self)

    def answer(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, asked: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Attend and merge. `asked` holds what the model passes down: `is_causal` and `output_attentions` are read."""
        layer = self.layer
        is_causal = asked.get("is_causal")
        found = ops.attend(
            q,
            k,
            v,
            mask=mask,
            causal=mask is None and bool(self.is_causal if is_causal is None else is_causal),
            scale=layer.scale,
            dropout=layer.dropout if layer.training else 0.0,
            need_weights=implementation(self) == "eager" or bool(asked.get("output_attentions")),
            backend=layer.backend,
        )
        mixed, weights = found if isinstance(found, tuple) else (found, None)
        return layer.merge(mixed), weights

    def check_call(self) -> None:
        if implementation(self) not in IMPLEMENTATIONS:
            raise Unsupported(f"{type(self).__name__}: {wrong_implementation(self)}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        adapter, replaced = type(self).__bases__
        return empty, (adapter, replaced), vars(self)


class SwappedLlama(SwappedAttention):
    """Llama's attention, as attnzoo's `rope`."""

    variant = "attnzoo/rope"
    parts = ("q_proj", "k_proj", "v_proj", "o_proj")

    @staticmethod
    def options(seat: Seat) -> dict[str, Any]:
        attention = seat.attention
        rope = attention.config.rope_parameters
        if rope.get("rope_type") != "default":
            raise seat.refuse(f"rope_type {rope.get('rope_type')!r} is not supported yet; 'default' is")
        return dict(
            d_model=attention.q_proj.in_features,
            heads=attention.q_proj.out_features // attention.head_dim,
            kv_heads=attention.k_proj.out_features // attention.head_dim,
            head_dim=attention.head_dim,
            theta=rope["rope_theta"],
            layout="half",
            scale=attention.scaling,
            dropout=attention.attention_dropout,
        )

    def out_of(self, seat: Seat) -> nn.Module:
        return cast(nn.Module, seat.attention.o_proj)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        *,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,  # the name of `cache` in older versions of transformers 5
        **asked: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As LlamaAttention.forward, from `position_ids`: the angles are our own, `position_embeddings` is not read.

        Raises `InputError` without `position_ids`.
        """
        self.check_call()
        if position_ids is None:
            raise InputError(f"{type(self).__name__} needs position_ids, from which it makes its own angles")
        q, k, v = self.layer.project(hidden_states, positions=position_ids)
        cache = past_key_values if cache is None else cache
        if cache is not None:
            # A StaticCache hands out its empty room too, and without a mask nothing would hide it. The length is read
            # before the update, where all versions of transformers 5 agree, and only if needed: it may be on a GPU.
            filled = int(cache.get_seq_length(self.layer_idx)) + q.shape[2] if attention_mask is None else None
            k, v = (held[:, :, :filled] for held in cache.update(k, v, self.layer_idx, asked))
        return self.answer(q, k, v, attention_mask, asked)


class SwappedBert(SwappedAttention):
    """BERT's self-attention and the output projection behind it, which there stands in the next module: our `mha`."""

    variant = "attnzoo/mha"
    parts = ("query", "key", "value", "dropout")

    @staticmethod
    def options(seat: Seat) -> dict[str, Any]:
        attention = seat.attention
        if attention.is_decoder:
            raise seat.refuse("it is a decoder (is_decoder=True), and only encoders of this family are supported yet")
        return dict(
            d_model=attention.query.in_features,
            heads=attention.num_attention_heads,
            head_dim=attention.attention_head_size,
            causal=False,
            scale=attention.scaling,
            dropout=attention.dropout.p,
        )

    @staticmethod
    def emptied(seat: Seat) -> Sequence[tuple[str, nn.Module, str]]:
        output = cast(nn.Module, seat.parent.output)
        return [("the output behind it", output, f"{seat.path.removesuffix(seat.name)}output")]

    def out_of(self, seat: Seat) -> nn.Module:
        output = cast(Any, seat.parent.output)
        dense, output.dense = output.dense, nn.Identity()
        return cast(nn.Module, dense)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        *,
        past_key_values: Cache | None = None,
        **asked: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As BertSelfAttention.forward, and on through the output projection. Raises `Unsupported` for a cache."""
        self.check_call()
        if cache is not None or past_key_values is not None:
            raise Unsupported(f"{type(self).__name__}: an encoder takes no cache; pass the whole sequence")
        q, k, v = self.layer.project(hidden_states)
        return self.answer(q, k, v, attention_mask, asked)


FAMILIES: Mapping[str, type[SwappedAttention]] = {
    "LlamaAttention": SwappedLlama,
    "MistralAttention": SwappedLlama,
    "MixtralAttention": SwappedLlama,
    "Qwen2Attention": SwappedLlama,
    "BertSelfAttention": SwappedBert,
    "RobertaSelfAttention": SwappedBert,
    "XLMRobertaSelfAttention": SwappedBert,
    "CamembertSelfAttention": SwappedBert,
    "ElectraSelfAttention": SwappedBert,
}


def known_families() -> str:
    return f"known are {', '.join(FAMILIES)} of transformers"


@functools.cache
def in_place_of(adapter: Any, replaced: Any) -> Any:
    """The adapter class, as a child also of the class that it replaces.

    By `isinstance`, transformers finds the layers whose weights it collects for `output_attentions`.
    """
    return type(f"Swapped{replaced.__name__}", (adapter, replaced), {})


def empty(adapter: type, replaced: type) -> Any:
    """For copy and pickle, which cannot find a class that was made at run time."""
    made = in_place_of(adapter, replaced)
    return made.__new__(made)


def stacked(layers: Sequence[nn.Linear]) -> nn.Linear:
    """One linear layer with the rows of several, one below the other.

    layers: (.., c) -> (.., n_i)    returns: (.., c) -> (.., n_1 + n_2 + ...)
    """
    first = layers[0]
    rows = sum(layer.out_features for layer in layers)
    fused = nn.Linear(first.in_features, rows, bias=first.bias is not None, device="meta")
    for name, like in first.named_parameters():
        joined = torch.cat([layer.get_parameter(name).detach() for layer in layers])
        setattr(fused, name, nn.Parameter(joined, requires_grad=like.requires_grad))
        if like.grad is not None:
            grads = [cast(Tensor, layer.get_parameter(name).grad) for layer in layers]
            fused.get_parameter(name).grad = torch.cat(grads)
    return fused
