r"""
What the scale does
===================

The same queries and keys under three scales. With :math:`1/\sqrt d`, a row prefers some keys and forgets none. With a
scale of 1, softmax puts nearly all weight on one key, and the gradients vanish; with one that is too small, all keys
get about the same, and a head cannot choose. (Why it is :math:`\sqrt d`: :doc:`/auto_learn/plot_2_scale_and_mask`.)
"""

import torch
from matplotlib import pyplot as plt

from attnzoo import ops, viz

d = 64
generator = torch.Generator().manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 8, d, generator=generator)  # (1, 1, t, d) each

scales = {"d ** -1": 1 / d, "d ** -0.5": d**-0.5, "1": 1.0}
figure, axes = plt.subplots(1, 3, figsize=(7.6, 3.0), layout="constrained")
for ax, (name, scale) in zip(axes, scales.items(), strict=True):
    _, weights = ops.attend(q, k, v, scale=scale, need_weights=True)
    image = ax.imshow(weights[0, 0].numpy(), vmin=0, vmax=1)
    top = weights.amax(dim=-1).mean()
    ax.set_title(f"scale = {name}\nlargest weight {top:.2f} (mean)", fontsize=9)
    ax.set(xlabel="key", ylabel="query")
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
figure.colorbar(image, ax=axes, label="weight", fraction=0.02)

# %%
# Over many draws, as the head grows wider (in the shell: ``attnzoo trace mha --scale-lesson``):

print(viz.scale_lesson())
