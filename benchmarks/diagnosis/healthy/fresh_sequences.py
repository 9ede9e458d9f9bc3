"""Trainings of sequences, series and numbers, and of ways to train."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from benchmarks.diagnosis.healthy.registered import healthy


def _brackets(count: int, length: int = 16):
    """Rows of brackets; the label of a place is how deep it is."""
    up = torch.rand(count, length) < 0.5
    depth = torch.zeros(count, dtype=torch.long)
    depths = []
    for place in range(length):
        rise = up[:, place] | (depth == 0)
        rise = rise & (depth < 4)
        up[:, place] = rise
        depth = depth + torch.where(rise, 1, -1)
        depths.append(depth)
    return up.long(), torch.stack(depths, dim=1)


def _step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@healthy("minimal gated recurrence by hand over time steps, RMSprop with momentum")
def gated(seed=0, steps=200):
    class Cell(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.words = nn.Embedding(2, width)
            self.gate, self.new = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
            self.out = nn.Linear(width, 5)

        def forward(self, rows):
            state, outputs = torch.zeros(len(rows), 32), []
            for word in self.words(rows).unbind(dim=1):
                both = torch.cat([word, state], dim=1)
                gate = torch.sigmoid(self.gate(both))
                state = gate * state + (1 - gate) * torch.tanh(self.new(both))
                outputs.append(self.out(state))
            return torch.stack(outputs, dim=1)

    torch.manual_seed(seed)
    model = Cell()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)
    losses = []
    for _ in range(steps):
        rows, depths = _brackets(32)
        losses.append(_step(optimizer, F.cross_entropy(model(rows).flatten(0, 1), depths.flatten())))
    return losses, model


@healthy("attention with rotary places, RMSNorm and SwiGLU, Adam with a trapezoid schedule", falls_to=0.8)
def rotary(seed=0, steps=220):
    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = (
                nn.Linear(width, 4 * width, bias=False),
                nn.Linear(2 * width, width, bias=False),
            )

        def turn(self, x):
            one, two = x.chunk(2, dim=-1)
            angle = torch.arange(x.shape[1])[:, None] / 100 ** torch.linspace(0, 1, one.shape[-1])
            return torch.cat(
                [one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()], -1
            )

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
            x = x + self.out(F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True))
            gate, value = self.up(self.norm2(x)).chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * value)

    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(2, 32), Block(32), Block(32), nn.RMSNorm(32), nn.Linear(32, 5, bias=False)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20, max(0.0, (steps - step) / 60))
    )
    losses = []
    for _ in range(steps):
        rows, depths = _brackets(32)
        losses.append(_step(optimizer, F.cross_entropy(model(rows).flatten(0, 1), depths.flatten())))
        scheduler.step()
    return losses, model


@healthy("a conditional random field above an LSTM: the loss is a difference of two sums")
def random_field(seed=0, steps=200):
    torch.manual_seed(seed)
    words, lstm, scores = nn.Embedding(2, 16), nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 5)
    moves = nn.Parameter(torch.zeros(5, 5))
    model = nn.ModuleList([words, lstm, scores])
    optimizer = torch.optim.Adam([*model.parameters(), moves], lr=1e-2)
    losses = []
    for _ in range(steps):
        rows, depths = _brackets(24)
        each = scores(lstm(words(rows))[0])
        path = each.gather(2, depths[..., None]).sum(dim=(1, 2)) + moves[depths[:, :-1], depths[:, 1:]].sum(1)
        total = each[:, 0]
        for place in range(1, each.shape[1]):
            total = torch.logsumexp(total[:, :, None] + moves, dim=1) + each[:, place]
        losses.append(_step(optimizer, (torch.logsumexp(total, dim=1) - path).mean()))
    return losses, (model, moves)


@healthy("state-space recurrence with complex poles as a convolution by FFT, Adamax")
def state_space(seed=0, steps=200):
    class Poles(nn.Module):
        def __init__(self, width: int = 24, states: int = 8) -> None:
            super().__init__()
            self.inside, self.outside = nn.Linear(1, width), nn.Linear(width, 1)
            self.decay = nn.Parameter(torch.rand(width, states).log())
            self.turn = nn.Parameter(math.pi * torch.rand(width, states))
            self.mix = nn.Parameter(torch.randn(width, states, 2) / states)

        def forward(self, x):
            x = self.inside(x).transpose(1, 2)
            time = torch.arange(x.shape[-1])
            pole = torch.complex(-self.decay.exp(), self.turn)
            kernel = (
                (torch.view_as_complex(self.mix)[..., None] * torch.exp(pole[..., None] * time)).sum(1).real
            )
            size = 2 * x.shape[-1]
            y = torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(kernel, size), size)
            return self.outside(F.gelu(y[..., : x.shape[-1]] + x).transpose(1, 2))

    torch.manual_seed(seed)
    model = Poles()
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        x = torch.randn(24, 32, 1)
        wanted = torch.zeros(24, 32, 1)
        for place in range(32):
            before = wanted[:, place - 1] if place else 0.0
            wanted[:, place] = 0.8 * before + x[:, place]
        losses.append(_step(optimizer, F.mse_loss(model(x), wanted)))
    return losses, model


@healthy("N-BEATS-like stacks that subtract what they explain, mean absolute error, stepwise decay")
def backcast(seed=0, steps=240):
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.back, self.ahead = nn.Linear(64, 24), nn.Linear(64, 6)

        def forward(self, x):
            hidden = self.body(x)
            return x - self.back(hidden), self.ahead(hidden)

    torch.manual_seed(seed)
    stacks = nn.ModuleList(Stack() for _ in range(3))
    # Nothing reads the last backcast.
    stacks[-1].back.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in stacks.parameters() if p.requires_grad], lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.3)
    losses = []
    for _ in range(steps):
        time = torch.arange(30) / 6 + 10 * torch.rand(48, 1)
        series = time.sin() + 0.5 * (2.6 * time).cos() + 0.05 * torch.randn(48, 30)
        rest, forecast = series[:, :24], 0.0
        for stack in stacks:
            rest, more = stack(rest)
            forecast = forecast + more
        losses.append(_step(optimizer, F.l1_loss(forecast, series[:, 24:])))
        scheduler.step()
    return losses, stacks


@healthy("ordinal regression with sorted thresholds, batches of different sizes, SGD")
def ordinal(seed=0, steps=240):
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(10, 32), nn.Softplus(), nn.Linear(32, 1, bias=False))
    gaps = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([{"params": body.parameters()}, {"params": [gaps], "lr": 0.02}], lr=0.1)
    weight = torch.randn(10, generator=torch.Generator().manual_seed(2))
    losses = []
    for step in range(steps):
        x = torch.randn((16, 32, 64)[step % 3], 10)
        level = torch.bucketize(x @ weight / weight.norm(), torch.tensor([-1.2, -0.3, 0.3, 1.2]))
        thresholds = torch.cumsum(F.softplus(gaps), 0) - 2
        above = (level[:, None] > torch.arange(4)).float()
        losses.append(_step(optimizer, F.binary_cross_entropy_with_logits(body(x) - thresholds, above)))
    return losses, (body, gaps)


@healthy("heteroscedastic regression: mean and variance, the loss goes below zero", falls_to=0.6)
def heteroscedastic(seed=0, steps=240):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 48), nn.Mish(), nn.Linear(48, 48), nn.Mish(), nn.Linear(48, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, amsgrad=True)
    losses = []
    for _ in range(steps):
        x = torch.rand(64, 3) * 2 - 1
        y = torch.sin(3 * x[:, 0]) + x[:, 1] + (0.02 + 0.1 * x[:, 2].abs()) * torch.randn(64)
        mean, log_var = model(x).unbind(dim=1)
        losses.append(_step(optimizer, F.gaussian_nll_loss(mean, y, log_var.exp())) + 3)
    return losses, model


@healthy("orthogonal recurrent weights by parametrization, bfloat16 autocast, clipping by value")
def orthogonal(seed=0, steps=200):
    torch.manual_seed(seed)
    rnn = parametrizations.orthogonal(nn.RNN(2, 32, batch_first=True), "weight_hh_l0")
    head = nn.Linear(32, 1)
    optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=3e-3)
    losses = []
    for _ in range(steps):
        marks = torch.zeros(40, 12)
        for row in marks:
            row[torch.randperm(12)[:2]] = 1.0
        values = torch.rand(40, 12)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, _ = rnn(torch.stack([values, marks], dim=2))
            guess = head(out[:, -1]).squeeze(1)
        loss = F.mse_loss(guess.float(), (values * marks).sum(dim=1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_([*rnn.parameters(), *head.parameters()], 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses, (rnn, head)


@healthy("a bandit with a context: softmax policy, moving baseline, entropy bonus", falls_to=0.8)
def bandit(seed=0, steps=240):
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    best = torch.randn(6, 4, generator=torch.Generator().manual_seed(4))
    baseline, regrets = 0.0, []
    for _ in range(steps):
        state = torch.randn(64, 6)
        chances = torch.distributions.Categorical(logits=policy(state))
        action = chances.sample()
        values = state @ best
        reward = values.gather(1, action[:, None]).squeeze(1)
        loss = -(chances.log_prob(action) * (reward - baseline)).mean() - 0.01 * chances.entropy().mean()
        _step(optimizer, loss)
        baseline = 0.9 * baseline + 0.1 * reward.mean().item()
        regrets.append((values.max(dim=1).values - reward).mean().item())
    return regrets, policy


@healthy("accumulation of three batches, each a sum that is divided by all rows")
def row_accumulation(seed=0, steps=200):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 40), nn.Hardswish(), nn.Linear(40, 6))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=3e-2)
    centres = 1.3 * torch.randn(6, 12)
    losses = []
    for _ in range(steps):
        labels = torch.randint(0, 6, (60,))
        rows, total = centres[labels] + torch.randn(60, 12), 0.0
        optimizer.zero_grad()
        for part in torch.arange(60).split(20):
            loss = F.cross_entropy(model(rows[part]), labels[part], reduction="sum") / 60
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses, model


@healthy("several tags a row, a hook that reads the hidden layer, float64, Rprop on full batches")
def rprop(seed=0, steps=200):
    torch.manual_seed(seed)
    x = torch.randn(200, 10, dtype=torch.float64)
    y = (x @ torch.randn(10, 7, dtype=torch.float64) > 0.5).double()
    model = nn.Sequential(nn.Linear(10, 24), nn.ELU(), nn.Linear(24, 7)).double()
    norms = []
    handle = model[1].register_forward_hook(lambda module, args, out: norms.append(out.norm().item()))
    optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3, step_sizes=(1e-6, 0.05))
    losses = [_step(optimizer, F.multilabel_soft_margin_loss(model(x), y)) for _ in range(steps)]
    handle.remove()
    return losses, model


@healthy("head and body by two optimizers with different schedules, the body joins after 40 steps")
def two_optimizers(seed=0, steps=220):
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(16, 48), nn.GroupNorm(6, 48), nn.SiLU())
    head = nn.Linear(48, 5)
    slow = torch.optim.SGD(body.parameters(), lr=0.05, momentum=0.9)
    fast = torch.optim.AdamW(head.parameters(), lr=5e-3)
    falling = torch.optim.lr_scheduler.ExponentialLR(fast, 0.99)
    centres = torch.randn(5, 16)
    losses = []
    for step in range(steps):
        labels = torch.randint(0, 5, (32,))
        rows = centres[labels] + 0.8 * torch.randn(32, 16)
        with torch.set_grad_enabled(step >= 40):
            features = body(rows)
        loss = F.cross_entropy(head(features), labels)
        slow.zero_grad()
        fast.zero_grad()
        loss.backward()
        fast.step()
        if step >= 40:
            slow.step()
        falling.step()
        losses.append(loss.item())
    return losses, (body, head)
