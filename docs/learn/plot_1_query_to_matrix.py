r"""
1. From one query to a matrix
=============================

Attention lets a token ask the other tokens a question. It needs three vectors of each token:

* a **query**: what this token is looking for,
* a **key**: what it can be found by,
* a **value**: what it hands over when it is found.

We answer one query by hand, then all of them at once, and see that this is the same thing.
"""

import torch
from matplotlib import pyplot as plt

import attnzoo
from attnzoo import ops, viz

# sphinx_gallery_start_ignore
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#8a8a8a"
# sphinx_gallery_end_ignore

# %%
# One query
# ---------
# Five tokens, and vectors with two channels so that they can be drawn. In a real model these numbers are learned. Here
# we chose them: the first channel of a key says "I am an animal", the second "I am a thing". The word *its* refers to
# an animal, so its query points along the first channel.

tokens = ["the", "cat", "chased", "its", "tail"]
keys = torch.tensor([[0.1, 0.2], [2, 0.3], [-0.6, -0.5], [0.4, -0.3], [0.9, 1.7]])
values = torch.tensor([[0.0, 0], [3, 1], [-1, 2], [0, 1], [1, 3]])  # both (s, d)
query = torch.tensor([2.0, -0.4])  # (d,), of the token "its"

# %%
# **Compare.** The dot product of the query with a key is large where the two point the same way, and negative where
# they point apart. It is divided by :math:`\sqrt d`; the :doc:`next page <plot_2_scale_and_mask>` shows why.
#
# .. math:: \ell_j = \frac{q \cdot k_j}{\sqrt d}

logits = torch.stack([query @ key for key in keys]) / len(query) ** 0.5  # (s,)

# %%
# **Share out.** Softmax turns these logits into weights: all positive, and together 1.
#
# .. math:: w_j = \frac{e^{\ell_j}}{\sum_i e^{\ell_i}}

weights = logits.exp() / logits.exp().sum()  # (s,)

print("key        logit   weight")
for token, logit, weight in zip(tokens, logits, weights, strict=True):
    print(f"{token:8s} {logit:7.2f} {weight:8.3f}")

assert (weights > 0).all()
assert torch.isclose(weights.sum(), torch.tensor(1.0))
assert tokens[int(weights.argmax())] == "cat"

# %%
# **Mix.** The answer is the mean of the values, weighted so. It therefore lies among the values, never outside of them.
#
# .. math:: \mathrm{out} = \sum_j w_j v_j
#
# The picture has all three steps. Left: the key that points most along the query, *cat*, gets the largest logit. Right:
# each value pulls the answer with its weight (the area of its dot).

pairs = zip(weights, values, strict=True)
answer = sum(weight * value for weight, value in pairs)  # (d,)
print("answer:", [round(float(number), 3) for number in answer])

assert (values.min(dim=0).values <= answer).all()
assert (answer <= values.max(dim=0).values).all()

# sphinx_gallery_start_ignore
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(7.6, 2.9), layout="constrained")
nudged = {"chased": (-8, -13), "its": (4, -10)}  # away from the arrows
for token, key in zip(tokens, keys.tolist(), strict=True):
    left.annotate("", key, (0, 0), arrowprops={"arrowstyle": "-|>", "color": GREY})
    where = nudged.get(token, (4, 4))
    left.annotate(token, key, xytext=where, textcoords="offset points", color="#555555", fontsize=9)
left.annotate("", query.tolist(), (0, 0), arrowprops={"arrowstyle": "-|>", "color": ORANGE, "linewidth": 2})
left.annotate("query of its", query.tolist(), (-2, -16), textcoords="offset points", ha="center", color=ORANGE)
left.set(xlim=(-1.1, 2.9), ylim=(-1.3, 2.3), xlabel="animal", ylabel="thing")
left.set_title("compare: query and keys", fontsize=10)

middle.barh(tokens, weights.tolist(), color=BLUE)
for row, weight in enumerate(weights.tolist()):
    middle.annotate(f"{weight:.2f}", (weight, row), xytext=(3, 0), textcoords="offset points", va="center")
middle.invert_yaxis()
middle.set(xlim=(0, 1), xticks=(0, 0.5, 1), xlabel="weight")
middle.set_title("share out: weights", fontsize=10)

right.scatter(*values.T.tolist(), s=(1500 * weights).tolist(), color=BLUE, alpha=0.4)
right.scatter(*values.T.tolist(), s=8, color=BLUE)
for token, value in zip(tokens, values.tolist(), strict=True):
    right.annotate(token, value, xytext=(7, 6), textcoords="offset points", color="#555555", fontsize=9)
right.scatter(*answer.tolist(), marker="X", s=90, color=ORANGE, zorder=3)
right.annotate("answer", answer.tolist(), xytext=(-8, -17), textcoords="offset points", ha="center", color=ORANGE)
right.set(xlim=(-1.8, 4.4), ylim=(-0.8, 3.8), xlabel="channel 0", ylabel="channel 1")
right.set_title("mix: values", fontsize=10)
for ax in (left, middle, right):
    ax.spines[["top", "right"]].set_visible(False)
# sphinx_gallery_end_ignore

# %%
# All queries at once
# -------------------
# Every token has a query. Written below each other they are a matrix :math:`Q`, and so are the keys and the values. The
# three steps are then two products and a softmax along each row:
#
# .. math:: \mathrm{out} = \mathrm{softmax}\!\left(\frac{Q K^\top}{\sqrt d}\right) V
#
# Row :math:`i` asks, column :math:`j` answers. The row of *its* is the very computation from above.

queries = torch.tensor([[0.5, 0.5], [0.3, 1.8], [2, 1.2], [2, -0.4], [-0.5, 1.5]])  # (t, d)
logits_all = queries @ keys.T / 2**0.5  # (t, s)
weights_all = logits_all.softmax(dim=-1)  # (t, s), each row sums to 1
answers = weights_all @ values  # (t, d)

its = tokens.index("its")
torch.testing.assert_close(weights_all[its], weights)
torch.testing.assert_close(answers[its], answer)
print("rows sum to:", [round(float(total), 6) for total in weights_all.sum(dim=-1)])

# %%
# A model that writes text one token after the other adds one rule: nobody may look at a later token, because when the
# model writes it is not there yet. Such a mask is called *causal*. The cells it takes away are grey, and what is left
# of each row shares out the whole weight again. (How a mask is applied, and how it goes wrong, is on the
# :doc:`next page <plot_2_scale_and_mask>`.)

# attnzoo counts batch and heads, too: (b, h, t, d)
q, k, v = (matrix[None, None] for matrix in (queries, keys, values))
_, causal_weights = ops.attend(q, k, v, causal=True, need_weights=True)

figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.5), layout="constrained")
visible = ops.causal().mask(len(tokens), len(tokens))
labels = {"queries": tokens, "keys": tokens}
viz.heatmap(weights_all, **labels, name="all", ax=left)
viz.heatmap(causal_weights, visible=visible, **labels, name="causal", ax=right)

torch.testing.assert_close(ops.attend(q, k, v)[0, 0], answers)  # attnzoo agrees
torch.testing.assert_close(causal_weights.sum(dim=-1), torch.ones(1, 1, 5))
assert (causal_weights[0, 0][~visible] == 0).all()

# %%
# Where the vectors come from
# ---------------------------
# A layer gets one vector :math:`x_i` a token and makes query, key and value from it by three learned matrices,
# :math:`q_i = x_i W_q` and so on. A last matrix brings the mixed values back to the width of :math:`x`. In attnzoo
# these are the three stages of every layer: *project*, *attend*, *merge*.

torch.manual_seed(0)
layer = attnzoo.build("single_head", d_model=16, head_dim=8, causal=False)
x = torch.randn(1, 5, 16)  # (b, t, c)

q, k, v = layer.project(x)  # each (b, 1, t, d)
mixed = layer.attend(q, k, v)  # (b, 1, t, d)
y = layer.merge(mixed)  # (b, t, c)
for name, made in {"x": x, "q": q, "mixed": mixed, "y": y}.items():
    print(f"{name:6s}", tuple(made.shape))
torch.testing.assert_close(layer(x), y)

# %%
# One thing is missing. Nothing in the formula knows *where* a token stands: shuffle the tokens, and the answers are
# shuffled with them, otherwise unchanged. Order has to come from a mask, or from positions
# (:doc:`the fifth page <plot_5_caches>`).

order = torch.tensor([3, 0, 4, 1, 2])
torch.testing.assert_close(layer(x[:, order]), y[:, order])
print("shuffled tokens give the same outputs, shuffled")
