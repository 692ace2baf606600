"""Questions to a layer, whose answers tell mistakes apart: calls with numbers for answers, and facts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.checks.lab import Lab, Randomness

# Numbers, or a fact in words.
Answer = Tensor | str


@dataclass
class Witness:
    """A layer under questioning, and the lab that makes its inputs.

    build: (dtype, redrawn=..., **options) -> the layer
    """

    lab: Lab
    build: Callable[..., Any]
    made: dict[Any, Any] = field(default_factory=dict)

    def make(self, dtype: torch.dtype, /, *, redrawn: bool = True, **options: Any) -> Any:
        """A new layer. Options that the variant does not take are not asked for."""
        takes = self.lab.variant.options
        strange = [word for word in options if takes is not None and word not in takes]
        if strange:
            raise LookupError(f"takes no option {strange[0]}")
        return self.build(dtype, redrawn=redrawn, **options)

    def layer(self, dtype: torch.dtype = torch.float64, /, **options: Any) -> Any:
        """The layer in eval mode, made once for each set of options."""
        key = dtype, tuple(sorted(options.items()))
        if key not in self.made:
            self.made[key] = self.make(dtype, **options)
        return self.made[key]

    def tokens(self, t: int = 7, b: int = 3, dtype: torch.dtype = torch.float64, draw: int = 0) -> Tensor:
        """Random tokens (b, t, c)."""
        return self.lab.tokens(b, t, dtype, draw=draw)

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return int(self.lab.case.options.get("heads", 1))


# A question's answer is a tensor or a string; `ask` sees to it.
Question = Callable[[Witness], Any]


def ask(witness: Witness, question: Question) -> Answer:
    """The answer; a refusal or a breakdown is one too, named by its kind."""
    torch.manual_seed(0)
    try:
        answer = question(witness)
    except Exception as error:
        return type(error).__name__
    if isinstance(answer, Tensor):
        return answer.detach()
    return answer if isinstance(answer, str) else type(answer).__name__


def fact(holds: bool) -> str:
    """A fact as an answer."""
    return "yes" if holds else "no"


def taken(call: Callable[[], Any]) -> str:
    """Whether a call is accepted; if not, by which error."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "taken"


# Plain calls.


def plain(w: Witness) -> Any:
    return w.layer()(w.tokens())


def alone(w: Witness) -> Any:
    return w.layer()(w.tokens(b=1))


def four(w: Witness) -> Any:
    return w.layer()(w.tokens(b=4))


def one_token(w: Witness) -> Any:
    return w.layer()(w.tokens(t=1))


def seventeen(w: Witness) -> Any:
    return w.layer()(w.tokens(t=17, b=1))


def long(w: Witness) -> Any:
    return w.layer()(w.tokens(t=71, b=1))


def single(w: Witness) -> Any:
    return w.layer(torch.float32)(w.tokens(dtype=torch.float32))


def half(w: Witness) -> Any:
    x = w.tokens(dtype=torch.bfloat16)
    return w.layer(torch.bfloat16)(x)


def half_type(w: Witness) -> Any:
    return str(w.layer(torch.bfloat16)(w.tokens(dtype=torch.bfloat16)).dtype)


def half_softmax(w: Witness) -> Any:
    x = 4 * w.tokens(t=64, b=1, dtype=torch.float16)
    with torch.no_grad():
        off = w.layer(torch.float16)(x).double() - w.layer()(x.double())
    return fact(float(off.abs().mean()) < 0.02)


def loud(w: Witness) -> Any:
    return fact(bool(torch.isfinite(w.layer()(200 * w.tokens())).all()))


def weights(w: Witness) -> Any:
    return w.layer()(w.tokens(), need_weights=True)[1]


def half_weights(w: Witness) -> Any:
    return w.layer(torch.bfloat16)(w.tokens(dtype=torch.bfloat16), need_weights=True)[1]


def output_with_weights(w: Witness) -> Any:
    return w.layer()(w.tokens(), need_weights=True)[0]


def matrix(w: Witness) -> Any:
    q, k, _ = w.layer().project(w.tokens())
    s = k.shape[2]
    return w.layer().attend(q, k, torch.eye(s, dtype=k.dtype).to(k.device).expand(*k.shape[:2], s, s))


def staged(w: Witness) -> Any:
    layer, x = w.layer(), w.tokens()
    return fact(torch.allclose(layer.merge(layer.attend(*layer.project(x))), layer(x)))


# Masks.


def mask(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=w.lab.mask(7, 7))


def mask_per_sample(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=w.lab.mask(3, 1, 7, 7))


def mask_per_head(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=w.lab.mask(3, w.heads, 7, 7))


def mask_of_all(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=torch.ones(7, 7, dtype=torch.bool, device=w.lab.device))


def mask_of_floats(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=2 * w.lab.normal(7, 7, draw=3))


def mask_of_floats_per_head(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=2 * w.lab.normal(3, w.heads, 7, 7, draw=3))


def mask_gradient(w: Witness) -> Any:
    given = (2 * w.lab.normal(7, 7, draw=3)).requires_grad_()
    return torch.autograd.grad(w.layer()(w.tokens(), mask=given).sum(), given)[0]


def mask_of_minus_infinity(w: Witness) -> Any:
    allowed = w.lab.mask(7, 7)
    return w.layer()(w.tokens(), mask=torch.zeros_like(allowed, dtype=torch.float64).masked_fill(~allowed, -torch.inf))


def mask_in_half(w: Witness) -> Any:
    fine = 256 + w.lab.normal(7, 7).float().abs()
    return w.layer(torch.bfloat16)(w.tokens(dtype=torch.bfloat16), mask=fine)


def mask_of_integers(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), mask=torch.ones(7, 7, dtype=torch.long)))


def mask_of_three_axes(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), mask=torch.ones(3, 7, 7, dtype=torch.bool)))


def padded_left(w: Witness) -> Any:
    return w.layer()(w.tokens(), key_mask=w.lab.padding([7, 5, 3], 7, left=True))


def padded_right(w: Witness) -> Any:
    return w.layer()(w.tokens(), key_mask=w.lab.padding([4, 7, 2], 7, left=False))


def padded_alone(w: Witness) -> Any:
    return w.layer()(w.tokens(b=1), key_mask=w.lab.padding([5], 7, left=True))


def padded_and_masked(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=w.lab.mask(7, 7), key_mask=w.lab.padding([7, 5, 3], 7, left=True))


def padding_of_integers(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), key_mask=torch.ones(3, 7, dtype=torch.long)))


def blind(w: Witness) -> Any:
    return w.layer()(w.tokens(), mask=_blind_row(w))


def blind_by_both(w: Witness) -> Any:
    rows = torch.ones(7, 7, dtype=torch.bool, device=w.lab.device)
    rows[2, 3:] = False
    real = torch.ones(3, 7, dtype=torch.bool, device=w.lab.device)
    real[:, :3] = False
    return w.layer()(w.tokens(), mask=rows, key_mask=real)


def blind_gradient(w: Witness) -> Any:
    x = w.tokens().requires_grad_()
    return torch.autograd.grad(w.layer()(x, mask=_blind_row(w)).square().sum(), x)[0]


def blind_value_gradient(w: Witness) -> Any:
    q, k, v = (part.detach().requires_grad_() for part in w.layer().project(w.tokens()))
    rows = _blind_row(w)
    rows[:, 1] = False
    return torch.autograd.grad(w.layer().attend(q, k, v, mask=rows).sum(), v)[0]


def _blind_row(w: Witness) -> Tensor:
    rows = torch.ones(7, 7, dtype=torch.bool, device=w.lab.device)
    rows[2] = False
    return rows


def behind_padding(w: Witness) -> Any:
    x = w.tokens()
    x[:, 5] = 1e12
    real = torch.ones(3, 7, dtype=torch.bool, device=w.lab.device)
    real[:, 5] = False
    return w.layer()(x, key_mask=real)[:, [0, 1, 2, 3, 4, 6]]


def behind_overflow(w: Witness) -> Any:
    q, k, v = w.layer(torch.float32).project(w.tokens(dtype=torch.float32))
    real = torch.ones(3, 7, dtype=torch.bool, device=w.lab.device)
    real[:, 1] = False
    k = k.clone()
    k[:, :, 1] = torch.finfo(torch.float32).max
    return fact(bool(torch.isfinite(w.layer(torch.float32).attend(q, k, v, key_mask=real)).all()))


# Gradients, training, memory layout.


def gradient(w: Witness) -> Any:
    x = w.tokens().requires_grad_()
    return torch.autograd.grad(w.layer()(x), x, w.tokens(draw=2))[0]


def value_gradient(w: Witness) -> Any:
    q, k, v = (part.detach().requires_grad_() for part in w.layer().project(w.tokens()))
    mixed = w.layer().attend(q, k, v)
    return torch.autograd.grad(mixed, v, w.lab.normal(*mixed.shape, draw=2))[0]


def training(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer()).train()
    return layer(w.tokens())


def training_gradient(w: Witness) -> Any:
    layer, x = copy.deepcopy(w.layer()).train(), w.tokens().requires_grad_()
    return torch.autograd.grad(layer(x), x, w.tokens(draw=2))[0]


def dropout_in_eval(w: Witness) -> Any:
    return fact(torch.allclose(w.layer(dropout=0.5)(w.tokens()), w.layer()(w.tokens())))


def dropout_in_training(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer(dropout=0.5))
    return fact(torch.allclose(layer(w.tokens()), layer.train()(w.tokens())))


def dropout_mean(w: Witness) -> Any:
    """How much of the eval output is in the mean of many draws, and how widely they spread, in tenths."""
    layer, x = copy.deepcopy(w.layer(dropout=0.5)).train(), w.tokens(b=1)
    y, drawn = w.layer()(x)[0, -1], layer(x.expand(600, -1, -1))[:, -1]
    part, spread = (drawn.mean(0) @ y) / (y @ y), drawn.std(0).norm() / y.norm()
    return f"{float(part.detach()):.1f} of it, spread {float(spread.detach()) * 2:.0f}"


def dropout_weights(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer(dropout=0.5)).train()
    return fact(torch.allclose(layer(w.tokens(), need_weights=True)[1], w.layer()(w.tokens(), need_weights=True)[1]))


def transposed_input(w: Witness) -> Any:
    return w.layer()(w.tokens().transpose(0, 1).contiguous().transpose(0, 1))


def expanded_gradient(w: Witness) -> Any:
    x = w.tokens().requires_grad_()
    return torch.autograd.grad(w.layer()(x), x, torch.ones((), dtype=x.dtype).to(x.device).expand(x.shape))[0]


def empty(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(b=0)))


# Positions and context.


def places(w: Witness) -> Any:
    return w.layer()(w.tokens(), positions=torch.arange(7, device=w.lab.device) * 2 + 3)


def places_per_sample(w: Witness) -> Any:
    steps = torch.arange(1, 4, device=w.lab.device)[:, None] * torch.arange(7, device=w.lab.device)
    return w.layer()(w.tokens(), positions=steps)


def places_backwards(w: Witness) -> Any:
    return w.layer()(w.tokens(), positions=torch.arange(7, device=w.lab.device).flip(0))


def places_far(w: Witness) -> Any:
    return w.layer()(w.tokens(), positions=torch.arange(7, device=w.lab.device) + 300_000)


def places_in_half(w: Witness) -> Any:
    x = w.tokens(dtype=torch.bfloat16)
    return w.layer(torch.bfloat16)(x, positions=torch.arange(7, device=w.lab.device) + 256)


def places_of_floats(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), positions=torch.arange(7.0, device=w.lab.device)))


def context(w: Witness) -> Any:
    return w.layer()(w.tokens(), w.tokens(t=11, draw=1))


def context_of_one(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(), w.tokens(t=1, draw=1)))


def context_gradient(w: Witness) -> Any:
    other = w.tokens(t=11, draw=1).requires_grad_()
    return torch.autograd.grad(w.layer()(w.tokens(), other).sum(), other)[0]


# The cache.


def steps(w: Witness) -> Any:
    return _fed(w, w.layer().new_cache(3, 7), w.tokens(), [3, 1, 1, 1, 1])


def chunks(w: Witness) -> Any:
    return _fed(w, w.layer().new_cache(3, 7), w.tokens(), [3, 4])


def steps_after_reset(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 7)
    _fed(w, cache, w.tokens(draw=1), [4, 1])
    cache.reset()
    return _fed(w, cache, w.tokens(), [3, 1, 3])


def steps_after_crop(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 9)
    _fed(w, cache, torch.cat([w.tokens()[:, :3], w.tokens(draw=1)[:, 3:6]], dim=1), [6])
    cache.crop(3)
    return _fed(w, cache, w.tokens()[:, 3:], [1, 3])


def steps_after_reorder(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 7)
    _fed(w, cache, w.tokens()[:, :6], [6])
    cache.reorder(torch.tensor([2, 0, 0], device=w.lab.device))
    return _fed(w, cache, w.tokens()[:, 6:], [1])


def steps_in_turn(w: Witness) -> Any:
    one, two = w.layer().new_cache(3, 7), w.layer().new_cache(3, 7)
    x, other = w.tokens(), w.tokens(draw=1)
    turns = [w.layer()(part[:, i : i + 1], cache=cache) for i in range(3) for part, cache in ((x, one), (other, two))]
    return torch.cat(turns, dim=1)


def steps_padded(w: Witness) -> Any:
    real = w.lab.padding([7, 5, 4], 7, left=True)
    cache, x = w.layer().new_cache(3, 7), w.tokens()
    parts = [(0, 4), (4, 5), (5, 7)]
    return torch.cat([w.layer()(x[:, a:e], cache=cache, key_mask=real[:, :e]) for a, e in parts], dim=1)


def step_weights(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 7)
    w.layer()(w.tokens()[:, :5], cache=cache)
    return w.layer()(w.tokens()[:, 5:], cache=cache, need_weights=True)[1]


def step_gradient(w: Witness) -> Any:
    cache, x = w.layer().new_cache(3, 7), w.tokens().requires_grad_()
    w.layer()(x[:, :3], cache=cache)
    return torch.autograd.grad(w.layer()(x[:, 3:], cache=cache).sum(), x)[0]


def cache_bytes(w: Witness) -> Any:
    cache = w.layer(torch.bfloat16).new_cache(3, 9)
    w.layer(torch.bfloat16)(w.tokens(t=4, dtype=torch.bfloat16), cache=cache)
    return f"{cache.length} tokens, {cache.nbytes} bytes"


def cache_overflow(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 5)
    return taken(lambda: w.layer()(w.tokens(), cache=cache))


def cache_refusal(w: Witness) -> Any:
    cache = w.layer().new_cache(3, 9)
    w.layer()(w.tokens()[:, :4], cache=cache)
    taken(lambda: w.layer()(w.tokens()[:, 4:5], cache=cache, key_mask=torch.ones(3, 99, dtype=torch.bool)))
    return f"{cache.length} tokens"


def _fed(w: Witness, cache: Any, x: Tensor, sizes: list[int]) -> Tensor:
    outputs, start = [], 0
    for size in sizes:
        outputs.append(w.layer()(x[:, start : start + size], cache=cache))
        start += size
    return torch.cat(outputs, dim=1)


# Conduct.


def input_type(w: Witness) -> Any:
    return taken(lambda: w.layer()(w.tokens(dtype=torch.float32)))


def input_kept(w: Witness) -> Any:
    x, rows = w.tokens(), w.lab.mask(7, 7)
    kept, kept_rows = x.clone(), rows.clone()
    copy.deepcopy(w.layer())(x, mask=rows)
    return f"tokens {fact(torch.equal(x, kept))}, mask {fact(torch.equal(rows, kept_rows))}"


def repeatable(w: Witness) -> Any:
    layer = w.make(torch.float64)
    torch.manual_seed(5)  # not the seed that a careless layer would set
    before = Randomness()
    first = layer(w.tokens())
    moved = before.moved()
    layer(w.tokens(draw=1))
    third = layer(w.tokens())
    layer(w.tokens(draw=1))
    layer(w.tokens(draw=3))
    off = max(float((later - first).detach().abs().max()) for later in (third, layer(w.tokens())))
    return f"random {moved}, seed {torch.initial_seed()}, repeats {off:.0e}"


def instances(w: Witness) -> Any:
    one, two = w.make(torch.float64), w.make(torch.float64)
    mine = {values.data_ptr() for values in one.parameters()}
    return fact(any(values.data_ptr() in mine for values in two.parameters()))


def saved(w: Witness) -> Any:
    layer = w.make(torch.float64)
    return fact(len(layer.state_dict()) == len(list(layer.parameters())))


def copied(w: Witness) -> Any:
    layer = w.make(torch.float64)
    layer(w.tokens().requires_grad_())
    return taken(lambda: copy.deepcopy(layer))


def cast(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer()).bfloat16().double()
    layer.load_state_dict(w.layer().state_dict())
    return layer(w.tokens())


def buffers(w: Witness) -> Any:
    layer = copy.deepcopy(w.layer())
    with torch.no_grad():
        for values in layer.buffers():
            values.fill_(float("nan") if values.is_floating_point() else 0)
    return layer(w.tokens())


def hooks(w: Witness) -> Any:
    layer, seen = copy.deepcopy(w.layer()), set()
    owners = {name: module for name, module in layer.named_modules() if any(True for _ in module.parameters(False))}
    for name, module in owners.items():
        module.register_forward_hook(lambda *_, name=name: seen.add(name))
    layer(w.tokens())
    return fact(seen == set(owners))


def under_autocast(w: Witness) -> Any:
    x = w.tokens(dtype=torch.float32)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return taken(lambda: w.layer(torch.float32)(x))


def seeded(w: Witness) -> Any:
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        fresh: nn.Module = w.make(torch.float64, redrawn=False)
        drawn.append(torch.cat([values.detach().flatten() for values in fresh.parameters()]))
    return f"same {fact(torch.equal(drawn[0], drawn[1]))}, other {fact(torch.equal(drawn[0], drawn[2]))}"


# Building.


def length_limit(w: Witness) -> Any:
    return taken(lambda: w.layer(max_seq_len=6)(w.tokens()))


def bias_made(w: Witness) -> Any:
    with_bias, without = (
        sum(values.numel() for values in w.make(torch.float64, redrawn=False, bias=bias).parameters())
        for bias in (True, False)
    )
    return fact(with_bias > without)


def given_scale(w: Witness) -> Any:
    return w.layer(scale=0.9)(w.tokens())


def no_scale(w: Witness) -> Any:
    return w.layer(scale=0.0)(w.tokens())


def default_scale(w: Witness) -> Any:
    return w.layer(scale=None)(w.tokens())


def causality_given(w: Witness) -> Any:
    return w.layer(causal=not w.lab.causal)(w.tokens())


def causality_masked(w: Witness) -> Any:
    rows = torch.ones(7, 7, dtype=torch.bool, device=w.lab.device)
    return w.layer(causal=not w.lab.causal)(w.tokens(), mask=rows)


def uneven_width(w: Witness) -> Any:
    groups = {"kv_heads": 5} if "kv_heads" in w.lab.case.options else {}
    return taken(lambda: w.make(torch.float64, redrawn=False, d_model=24, heads=5, head_dim=None, **groups))


def uneven_groups(w: Witness) -> Any:
    return taken(lambda: w.make(torch.float64, redrawn=False, heads=6, kv_heads=4))


def odd_dropout(w: Witness) -> Any:
    return taken(lambda: w.make(torch.float64, redrawn=False, dropout=1.5))


def odd_backend(w: Witness) -> Any:
    return taken(lambda: w.make(torch.float64, redrawn=False, backend="nonesuch"))


QUESTIONS: dict[str, Question] = {
    question.__name__: question
    for question in (
        plain, gradient, weights, mask, padded_left, mask_of_floats, steps, long, output_with_weights, alone,
        one_token, seventeen, single, half, half_type, half_softmax, loud, half_weights, matrix, staged,
        mask_per_sample, mask_per_head, mask_of_all, mask_of_floats_per_head, mask_gradient, mask_of_minus_infinity,
        mask_in_half, mask_of_integers, mask_of_three_axes, padded_right, padded_alone, padded_and_masked,
        padding_of_integers, blind, blind_by_both, blind_gradient, blind_value_gradient, behind_padding,
        behind_overflow, value_gradient, training, training_gradient, dropout_in_eval, dropout_in_training,
        dropout_mean, dropout_weights, transposed_input, expanded_gradient, empty, places, places_per_sample,
        places_backwards, places_far, places_in_half, places_of_floats, context, context_of_one, context_gradient,
        chunks, steps_after_reset, steps_after_crop, steps_after_reorder, steps_in_turn, steps_padded, step_weights,
        step_gradient, cache_bytes, cache_overflow, cache_refusal, input_type, input_kept, repeatable, instances,
        saved, copied, cast, buffers, hooks, under_autocast, seeded, length_limit, bias_made, given_scale, no_scale,
        default_scale, causality_given, causality_masked, four, uneven_width, uneven_groups, odd_dropout,
        odd_backend,
    )
}  # fmt: skip
