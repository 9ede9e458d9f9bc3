"""What this machine achieves at best, measured once on a matrix product and a copy."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from layerstep.profile import machine
from layerstep.tensors.observing import observing

__all__ = ["Roofline", "probe"]

SIDE = 512
BYTES = 1 << 25
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Roofline:
    """Floating-point operations and bytes a second, with torch's present number of threads."""

    flops: float
    bandwidth: float
    threads: int
    half: float = 0.0
    """Floating-point operations a second in bfloat16; 0 if it is not faster."""

    def achievable(self, flops: float, moved: float) -> float:
        """The rate that such work can reach, limited by arithmetic or by memory."""
        return min(self.flops, flops / moved * self.bandwidth) if moved else self.flops


def probe(device: str = "cpu") -> Roofline:
    """Measure for some 100 ms. Takes the best of several rounds, because other programs may run too."""
    with observing():
        one = torch.full((SIDE, SIDE), 1.5, device=device)
        source = torch.ones(BYTES // 4, device=device)
        target = torch.empty_like(source)
        product = min(_seconds(lambda: torch.mm(one, one), device) for _ in range(ROUNDS))
        copied = min(_seconds(lambda: target.copy_(source), device) for _ in range(ROUNDS))
        half = _half_seconds(one, device, slowest=product)
    operations = 2 * SIDE**3
    return Roofline(
        operations / product, 2 * BYTES / copied, torch.get_num_threads(), operations / half if half else 0.0
    )


def _half_seconds(one: torch.Tensor, device: str, *, slowest: float) -> float:
    """Seconds of the same product in bfloat16; 0 if it is not faster, which one or two tries show."""
    try:
        half = one.to(torch.bfloat16)
        first = _seconds(lambda: torch.mm(half, half), device)  # the first call may choose a kernel
        if first > 20 * slowest:
            return 0.0
        best = min(_seconds(lambda: torch.mm(half, half), device) for _ in range(ROUNDS))
    except (RuntimeError, NotImplementedError):
        return 0.0
    return best if best < slowest else 0.0


def _seconds(run: object, device: str) -> float:
    assert callable(run)
    _wait(device)
    begin = machine.now()
    run()
    _wait(device)
    return machine.now() - begin


def _wait(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize(torch.device(device))
