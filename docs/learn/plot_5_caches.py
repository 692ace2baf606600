r"""
5. Caches, shared heads, and what they save
===========================================

A model writes one token at a time, and each new token looks back at all earlier ones. Their keys and values do not
change any more, so they are kept: that is the *key-value cache*. It trades work for memory, and sharing key-value heads
wins most of the memory back.
"""

import torch
from matplotlib import pyplot as plt
from torch.utils.flop_counter import FlopCounterMode

import attnzoo

# sphinx_gallery_start_ignore
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
# sphinx_gallery_end_ignore

# %%
# Step by step equals the whole
# -----------------------------
# A layer with rotary positions, 8 query heads and 2 key-value heads, in float64 so that rounding is out of the way.
# Reading twelve tokens at once, or five and then one at a time, must give the same outputs.

torch.manual_seed(0)
layer = attnzoo.build("rope", d_model=64, heads=8, kv_heads=2)
layer.double().eval().requires_grad_(False)
x = torch.randn(1, 12, 64, dtype=torch.float64)  # (b, t, c)
whole = layer(x)


def decode(layer, x, prompt=5):
    """Read the prompt at once, each later token alone.    x, y: (b, t, c)"""
    cache = layer.new_cache(batch=len(x), max_len=x.shape[1])
    pieces = [layer(x[:, :prompt], cache=cache)]
    for i in range(prompt, x.shape[1]):
        pieces.append(layer(x[:, i : i + 1], cache=cache))
    return torch.cat(pieces, dim=1), cache


stepwise, cache = decode(layer, x)
print(f"largest difference: {(stepwise - whole).abs().max():.0e}, tokens: {cache.length}")
torch.testing.assert_close(stepwise, whole)

# %%
# Where a token stands
# --------------------
# A rotary layer turns queries and keys by an angle that grows with the position. The token that comes alone is not
# token 0: it stands behind all that the cache holds. The layer takes that *offset* from the cache. Forget it, and every
# new token believes that it stands at the start:

cache = layer.new_cache(batch=1, max_len=12)
layer(x[:, :5], cache=cache)
right = layer(x[:, 5:6], cache=cache)
cache.crop(5)
restarted = layer(x[:, 5:6], cache=cache, positions=torch.tensor([0]))

torch.testing.assert_close(right, whole[:, 5:6])
off = (restarted - right).abs().max() / right.abs().max()
print(f"positions restart at 0: off by {off:.0%} of the largest output")
assert off > 0.01

# %%
# Only the distance of two tokens counts. Shift *all* positions by a hundred, and nothing changes:

shifted = layer(x, positions=torch.arange(100, 112))
torch.testing.assert_close(shifted, whole)

# %%
# And what decides who is visible is the place in the sequence, not the position: no token sees the tokens after it,
# whatever number they are told to have.

backwards = layer(x, positions=torch.arange(11, -1, -1))
_, weights = layer(x, positions=torch.arange(11, -1, -1), need_weights=True)
assert (weights.triu(1) == 0).all()
assert (backwards - whole).abs().max() > 0.01

# %%
# Work: quadratic or linear
# -------------------------
# What does a token cost that is the :math:`t`-th of its sequence? We count floating point operations, which
# depend on no clock: 2 for each multiply-add of a matrix product. The layer computes plainly (``backend="eager"``), and
# on torch's *meta* device, where tensors have shapes but no numbers.
#
# * Without a cache, all :math:`t` tokens go through the layer again. The products :math:`Q K^\top` and
#   :math:`A V` cost :math:`4\, h\, d\, t^2`, the projections an equal amount for each token.
# * With a cache, one query meets :math:`t` keys: :math:`4\, h\, d\, t`, and one token goes through the projections.

with torch.device("meta"):
    counted = attnzoo.build("gqa", d_model=64, heads=8, kv_heads=2, backend="eager")
    lengths = [64, 128, 256, 512, 1024, 2048]
    flops = {"whole again": [], "with a cache": []}
    for t in lengths:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            counted(torch.empty(1, t, 64))
        flops["whole again"].append(counter.get_total_flops())
        cache = counted.new_cache(batch=1, max_len=t)
        with torch.no_grad():
            counted(torch.empty(1, t - 1, 64), cache=cache)
            with FlopCounterMode(display=False) as counter:
                counted(torch.empty(1, 1, 64), cache=cache)
        flops["with a cache"].append(counter.get_total_flops())

h, g, d, c = counted.heads, counted.kv_heads, counted.head_dim, 64
projections = 2 * c * (h + 2 * g) * d + 2 * h * d * c  # one token: to q, k, v, and out
print("tokens   whole again   with a cache    ratio")
for t, again, cached in zip(lengths, *flops.values(), strict=True):
    print(f"{t:6d} {again:13,d} {cached:14,d} {again / cached:8.0f}")
    assert again == 4 * h * d * t**2 + projections * t
    assert cached == 4 * h * d * t + projections

# %%
# The ratio is exactly :math:`t`: the cache does once what is otherwise done :math:`t` times over. (The masked half of
# :math:`Q K^\top` is counted too; kernels that skip it halve the quadratic part and leave it quadratic.)

assert [again / cached for again, cached in zip(*flops.values(), strict=True)] == lengths

# %%
# Memory: what a cache holds
# --------------------------
# Two tensors, keys and values, of :math:`b \times g \times t \times d` numbers:
#
# .. math:: \text{bytes} = 2 \cdot b \cdot g \cdot t \cdot d \cdot \text{itemsize}
#
# The number :math:`g` of key-value heads is ours to choose. Multi-head attention (MHA) has one for each query head,
# multi-query attention (MQA) one for all, and grouped-query attention (GQA) something between. Queries are not kept, so
# their number costs nothing here.


def held(g, t, b=1, d=16, itemsize=2):
    return 2 * b * g * t * d * itemsize


layers = {
    "MHA, 8 key-value heads": attnzoo.build("mha", d_model=128, heads=8),
    "GQA, 2 key-value heads": attnzoo.build("gqa", d_model=128, heads=8, kv_heads=2),
    "MQA, 1 key-value head": attnzoo.build("mqa", d_model=128, heads=8),
}
bytes_held = {}
for name, one in layers.items():
    one.bfloat16().eval().requires_grad_(False)
    cache, bytes_held[name] = one.new_cache(batch=1, max_len=512), []
    for _ in range(8):
        one(torch.zeros(1, 64, 128, dtype=torch.bfloat16), cache=cache)
        assert cache.nbytes == held(one.kv_heads, cache.length)
        bytes_held[name].append(cache.nbytes)
    print(f"{name:24s} {cache.nbytes:8,d} bytes for {cache.length} tokens")

most, _, least = (held_at[-1] for held_at in bytes_held.values())
assert most == 8 * least

# sphinx_gallery_start_ignore
figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.4), layout="constrained")
for (name, spent), colour, marker in zip(flops.items(), (ORANGE, BLUE), "so", strict=True):
    left.loglog(lengths, spent, f"{marker}-", color=colour, label=name)
left.set_xticks(lengths, map(str, lengths), fontsize=8)
left.minorticks_off()
left.set_title("work for the next token", fontsize=10)
left.set(xlabel="tokens", ylabel="floating point operations")
for (name, spent), colour, marker in zip(bytes_held.items(), (ORANGE, GREEN, BLUE), "s^o", strict=True):
    right.plot(range(64, 513, 64), [n / 1024 for n in spent], f"{marker}-", color=colour, label=name)
right.set_title("memory held", fontsize=10)
right.set(xlabel="tokens", ylabel="KiB", xticks=range(0, 513, 128), ylim=(0, None))
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
# sphinx_gallery_end_ignore

# %%
# The same formula for a whole model, at :math:`b = 1` and two bytes a number: 32 layers, 32 query heads of width 128,
# 8192 tokens.

for g in (32, 8, 1):
    print(f"{g:2d} key-value heads: {32 * held(g, 8192, d=128) / 2**30:6.3f} GiB")

# %%
# Who reads whom
# --------------
# With 8 query heads and 2 key-value heads, four neighbours share: query head :math:`h` reads key-value head
# :math:`\lfloor h / 4 \rfloor`. Weights are trained for one order, so that the other one (:math:`h \bmod 2`) fits and
# is wrong. We ask the layer itself: change the values of one key-value head, and see which query heads notice.

readers = {}
for label, one in layers.items():
    name = label.split(",")[0]
    sample = torch.randn(1, 6, one.d_model, dtype=torch.bfloat16)
    q, k, v = one.project(sample)
    before = one.attend(q, k, v)  # (b, h, t, d)
    readers[name] = torch.zeros(one.heads, one.kv_heads, dtype=torch.bool)
    for head in range(one.kv_heads):
        changed = v.clone()
        changed[:, head] += 1
        noticed = one.attend(q, k, changed) != before
        readers[name][:, head] = noticed.any(dim=-1).any(dim=-1)[0]
    group = one.heads // one.kv_heads
    for head in range(one.heads):
        assert readers[name][head].nonzero().tolist() == [[head // group]]

# sphinx_gallery_start_ignore
figure, axes = plt.subplots(1, 3, figsize=(7.6, 1.9), layout="constrained")
palette = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"]
for ax, (name, reads) in zip(axes, readers.items(), strict=True):
    heads, kv_heads = reads.shape
    for head in range(heads):
        below = int(reads[head].int().argmax())
        middle = (below + 0.5) * heads / kv_heads - 0.5
        ax.plot([head, middle], [1, 0], color=palette[below], linewidth=2, zorder=1)
        ax.scatter(head, 1, s=130, color=palette[below], zorder=2)
        ax.text(head, 1, str(head), ha="center", va="center", fontsize=8, zorder=3)
        ax.scatter(middle, 0, s=170, marker="s", color=palette[below], zorder=2)
        ax.text(middle, 0, str(below), ha="center", va="center", fontsize=8, zorder=3)
    ax.set_title(f"{name}: {kv_heads} for {heads}", fontsize=10)
    ax.set(xlim=(-0.8, 7.8), ylim=(-0.35, 1.35))
    ax.spines[:].set_visible(False)
    ax.set_xticks([])
    ax.set_yticks([0, 1], ["key-value\nheads", "query\nheads"] if name == "MHA" else ["", ""], fontsize=8)
    ax.tick_params(length=0)
# sphinx_gallery_end_ignore

# %%
# Going back, and changing rows
# -----------------------------
# *Speculative decoding*: a small model guesses the next three tokens, the large one reads them in one go and finds the
# second wrong. ``crop`` forgets from there on, at no cost, and it is as if they had never been read.

cache = layer.new_cache(batch=1, max_len=12)
layer(x[:, :5], cache=cache)
guess = torch.randn(1, 3, 64, dtype=torch.float64)
guess[:, :1] = x[:, 5:6]  # the first guess is right
layer(guess, cache=cache)
cache.crop(6)
torch.testing.assert_close(layer(x[:, 6:7], cache=cache), whole[:, 6:7])
print("held after the crop and one more token:", cache.length)

# %%
# *Beam search*: several continuations are kept as rows of a batch, and now and then the best one replaces another.
# ``reorder`` makes row :math:`i` what row ``index[i]`` was. Here both rows go on from what was row 1:

rows = torch.randn(2, 8, 64, dtype=torch.float64)
cache = layer.new_cache(batch=2, max_len=8)
layer(rows[:, :6], cache=cache)
cache.reorder(torch.tensor([1, 1]))
continued = layer(rows[:, 6:7], cache=cache)

from_row_1 = rows[[1, 1]].clone()
from_row_1[:, 6] = rows[:, 6]  # each row goes on with its own new token
torch.testing.assert_close(continued, layer(from_row_1[:, :7])[:, 6:7])
print("after the reorder: both rows continue row 1")
