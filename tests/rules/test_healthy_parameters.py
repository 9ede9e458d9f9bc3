"""Healthy trainings of many kinds: none of them gets a warning.

Each function trains something small in a way that looks odd to a careless rule.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

from layerstep.doctor.finding import Finding, Severity
from layerstep.doctor.watch import watching

Schedule = Callable[[torch.optim.Optimizer], Any]


def _batch(width: int = 8, count: int = 32) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, width)
    return x, x[:, :3].argmax(1)


def _mlp(width: int = 8, hidden: int = 32, norm: Callable[[int], nn.Module] | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide in (width, hidden):
        layers += [nn.Linear(wide, hidden), *([norm(hidden)] if norm is not None else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, 3))


def _fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 60,
    *,
    after: Callable[[], object] = lambda: None,
) -> None:
    for _ in range(steps):
        x, y = _batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()


class _Block(nn.Module):
    """A transformer block, pre-norm and causal."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class _Gpt(nn.Module):
    def __init__(self, *, tied: bool = False, checkpointed: bool = False, init: float | None = 0.02) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(24, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(_Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 24, bias=False)
        self.checkpointed = checkpointed
        for module in self.modules():
            if init is not None and isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=init)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


def _write(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 40) -> None:
    """Train a language model to count."""
    for _ in range(steps):
        ids = (torch.randint(24, (8, 1)) + torch.arange(17)) % 24
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


# --- architectures ---


def batch_norm_mlp() -> None:
    model = _mlp(norm=nn.BatchNorm1d)
    _fit(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4))


def batch_norm_cnn() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 2),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        x = torch.randn(16, 1, 10, 10)
        loss = F.cross_entropy(model(x), (x.mean((1, 2, 3)) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def gpt() -> None:
    model = _Gpt()
    _write(model, torch.optim.AdamW(model.parameters(), 3e-3))


def gpt_default_init() -> None:
    model = _Gpt(init=None)
    _write(model, torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1))


def tied_weights() -> None:
    model = _Gpt(tied=True)
    _write(model, torch.optim.AdamW(model.parameters(), 3e-3))


def checkpointed_blocks() -> None:
    model = _Gpt(checkpointed=True)
    _write(model, torch.optim.AdamW(model.parameters(), 3e-3))


class _Residual(nn.Module):
    """`x + scale * f(x)`, whose last layer or scale begins at (almost) nothing."""

    def __init__(self, width: int = 32, *, zero: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((width,), scale)) if scale is not None else None
        if zero:
            nn.init.zeros_(self.second.weight)
            nn.init.zeros_(self.second.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(F.gelu(self.first(self.norm(x))))
        return x + (y if self.scale is None else self.scale * y)


def zero_init_residual() -> None:
    model = nn.Sequential(nn.Linear(8, 32), *(_Residual(zero=True) for _ in range(4)), nn.Linear(32, 3))
    _fit(model, torch.optim.AdamW(model.parameters(), 2e-3))


def layer_scale() -> None:
    model = nn.Sequential(nn.Linear(8, 32), *(_Residual(scale=1e-6) for _ in range(4)), nn.Linear(32, 3))
    _fit(model, torch.optim.AdamW(model.parameters(), 2e-3))


def layer_scale_sgd() -> None:
    model = nn.Sequential(*(_Residual(8, scale=1e-6) for _ in range(4)), nn.Linear(8, 3))
    _fit(model, torch.optim.SGD(model.parameters(), 0.1))


def deep_residual_mlp() -> None:
    model = nn.Sequential(nn.Linear(8, 32), *(_Residual() for _ in range(16)), nn.Linear(32, 3))
    _fit(model, torch.optim.Adam(model.parameters(), 1e-3))


def zero_init_head() -> None:
    model = _mlp()
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    _fit(model, torch.optim.SGD(model.parameters(), 0.2))


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 32, 2, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def lstm() -> None:
    model = _Lstm()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(60):
        x = torch.randn(16, 12, 4)
        loss = F.mse_loss(model(x), x[:, -3:, :1].sum(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def autoencoder() -> None:
    model = nn.Sequential(
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 4),
        nn.Linear(4, 16),
        nn.ReLU(),
        nn.Linear(16, 32),
        nn.Sigmoid(),
    )
    basis = torch.randn(4, 32)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(80):
        x = torch.sigmoid(torch.randn(32, 4) @ basis)
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class _Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, logvar = self.encoder(x).chunk(2, -1)
        return self.decoder(mean + torch.randn_like(mean) * (logvar / 2).exp()), mean, logvar


def vae_with_summed_loss() -> None:
    model = _Vae()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    basis = torch.randn(4, 64)
    for _ in range(80):
        x = torch.sigmoid(torch.randn(64, 4) @ basis)
        out, mean, logvar = model(x)
        loss = F.binary_cross_entropy_with_logits(out, x, reduction="sum")
        loss = loss - 0.5 * (1 + logvar - mean**2 - logvar.exp()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def regression_with_large_targets() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        x = torch.randn(32, 8)
        loss = F.mse_loss(model(x), 100 * x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def linear_regression() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(60):
        x = torch.randn(32, 3)
        loss = F.mse_loss(model(x), x @ torch.tensor([[3.0], [-2.0], [5.0]]) + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def parametrized() -> None:
    model = nn.Sequential(
        weight_norm(nn.Linear(8, 32)),
        nn.ReLU(),
        spectral_norm(nn.Linear(32, 32)),
        nn.ReLU(),
        nn.Linear(32, 3),
    )
    _fit(model, torch.optim.Adam(model.parameters(), 5e-3))


def tanh_mlp() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
    _fit(model, torch.optim.SGD(model.parameters(), 0.2))


class _Experts(nn.Module):
    """Each sample goes to one of four experts; some may wait long."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = x.new_zeros(len(x), 3)
        for place, expert in enumerate(self.experts):
            mine = chosen == place
            if mine.any():
                out[mine] = expert(x[mine])
        return out * weight[:, None]


def mixture_of_experts() -> None:
    model = _Experts()
    _fit(model, torch.optim.Adam(model.parameters(), 1e-2))


class _Pooled(nn.Module):
    """Its pooler is called, and the loss does not use it, as in many pretrained models."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.pooler = nn.Linear(16, 16)
        self.unused = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.body(x))
        self.pooled = self.pooler(y).detach()
        return self.head(y)


def unused_parts() -> None:
    model = _Pooled()
    _fit(model, torch.optim.Adam(model.parameters(), 1e-2))


# --- what is trained ---


def frozen_by_requires_grad() -> None:
    model = _mlp()
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    _fit(model, torch.optim.Adam((p for p in model.parameters() if p.requires_grad), 1e-2))


def frozen_in_the_optimizer() -> None:
    model = _mlp()
    model[0].requires_grad_(False)
    _fit(model, torch.optim.Adam(model.parameters(), 1e-2))


def frozen_by_no_grad() -> None:
    backbone, head = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 3)
    optimizer = torch.optim.Adam(head.parameters(), 1e-2)
    for _ in range(60):
        x, y = _batch()
        with torch.no_grad():
            features = backbone(x)
        loss = F.cross_entropy(head(features), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def head_only_optimizer() -> None:
    model = _mlp()
    optimizer = torch.optim.Adam(model[-1].parameters(), 1e-2)
    _fit(model, optimizer, after=model.zero_grad)


class _Lora(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * (x @ self.A.T) @ self.B.T


def lora() -> None:
    model = nn.Sequential(
        _Lora(nn.Linear(8, 32)), nn.ReLU(), _Lora(nn.Linear(32, 32)), nn.ReLU(), _Lora(nn.Linear(32, 3))
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    _fit(model, torch.optim.AdamW(trained, 1e-2))


def fine_tuning_with_a_tiny_rate() -> None:
    model = _mlp()
    _fit(model, torch.optim.Adam(model.parameters(), 1e-2), 150)
    _fit(model, torch.optim.AdamW(model.parameters(), 1e-6), 60)


def gan() -> None:
    maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    of_maker = torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    for _ in range(60):
        real, fake = torch.randn(32, 2) * 0.5 + 1, maker(torch.randn(32, 4))
        of_judge.zero_grad()
        F.binary_cross_entropy_with_logits(judge(real), torch.ones(32, 1)).backward()
        F.binary_cross_entropy_with_logits(judge(fake.detach()), torch.zeros(32, 1)).backward()
        of_judge.step()
        of_maker.zero_grad()
        F.binary_cross_entropy_with_logits(judge(fake), torch.ones(32, 1)).backward()
        of_maker.step()


def late_generator() -> None:
    """The second optimizer steps once in five steps of the first."""
    maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    judge = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    of_maker, of_judge = (
        torch.optim.RMSprop(maker.parameters(), 5e-4),
        torch.optim.RMSprop(judge.parameters(), 5e-4),
    )
    for step in range(60):
        fake = maker(torch.randn(32, 4))
        of_judge.zero_grad()
        (judge(fake.detach()).mean() - judge(torch.randn(32, 2)).mean()).backward()
        of_judge.step()
        if step % 5 == 4:
            of_maker.zero_grad()
            (-judge(maker(torch.randn(32, 4))).mean()).backward()
            of_maker.step()


def ema_teacher() -> None:
    student = _mlp()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), 0.05, momentum=0.9)
    for _ in range(60):
        x, y = _batch()
        with torch.no_grad():
            soft = teacher(x).softmax(-1)
        out = student(x)
        loss = F.cross_entropy(out, y) + 0.1 * F.kl_div(out.log_softmax(-1), soft, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.lerp_(new, 0.05)


def dqn() -> None:
    online = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), 1e-3)
    for step in range(80):
        state, following = torch.randn(32, 4), torch.randn(32, 4)
        action = torch.randint(2, (32, 1))
        with torch.no_grad():
            wanted = state[:, :1] + 0.9 * target(following).max(1, keepdim=True).values
        loss = F.smooth_l1_loss(online(state).gather(1, action), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            target.load_state_dict(online.state_dict())


def actor_and_critic() -> None:
    actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2), nn.Tanh())
    critic = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    of_actor, of_critic = (
        torch.optim.Adam(actor.parameters(), 1e-3),
        torch.optim.Adam(critic.parameters(), 1e-3),
    )
    for _ in range(60):
        state, action = torch.randn(32, 4), torch.rand(32, 2) * 2 - 1
        loss = F.mse_loss(
            critic(torch.cat([state, action], 1)), -(action - state[:, :2]).square().sum(1, keepdim=True)
        )
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        gain = -critic(torch.cat([state, actor(state)], 1)).mean()
        of_actor.zero_grad()
        gain.backward()
        of_actor.step()


def two_models_one_optimizer() -> None:
    encoder, head = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 3)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], 1e-2)
    for _ in range(60):
        x, y = _batch()
        loss = F.cross_entropy(head(encoder(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def image_by_optimisation() -> None:
    """The input is trained, and a network that is not frozen measures the loss."""
    judge = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    wanted = judge(torch.randn(1, 3, 16, 16)).detach()
    image = nn.Parameter(torch.randn(1, 3, 16, 16))
    optimizer = torch.optim.Adam([image], 0.05)
    for _ in range(60):
        loss = F.mse_loss(judge(image), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def per_layer_rates() -> None:
    model = _mlp()
    groups = [
        {"params": list(model[0].parameters()), "lr": 1e-5},
        {"params": list(model[2].parameters()), "lr": 1e-4},
        {"params": list(model[4].parameters())},
    ]
    _fit(model, torch.optim.AdamW(groups, 1e-2))


def gradual_unfreezing() -> None:
    model = _mlp()
    optimizer = torch.optim.Adam(
        [{"params": list(model[:3].parameters()), "lr": 0.0}, {"params": list(model[4].parameters())}], 1e-2
    )
    _fit(model, optimizer, 40)
    optimizer.param_groups[0]["lr"] = 1e-3
    _fit(model, optimizer, 40)


# --- how it is trained ---


def accumulation() -> None:
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(30):
        optimizer.zero_grad()
        for _ in range(4):
            x, y = _batch()
            (F.cross_entropy(model(x), y) / 4).backward()
        optimizer.step()


def two_losses_two_passes() -> None:
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(40):
        optimizer.zero_grad()
        x, y = _batch()
        F.cross_entropy(model(x), y).backward()
        (1e-3 * sum((p.square().sum() for p in model.parameters()), torch.zeros(()))).backward()
        optimizer.step()


def bf16_autocast() -> None:
    model = _mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(60):
        x, y = _batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def fp16_with_scaler() -> None:
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(60):
        x, y = _batch()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()


def scaler_that_skips_the_first_steps() -> None:
    """The first scale is far too large, so the scheduler steps before the optimizer does."""
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=20)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for _ in range(60):
        x, y = _batch()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


def whole_model_in_bf16() -> None:
    model = _mlp().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(60):
        x, y = _batch()
        loss = F.cross_entropy(model(x.to(torch.bfloat16)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def sparse_embedding() -> None:
    embedding, head = nn.Embedding(500, 16, sparse=True), nn.Linear(16, 3)
    of_embedding, of_head = (
        torch.optim.SparseAdam(embedding.parameters(), 1e-2),
        torch.optim.Adam(head.parameters(), 1e-2),
    )
    for _ in range(60):
        ids = torch.randint(500, (32,))
        loss = F.cross_entropy(head(embedding(ids)), ids % 3)
        of_embedding.zero_grad()
        of_head.zero_grad()
        loss.backward()
        of_embedding.step()
        of_head.step()


def lbfgs() -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, line_search_fn="strong_wolfe")
    x = torch.randn(64, 4)
    y = x[:, :1] * x[:, 1:2]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(25):
        optimizer.step(closure)


def sgd_on_data() -> None:
    """An optimizer of the program's own that writes through `.data`."""

    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
            super().__init__(parameters, {"rate": lr})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.data -= group["rate"] * p.grad.data

    model = _mlp()
    _fit(model, Plain(model.parameters(), 0.1))


def fixed_batch() -> None:
    model = _mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    x, y = _batch()
    for _ in range(60):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _with(make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> Callable[[], None]:
    def train() -> None:
        model = _mlp()
        _fit(model, make(model.parameters()))

    return train


def _scheduled(schedule: Schedule, *, lr: float = 0.1, epochs: int = 0) -> Callable[[], None]:
    def train() -> None:
        model = _mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
        scheduler = schedule(optimizer)
        if not epochs:
            _fit(model, optimizer, 100, after=scheduler.step)
        data = [_batch() for _ in range(8)]
        for _ in range(epochs):
            for x, y in data:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            scheduler.step()

    return train


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p, 1.0),
    "nadam": lambda p: torch.optim.NAdam(p, 2e-3),
    "rprop": lambda p: torch.optim.Rprop(p, 1e-3),
    "fused adamw": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "tiny sgd": lambda p: torch.optim.SGD(p, 1e-5),
}
SCHEDULES: dict[str, Callable[[], None]] = {
    "cosine": _scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, 100)),
    "one cycle": _scheduled(lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=101)),
    "step": _scheduled(lambda o: lr_scheduler.StepLR(o, 30, 0.1)),
    "step by epochs": _scheduled(lambda o: lr_scheduler.StepLR(o, 3, 0.1), epochs=8),
    "warm-up, then hold": _scheduled(lambda o: lr_scheduler.LinearLR(o, 0.01, total_iters=20)),
    "warm-up from zero": _scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda s: min(1.0, s / 20) * 0.99**s)),
    "warm-up by epochs, then steps": _scheduled(
        lambda o: lr_scheduler.LambdaLR(o, lambda e: (e + 1) / 5 if e < 5 else 1.0 if e < 12 else 0.1),
        epochs=16,
    ),
    "chain": _scheduled(
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.05, total_iters=20), lr_scheduler.CosineAnnealingLR(o, 80)], [20]
        )
    ),
    "restarts": _scheduled(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 25)),
    "cyclic": _scheduled(lambda o: lr_scheduler.CyclicLR(o, 1e-3, 0.1, step_size_up=10)),
    "linear to zero": _scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda s: max(0.0, 1 - s / 95))),
}
RUNS: dict[str, Callable[[], None]] = {
    **{
        run.__name__: run
        for run in (
            batch_norm_mlp,
            gpt,
            tied_weights,
            checkpointed_blocks,
            zero_init_residual,
            layer_scale,
            zero_init_head,
            lstm,
            autoencoder,
            vae_with_summed_loss,
            regression_with_large_targets,
            parametrized,
            mixture_of_experts,
            unused_parts,
            frozen_by_requires_grad,
            frozen_by_no_grad,
            head_only_optimizer,
            lora,
            gan,
            ema_teacher,
            dqn,
            two_models_one_optimizer,
            image_by_optimisation,
            per_layer_rates,
            gradual_unfreezing,
            accumulation,
            bf16_autocast,
            fp16_with_scaler,
            scaler_that_skips_the_first_steps,
            sparse_embedding,
            lbfgs,
            sgd_on_data,
        )
    },
    "adafactor": _with(OPTIMIZERS["adafactor"]),
    **{name: SCHEDULES[name] for name in ("one cycle", "step by epochs", "chain", "warm-up from zero")},
}
"""Those that every run of the tests trains: half a minute."""
MORE: dict[str, Callable[[], None]] = {
    **{
        run.__name__: run
        for run in (
            batch_norm_cnn,
            gpt_default_init,
            layer_scale_sgd,
            deep_residual_mlp,
            linear_regression,
            tanh_mlp,
            frozen_in_the_optimizer,
            fine_tuning_with_a_tiny_rate,
            late_generator,
            actor_and_critic,
            two_losses_two_passes,
            whole_model_in_bf16,
            fixed_batch,
        )
    },
    **{name: _with(make) for name, make in OPTIMIZERS.items()},
    **SCHEDULES,
}


def _warnings(train: Callable[[], None], seed: int) -> list[Finding]:
    torch.manual_seed(seed)
    with warnings.catch_warnings(), watching("extreme") as doctor:
        warnings.simplefilter("ignore")
        train()
    assert doctor.doctor.diagnosis.run.optimizers, "the doctor saw no step"
    return [each for each in doctor.findings if each.severity.rank >= Severity.WARNING.rank]


@pytest.mark.parametrize("name", RUNS)
def test_a_healthy_training_gets_no_warning(name: str) -> None:
    assert _warnings(RUNS[name], 0) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", RUNS | MORE)
def test_more_healthy_trainings_get_no_warning(name: str, seed: int) -> None:
    assert _warnings((RUNS | MORE)[name], seed) == []
