"""Calls of models are seen as they were made: with gradients, under autocast, apart from the loss module."""

from __future__ import annotations

import torch
from torch import nn

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.watch import watching


def test_a_training_call_has_gradients_and_the_dtype_of_autocast() -> None:
    model, criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps: list[StepFacts] = []
    with watching("extreme") as watch:
        watch.doctor.steppers.append(steps.append)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = criterion(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    [call] = steps[-1].forwards
    assert call.with_grad and call.autocast == "bf16" and call.samples == 8
    assert call.output is not None and call.output.shape == (8, 3), "the loss module is no model"
