"""Recurrent networks and transformers for sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from benchmarks.diagnosis.healthy.data import batches, fit, sentences, waves
from benchmarks.diagnosis.healthy.registered import healthy


class _Last(nn.Module):
    """A recurrent network whose last state gives the answer."""

    def __init__(self, recurrent: nn.Module, outputs: int) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.head = nn.Linear(recurrent.hidden_size, outputs)

    def forward(self, x):
        return self.head(self.recurrent(x)[0][:, -1])


@healthy("GRU that forecasts, Adam, full clipping")
def gru(seed=0, steps=160):
    torch.manual_seed(seed)
    model = _Last(nn.GRU(1, 32, batch_first=True), 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for x, y in batches(*waves(), steps=steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("tanh RNN that forecasts, RMSprop")
def tanh_rnn(seed=0, steps=160):
    torch.manual_seed(seed)
    model = _Last(nn.RNN(1, 32, batch_first=True), 1)
    return fit(
        model, torch.optim.RMSprop(model.parameters(), lr=1e-3), waves(), steps, loss_fn=F.mse_loss
    ), model


@healthy("LSTM over a stream: the state is carried on and detached", falls_to=0.8)
def truncated(seed=0, steps=180):
    torch.manual_seed(seed)
    embedding, lstm, head = nn.Embedding(12, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 12)
    model = nn.ModuleDict({"embedding": embedding, "lstm": lstm, "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    stream = (torch.arange(40_000) ** 2 // 7 % 12).view(8, -1)
    state, losses = None, []
    for step in range(steps):
        chunk = stream[:, step * 16 : step * 16 + 17]
        out, state = lstm(embedding(chunk[:, :-1]), state)
        state = tuple(each.detach() for each in state)
        loss = F.cross_entropy(head(out).flatten(0, 1), chunk[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses, model


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16, padding_idx=0)
        self.gru = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 4)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        _, state = self.gru(packed)
        return self.head(torch.cat([state[0], state[1]], 1))


@healthy("bidirectional GRU over packed sentences, Adam")
def packed(seed=0, steps=180):
    torch.manual_seed(seed)
    x, y = sentences()
    lengths = torch.randint(8, 13, (len(x),))
    x = x.masked_fill(torch.arange(12) >= lengths[:, None], 0)
    model = _Packed()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for words, labels, sizes in batches(x, y, lengths, steps=steps):
        loss = F.cross_entropy(model(words, sizes), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


class _Encoder(nn.Module):
    def __init__(self, words: int, outputs: int, width: int = 32, norm_first: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.position = nn.Parameter(0.1 * torch.randn(1, 32, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x, padding=None):
        h = self.embedding(x) + self.position[:, : x.shape[1]]
        h = self.encoder(h, src_key_padding_mask=padding)
        if padding is None:
            return self.head(h.mean(1))
        keep = (~padding).unsqueeze(-1)
        return self.head((h * keep).sum(1) / keep.sum(1))


@healthy("transformer encoder with a padding mask, post-norm, Adam, inverse square root schedule")
def padded(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = sentences()
    lengths = torch.randint(7, 13, (len(x), 1))
    model = _Encoder(30, 4, norm_first=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / 20, (20 / (n + 1)) ** 0.5)
    )
    losses = []
    for words, labels, size in batches(x, y, lengths, steps=steps):
        loss = F.cross_entropy(model(words, torch.arange(12) >= size), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, model


@healthy("masked language model: most labels ignored", falls_to=0.9)
def masked(seed=0, steps=220):
    torch.manual_seed(seed)
    start, stride = torch.randint(0, 29, (640, 1)), torch.randint(1, 3, (640, 1))
    rows = (start + stride * torch.arange(12)) % 29 + 1
    model = _Encoder(31, 1)
    model.head = nn.Linear(32, 31)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for (row,) in batches(rows, steps=steps):
        hidden = torch.rand(row.shape) < 0.2
        hidden[:, 3] = True
        h = model.embedding(row.masked_fill(hidden, 30)) + model.position[:, :12]
        loss = F.cross_entropy(
            model.head(model.encoder(h)).flatten(0, 1), row.masked_fill(~hidden, -100).flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


class _Translator(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.position = nn.Parameter(0.1 * torch.randn(1, 12, width))
        self.transformer = nn.Transformer(width, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(width, 20)
        self.out.weight = self.embedding.weight

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        a = self.embedding(source) + self.position[:, : source.shape[1]]
        b = self.embedding(target) + self.position[:, : target.shape[1]]
        return self.out(self.transformer(a, b, tgt_mask=mask, tgt_is_causal=True))


@healthy("encoder and decoder with tied embeddings that copy backwards, AdamW", falls_to=0.8)
def translation(seed=0, steps=220):
    torch.manual_seed(seed)
    source = torch.randint(1, 20, (640, 8))
    target = torch.cat([torch.zeros(640, 1, dtype=torch.long), source.flip(1)], 1)
    model = _Translator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for a, b in batches(source, target, steps=steps):
        loss = F.cross_entropy(model(a, b[:, :-1]).flatten(0, 1), b[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("causal language model by scaled_dot_product_attention, rows of one batch size, AdamW")
def sdpa(seed=0, steps=180):
    torch.manual_seed(seed)
    start, stride = torch.randint(0, 24, (640, 1)), torch.randint(1, 4, (640, 1))
    rows = (start + stride * torch.arange(13)) % 24
    tokens, places = nn.Embedding(24, 32), nn.Embedding(12, 32)
    qkv, proj, norm, head = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 24)
    model = nn.ModuleList([tokens, places, qkv, proj, norm, head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    losses = []
    for (row,) in batches(rows, steps=steps):
        x = tokens(row[:, :-1]) + places(torch.arange(12))
        q, k, v = qkv(x).view(len(row), 12, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(len(row), 12, 32)
        loss = F.cross_entropy(head(norm(x + proj(y))).flatten(0, 1), row[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("temporal convolutions, Adagrad")
def temporal(seed=0, steps=180):
    torch.manual_seed(seed)
    x, y = waves()
    model = nn.Sequential(
        nn.Conv1d(1, 16, 3, dilation=1), nn.ReLU(), nn.Conv1d(16, 16, 3, dilation=2), nn.ReLU(),
        nn.Conv1d(16, 16, 3, dilation=4), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(64, 1),
    )  # fmt: skip
    data = (x.transpose(1, 2), y)
    return fit(
        model, torch.optim.Adagrad(model.parameters(), lr=2e-2), data, steps, loss_fn=F.mse_loss
    ), model


@healthy("CTC loss over a bidirectional LSTM, Adam")
def ctc(seed=0, steps=160):
    torch.manual_seed(seed)
    target = torch.randint(1, 6, (320, 4))
    x = F.one_hot(target.repeat_interleave(4, 1), 6).float() + 0.3 * torch.randn(320, 16, 6)
    lstm, head = nn.LSTM(6, 24, batch_first=True, bidirectional=True), nn.Linear(48, 6)
    model = nn.ModuleList([lstm, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for signal, label in batches(x, target, steps=steps):
        scores = head(lstm(signal)[0]).log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(scores, label, torch.full((32,), 16), torch.full((32,), 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model
