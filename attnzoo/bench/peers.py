"""Other libraries' layers as contenders, each with its weights laid out its own way. Imported when they run."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.bench.contender import Adapted, Skip
from attnzoo.bench.problem import Given, Problem, angles


def load(module: str) -> Any:
    """The module, its import warnings unheard. Raises `Skip` where it is not installed or does not load."""
    package = module.partition(".")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise Skip(f"{package} is not installed") from error
        raise Skip(f"{package} does not load here: {error}") from error
    except Exception as error:  # a library may fail in any way beside a torch that it does not know
        raise Skip(f"{package} does not load here: {' '.join(str(error).split())}") from error


def put(given: Given, layer: nn.Module, weights: dict[str, Tensor]) -> Any:
    """The layer in the given dtype and place, with these weights, all of them."""
    layer.to(given.x.device, given.x.dtype).eval().load_state_dict(weights)
    return layer


def split(problem: Problem, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of the fused projection: q (h d, c), k and v (g d, c)."""
    p = problem
    q, k, v = given.qkv.split_with_sizes([p.heads * p.head_dim, *[p.kv_heads * p.head_dim] * 2])
    return q, k, v


def interleaved(rows: Tensor, d: int) -> Tensor:
    """Rows reordered for RoPE's other layout: channel i and i + d / 2 become neighbours. rows: (h d, c)"""
    return rows.reshape(-1, 2, d // 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def torch_mha(problem: Problem, given: Given) -> nn.Module:
    """`torch.nn.MultiheadAttention`, causal."""
    layer = nn.MultiheadAttention(problem.d_model, problem.heads, bias=False, batch_first=True)
    put(given, layer, {"in_proj_weight": given.qkv, "out_proj.weight": given.out})
    later = torch.ones(problem.t, problem.t, dtype=torch.bool, device=given.x.device).triu(1)
    how = dict(attn_mask=later, is_causal=True, need_weights=False)
    return Adapted(layer, lambda layer, x: layer(x, x, x, **how)[0])


def llama(problem: Problem, given: Given) -> Adapted:
    """transformers' LlamaAttention over SDPA. Where there is no RoPE, it turns by nothing, as it cannot do without."""
    module = load("transformers.models.llama.modeling_llama")
    layer = module.LlamaAttention(config(module.LlamaConfig, problem, "sdpa"), layer_idx=0)
    turns = tables(problem, given)
    return Adapted(hugging_face(problem, given, layer), lambda layer, x: layer(x, turns, None)[0])


def llama_decoding(problem: Problem, given: Given) -> LlamaDecoding:
    """The same, one token after another, with its DynamicCache."""
    new_cache = load("transformers").DynamicCache
    return LlamaDecoding(llama(problem, given).layer, tables(problem, given), new_cache())


class LlamaDecoding:
    """Each call is the next token after the same prompt."""

    def __init__(self, layer: Any, turns: tuple[Tensor, Tensor], cache: Any) -> None:
        self.layer, self.turns, self.cache = layer, turns, cache

    def start(self, prompt: Tensor) -> None:
        self.held = prompt.shape[1]
        self.layer(prompt, tuple(table[:, : self.held] for table in self.turns), None, self.cache)
        self.now = tuple(table[:, self.held : self.held + 1] for table in self.turns)

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x, self.now, None, self.cache)[0]
        self.cache.crop(-1)
        return y


def gemma2_eager(problem: Problem, given: Given) -> nn.Module:
    """transformers' Gemma2Attention in its eager form, the one of its forms that honours the softcap on a CPU."""
    module = load("transformers.models.gemma2.modeling_gemma2")
    capped = {"attn_logit_softcapping": problem.softcap, "query_pre_attn_scalar": problem.head_dim}
    settings = config(module.Gemma2Config, problem, "eager", layer_types=["full_attention"], **capped)
    later = torch.full((1, 1, problem.t, problem.t), torch.finfo(given.x.dtype).min).triu(1).to(given.x)
    layer = hugging_face(problem, given, module.Gemma2Attention(settings, layer_idx=0))
    turns = tables(problem, given)
    return Adapted(layer, lambda layer, x: layer(x, turns, later)[0])


def config(kind: Any, problem: Problem, implementation: str, **more: Any) -> Any:
    return kind(
        hidden_size=problem.d_model,
        num_attention_heads=problem.heads,
        num_key_value_heads=problem.kv_heads,
        head_dim=problem.head_dim,
        num_hidden_layers=1,
        attn_implementation=implementation,
        **more,
    )


def hugging_face(problem: Problem, given: Given, layer: nn.Module) -> nn.Module:
    q, k, v = split(problem, given)
    weights = {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, "o_proj.weight": given.out}
    module: nn.Module = put(given, layer, weights)
    return module


def tables(problem: Problem, given: Given) -> tuple[Tensor, Tensor]:
    """cos and sin as a whole model makes them once for all its layers: two of (1, t, d)"""
    angle = angles(problem).repeat(1, 2)[None] * problem.rope
    return angle.cos().to(given.x), angle.sin().to(given.x)


def x_transformers(problem: Problem, given: Given) -> nn.Module:
    """x-transformers' Attention: RoPE interleaved, and query head h reads key-value head h mod g."""
    module, p = load("x_transformers.x_transformers"), problem
    layer = module.Attention(
        p.d_model, dim_head=p.head_dim, heads=p.heads, kv_heads=p.kv_heads, causal=True, flash=True
    )
    q, k, v = split(p, given)
    if p.rope:
        q, k = interleaved(q, p.head_dim), interleaved(k, p.head_dim)
    heads = torch.arange(p.heads).reshape(p.kv_heads, p.group).T.flatten()  # theirs by number -> ours
    weights = {
        "to_q.weight": q.reshape(p.heads, p.head_dim, -1)[heads].flatten(0, 1),
        "to_k.weight": k,
        "to_v.weight": v,
        "to_out.weight": given.out.reshape(-1, p.heads, p.head_dim)[:, heads].flatten(1),
    }
    angle = angles(p).repeat_interleave(2, dim=-1)[None].to(given.x.device, torch.float32)
    turns = (angle, 1.0) if p.rope else None
    return Adapted(put(given, layer, weights), lambda layer, x: layer(x, rotary_pos_emb=turns))


def torchtune(problem: Problem, given: Given) -> nn.Module:
    """torchtune's MultiHeadAttention: RoPE interleaved."""
    module, p = load("torchtune.modules"), problem
    width, kv_width = p.heads * p.head_dim, p.kv_heads * p.head_dim
    layer = module.MultiHeadAttention(
        embed_dim=p.d_model,
        num_heads=p.heads,
        num_kv_heads=p.kv_heads,
        head_dim=p.head_dim,
        q_proj=nn.Linear(p.d_model, width, bias=False),
        k_proj=nn.Linear(p.d_model, kv_width, bias=False),
        v_proj=nn.Linear(p.d_model, kv_width, bias=False),
        output_proj=nn.Linear(width, p.d_model, bias=False),
        pos_embeddings=module.RotaryPositionalEmbeddings(p.head_dim, max_seq_len=p.t) if p.rope else None,
        max_seq_len=p.t,
    )
    q, k, v = split(p, given)
    if p.rope:
        q, k = interleaved(q, p.head_dim), interleaved(k, p.head_dim)
    weights = {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, "output_proj.weight": given.out}
    return Adapted(put(given, layer, weights), lambda layer, x: layer(x, x))
