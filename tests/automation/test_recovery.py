"""Recovery: it does what was asked for, says so, and `perturbed?` lists it."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from layerstep import DebugConsole, HookAction, HookBuilder, HookTrigger
from layerstep.automation.running import hooks_of
from layerstep.render.screen import to_text


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    scale: Callable[[int], float] = lambda step: 1.0,
    skip: tuple[int, ...] = (),
) -> None:
    torch.manual_seed(1)
    for step in range(1, steps + 1):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        (F.cross_entropy(model(x), x[:, :3].argmax(dim=1)) * scale(step)).backward()
        if step not in skip:
            optimizer.step()


def broken_at(number: int) -> Callable[[int], float]:
    return lambda step: float("nan") if step == number else 1.0


def recovered(
    action: HookAction, trigger: HookTrigger, steps: int, scale: Callable[[int], float]
) -> tuple[nn.Sequential, torch.optim.Optimizer, DebugConsole, str]:
    model, screen = network(), io.StringIO()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    console = DebugConsole(model, output=screen)
    hooks_of(console.session).register_hook(HookBuilder("mend").trigger(trigger).action(action).build())
    with console:
        train(model, optimizer, steps, scale=scale)
    perturbed = to_text(console.execute("perturbed?"), width=150)  # type: ignore[arg-type]
    return model, optimizer, console, screen.getvalue() + perturbed


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_skipped_step_is_as_if_it_was_never_called() -> None:
    model, optimizer, _, text = recovered(HookAction.skip_step(), HookTrigger.not_finite(), 6, broken_at(3))
    bare = network()
    plain = torch.optim.AdamW(bare.parameters(), lr=0.01)
    train(bare, plain, 6, scale=broken_at(3), skip=(3,))
    assert same(model, bare)
    states = zip(optimizer.state.values(), plain.state.values(), strict=True)
    assert all(torch.equal(a["exp_avg"], b["exp_avg"]) and a["step"] == b["step"] for a, b in states)
    assert all(p.grad is not None for p in model.parameters())
    assert "skipped a step of AdamW, step 3" in text
    assert "yes: 1 change" in text and "hook mend" in text


def test_values_that_are_not_finite_are_replaced() -> None:
    model, _, console, text = recovered(
        HookAction.replace_nonfinite(), HookTrigger.not_finite(), 5, broken_at(2)
    )
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert f"replaced {sum(p.numel() for p in model.parameters())} values of 6 gradients by 0" in text
    assert "yes" in text and console.session.prompt.effects.disturbed[0][0] == "hook mend"


def test_gradients_are_clipped_as_torch_does() -> None:
    model, _, _, text = recovered(
        HookAction.clip(0.1), HookTrigger.gradient_norm(above=0.1), 3, lambda step: 100.0
    )
    bare = network()
    optimizer = torch.optim.AdamW(bare.parameters(), lr=0.01)
    torch.manual_seed(1)
    for _ in range(3):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        (F.cross_entropy(bare(x), x[:, :3].argmax(dim=1)) * 100.0).backward()
        torch.nn.utils.clip_grad_norm_(bare.parameters(), 0.1)
        optimizer.step()
    assert same(model, bare)
    assert "clipped gradients to a norm of 0.1" in text and "3 times in all" in text


def test_the_learning_rate_is_lowered() -> None:
    _, optimizer, _, text = recovered(
        HookAction.lower_learning_rate(0.5), HookTrigger.step_range(2, 3), 4, lambda step: 1.0
    )
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0025)
    assert "multiplied the learning rate of AdamW by 0.5" in text


def test_the_last_healthy_snapshot_comes_back() -> None:
    model, optimizer, _, text = recovered(
        HookAction.restore(every=2), HookTrigger.not_finite(), 4, broken_at(4)
    )
    bare = network()
    plain = torch.optim.AdamW(bare.parameters(), lr=0.01)
    train(bare, plain, 2)  # the snapshot of step 3 is what two steps have left
    torch.manual_seed(1)
    for _ in range(3):
        x = torch.randn(16, 8)
    bare(x)  # the forward of step 3 has moved the batch norm
    assert same(model, bare)
    assert all(int(state["step"]) == 2 for state in optimizer.state.values())
    assert "went back to step 3: models and AdamW" in text


def test_without_a_snapshot_the_step_is_skipped() -> None:
    model, _, _, text = recovered(HookAction.restore(), HookTrigger.not_finite(), 1, broken_at(1))
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert "there is no healthy snapshot yet" in text


def test_nothing_is_changed_while_the_hook_does_not_act() -> None:
    model, _, _, text = recovered(HookAction.restore(every=1), HookTrigger.not_finite(), 5, lambda step: 1.0)
    bare = network()
    train(bare, torch.optim.AdamW(bare.parameters(), lr=0.01), 5)
    assert same(model, bare) and "no: " in text
