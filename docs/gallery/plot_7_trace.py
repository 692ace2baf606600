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
work = []
for length in lengths:
    steps = viz.trace(layer, torch.randn(1, length, 64)).steps
    work.append({step.name: step.flops for step in steps if step.flops})

for name, power in {"qkv: Linear": 1, "weights · v": 2, "out: Linear": 1}.items():
    assert [spent[name] / work[0][name] for spent in work] == [1, 4**power, 16**power]

figure, axes = plt.subplots(1, 3, figsize=(7.6, 2.9), layout="constrained", sharey=True)
for ax, length, spent in zip(axes, lengths, work, strict=True):
    ax.barh(list(spent), [flops / 1e6 for flops in spent.values()], color="#0072b2")
    ax.set_title(f"{length} tokens", fontsize=10)
    ax.set_xlabel("million operations", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].invert_yaxis()
