r"""
3. Splitting heads without memory bugs
======================================

A layer with several heads makes the queries of all heads in one go, as one row of :math:`h \cdot d` numbers a token.
Then the row is cut into heads. A wrong cut can have the right shape. It raises no error, the layer trains, and the
model is just worse. Here is how to see it.
"""

import textwrap

import torch
from einops import rearrange
from matplotlib import pyplot as plt
from torch import nn

import attnzoo
from attnzoo import ops

# %%
# One number for each place in memory
# -----------------------------------
# Memory is one long line. A tensor is a view of it: a shape, and *strides* that say how many places to walk for one
# step along each axis. So that we can follow every number, we fill a tensor with its own places. Three tokens, two
# heads, two channels a head: the next token is four places on, the next channel one.

t, h, d = 3, 2, 2
x = torch.arange(t * h * d).reshape(1, t, h * d)  # (b, t, h * d)
print(x[0])
print("strides", x.stride())

# %%
# The right cut
# -------------
# Cut each row into heads, (b, t, h, d), then swap the axes of tokens and heads, (b, h, t, d). Neither step moves a
# number; only shape and strides change.

split = x.view(1, t, h, d).transpose(1, 2)  # (b, h, t, d)
print(split[0])
print("strides", split.stride(), " contiguous:", split.is_contiguous())

assert x.stride()[1:] == (4, 1)
assert split.data_ptr() == x.data_ptr()  # the same memory
for token in range(t):
    for head in range(h):
        for channel in range(d):
            assert split[0, head, token, channel] == x[0, token, head * d + channel]

# %%
# The same in words, where every axis has a name and nothing is left to the order of two calls. This is
# :func:`attnzoo.ops.split_heads`:

named = rearrange(x, "b t (h d) -> b h t d", h=h)
assert torch.equal(named, split)
assert torch.equal(ops.split_heads(x, h), split)

# %%
# The wrong cut
# -------------
# ``x.view(b, h, t, d)`` gives the same shape at once. But ``view`` keeps the order of the line and cuts it anew: the
# first :math:`t \cdot d` numbers become head 0, whichever token they came from.
#
# In the picture, the colour of a number is its token, and what is written in it is its place in memory. In the right
# cut each row of a head has one colour. In the wrong one, head 0 has rows from token 0 and 1, none from token 2, and
# "row 1" of head 0 is what token 0 meant for head 1.

wrong = x.view(1, h, t, d)
assert wrong.shape == split.shape
assert not torch.equal(wrong, split)


def origin(place):
    """The token and the head that the number at a place in memory belongs to."""
    return int(place) // (h * d), int(place) % (h * d) // d


print("           right cut holds   wrong cut holds")
for head in range(h):
    for row in range(t):
        (a, b), (c, e) = origin(split[0, head, row, 0]), origin(wrong[0, head, row, 0])
        print(f"head {head} row {row}  token {a}, head {b}   token {c}, head {e}")
        assert (a, b) == (row, head)

# sphinx_gallery_start_ignore
COLOURS = ["#f0e442", "#56b4e9", "#e69f00"]  # one a token, told apart by colour-blind eyes too


def cells(ax, places, corner, title):
    """places: (rows, columns), drawn from a corner (right, down) on"""
    right, down = corner
    ax.text(right, down - 0.25, title, fontsize=9, va="bottom")
    for i, row in enumerate(places.tolist()):
        for j, place in enumerate(row):
            token, _ = origin(place)
            box = (right + j, down + i)
            ax.add_patch(plt.Rectangle(box, 1, 1, facecolor=COLOURS[token], edgecolor="white", linewidth=2))
            ax.text(box[0] + 0.5, box[1] + 0.5, str(place), ha="center", va="center", fontsize=9)


figure, ax = plt.subplots(figsize=(7.6, 2.9), layout="constrained")
cells(ax, x.reshape(1, -1), (0, 0), "the line of memory")
cells(ax, x[0], (0, 2.2), "x: a row a token")
cells(ax, split[0, 0], (5.4, 2.2), "right: head 0")
cells(ax, split[0, 1], (8.2, 2.2), "head 1")
cells(ax, wrong[0, 0], (11.4, 2.2), "wrong: head 0")
cells(ax, wrong[0, 1], (14.2, 2.2), "head 1")
for token, colour in enumerate(COLOURS):
    ax.text(13, 0.18 + 0.45 * token, f"token {token}", fontsize=9, va="center", bbox={"facecolor": colour, "pad": 2})
ax.set(xlim=(-0.1, 16.4), ylim=(5.4, -0.9), aspect="equal")
ax.set_axis_off()
# sphinx_gallery_end_ignore

# %%
# What it does to a layer
# -----------------------
# A causal mask goes by rows, and the rows now hold other tokens than it believes. So the future leaks. A layer with
# the wrong cut, written as a variant, and held to attnzoo's law of causality:


class WrongCut(ops.AttentionLayer):
    variant = "wrong_cut"

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__(d_model=d_model, heads=heads)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def project(self, x, context=None, *, positions=None, offset=0):
        shape = (x.shape[0], self.heads, x.shape[1], self.head_dim)
        return tuple(part.reshape(shape) for part in self.qkv(x).chunk(3, dim=-1))


judged = attnzoo.Variant(
    name="wrong_cut",
    build=WrongCut,
    summary="View in place of transpose.",
    traits=attnzoo.Traits(causal="always", cache="kv"),
    cases=[dict(d_model=24, heads=4)],
)
report = attnzoo.check(judged, only=["causality.no_future"])
for result in report.results:
    print(textwrap.fill(f"{result.law} {result.outcome}. {result.message}", width=88))

assert not report.passed
assert attnzoo.check("mha", only=["causality.no_future"]).passed

# %%
# Back again
# ----------
# After attention the heads are put side by side, (b, h, t, d) to (b, t, h * d), and the same trap waits a second time.
# The axes have to be swapped back first. Then the numbers lie in another order than the new shape wants, so ``view``
# refuses, and that error is a friend:

mixed = split.contiguous()  # what a kernel returns: its own memory, (b, h, t, d)
try:
    mixed.transpose(1, 2).view(1, t, h * d)
except RuntimeError as error:
    print(textwrap.fill(str(error), width=88))
else:
    raise AssertionError("view should refuse")

# %%
# ``reshape`` copies where ``view`` refuses, which is what is wanted here. It is as happy to merge without the swap,
# and then it is silent and wrong.

merged = mixed.transpose(1, 2).reshape(1, t, h * d)
unswapped = mixed.reshape(1, t, h * d)

assert torch.equal(merged, x)
assert torch.equal(ops.merge_heads(mixed), x)
assert unswapped.shape == x.shape
assert not torch.equal(unswapped, x)
print("swapped:", merged[0].tolist())
print("not    :", unswapped[0].tolist())

# %%
# Three in one: the layouts of fused projections
# ----------------------------------------------
# Most layers make queries, keys and values by one matrix with :math:`3 h d` rows. There are two habits of stacking
# them. attnzoo, as GPT-2 and many others, puts *all queries, then all keys, then all values*; GPT-NeoX and BLOOM put
# *query, key and value of head 0, then those of head 1*, and so on:
#
# =====================  ==========================  ==================
# habit                  rows, as einops reads them  split by
# =====================  ==========================  ==================
# attnzoo, GPT-2         ``(three h d)``             ``chunk(3)``
# GPT-NeoX, BLOOM        ``(h three d)``             heads first
# =====================  ==========================  ==================
#
# Weights of one habit fit a layer of the other without any error. The picture shows the rows of both, for four heads.

torch.manual_seed(0)
heads, width = 4, 24
layer = attnzoo.build("mha", d_model=width, heads=heads, bias=True)
tokens = torch.randn(2, 7, width)


def restacked(weights, pattern):
    """Rows of a fused projection, in another order."""
    return {name: rearrange(w, pattern, three=3, h=heads) for name, w in weights.items()}


# The same layer, as a checkpoint of the other habit would hold it:
theirs = restacked(layer.qkv.state_dict(), "(three h d) ... -> (h three d) ...")

copied = attnzoo.build("mha", d_model=width, heads=heads, bias=True)
copied.out.load_state_dict(layer.out.state_dict())
copied.qkv.load_state_dict(theirs)  # no error: the shapes fit
off = (copied(tokens) - layer(tokens)).abs().max() / layer(tokens).abs().max()
print(f"copied as they are: off by {off:.0%} of the largest output")
assert off > 0.1

ours = restacked(theirs, "(h three d) ... -> (three h d) ...")
copied.qkv.load_state_dict(ours)
torch.testing.assert_close(copied(tokens), layer(tokens))
print("reordered first   : equal")

# sphinx_gallery_start_ignore
figure, axes = plt.subplots(2, 1, figsize=(7.6, 1.7), layout="constrained")
layouts = {
    "(three h d)": [(part, head) for part in "qkv" for head in range(heads)],
    "(h three d)": [(part, head) for head in range(heads) for part in "qkv"],
}
for ax, (name, rows) in zip(axes, layouts.items(), strict=True):
    for place, (part, head) in enumerate(rows):
        colour = COLOURS["qkv".index(part)]
        ax.add_patch(plt.Rectangle((place, 0), 1, 1, facecolor=colour, edgecolor="white", linewidth=2))
        ax.text(place + 0.5, 0.5, f"{part}{head}", ha="center", va="center", fontsize=9)
    ax.set_title(f'"{name}"', fontsize=9, loc="left", family="monospace")
    ax.set(xlim=(0, 3 * heads), ylim=(0, 1))
    ax.set_axis_off()
# sphinx_gallery_end_ignore

# %%
# A rule of thumb
# ---------------
# A shape proves nothing. Write patterns that name the axes. Test with sizes that differ pairwise: where :math:`h = t`,
# even a forgotten transpose has the right shape. And check a law that goes through the whole layer, such as causality.
