"""Speech-like frames to letters: convolution, packed bidirectional GRU, CTC, one cycle of the rate."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

LETTERS = 10  # the blank is 0
BANDS = 20
STRIDE = 2


class Utterances(Dataset):
    """A few letters each. A letter sounds for 4 to 7 frames, in bands of its own."""

    def __init__(self, count: int, voices: torch.Tensor) -> None:
        self.texts = [torch.randint(1, LETTERS + 1, (int(torch.randint(3, 8, ())),)) for _ in range(count)]
        self.energies = [self.speak(text, voices) for text in self.texts]
        every = torch.cat(self.energies).log()
        self.mean, self.std = every.mean(dim=0), every.std(dim=0)

    @staticmethod
    def speak(text: torch.Tensor, voices: torch.Tensor) -> torch.Tensor:
        """Energy in each band over time, as squared magnitudes are: from 10 to millions."""
        lengths = torch.randint(4, 8, (len(text),))
        sound = torch.repeat_interleave(voices[text], lengths, dim=0)
        return torch.exp(8 + 1.6 * sound + 0.8 * torch.randn_like(sound))

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index):
        features = (self.energies[index].log() - self.mean) / self.std
        return features, self.texts[index]


def collate(rows):
    features, texts = zip(*rows, strict=True)
    lengths = torch.tensor([len(one) for one in features])
    sizes = torch.tensor([len(one) for one in texts])
    return pad_sequence(list(features), batch_first=True), lengths, torch.cat(texts), sizes


class Listener(nn.Module):
    def __init__(self, width: int = 48, dropout: float = 0.15) -> None:
        super().__init__()
        self.conv = nn.Conv1d(BANDS, width, kernel_size=5, stride=STRIDE, padding=2)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, LETTERS + 1)

    def forward(self, features, lengths):
        x = torch.relu(self.norm(self.conv(features.transpose(1, 2))))
        x = self.dropout(x).transpose(1, 2)
        lengths = (lengths + STRIDE - 1) // STRIDE
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        scores = self.head(self.dropout(hidden))
        return scores.transpose(0, 1).log_softmax(dim=2), lengths  # time first, as CTC wants it


def decode(log_probs, lengths):
    """The best letter of each frame, repeats and blanks dropped."""
    best = log_probs.argmax(dim=2).T
    texts = []
    for frames, length in zip(best, lengths.tolist(), strict=True):
        letters = torch.unique_consecutive(frames[:length])
        texts.append(letters[letters > 0])
    return texts


def evaluate(model, loader, criterion):
    model.eval()
    total, exact = 0.0, 0
    with torch.no_grad():
        for features, lengths, texts, sizes in loader:
            log_probs, frames = model(features, lengths)
            total += criterion(log_probs, texts, frames, sizes).item()
            wanted = texts.split(sizes.tolist())
            exact += sum(map(torch.equal, decode(log_probs, frames), wanted))
    return total / len(loader), exact


def train_epoch(model, loader, criterion, optimizer, scheduler, losses, steps):
    model.train()
    for features, lengths, texts, sizes in loader:
        if len(losses) >= steps:
            return
        optimizer.zero_grad()
        log_probs, frames = model(features, lengths)
        loss = criterion(log_probs, texts, frames, sizes)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())


def main(seed: int = 0, steps: int = 240):
    torch.manual_seed(seed)
    voices = torch.randn(LETTERS + 1, BANDS)
    train_set, val_set = Utterances(960, voices), Utterances(96, voices)
    train_loader = DataLoader(train_set, batch_size=16, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(val_set, batch_size=32, collate_fn=collate)
    model = Listener()
    criterion = nn.CTCLoss(blank=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps + 1)
    losses: list[float] = []
    while len(losses) < steps:
        train_epoch(model, train_loader, criterion, optimizer, scheduler, losses, steps)
        evaluate(model, val_loader, criterion)
    return losses, model
