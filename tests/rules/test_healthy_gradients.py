"""Healthy trainings that look odd to a careless rule, and causes that stand before what they lead to."""

from __future__ import annotations

import linecache
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep.doctor.finding import Finding, Severity
from layerstep.doctor.watch import watching

STEPS = 140


def _batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 8)
    return x, x[:, :3].argmax(1)


def _mlp(out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, out))


def gradients_are_assigned() -> None:
    """`torch.autograd.grad` adds to nothing: each gradient is a new one."""
    weight = (torch.randn(8, 3) / 8).requires_grad_()
    optimizer = torch.optim.SGD([weight], 0.5)
    for _ in range(STEPS):
        x, y = _batch()
        (weight.grad,) = torch.autograd.grad(F.cross_entropy(x @ weight, y), weight)
        optimizer.step()


def gradients_are_copied() -> None:
    """The gradient of a parameter is written over by the program, never cleared."""
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for _ in range(STEPS):
        x, y = _batch()
        made = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        for p, gradient in zip(model.parameters(), made, strict=True):
            assert p.grad is not None
            p.grad.copy_(gradient)
        optimizer.step()


def masters_in_float32() -> None:
    """The optimizer has copies of the weights, whose gradients the program sets."""
    model = _mlp().bfloat16()
    masters = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, 3e-3)
    for _ in range(STEPS):
        x, y = _batch()
        F.cross_entropy(model(x.bfloat16()).float(), y).backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            assert p.grad is not None
            master.grad, p.grad = p.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)


def gradients_are_cleared_through_data() -> None:
    """`grad.data.zero_()` leaves no trace in the version of the gradient."""
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    for _ in range(STEPS):
        x, y = _batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        for p in model.parameters():
            assert p.grad is not None
            p.grad.data.zero_()


def a_score_is_maximised() -> None:
    """The negative of a loss function grows towards zero."""
    model = _mlp(1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, maximize=True)
    for _ in range(STEPS):
        x, _ = _batch()
        optimizer.zero_grad()
        (-F.mse_loss(model(x), x[:, :1])).backward()
        optimizer.step()


def targets_are_tiny() -> None:
    """The outputs begin a thousand times as large as the targets: the loss falls, and is far above theirs."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 60, gamma=0.01)
    for _ in range(200):
        x, _ = _batch()
        optimizer.zero_grad()
        F.mse_loss(model(x), 1e-4 * x[:, :1]).backward()
        optimizer.step()
        schedule.step()


def small_weights_take_large_steps() -> None:
    """Weights far below the usual size change by large shares of it before the loss falls."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    for p in model.parameters():
        nn.init.normal_(p, std=0.005)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(STEPS):
        x = torch.randn(32, 64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()


def large_steps_that_lead_down() -> None:
    """Each step changes the weights by more than a tenth of them, and the loss waits before it falls."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = _Relative(model.parameters(), {"lr": 0.15})
    for _ in range(STEPS):
        x, y = _batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x) * 0.01 + _first_logits(y, optimizer.steps), y).backward()
        optimizer.step()


def _first_logits(y: Tensor, steps: int) -> Tensor:
    """What makes the loss fall late, as a scheduled hint does."""
    return F.one_hot(y, 3).float() * max(0.0, (steps - 25) / 10)


class _Relative(torch.optim.Optimizer):
    """Turns each weight by a share of its own norm, as optimizers with relative steps do."""

    steps = 0

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                with torch.no_grad():
                    size = p.norm()
                    p -= group["lr"] * size * p.grad / (p.grad.norm() + 1e-12)
                    p *= size / (p.norm() + 1e-12)


class _Reader(nn.Module):
    """Its embedding has a `padding_idx`, though all rows are full."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 16, padding_idx=0)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        out: Tensor = self.head((x + self.attention(x, x, x)[0]).mean(1))
        return out


def padding_is_a_token_like_any_other() -> None:
    """Some rows end with the number that the embedding calls padding."""
    model = _Reader()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(STEPS):
        tokens = torch.randint(0, 16, (32, 10))
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), (tokens > 7).float().mean(1).gt(0.5).long()).backward()
        optimizer.step()


HEALTHY = [
    gradients_are_assigned,
    gradients_are_copied,
    masters_in_float32,
    gradients_are_cleared_through_data,
    a_score_is_maximised,
    targets_are_tiny,
    small_weights_take_large_steps,
    large_steps_that_lead_down,
    padding_is_a_token_like_any_other,
]


def _findings(train: Callable[[], None]) -> list[Finding]:
    torch.manual_seed(0)
    with watching("extreme") as doctor:
        train()
    return doctor.findings


@pytest.mark.parametrize("train", HEALTHY, ids=lambda train: train.__name__)
def test_a_healthy_training_gets_no_warning(train: Callable[[], None]) -> None:
    bad = [each for each in _findings(train) if each.severity.rank >= Severity.WARNING.rank]

    assert not bad, [f"{each.rule}: {each.text}" for each in bad]


def _deep_and_flat() -> None:
    """Adam moves the first layers of a deep stack of sigmoids, and nothing is learned."""
    parts: list[nn.Module] = [nn.Linear(8, 32)]
    for _ in range(6):
        parts += [nn.Sigmoid(), nn.Linear(32, 32)]
    model = nn.Sequential(*parts, nn.Sigmoid(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(160):
        x, y = _batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_gradients_that_vanish_stand_before_a_model_that_does_not_learn() -> None:
    findings = _findings(_deep_and_flat)

    assert findings[0].rule == "vanishing-gradients"
    assert "not-learning" in [each.rule for each in findings if each.caused_by == "vanishing-gradients"]


def _shut_layer() -> None:
    model = _mlp()
    nn.init.constant_(model[0].bias, -30.0)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(160):
        x, y = _batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_a_layer_that_nothing_passes_is_named_after_few_samples() -> None:
    assert _findings(_shut_layer)[0].rule == "dead-units"


LIBRARY = """
def back(loss):
    loss.backward()
"""


def _trained_by_a_library() -> None:
    library: dict[str, Callable[[Tensor], None]] = {}
    exec(compile(LIBRARY, "/lib/site-packages/trainer/loop.py", "exec"), library)
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(20):
        x, y = _batch()
        library["back"](F.cross_entropy(model(x), y))  # and nothing clears the gradients
        optimizer.step()


def test_a_place_is_in_the_program_where_a_library_calls_backward() -> None:
    found = next(each for each in _findings(_trained_by_a_library) if each.rule == "stale-gradients")

    assert found.where.file == __file__
    assert 'library["back"]' in linecache.getline(found.where.file, found.where.line)


def _called_by_parts() -> None:
    """`model[:2]` is a module that lives for one call."""
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(20):
        x, y = _batch()
        loss = F.cross_entropy(model[2](model[:2](x).detach()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_model_that_is_gone_after_its_call_ends_no_watching() -> None:
    torch.manual_seed(0)
    steps: list[int] = []
    with watching("extreme") as doctor:
        doctor.doctor.steppers.append(lambda step: steps.append(step.number))
        _called_by_parts()

    assert steps == list(range(1, 21))
