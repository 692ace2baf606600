"""
All heads of a layer
====================

Without ``head``, each head gets a panel. All share one colour scale, so that they can be compared. Here two key-value
heads serve six query heads: heads 0 to 2 read the same keys, and heads 3 to 5 others (page
:doc:`/auto_learn/plot_5_caches` shows how to find that out).
"""

import torch

import attnzoo
from attnzoo import viz
from attnzoo.viz.tokens import embed, words

tokens = words("the animal did not cross the street because it was too tired")
torch.manual_seed(1)
layer = attnzoo.build("rope", d_model=72, heads=6, kv_heads=2)
viz.heatmap(layer, 2.5 * embed(tokens, width=72), queries=tokens, name="rope, untrained")
