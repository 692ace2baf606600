"""From token ids to vectors: the front of a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnzoo.errors import ConfigError, InputError, did_you_mean

POSITIONS = ("learned", "sinusoidal")


class TokenEmbedding(nn.Module):
    """Token vectors plus position vectors, learned or sinusoidal (arXiv:1706.03762, section 3.5).

    >>> TokenEmbedding(100, 8, max_seq_len=16)(torch.tensor([[5, 1, 99]])).shape
    torch.Size([1, 3, 8])

    ids: (b, t), integers    returns: (b, t, c), in the dtype of the token table
    offset: the position of the first id, for decoding after a prompt
    Raises `ConfigError` for sizes or a kind of positions that cannot be; `InputError` for ids of another rank or
    type, beyond the vocabulary, or longer than `max_seq_len`.
    """

    def __init__(self, vocab_size: int, d_model: int, max_seq_len: int, positions: str = "learned") -> None:
        super().__init__()
        for word, number in dict(vocab_size=vocab_size, d_model=d_model, max_seq_len=max_seq_len).items():
            if number < 1:
                raise ConfigError(f"{word} must be above 0; got {number}")
        if positions not in POSITIONS:
            raise ConfigError(
                f"unknown positions {positions!r}; it takes {' or '.join(map(repr, POSITIONS))}"
                f"{did_you_mean(positions, POSITIONS)}"
            )
        if positions == "sinusoidal" and d_model % 2:
            raise ConfigError(f"sinusoidal positions need an even d_model; got {d_model}")
        self.max_seq_len = max_seq_len
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_seq_len, d_model) if positions == "learned" else None

    def forward(self, ids: Tensor, *, offset: int = 0) -> Tensor:
        self._check(ids, offset)
        index = torch.arange(offset, offset + ids.shape[1], device=ids.device)
        tokens: Tensor = self.tokens(ids)
        if self.positions is not None:
            where: Tensor = self.positions(index)
        else:
            where = sinusoids(index, tokens.shape[-1]).to(tokens.dtype)
        return tokens + where

    def _check(self, ids: Tensor, offset: int) -> None:
        if ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
            raise InputError(f"ids must be integers of shape (b, t); got {ids.dtype} of shape {tuple(ids.shape)}")
        if ids.device != self.tokens.weight.device:
            raise InputError(f"ids are on {ids.device}, the token table on {self.tokens.weight.device}")
        if offset < 0 or offset + ids.shape[1] > self.max_seq_len:
            raise InputError(
                f"ids of {ids.shape[1]} tokens from position {offset} on do not fit max_seq_len ({self.max_seq_len})"
            )
        # On an accelerator this look would wait for the device, and the kernel itself stops at a bad id.
        if ids.device.type == "cpu" and ids.numel():
            low, high, size = int(ids.min()), int(ids.max()), self.tokens.num_embeddings
            if low < 0 or high >= size:
                raise InputError(f"ids run from {low} to {high}; the vocabulary has 0 to {size - 1}")


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """sin and cos of `p / 10000 ** (2 i / width)` in channels 2 i and 2 i + 1, in float64 (arXiv:1706.03762).

    positions: (t,)    returns: (t, width), width even
    """
    channel = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    angle = positions[:, None] * 10000.0 ** -(channel / width)  # (t, width / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
