"""
Every shape on the way
======================

``viz.trace`` follows one real call of a layer and tells each step: its shape, the spread of its numbers, the parameters
and the work that it took, and the line of code. The steps inside the kernel, which never shows them, are taken again
and held against the real output; the last line says how well they agree. (In the shell: ``attnzoo trace mha``.)
"""

import torch
from matplotlib import pyplot as plt

import attnzoo
from attnzoo import viz

torch.manual_seed(0)
layer = attnzoo.build("gqa", d_model=64, heads=8, kv_heads=2)
trace = viz.trace(layer, torch.randn(1, 32, 64))
print(trace)
assert trace.proven

# %%
# Where the work goes, as sequences grow: the projections grow with the number of tokens, the two products of attention
# with its square.

lengths = (32, 128, 512)
figure, axes = plt.subplots(1, 3, figsize=(7.6, 2.9), layout="constrained", sharey=True)
for ax, length in zip(axes, lengths, strict=True):
    steps = [step for step in viz.trace(layer, torch.randn(1, length, 64)).steps if step.flops]
    ax.barh([step.name for step in steps], [step.flops / 1e6 for step in steps], color="#0072b2")
    ax.set_title(f"{length} tokens", fontsize=10)
    ax.set_xlabel("million operations", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].invert_yaxis()

spent = [{step.name: step.flops for step in viz.trace(layer, torch.randn(1, n, 64)).steps} for n in lengths]
assert [work["qkv: Linear"] / spent[0]["qkv: Linear"] for work in spent] == [1, 4, 16]
assert [work["weights · v"] / spent[0]["weights · v"] for work in spent] == [1, 4**2, 16**2]
