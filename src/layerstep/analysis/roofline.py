"""What this machine achieves at best, measured once: a matrix product, and a copy."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from layerstep.engine.guard import observing

__all__ = ["Roofline", "probe"]

SIDE = 512
BYTES = 1 << 25
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Roofline:
    """Floating-point operations and bytes a second, with the threads that torch has."""

    flops: float
    bandwidth: float
    threads: int

    def achievable(self, flops: float, moved: float) -> float:
        """The rate that work of this kind can reach: what the arithmetic or what the memory allows."""
        return min(self.flops, flops / moved * self.bandwidth) if moved else self.flops


def probe(device: str = "cpu") -> Roofline:
    """Measure; some 100 ms. The best of several rounds: others may use the machine, too."""
    with observing():
        one = torch.full((SIDE, SIDE), 1.5, device=device)
        source = torch.ones(BYTES // 4, device=device)
        target = torch.empty_like(source)
        product = min(_seconds(lambda: torch.mm(one, one), device) for _ in range(ROUNDS))
        copied = min(_seconds(lambda: target.copy_(source), device) for _ in range(ROUNDS))
    return Roofline(2 * SIDE**3 / product, 2 * BYTES / copied, torch.get_num_threads())


def _seconds(run: object, device: str) -> float:
    assert callable(run)
    _wait(device)
    begin = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()
