r"""
2. Why the scale, and what -inf before the softmax does
=======================================================

Two small details of the formula decide whether a model learns at all: the division by :math:`\sqrt d`, and the place
and the value of the mask.
"""

import torch
from matplotlib import pyplot as plt

from attnzoo import ops, viz

# sphinx_gallery_start_ignore
BLUE, ORANGE = "#0072b2", "#d55e00"
# sphinx_gallery_end_ignore

# %%
# The spread of a dot product
# ---------------------------
# Let the :math:`d` channels of :math:`q` and :math:`k` be independent, with mean 0 and variance 1, as they roughly are
# in a fresh layer. Each product :math:`q_i k_i` then has mean 0 and variance 1, and variances of independent terms add:
#
# .. math:: \mathrm{Var}(q \cdot k) = \sum_{i=1}^{d} \mathrm{Var}(q_i k_i) = d
#
# So the spread (the standard deviation) of a logit grows as :math:`\sqrt d`, and dividing by :math:`\sqrt d` brings it
# back to 1 for a head of any width. Measured:

lesson = viz.scale_lesson((4, 16, 64, 256, 1024))
print(lesson)

for row in lesson.rows:
    assert abs(row.bare_spread / row.d**0.5 - 1) < 0.03
    assert abs(row.scaled_spread - 1) < 0.03

# %%
# Gradients that vanish
# ---------------------
# Large logits push softmax to its edge: one weight is nearly 1, the others nearly 0. There it stops learning. Its
# Jacobian, how each weight moves with each logit, is
#
# .. math:: J = \frac{\partial w}{\partial \ell} = \mathrm{diag}(w) - w w^\top
#
# and that is zero where :math:`w` is a single 1 among zeros. (:doc:`Page four <plot_4_backward_by_hand>` derives it.)
# First the formula, held against automatic differentiation:


def jacobian(logits):
    """logits: (n, s)    returns: (n, s, s)"""
    w = logits.softmax(dim=-1)
    return w.diag_embed() - w[:, :, None] * w[:, None, :]


some = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
by_torch = torch.autograd.functional.jacobian(lambda row: row.softmax(dim=-1), some[0])
torch.testing.assert_close(jacobian(some)[0], by_torch)

# %%
# Then its size, the Frobenius norm, for the logits of 512 random queries with 16 keys each. The middle (median) query
# of a head with 1024 channels gets next to no gradient through an unscaled softmax. With the scale, the width makes no
# difference.

generator = torch.Generator().manual_seed(0)
widths = [row.d for row in lesson.rows]
norms = {"bare": [], "scaled": []}
for d in widths:
    q = torch.randn(512, 1, d, generator=generator, dtype=torch.float64)
    k = torch.randn(512, 16, d, generator=generator, dtype=torch.float64)
    bare = (q @ k.mT).squeeze(1)  # (queries, keys)
    for name, logits in (("bare", bare), ("scaled", bare / d**0.5)):
        norms[name].append(torch.linalg.matrix_norm(jacobian(logits)).median().item())

print("     d    bare     scaled")
for d, *found in zip(widths, norms["bare"], norms["scaled"], strict=True):
    print(f"{d:6d}  {found[0]:8.1e} {found[1]:8.1e}")

assert norms["bare"][-1] < 1e-4 * norms["bare"][0]
assert max(norms["scaled"]) < 1.1 * min(norms["scaled"])

# sphinx_gallery_start_ignore
figure, axes = plt.subplots(1, 3, figsize=(7.6, 2.9), layout="constrained")
curves = [
    ("spread of the logits", [r.bare_spread for r in lesson.rows], [r.scaled_spread for r in lesson.rows]),
    ("largest weight of a row (mean)", [r.bare_top for r in lesson.rows], [r.scaled_top for r in lesson.rows]),
    ("size of the Jacobian (median)", norms["bare"], norms["scaled"]),
]
for ax, (title, bare_curve, scaled_curve) in zip(axes, curves, strict=True):
    ax.plot(widths, bare_curve, "o-", color=ORANGE, label="q·k")
    ax.plot(widths, scaled_curve, "s-", color=BLUE, label="q·k / √d")
    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, map(str, widths), fontsize=8)
    ax.tick_params(axis="y", labelsize=8)
    ax.minorticks_off()
    ax.set_title(title, fontsize=9)
    ax.set_xlabel("head width d", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].plot(widths, [d**0.5 for d in widths], ":", color="black", label="√d")
axes[0].set_yscale("log")
axes[1].set_ylim(0, 1.05)
axes[2].set_yscale("log")
axes[0].legend(frameon=False, fontsize=9)
# sphinx_gallery_end_ignore

# %%
# Hiding a key
# ------------
# Now the mask. Four tokens read from left to right, so nobody may see a later one; and token 0 is padding, so nobody
# may see that one either. Query 0 can then see nothing at all: we call it *blind*. Such rows are not exotic, every
# batch of sentences padded on the left has them.
#
# One hidden logit below is very large. In a model that is a rare event, and in half precision a legal one: the type
# reaches 65504.

real = torch.tensor([[False, True, True, True]])  # (b, s), False = padding
visible = ops.causal().mask(4, 4) & real[0]  # (t, s), True = may see
logits = torch.tensor(
    [
        [1.0, 0.3, -0.5, 0.2],
        [0.4, 1.1, 0.7, -0.3],
        [-0.2, 0.5, 0.9, 2e4],
        [0.6, -0.4, 0.8, 0.1],
    ]
)  # (t, s)
print(visible.int())

# %%
# **-inf before the softmax.** :math:`e^{-\infty} = 0`, so a hidden key gets a weight of exactly 0, and the softmax
# shares the whole weight among the others. It is the same as if the hidden keys had never been there:

before = logits.masked_fill(~visible, float("-inf")).softmax(dim=-1)

for i in range(1, 4):
    seen = visible[i]
    torch.testing.assert_close(before[i, seen], logits[i, seen].softmax(dim=-1))
    assert (before[i, ~seen] == 0).all()
print("sums of rows 1 to 3:", before[1:].sum(dim=-1).tolist())
assert before[0].isnan().all()  # the blind row: 0 / 0. We come back to it

# %%
# **Zero after the softmax.** The rows no longer sum to one: the hidden keys took their share, and it is thrown away.
# Worse, the hidden logit still has a say in the visible weights, so the future leaks into the past. Dividing by the
# sum again repairs neither when the hidden logit is large: all visible weights are then zero, and :math:`0/0` is left.

after = logits.softmax(dim=-1) * visible
print("sums of all rows:", [round(total, 3) for total in after.sum(dim=-1).tolist()])

assert (after.sum(dim=-1) < 0.9).all()
assert (after[2, visible[2]] == 0).all()
assert (after[2] / after[2].sum()).isnan().all()

# %%
# **A large negative number before the softmax.** Old code adds :math:`-10^4`, because half precision has no
# :math:`-10^9`. It is not large enough: the logit of :math:`2 \cdot 10^4` stays on top and takes all the weight. And a
# blind row shares itself out among its hidden keys. They get *equal* weights, whatever their logits: near
# :math:`10^4` the numbers of half precision are 8 apart, so that the logits are rounded away.

finite = (logits.half() + (-1e4 * ~visible).half()).softmax(dim=-1)
print("row 0:", finite[0].tolist(), "  row 2:", finite[2].tolist())

assert finite[2].tolist() == [0, 0, 0, 1]  # all on the one that it must not see
assert finite[0].tolist() == [0.25] * 4
assert torch.tensor([10003.0, 10008.0]).half().tolist() == [10000, 10008]  # 8 apart

# %%
# The most negative number of the type is no way out. Two such masks, say one for padding and one for causality, add up
# to :math:`-\infty`, and the blind row is NaN again.

lowest = torch.finfo(torch.float16).min
twice = torch.full((4,), lowest, dtype=torch.float16) * 2
print(lowest, "twice is", twice[0].item(), ", its softmax", twice.softmax(dim=-1).tolist())
assert twice.softmax(dim=-1).isnan().all()

# %%
# **What should a blind row be?** It has nothing to report, so the only harmless answer is zero: zero weights and a zero
# output. :func:`attnzoo.ops.attend` gives that. To hand it our logits, we take queries that are the logits, and keys
# that are the unit vectors.
#
# The picture has all four ways. Grey is hidden, as it should be; an orange frame is weight on a key that may not be
# seen, or no number at all. On the right stands the sum of each row, orange where it is not 1 (or 0, in the blind row).

mixed, weights = ops.attend(
    logits[None, None],
    torch.eye(4)[None, None],
    torch.ones(1, 1, 4, 2),
    causal=True,
    key_mask=real,
    scale=1.0,
    need_weights=True,
)
torch.testing.assert_close(weights[0, 0, 1:], before[1:])
assert (weights[0, 0, 0] == 0).all()
assert (mixed[0, 0, 0] == 0).all()


# sphinx_gallery_start_ignore
def draw(ax, w, title):
    """w: (t, s)"""
    shown = torch.where(visible | (w != 0), w.float(), torch.nan)
    cmap = plt.colormaps["viridis"].with_extremes(bad="#c9c9c9")
    ax.imshow(shown.numpy(), cmap=cmap, vmin=0, vmax=1)
    for i in range(4):
        for j in range(4):
            number = w[i, j].item()
            wrong = number != number or (not visible[i, j] and number != 0)
            if visible[i, j] or wrong:
                text = "NaN" if number != number else f"{number:.2f}"
                dark = number < 0.6 and number == number
                ax.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
            if wrong:
                ax.add_patch(plt.Rectangle((j - 0.44, i - 0.44), 0.88, 0.88, fill=False, color=ORANGE, linewidth=2.5))
        total = w[i].sum().item()
        good = abs(total - float(visible[i].any())) < 1e-3
        text = f"{total:.2f}".replace("nan", "NaN")
        ax.text(3.65, i, text, va="center", fontsize=8, color="black" if good else ORANGE)
    ax.text(3.65, -0.62, "sum", va="center", fontsize=8)
    ax.set_title(title, fontsize=9, loc="left")
    ax.set_xticks(range(4))
    ax.set_yticks(range(4))
    ax.tick_params(labelsize=8, length=2)
    ax.set_ylabel("query", fontsize=8)
    ax.set_xlabel("key", fontsize=8)


figure, axes = plt.subplots(2, 2, figsize=(6.4, 6.2), layout="constrained")
draw(axes[0, 0], before, "-inf before, and nothing else")
draw(axes[0, 1], after, "zero after")
draw(axes[1, 0], finite, "-10000 before, half precision")
draw(axes[1, 1], weights[0, 0], "attnzoo.ops.attend")
# sphinx_gallery_end_ignore

# %%
# NaN is not gone when it is out of sight
# ---------------------------------------
# It is tempting to let the softmax make NaN, and to replace it afterwards. The output is then right. The backward pass
# is not: it goes back through the softmax, and there multiplies the NaN by zero, which is NaN. Where the mask is added
# to the logits, as is common, that NaN runs on into the keys, and from there into the parameters: one blind row in a
# batch, and the model is lost.

torch.manual_seed(0)
q, k, v = (torch.randn(1, 1, 4, 8, requires_grad=True) for _ in range(3))


def patched(q, k, v):
    """-inf added before, plain softmax, NaN replaced by zero after."""
    mask = torch.zeros(4, 4).masked_fill(~visible, float("-inf"))
    return (q @ k.mT / 8**0.5 + mask).softmax(dim=-1).nan_to_num(0.0) @ v


patched_out = patched(q, k, v)
right_out = ops.attend(q, k, v, causal=True, key_mask=real)
torch.testing.assert_close(patched_out, right_out)

patched_gradient = torch.autograd.grad(patched_out.sum(), k)[0]
right_gradient, query_gradient = torch.autograd.grad(right_out.sum(), (k, q))
print("the outputs agree; share of NaN among the gradients of the keys:")
print(f"  replaced afterwards {patched_gradient.isnan().float().mean():.0%}")
print(f"  attnzoo.ops.attend  {right_gradient.isnan().float().mean():.0%}")

assert patched_gradient.isnan().all()
assert right_gradient.isfinite().all()
assert (query_gradient[0, 0, 0] == 0).all()  # the blind query has nothing to learn from

# %%
# The remedy is to make the blind row harmless *before* the softmax too: fill its logits with 0, take the softmax, then
# set the weights to 0. That is three lines in ``attnzoo/ops/attend.py``. Every variant is held to it by two laws,
# ``attnzoo check NAME --only 'mask.blind_*'``.
