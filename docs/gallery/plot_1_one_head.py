"""
One head
========

Who looks at whom in one head: the weights that a layer really used, with the tokens at both sides. The layer here is
untrained, so the pattern means nothing; the picture is what matters.
"""

import torch

import attnzoo
from attnzoo import viz
from attnzoo.viz.tokens import embed, words

tokens = words("the cat sat because it was tired")
x = 2.5 * embed(tokens, width=64)  # (1, 7, 64), a random vector for each word

torch.manual_seed(0)
layer = attnzoo.build("gqa", d_model=64, heads=4, kv_heads=2)
viz.heatmap(layer, x, queries=tokens, head=1)

# %%
# A grey cell *may not* be seen: it is masked. A dark cell may be seen, and gets little. A picture that shows both in
# one colour hides the bugs of masks. A scale a hundred times too large makes the difference plain: many weights are now
# zero to the last bit, and not one of them is grey.

torch.manual_seed(0)
sharp = attnzoo.build("gqa", d_model=64, heads=4, kv_heads=2, scale=25.0)
_, weights = sharp(x, need_weights=True)
visible = torch.ones(7, 7).tril().bool()
seen_but_zero = visible & (weights[0, 1] == 0)
print("visible weights that are exactly zero:", int(seen_but_zero.sum()))
assert seen_but_zero.any()

viz.heatmap(sharp, x, queries=tokens, head=1)

# %%
# Weights from anywhere can be drawn, for instance the mean of the four heads. The figure is matplotlib's: ``savefig``
# writes it. (In the shell: ``attnzoo heatmap gqa --text "the cat sat" --out cat.png``.)

mean = weights[0].mean(dim=0)  # (t, s)
viz.heatmap(mean, queries=tokens, visible=visible, name="mean of the heads")
