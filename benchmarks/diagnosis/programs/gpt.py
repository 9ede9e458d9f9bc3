"""A small GPT on a synthetic language: tied embeddings, decay groups, warm-up and cosine, clipping."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 32
BLOCK = 32


def write_text(count: int, generator: torch.Generator) -> torch.Tensor:
    """A text of words; the next word depends on the last one, the letters on the word."""
    words = [torch.randint(1, VOCABULARY, (n,), generator=generator) for n in (3, 4, 4, 5, 5, 6, 6, 7)]
    following = torch.stack([torch.randperm(len(words), generator=generator)[:3] for _ in words])
    pieces, word = [], 0
    while sum(map(len, pieces)) < count:
        pieces.append(torch.cat([words[word], torch.zeros(1, dtype=torch.long)]))
        word = int(following[word, int(torch.randint(0, 3, (), generator=generator))])
    return torch.cat(pieces)[:count]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(BLOCK, BLOCK)).bool())

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(~self.mask[:time, :time], float("-inf"))
        y = scores.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, width: int = 48, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, width)
        self.wpe = nn.Embedding(BLOCK, width)
        self.h = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._init)
        self.lm_head.weight = self.wte.weight

    def _init(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens, targets=None):
        positions = torch.arange(tokens.shape[1])
        x = self.wte(tokens) + self.wpe(positions)
        for layer in self.h:
            x = layer(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))
        return logits, loss


def get_batch(text, size: int = 16):
    starts = torch.randint(0, len(text) - BLOCK - 1, (size,))
    chunk = torch.stack([text[i : i + BLOCK + 1] for i in starts])
    return chunk[:, :-1], chunk[:, 1:]


def configure(model, rate: float = 3e-3):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


def main(seed: int = 0, steps: int = 200):
    torch.manual_seed(seed)
    text = write_text(20_000, torch.Generator().manual_seed(seed))
    train_text, val_text = text[:18_000], text[18_000:]
    model = GPT()
    optimizer = configure(model)
    warmup = steps // 10

    def rate(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    for step in range(steps):
        model.train()
        x, y = get_batch(train_text)
        _, loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            model.eval()
            with torch.no_grad():
                sum(model(*get_batch(val_text))[1].item() for _ in range(4)) / 4
    return losses, model
