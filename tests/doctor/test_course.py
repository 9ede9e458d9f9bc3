"""The course of a training as the report tells it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from layerstep.doctor.course import course_view
from layerstep.doctor.watch import watching
from layerstep.render.screen import to_text


def told(steps: int, loss_of: Callable[[int, nn.Module], torch.Tensor], *, decay: bool = False) -> str:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    with watching() as watch:
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(step, model).backward()
            optimizer.step()
            if decay:
                schedule.step()
            if step % 20 == 19:
                with torch.no_grad():
                    F.cross_entropy(model(torch.ones(5, 4)), torch.ones(5, dtype=torch.long))
    return " ".join(to_text(course_view(watch.doctor.diagnosis.run, 0.01)).split())


def learning(step: int, model: nn.Module) -> torch.Tensor:
    x = torch.randn(16, 4)
    return F.cross_entropy(model(x), x[:, :3].argmax(1))


def test_a_short_training() -> None:
    words = told(30, learning)
    assert "optimizer SGD, learning rate 0.5 loss" in words
    assert "at first," in words and "at last" in words
    assert "16 samples a step, 1,600 samples/s, 100 steps/s" in words
    assert "1 seen, the last after step 20 on 5 samples; loss 1.33" in words


def test_a_schedule_is_told_from_beginning_to_end() -> None:
    words = told(60, learning, decay=True)
    assert "learning rate 0.5 to 0.05" in words
    assert "3 seen, the last after step 60 on 5 samples; loss" in words and ", lowest" in words


@pytest.mark.parametrize(
    "loss, state",
    [
        (lambda step: 5.0 - 0.01 * step, "still falling"),
        (lambda step: 1.0 + 4.0 * 0.8**step + 0.01 * (-1) ** step, "converged"),
        (lambda step: 1.0 + 0.01 * (-1) ** step, "no lower than at first"),
        (lambda step: 1.0 + 0.0001 * step * step, "rising of late"),
    ],
)
def test_how_the_loss_stands_at_the_end(loss: Callable[[int], float], state: str) -> None:
    def made(step: int, model: nn.Module) -> torch.Tensor:
        return model(torch.ones(2, 4)).sum() * 0.0 + loss(step)

    words = told(200, made)
    assert f", {state}; medians of the first steps and of the last 40" in words
