r"""
Weights that are negative
=========================

Not every attention is a softmax. Differential attention (arXiv:2410.05258) takes the difference of two, to cancel what
both look at by habit. A layer of this kind may return no weights at all. But it is linear in the values,
:math:`\mathrm{mixed} = M v`, so the matrix :math:`M` can be found from outside, by feeding it one-hot values. That
*effective attention matrix* is what is drawn. It has a sign, so the colours go both ways from a near-white at zero.
"""

import torch
from torch import nn

from attnzoo import ops, viz
from attnzoo.errors import Unsupported
from attnzoo.viz.tokens import embed, words


class Difference(ops.AttentionLayer):
    """Each half of a head's channels looks for itself; the second look is subtracted."""

    variant = "difference"

    def __init__(self, d_model: int, heads: int, share: float = 0.8) -> None:
        super().__init__(d_model=d_model, heads=heads)
        self.qkv = nn.Linear(d_model, 3 * heads * self.head_dim)
        self.out = nn.Linear(heads * self.head_dim, d_model)
        self.share = share

    def project(self, x, context=None, *, positions=None, offset=0):
        return ops.project_qkv(self.qkv, x, context, heads=self.heads, kv_heads=self.heads)

    def attend(self, q, k, v, *, mask=None, key_mask=None, need_weights=False):
        if need_weights:
            raise Unsupported("difference returns no weights")
        rules = {"mask": mask, "key_mask": key_mask, "causal": self.causal}
        halves = zip(q.chunk(2, dim=-1), k.chunk(2, dim=-1), strict=True)
        first, second = (ops.attend(*half, v, **rules) for half in halves)
        return first - self.share * second


tokens = words("the cat sat because it was tired")
torch.manual_seed(0)
layer = Difference(d_model=48, heads=2)
x = 2.5 * embed(tokens, width=48)

found = viz.maps(layer, x, queries=tokens, name="difference of two softmaxes")
print("rows sum to", found.weights[0, 0].sum(axis=-1).round(3), "- that is, 1 - 0.8")
assert found.signed
assert abs(found.weights.sum(axis=-1) - 0.2).max() < 1e-5

viz.heatmap(found)
