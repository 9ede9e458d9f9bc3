"""Small models of tokens, healthy or with one fault, and loops that train them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["TOKENS", "Attention", "Encoder", "TinyGPT", "padded", "text", "train_classifier", "train_gpt"]

TOKENS = 40
WIDTH = 32
LENGTH = 16


class Attention(nn.Module):
    """Self-attention that may look ahead by `ahead` places."""

    def __init__(self, ahead: int = 0) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ahead = ahead

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(self.ahead)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, ahead: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention(ahead)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class TinyGPT(nn.Module):
    def __init__(self, *, ahead: int = 0, layers: int = 2, positions: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH) if positions else None
        self.blocks = nn.Sequential(*(Block(ahead) for _ in range(layers)))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.blocks(x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Classifies padded texts; token 0 is padding. `mask`: "right", "none" or "inverted"."""

    def __init__(self, mask: str = "right", *, positions: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH, padding_idx=0)
        self.positions = nn.Embedding(LENGTH, WIDTH) if positions else None
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 2)
        self.mask = mask

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1]))
        is_padding = tokens == 0
        hidden = {"right": is_padding, "none": None, "inverted": ~is_padding}[self.mask]
        x = self.encoder(x, src_key_padding_mask=hidden)
        real = (~is_padding).unsqueeze(-1)
        return self.head((x * real).sum(1) / real.sum(1))  # type: ignore[no-any-return]


def text(rows: int = 16, length: int = LENGTH) -> Tensor:
    """A text with a rule in it: each token follows from the two before it, now and then at random."""
    tokens = torch.randint(1, TOKENS, (rows, length))
    for place in range(2, length):
        follows = (tokens[:, place - 1] * 3 + tokens[:, place - 2]) % (TOKENS - 1) + 1
        tokens[:, place] = torch.where(torch.rand(rows) < 0.8, follows, tokens[:, place])
    return tokens


def padded(rows: int = 16) -> Tensor:
    """Texts of 6 to 12 tokens, with padding behind them."""
    tokens = text(rows)
    lengths = torch.randint(6, 13, (rows, 1))
    return tokens * (torch.arange(LENGTH) < lengths)


def train_gpt(model: nn.Module, steps: int = 30) -> None:
    """Next-token prediction, as it should be."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        tokens = text()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, TOKENS), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_classifier(model: nn.Module, steps: int = 30) -> None:
    """Does the text begin with a token from the first half of the vocabulary?"""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        tokens = padded()
        loss = F.cross_entropy(model(tokens), (tokens[:, 0] < TOKENS // 2).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
