"""Published thresholds on the same runs: what alarms, and how often."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

__all__ = ["PRESETS", "Recorder", "recording"]

PRESETS = {
    "seed-email": "total gradient norm above 1",
    "seed-ads": "norm of a gradient below 1e-6 or above 10",
    "seed-animator": "mean of a gradient below 1e-7 or maximum above 1e3",
    "aws gradients": "mean below 1e-7, or NaN or Inf",
    "aws updates": "update to weight above 10 or below 1e-8",
    "aws loss": "loss not lower than ten steps before",
    "autotrainer": "gradient of the first over the last layer below 1e-3 and the first below 1e-4, or above "
    "70; 70 % of a gradient zero; loss NaN or above 1e3",
    "deepchecker": "log10 of update to weight outside -4 to -1",
}
"""Each with its rule, as published."""


class Recorder:
    """Counts, for each preset, the optimizer steps in which it alarms."""

    def __init__(self) -> None:
        self.alarms: dict[str, int] = defaultdict(int)
        self.steps = 0
        self._before: list[Tensor] = []

    def before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """An optimizer is about to step."""
        self.steps += 1
        parameters = _of(optimizer)
        self._before = [p.detach().clone() for p in parameters]
        gradients = [(p, p.grad.detach()) for p in parameters if p.grad is not None and not p.grad.is_sparse]
        if gradients:
            self._count(_alarms_of([g for _, g in gradients], [g for p, g in gradients if p.dim() >= 2]))

    def after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """An optimizer has stepped."""
        found = set()
        for old, new in zip(self._before, _of(optimizer), strict=False):
            if new.grad is None or old.shape != new.shape:
                continue
            ratio = float((new.detach() - old).norm()) / (float(old.norm()) + 1e-9)
            if ratio > 10 or ratio < 1e-8:
                found.add("aws updates")
            if not 1e-4 <= ratio <= 1e-1:
                found.add("deepchecker")
        self._count(found)

    def end(self, losses: list[float]) -> None:
        """The run is over; these were its losses."""
        worse = sum(not now < then for then, now in zip(losses, losses[10:], strict=False))
        if worse:
            self.alarms["aws loss"] = round(worse / max(1, len(losses)) * self.steps) or 1
        if any(not math.isfinite(loss) or loss >= 1e3 for loss in losses):
            self.alarms["autotrainer"] += 1

    def shares(self) -> dict[str, float]:
        """The share of the steps in which each preset alarms."""
        return {name: self.alarms[name] / max(1, self.steps) for name in PRESETS}

    def _count(self, names: set[str]) -> None:
        for name in names:
            self.alarms[name] += 1


def _of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _alarms_of(gradients: list[Tensor], matrices: list[Tensor]) -> set[str]:
    found = set()
    sizes = [(float(g.norm()), float(g.abs().mean()), float(g.abs().max())) for g in gradients if g.numel()]
    total = math.sqrt(sum(norm**2 for norm, _, _ in sizes))
    if not total <= 1.0:
        found.add("seed-email")
    if any(not 1e-6 <= norm <= 10 for norm, _, _ in sizes):
        found.add("seed-ads")
    if any(mean < 1e-7 or not most <= 1e3 for _, mean, most in sizes):
        found.add("seed-animator")
    if any(mean < 1e-7 or not math.isfinite(mean) for _, mean, _ in sizes):
        found.add("aws gradients")
    if matrices:
        first, last = float(matrices[0].norm()), float(matrices[-1].norm())
        ratio = first / last if last else math.inf
        is_dead = any(float((g == 0).float().mean()) >= 0.7 for g in matrices)
        if (ratio < 1e-3 and first < 1e-4) or not ratio <= 70 or is_dead:
            found.add("autotrainer")
    return found


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """Record what all optimizers do in this block."""
    recorder = Recorder()

    def guarded(look: Any) -> Any:
        def hook(*args: Any) -> None:
            with torch.no_grad():
                look(*args)

        return hook

    handles = [
        register_optimizer_step_pre_hook(guarded(recorder.before)),
        register_optimizer_step_post_hook(guarded(recorder.after)),
    ]
    try:
        yield recorder
    finally:
        for handle in handles:
            handle.remove()
