"""Held-out trainings of sequences and numbers: unusual masks, targets and solvers that are right."""

from __future__ import annotations

import itertools
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.diagnosis.healthy.registered import healthy

fresh = partial(healthy, fresh=True)
VOCABULARY = 20


def walks(count: int, length: int, seed: int) -> torch.Tensor:
    """Sequences of tokens in which two tokens mostly tell the next one."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, VOCABULARY, (VOCABULARY, 4), generator=torch.Generator().manual_seed(3))
    tokens = torch.randint(0, VOCABULARY, (count, length), generator=generator)
    for place in range(2, length):
        chosen = table[tokens[:, place - 1], tokens[:, place - 2] % 4]
        sure = torch.rand(count, generator=generator) < 0.9
        tokens[:, place] = torch.where(sure, chosen, tokens[:, place])
    return tokens


def waves(count: int, length: int, seed: int) -> torch.Tensor:
    """Sine waves of different pitch, with noise."""
    generator = torch.Generator().manual_seed(seed)
    pitch = 0.2 + 0.4 * torch.rand(count, 1, generator=generator)
    phase = 6.283 * torch.rand(count, 1, generator=generator)
    clean = torch.sin(pitch * torch.arange(length) + phase)
    return clean + 0.05 * torch.randn(count, length, generator=generator)


def batches(data, size: int):
    """Batch after batch, epoch after epoch."""
    loader = DataLoader(data, batch_size=size, shuffle=True, drop_last=True)
    return itertools.chain.from_iterable(itertools.repeat(loader))


class Decoder(nn.Module):
    """Pre-norm layers that attend where a mask allows it."""

    def __init__(self, outputs: int = VOCABULARY, places: int = 0, width: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(places, width) if places else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.qkvs = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(depth))
        self.outs = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.final, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, tokens, mask, places=None):
        x = self.tokens(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1]) if places is None else places)
        for number, (qkv, out, mlp) in enumerate(zip(self.qkvs, self.outs, self.mlps, strict=True)):
            parts = qkv(self.norms[2 * number](x)).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            heard = F.scaled_dot_product_attention(*parts, attn_mask=mask)
            x = x + out(heard.transpose(1, 2).flatten(2))
            x = x + mlp(self.norms[2 * number + 1](x))
        return self.head(self.final(x))


@fresh("prefix language model: the first ten tokens see each other, the loss is on the rest", 0.8)
def prefix_lm(seed=0, steps=220):
    torch.manual_seed(seed)
    tokens = walks(800, 25, seed)
    model = Decoder(places=24)
    mask = torch.ones(24, 24, dtype=torch.bool).tril()
    mask[:10, :10] = True
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    losses = []
    for (rows,) in itertools.islice(batches(TensorDataset(tokens), 24), steps):
        logits = model(rows[:, :-1], mask)[:, 9:]
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 10:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("two heads tell the next token and the one after it, each with its own shift", 0.8)
def two_ahead(seed=0, steps=220):
    torch.manual_seed(seed)
    tokens = walks(800, 26, seed)
    model = Decoder(outputs=2 * VOCABULARY, places=24)
    mask = torch.ones(24, 24, dtype=torch.bool).tril()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for (rows,) in itertools.islice(batches(TensorDataset(tokens), 24), steps):
        near, far = model(rows[:, :-2], mask).chunk(2, dim=-1)
        loss = F.cross_entropy(near.transpose(1, 2), rows[:, 1:-1])
        loss = loss + 0.3 * F.cross_entropy(far.transpose(1, 2), rows[:, 2:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("causal attention without places: the mask alone tells the order", 0.85)
def no_places(seed=0, steps=240):
    torch.manual_seed(seed)
    tokens = walks(900, 17, seed)
    model = Decoder()
    mask = torch.ones(16, 16, dtype=torch.bool).tril()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    losses = []
    for (rows,) in itertools.islice(batches(TensorDataset(tokens), 32), steps):
        loss = F.cross_entropy(model(rows[:, :-1], mask).transpose(1, 2), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("several documents packed in one row: a mask of blocks, places that begin anew, borders ignored", 0.8)
def packed_documents(seed=0, steps=220):
    torch.manual_seed(seed)
    pieces = walks(1600, 12, seed).tolist()
    model = Decoder(places=12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        rows, owners, places = [], [], []
        for _ in range(12):
            cuts = [12, int(torch.randint(5, 12, ())), 12, int(torch.randint(5, 12, ()))]
            chosen = [
                pieces[int(number)][:cut]
                for number, cut in zip(torch.randint(0, 1600, (4,)), cuts, strict=True)
            ]
            rows.append([token for piece in chosen for token in piece][:32])
            owners.append([number for number, cut in enumerate(cuts) for _ in range(cut)][:32])
            places.append([place for cut in cuts for place in range(cut)][:32])
        tokens, owner, place = torch.tensor(rows), torch.tensor(owners), torch.tensor(places)
        mask = (owner[:, :, None] == owner[:, None]) & torch.ones(32, 32, dtype=torch.bool).tril()
        logits = model(tokens, mask[:, None], place)
        wanted = tokens[:, 1:].masked_fill(owner[:, 1:] != owner[:, :-1], -100)
        loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("Muon for the matrices and AdamW for the rest", 0.8)
def muon(seed=0, steps=200):
    torch.manual_seed(seed)
    tokens = walks(800, 17, seed)
    model = Decoder(places=16)
    mask = torch.ones(16, 16, dtype=torch.bool).tril()
    inner = [*model.qkvs.parameters(), *model.outs.parameters()]
    chosen = {id(each) for each in inner}
    rest = [each for each in model.parameters() if id(each) not in chosen]
    optimizers = [torch.optim.Muon(inner, lr=0.01), torch.optim.AdamW(rest, lr=3e-3)]
    losses = []
    for (rows,) in itertools.islice(batches(TensorDataset(tokens), 32), steps):
        loss = F.cross_entropy(model(rows[:, :-1], mask).transpose(1, 2), rows[:, 1:])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


@fresh("echo state network: a fixed random recurrence, only what reads it learns", 0.5)
def echo_state(seed=0, steps=200):
    torch.manual_seed(seed)
    data = waves(400, 41, seed)
    recurrence = torch.randn(80, 80)
    recurrence *= 0.9 / torch.linalg.eigvals(recurrence).abs().max()
    reservoir = nn.RNN(1, 80, batch_first=True, bias=False).requires_grad_(False)
    reservoir.weight_hh_l0.copy_(recurrence)
    readout = nn.Linear(80, 1)
    optimizer = torch.optim.Adam(readout.parameters(), lr=5e-3)
    losses = []
    for (rows,) in itertools.islice(batches(TensorDataset(data), 20), steps):
        states, _ = reservoir(rows[:, :-1, None])
        loss = F.mse_loss(readout(states[:, 5:]).squeeze(-1), rows[:, 6:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, nn.ModuleDict({"reservoir": reservoir, "readout": readout})


@fresh("deep equilibrium: a fixed point found without gradients, then two steps with them")
def equilibrium(seed=0, steps=200):
    class Equilibrium(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inject, self.inner = nn.Linear(16, 48), nn.Linear(48, 48, bias=False)
            self.out = nn.Linear(48, 4)
            nn.init.orthogonal_(self.inner.weight, gain=0.6)

        def forward(self, x):
            given, state = self.inject(x), torch.zeros(len(x), 48)
            with torch.no_grad():
                for _ in range(12):
                    state = torch.tanh(self.inner(state) + given)
            for _ in range(2):
                state = torch.tanh(self.inner(state) + given)
            return self.out(state)

    torch.manual_seed(seed)
    rows = torch.randn(1024, 16)
    labels = (torch.sin(rows @ torch.randn(16, 4) / 2)).argmax(dim=1)
    model = Equilibrium()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    losses = []
    for x, y in itertools.islice(batches(TensorDataset(rows, labels), 64), steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("a choice of columns by Gumbel noise whose temperature falls", 0.6)
def gumbel(seed=0, steps=240):
    torch.manual_seed(seed)
    rows = torch.randn(1600, 24)
    target = 2 * rows[:, 3] - rows[:, 17] + rows[:, 3] * rows[:, 8] + 0.1 * torch.randn(1600)
    choice = nn.Parameter(torch.zeros(5, 24))
    reader = nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(
        [{"params": [choice], "lr": 5e-2}, {"params": reader.parameters(), "lr": 5e-3}]
    )
    losses = []
    for step, (x, y) in enumerate(itertools.islice(batches(TensorDataset(rows, target), 64), steps)):
        picked = F.gumbel_softmax(choice, tau=max(0.3, 2 * 0.985**step), dim=1)
        loss = F.smooth_l1_loss(reader(x @ picked.T).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, nn.ModuleDict({"reader": reader})


class Reversed(torch.autograd.Function):
    """The gradient with the other sign."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.3 * gradient


@fresh("domain adaptation: a reversed gradient keeps the domain from being told")
def domains(seed=0, steps=240):
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    label, domain = nn.Linear(32, 3), nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    model = nn.ModuleDict({"body": body, "label": label, "domain": domain})
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    centres, move = 1.2 * torch.randn(3, 12), torch.randn(12)
    losses = []
    for _ in range(steps):
        y = torch.randint(0, 3, (48,))
        source = centres[y] + torch.randn(48, 12)
        target = centres[torch.randint(0, 3, (48,))] + torch.randn(48, 12) + 0.5 * move
        hidden = body(torch.cat([source, target]))
        right = F.cross_entropy(label(hidden[:48]), y)
        told = domain(Reversed.apply(hidden)).squeeze(1)
        loss = right + F.binary_cross_entropy_with_logits(told, torch.arange(96).ge(48).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(right.item())
    return losses, model


@fresh("dropout left on at validation to ask how sure the network is, the norms in eval mode", 0.5)
def sure_or_not(seed=0, steps=200):
    torch.manual_seed(seed)
    rows = torch.randn(900, 10)
    target = torch.sin(rows[:, 0]) + 0.5 * rows[:, 1] * rows[:, 2] + 0.1 * torch.randn(900)
    model = nn.Sequential(
        nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(),
        nn.Dropout(0.1), nn.Linear(64, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    stream = batches(TensorDataset(rows[:800], target[:800]), 40)
    losses = []
    for step, (x, y) in enumerate(itertools.islice(stream, steps), start=1):
        model.train()
        loss = F.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 40 == 0:
            model.eval()
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.train()
            with torch.no_grad():
                torch.stack([model(rows[800:]) for _ in range(8)]).std(dim=0)
    return losses, model


@fresh("one-class network: no biases, every row is drawn to one fixed centre", 0.3)
def one_class(seed=0, steps=200):
    torch.manual_seed(seed)
    rows = torch.randn(1000, 6) @ torch.randn(6, 24) + 0.1 * torch.randn(1000, 24)
    model = nn.Sequential(nn.Linear(24, 48, bias=False), nn.LeakyReLU(0.1), nn.Linear(48, 12, bias=False))
    with torch.no_grad():
        centre = model(rows).mean(dim=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
    losses = []
    for (x,) in itertools.islice(batches(TensorDataset(rows), 50), steps):
        loss = (model(x) - centre).pow(2).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("Gaussian process by its marginal likelihood: three numbers learn from one full batch", 0.6)
def gaussian_process(seed=0, steps=150):
    class Process(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log_scale = nn.Parameter(torch.tensor(0.0))
            self.log_size = nn.Parameter(torch.tensor(0.0))
            self.log_noise = nn.Parameter(torch.tensor(0.0))

        def forward(self, x, y):
            near = torch.exp(-0.5 * ((x[:, None] - x) / self.log_scale.exp()) ** 2)
            noise = self.log_noise.exp() + 1e-4
            root = torch.linalg.cholesky(self.log_size.exp() * near + noise * torch.eye(len(x)))
            half = torch.linalg.solve_triangular(root, y[:, None], upper=False)
            return (0.5 * half.pow(2).sum() + root.diagonal().log().sum()) / len(x) + 0.5 * math.log(
                2 * math.pi
            )

    torch.manual_seed(seed)
    x = torch.linspace(0, 6, 60)
    y = torch.sin(2 * x) + 0.1 * torch.randn(60)
    model = Process()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model
