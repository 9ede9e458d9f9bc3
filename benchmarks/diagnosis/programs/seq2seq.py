"""A transformer that rewrites dates by letters: padding masks, teacher forcing, tied output, warm-up."""

from __future__ import annotations

import datetime
import math
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, BOS, EOS = 0, 1, 2
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 ,./-"
CODES = {letter: number for number, letter in enumerate(LETTERS, 3)}
VOCABULARY = len(LETTERS) + 3
FORMATS = ("%d %B %Y", "%b %d, %Y", "%d/%m/%Y", "%A, %d.%m.%Y", "%Y %b %d", "%B %Y")


def encode(text: str) -> torch.Tensor:
    return torch.tensor([BOS, *(CODES[letter] for letter in text.lower()), EOS])


class Dates(Dataset):
    """A date as people write it, and the same date as year-month-day; some have no day."""

    def __init__(self, count: int, seed: int) -> None:
        chance = random.Random(seed)
        self.pairs = []
        for _ in range(count):
            day = datetime.date(1990, 1, 1) + datetime.timedelta(days=chance.randrange(14000))
            style = chance.choice(FORMATS)
            answer = day.strftime("%Y-%m-%d" if "%d" in style else "%Y-%m")
            self.pairs.append((encode(day.strftime(style)), encode(answer)))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int):
        return self.pairs[index]


def collate(pairs):
    sources, targets = zip(*pairs, strict=True)
    return (
        pad_sequence(sources, batch_first=True, padding_value=PAD),
        pad_sequence(targets, batch_first=True, padding_value=PAD),
    )


class PositionalEncoding(nn.Module):
    def __init__(self, width: int, length: int = 64) -> None:
        super().__init__()
        place = torch.arange(length)[:, None]
        factor = torch.exp(torch.arange(0, width, 2) * (-math.log(1000.0) / width))
        table = torch.zeros(length, width)
        table[:, 0::2] = torch.sin(place * factor)
        table[:, 1::2] = torch.cos(place * factor)
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.shape[1]]


class Translator(nn.Module):
    def __init__(self, width: int = 48, heads: int = 3, layers: int = 1) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.positions = PositionalEncoding(width)
        self.dropout = nn.Dropout(0.05)
        self.transformer = nn.Transformer(
            width, heads, layers, layers, 2 * width, dropout=0.05, batch_first=True, norm_first=True
        )
        self.generator = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.generator.weight = self.embedding.weight

    def embed(self, tokens):
        x = self.embedding(tokens) * math.sqrt(self.width)
        return self.dropout(self.positions(x))

    def forward(self, source, target):
        source_padding = source == PAD
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        memory = self.transformer.encoder(self.embed(source), src_key_padding_mask=source_padding)
        out = self.transformer.decoder(
            self.embed(target),
            memory,
            tgt_mask=causal,
            memory_key_padding_mask=source_padding,
        )
        return self.generator(out)


class WarmupInverseSqrt:
    """The factor of the learning rate at a step."""

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup

    def __call__(self, step: int) -> float:
        step = step + 1
        return min(step / self.warmup, math.sqrt(self.warmup / step))


def compute_loss(model, criterion, source, target):
    inputs, labels = target[:, :-1], target[:, 1:]
    logits = model(source, inputs)
    return criterion(logits.flatten(0, 1), labels.flatten())


def validate(model, loader, criterion):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for source, target in loader:
            total += compute_loss(model, criterion, source, target).item()
    model.train()
    return total / len(loader)


def main(seed: int = 0, steps: int = 240):
    torch.manual_seed(seed)
    train_loader = DataLoader(Dates(1600, seed), batch_size=16, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(Dates(64, seed + 4000), batch_size=32, collate_fn=collate)
    model = Translator()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, WarmupInverseSqrt(40))
    losses = []
    best = float("inf")
    model.train()
    while len(losses) < steps:
        for source, target in train_loader:
            optimizer.zero_grad()
            loss = compute_loss(model, criterion, source, target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            if len(losses) % 60 == 0:
                best = min(best, validate(model, val_loader, criterion))
            if len(losses) >= steps:
                break
    return losses, model
