"""
Who may see whom
================

The rule alone, without weights: ``viz.mask`` asks the layer itself, so the picture shows the mask that the layer
applies, not the one that somebody meant to pass.
"""

import torch

import attnzoo
from attnzoo import viz

torch.manual_seed(0)
layer = attnzoo.build("mha", d_model=32, heads=4)
x = torch.randn(1, 8, 32)
viz.mask(layer, x, name="causal")

# %%
# Masks meet. Causality, padding on the left (the first two tokens are no tokens), and a band of three keys together.
# Queries 0 and 1 can see nothing, and their output is zero.

padding = torch.tensor([[False, False, True, True, True, True, True, True]])
i, j = torch.arange(8)[:, None], torch.arange(8)
band = i - j < 3
_, weights = layer(x, mask=band, key_mask=padding, need_weights=True)
assert (weights[:, :, :2] == 0).all()

viz.mask(layer, x, mask=band, key_mask=padding, name="causal, padded, three wide")

# %%
# Heads may have rules of their own. With four axes the mask is (b, h, t, s). Here each head looks twice as far back as
# the one before it.

reach = torch.stack([i - j < 2**head for head in range(4)])[None]  # (1, h, t, s)
viz.mask(layer, x, mask=reach, name="head n sees 2^n keys")
