# ruff: noqa: E741, N816 - the names are those of the formulas
r"""
4. The backward pass by hand
============================

How do the weights :math:`W_q, W_k, W_v` learn from an error in the output? We walk one head of attention backwards, a
line at a time, and check each line against brute force before we go on. All of it is NumPy in float64. The finished
layer is :class:`attnzoo.oracle.SelfAttention`.
"""

import numpy as np
from matplotlib import pyplot as plt

from attnzoo.oracle import (
    SelfAttention,
    central_differences,
    relative_error,
    relative_to_largest,
)

# sphinx_gallery_start_ignore
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
# sphinx_gallery_end_ignore

# %%
# Forward
# -------
# One sequence :math:`X` of shape :math:`(T, C)`, and no mask:
#
# .. math::
#
#    Q = X W_q \qquad K = X W_k \qquad V = X W_v \qquad
#    S = \frac{Q K^\top}{\sqrt{h_s}} \qquad A = \mathrm{softmax}(S) \qquad O = A V
#
# The loss shall be :math:`L = \sum_{ij} O_{ij} G_{ij}` with a fixed random :math:`G`. Then
# :math:`\partial L / \partial O = G`, and any other loss only means another :math:`G`.

rng = np.random.default_rng(0)
T, C, hs = 5, 8, 4
X, G = rng.standard_normal((T, C)), rng.standard_normal((T, hs))
Wq, Wk, Wv = (0.5 * rng.standard_normal((C, hs)) for _ in range(3))


def softmax(S):
    E = np.exp(S - S.max(axis=-1, keepdims=True))
    return E / E.sum(axis=-1, keepdims=True)


scale = hs**-0.5
Q, K, V = X @ Wq, X @ Wk, X @ Wv  # (T, hs)
S = scale * Q @ K.T  # (T, T)
A = softmax(S)  # (T, T)
O = A @ V  # (T, hs)

# %%
# We write :math:`dZ` for :math:`\partial L / \partial Z`; it has the shape of :math:`Z`. Brute force finds it without
# any thought: nudge an entry up and down, and see what the loss does.
#
# .. math:: dZ_{ij} \approx \frac{L(Z_{ij} + \epsilon) - L(Z_{ij} - \epsilon)}{2 \epsilon}
#
# That takes two forward passes *an entry*, which is why nobody trains so. As a judge it is perfect.


def agree(name, by_hand, loss, array):
    """Hold a gradient by hand to central differences of `loss`, which reads `array`."""
    error = relative_error(by_hand, central_differences(loss, array)).max()
    print(f"{name}: {by_hand.shape}, farthest relative error {error:.0e}")
    assert error < 1e-5


# %%
# Step 1: the weighted sum
# ------------------------
# A product, :math:`O_{ij} = \sum_k A_{ik} V_{kj}`. The entry :math:`A_{ik}` meets every :math:`O_{ij}` of its row, with
# the factor :math:`V_{kj}`. Collecting what it does to the loss,
#
# .. math::
#
#    dA_{ik} = \sum_j dO_{ij} V_{kj}, \quad\text{so}\quad dA = dO\, V^\top
#    \qquad\text{and likewise}\qquad dV = A^\top dO

dO = G
dA = dO @ V.T
dV = A.T @ dO
agree("dA", dA, lambda: float(np.sum((A @ V) * G)), A)
agree("dV", dV, lambda: float(np.sum((A @ V) * G)), V)

# %%
# Step 2: the softmax
# -------------------
# In one row, :math:`a_j = e^{s_j} / \sum_k e^{s_k}`. Raising :math:`s_k` raises :math:`a_k` and takes from all others:
#
# .. math::
#
#    \frac{\partial a_j}{\partial s_k} = a_j\,([j = k] - a_k)
#    \qquad\Rightarrow\qquad
#    ds_k = \sum_j da_j\, \frac{\partial a_j}{\partial s_k} = a_k \Bigl(da_k - \sum_j a_j\, da_j\Bigr)
#
# In words: a key gains as far as it is worth more than the average key, and in proportion to the attention that it
# already gets. The average is over the weights :math:`a_j`, so each row of :math:`dS` sums to zero: attention can only
# be moved, not made.

dS = A * (dA - (A * dA).sum(axis=-1, keepdims=True))
agree("dS", dS, lambda: float(np.sum((softmax(S) @ V) * G)), S)
assert np.allclose(dS.sum(axis=-1), 0)

# %%
# Step 3: the logits
# ------------------
# :math:`S` is a product again, with a number in front.
#
# .. math:: dQ = \tfrac{1}{\sqrt{h_s}}\, dS\, K \qquad dK = \tfrac{1}{\sqrt{h_s}}\, dS^\top Q

dQ = scale * dS @ K
dK = scale * dS.T @ Q
agree("dQ", dQ, lambda: float(np.sum((softmax(scale * Q @ K.T) @ V) * G)), Q)
agree("dK", dK, lambda: float(np.sum((softmax(scale * Q @ K.T) @ V) * G)), K)

# %%
# Step 4: the projections
# -----------------------
# Three products more. :math:`X` feeds all three of them, so it collects from all three:
#
# .. math::
#
#    dW_q = X^\top dQ \qquad dW_k = X^\top dK \qquad dW_v = X^\top dV \qquad
#    dX = dQ\, W_q^\top + dK\, W_k^\top + dV\, W_v^\top


def loss():
    """From the start."""
    return float(np.sum((softmax(scale * (X @ Wq) @ (X @ Wk).T) @ (X @ Wv)) * G))


dX = dQ @ Wq.T + dK @ Wk.T + dV @ Wv.T
agree("dWq", X.T @ dQ, loss, Wq)
agree("dWk", X.T @ dK, loss, Wk)
agree("dWv", X.T @ dV, loss, Wv)
agree("dX", dX, loss, X)

# %%
# The same as a layer
# -------------------
# ``SelfAttention`` holds these lines, with a batch in front: :math:`W` serves every sequence, so its gradient sums over
# them. Given our weights, it gives our gradients.

layer = SelfAttention(C, hs)
layer.Wq, layer.Wk, layer.Wv = Wq, Wk, Wv
assert np.allclose(layer.forward(X[None])[0], O)
assert np.allclose(layer.backward(G[None])[0], dX)
assert np.allclose(layer.dWq, X.T @ dQ)
assert np.allclose(layer.dWk, X.T @ dK)
assert np.allclose(layer.dWv, X.T @ dV)

# %%
# Ten steps downhill
# ------------------
# Random data, random targets :math:`Y`, the loss :math:`\tfrac12 \mathrm{mean}((O - Y)^2)`, and plain gradient descent.


def train(frozen=(), accumulate=False):
    """The loss before each of ten steps.

    frozen: names of weights that stay
    accumulate: add gradients up, as if nobody called `zero_grad`
    """
    np.random.seed(0)
    X, Y = np.random.randn(2, 5, 8), np.random.randn(2, 5, 4)
    layer, losses, piled = SelfAttention(8, 4), [], {}
    for _ in range(10):
        out = layer.forward(X)
        losses.append(float(0.5 * np.mean((out - Y) ** 2)))
        layer.zero_grad()
        layer.backward((out - Y) / out.size)
        for name in ("Wq", "Wk", "Wv"):
            gradient = getattr(layer, f"d{name}")
            if accumulate:
                gradient = piled[name] = piled.get(name, 0) + gradient
            if name not in frozen:
                setattr(layer, name, getattr(layer, name) - 0.5 * gradient)
    return losses


losses = train()
print("loss:", *(f"{loss:.4f}" for loss in losses))
assert losses == sorted(losses, reverse=True)

# %%
# Exercise 1: a bigger layer
# --------------------------
# *Take the gradient check to B, T, C, hs = 3, 7, 16, 8. Does every entry still agree to* :math:`10^{-5}` *?*
#
# **Answer.** Not for every draw of the numbers, and the layer is not to blame. Central differences have an *absolute*
# error of about :math:`10^{-10}`: the loss is rounded, and the division by :math:`2 \epsilon` blows that up. Beside an
# entry near zero even this is a large *relative* error. A bigger layer has more entries, so more that happen to lie
# near zero. Every dot below is one entry of a gradient: the smaller it is, the larger its relative error, along a line.


def checked(B, T, C, hs, seed):
    """Gradients by hand, and by differences.    returns: two of (3, C, hs)"""
    np.random.seed(seed)
    X, G = np.random.randn(B, T, C), np.random.randn(B, T, hs)
    layer = SelfAttention(C, hs)
    layer.forward(X)
    layer.backward(G)

    def loss():
        return float(np.sum(layer.forward(X) * G))

    by_hand = np.stack([layer.dWq, layer.dWk, layer.dWv])
    weights = (layer.Wq, layer.Wk, layer.Wv)
    by_nudging = np.stack([central_differences(loss, W) for W in weights])
    return by_hand, by_nudging


sizes = {"2, 5, 8, 4": (2, 5, 8, 4), "3, 7, 16, 8": (3, 7, 16, 8)}
drawn = {name: [checked(*size, seed) for seed in range(50)] for name, size in sizes.items()}

above = {}
for name, runs in drawn.items():
    above[name] = sum(relative_error(*run).max() > 1e-5 for run in runs)
    absolute = max(np.abs(by_hand - by_nudging).max() for by_hand, by_nudging in runs)
    overall = max(relative_to_largest(*run) for run in runs)
    print(f"B, T, C, hs = {name}")
    print(f"  draws with an entry off by more than 1e-5: {above[name]} of {len(runs)}")
    print(f"  worst error {absolute:.0e}, relative to the largest entry {overall:.0e}")
    assert absolute < 1e-9
    assert overall < 1e-7

assert above["3, 7, 16, 8"] > above["2, 5, 8, 4"]

# sphinx_gallery_start_ignore
figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
for (name, runs), colour, marker in zip(drawn.items(), (BLUE, ORANGE), ("s", "o"), strict=True):
    by_hand, by_nudging = (np.concatenate([part.ravel() for part in parts]) for parts in zip(*runs, strict=True))
    error = relative_error(by_hand, by_nudging)
    ax.loglog(np.abs(by_hand), error, marker, markersize=2.5, color=colour, alpha=0.5, label=f"B, T, C, hs = {name}")
ax.axhline(1e-5, color="black", linestyle=":", label="$10^{-5}$")
ax.set(xlabel="size of the entry", ylabel="its relative error", title="small entries, large relative errors")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, markerscale=3)
# sphinx_gallery_end_ignore

# %%
# So a big layer is judged by its error relative to the *largest* entry
# (:func:`attnzoo.oracle.relative_to_largest`). That forgives the rounding, and would not forgive a mistake: a forgotten
# scale is off by a factor.
#
# Exercise 2: freeze Wv
# ---------------------
# *Train again, but leave* :math:`W_v` *as it is. What happens to the loss?*
#
# **Answer.** To four digits, nothing.

frozen = train(frozen=("Wv",))
print("loss:", *(f"{loss:.4f}" for loss in frozen))
assert frozen[0] - frozen[-1] < 1e-4 * (losses[0] - losses[-1])

# %%
# :math:`W_q` and :math:`W_k` do get gradients, but tiny ones. Look at steps 1 and 3: :math:`dA = dO\,V^\top` carries
# the factor :math:`V`, and :math:`dQ` carries :math:`K` besides. With weights of size :math:`\sigma` that is
# :math:`\sigma^2`, and :math:`\sigma` is 0.02 in a fresh layer; :math:`dV = A^\top dO` has no such factor. Queries and
# keys only share out what the values provide, and the fresh values provide nothing worth sharing. Measured, for
# weights from small to large:

sigmas = np.array([0.002, 0.005, 0.01, 0.02, 0.05])
sizes_of = {"dWq": [], "dWk": [], "dWv": []}
np.random.seed(0)
X, Y = np.random.randn(2, 5, 8), np.random.randn(2, 5, 4)
for sigma in sigmas:
    layer = SelfAttention(8, 4)
    for name in ("Wq", "Wk", "Wv"):
        setattr(layer, name, getattr(layer, name) * sigma / 0.02)
    out = layer.forward(X)
    layer.backward((out - Y) / out.size)
    for name, found in sizes_of.items():
        found.append(float(np.linalg.norm(getattr(layer, name))))

for name, power in {"dWq": 2, "dWk": 2, "dWv": 0}.items():
    slope = np.polyfit(np.log(sigmas), np.log(sizes_of[name]), 1)[0]
    print(f"size of {name} at 0.02: {sizes_of[name][3]:.1e}, grows as sigma ** {slope:.2f}")
    assert abs(slope - power) < 0.05

# sphinx_gallery_start_ignore
figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2), layout="constrained")
left.plot(losses, "o-", color=BLUE, label="all weights")
left.plot(frozen, "s-", color=ORANGE, label="Wv frozen")
left.set_title("ten steps", fontsize=10)
left.set(xlabel="step", ylabel="loss")
for (name, found), colour, marker in zip(sizes_of.items(), (ORANGE, GREEN, BLUE), "s^o", strict=True):
    right.loglog(sigmas, found, f"{marker}-", color=colour, label=name)
right.set_title("size of the first gradients", fontsize=10)
right.set(xlabel="size of the weights")
right.set_xticks(sigmas, [f"{sigma:g}" for sigma in sigmas], fontsize=9)
right.minorticks_off()
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9)
# sphinx_gallery_end_ignore

# %%
# Exercise 3: zero_grad
# ---------------------
# *In torch, a training loop that forgets* ``zero_grad`` *goes wrong. Does this layer need it? And what exactly goes
# wrong?*
#
# **Answer.** Here ``backward`` sets the gradients; a second call gives the same ones, not twice as much. ``zero_grad``
# only forgets them, so that a step without a ``backward`` before it fails, and does not reuse old ones.

layer = SelfAttention(8, 4)
layer.backward(layer.forward(X))
once = layer.dWv.copy()
layer.backward(layer.forward(X))
assert np.array_equal(layer.dWv, once)
layer.zero_grad()
assert layer.dWv is None

# %%
# torch adds to what is there, so that several small batches can make up one large one. Without ``zero_grad`` each step
# then follows the sum of *all* gradients since the start. That is momentum without friction,
# :math:`v_{n+1} = v_n + g_n`: fast at first, and then it cannot stop where the loss is lowest.

piled_up = train(accumulate=True)
print("gradients of this step    :", *(f"{loss:.4f}" for loss in losses))
print("all gradients so far added:", *(f"{loss:.4f}" for loss in piled_up))

assert piled_up[3] < losses[3]  # at first it is faster,
assert piled_up[-1] > min(piled_up)  # and it overshoots
