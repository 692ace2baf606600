"""Layers that project with one fused weight: the bases of variants that differ from plain attention by a term."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import Unpack

from attnzoo.ops.heads import project_qkv, project_turned_qkv
from attnzoo.ops.layer import AttentionLayer
from attnzoo.ops.options import Conduct, Options
from attnzoo.ops.rope import Layout, Rotary


class GroupedLayer(AttentionLayer):
    """Grouped-query attention by one projection in, `qkv` with its rows [all q | all k | all v], and one back, `out`.

    kv_heads: as many as `heads` where not given
    """

    def __init__(
        self,
        d_model: int,
        heads: int = 1,
        kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        bias: bool = False,
        **conduct: Unpack[Conduct],
    ) -> None:
        super().__init__(d_model=d_model, heads=heads, kv_heads=kv_heads, head_dim=head_dim, **conduct)
        self.qkv = nn.Linear(d_model, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=bias)
        self.out = nn.Linear(self.heads * self.head_dim, d_model, bias=bias)

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        return project_qkv(self.qkv, x, context, heads=self.heads, kv_heads=self.kv_heads)


class RotaryLayer(GroupedLayer):
    """The same with rotary positions: q'_i = R(p) q_i, k'_j = R(p) k_j (arXiv:2104.09864, section 3.2).

    theta: the base of the angles    layout: "half" (Llama, NeoX) or "interleaved" (GPT-J)
    rotary_dim: how many channels of a head turn, all if None
    """

    takes_context = False
    takes_positions = True

    def __init__(
        self,
        d_model: int,
        heads: int = 1,
        kv_heads: int | None = None,
        *,
        theta: float = 10000.0,
        layout: Layout = "half",
        rotary_dim: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(d_model, heads, kv_heads, **options)
        self.rotary = Rotary(self.head_dim, theta=theta, layout=layout, rotary_dim=rotary_dim)

    def project(
        self, x: Tensor, context: Tensor | None = None, *, positions: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        sizes = dict(heads=self.heads, kv_heads=self.kv_heads)
        return project_turned_qkv(self.qkv, self.rotary, x, **sizes, positions=positions, offset=offset)
