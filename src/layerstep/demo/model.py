"""A transformer small enough to read. One of its layers is at fault."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["TinyTransformer"]


class RMSNorm(nn.Module):
    """Scales each token to a root mean square of one."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        rms = (x.pow(2).mean(dim=-1, keepdim=True) + self.eps).sqrt()
        return x / rms * self.weight


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        weights = scores.masked_fill(~causal, -torch.inf).softmax(dim=-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        projected: Tensor = self.proj(mixed)
        return projected


class MLP(nn.Sequential):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    """Attention, then an MLP, each behind a norm; padding stays silent."""

    def __init__(self, width: int, heads: int, eps: float) -> None:
        super().__init__()
        self.norm1 = RMSNorm(width, eps)
        self.attn = Attention(width, heads)
        self.norm2 = RMSNorm(width, eps)
        self.mlp = MLP(width)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        x = x * keep
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class TinyTransformer(nn.Module):
    """Tokens in, logits out. Token 0 is padding."""

    def __init__(self, words: int = 64, width: int = 32, heads: int = 4, depth: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        # The planted fault: one block was built with another epsilon than the rest.
        self.blocks = nn.ModuleList(Block(width, heads, eps=0.0 if i == 1 else 1e-6) for i in range(depth))
        self.norm = RMSNorm(width, 1e-6)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        keep = (tokens != 0).unsqueeze(-1)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, keep)
        logits: Tensor = self.head(self.norm(x))
        return logits
