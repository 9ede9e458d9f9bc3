"""An LSTM that tags words: padded batches, packed sequences, ignored padding, Adam, a step schedule."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

WORDS, TAGS, PAD, IGNORE = 60, 6, 0, -100


class Sentences(Dataset):
    """The tag of a word depends on the word and on the one before it."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        table = torch.randint(0, TAGS, (WORDS, 3), generator=torch.Generator().manual_seed(7))
        self.items = []
        for _ in range(count):
            length = int(torch.randint(5, 18, (), generator=generator))
            words = torch.randint(1, WORDS, (length,), generator=generator)
            before = torch.cat([torch.zeros(1, dtype=torch.long), words[:-1]]) % 3
            self.items.append((words, table[words, before]))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int):
        return self.items[index]


def collate(items):
    words, tags = zip(*items, strict=True)
    lengths = torch.tensor([len(each) for each in words])
    return (
        pad_sequence(words, batch_first=True, padding_value=PAD),
        pad_sequence(tags, batch_first=True, padding_value=IGNORE),
        lengths,
    )


class Tagger(nn.Module):
    def __init__(self, width: int = 32, hidden: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.dropout = nn.Dropout(0.1)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.classifier = nn.Linear(2 * hidden, TAGS)

    def forward(self, words, lengths):
        x = self.dropout(self.embedding(words))
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return self.classifier(out)


def validate(model, loader, criterion):
    model.eval()
    with torch.no_grad():
        values = [criterion(model(w, n).flatten(0, 1), t.flatten()).item() for w, t, n in loader]
    model.train()
    return sum(values) / len(values)


def main(seed: int = 0, steps: int = 180):
    torch.manual_seed(seed)
    loader = DataLoader(Sentences(960, seed), batch_size=16, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(Sentences(96, seed + 500), batch_size=32, collate_fn=collate)
    model = Tagger()
    criterion = nn.CrossEntropyLoss(ignore_index=IGNORE)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    losses = []
    model.train()
    while len(losses) < steps:
        for words, tags, lengths in loader:
            logits = model(words, lengths)
            loss = criterion(logits.flatten(0, 1), tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            losses.append(loss.item())
            if len(losses) >= steps:
                break
        scheduler.step()
        validate(model, val_loader, criterion)
    return losses, model
