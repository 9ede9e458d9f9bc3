"""The processes of `benchmarks.lines`: train small models, bare and then under a tool; print the times.

Reads lines `TOOL, POINT` and forks a process for each, so that torch is imported once. The tool comes on when
the model is warm. At the end the point is reached once, which proves that the tool has watched all the time.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["ASKED", "CASES", "CONDITION", "NEVER", "line_of"]

CONDITION = "number < 0"
NEVER, ASKED = "never reached", "asked each step"


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, numbers: Sequence[int]) -> Any:
    """Processor seconds of this thread, for each step."""
    times = []
    reached = 0
    for number in numbers:
        began = time.thread_time()
        loss = model(x).square().mean()  # asked each step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number < 0:
            reached += 1  # never reached
        times.append(time.thread_time() - began)
    return times


def line_of(point: str) -> int:
    """The line that ends in this comment."""
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"  # {point}"))


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(m for _ in range(16) for m in (nn.Linear(16, 16), nn.ReLU()))), torch.randn(32, 16)


def _transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(2, 32, 128)


CASES = {
    "16 × Linear(16, 16)": (_mlp, 200),
    "a transformer, 4 layers of 128, batch of 2 × 32": (_transformer, 60),
}


@contextlib.contextmanager
def _bare(line: int, condition: str | None) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _layerstep(line: int, condition: str | None) -> Iterator[None]:
    from layerstep import DebugConsole

    screen = io.StringIO()
    console = DebugConsole(nn.Identity(), commands=["continue", "continue"], output=screen)
    console.breakpoint(f"{__file__}:{line}", condition=condition)
    with console:
        yield
    assert "train()  break 1" in screen.getvalue(), screen.getvalue()


@contextlib.contextmanager
def _pdb(line: int, condition: str | None) -> Iterator[None]:
    import pdb

    screen = io.StringIO()
    tool = pdb.Pdb(stdin=io.StringIO("continue\ncontinue\n"), stdout=screen, readrc=False)
    assert tool.set_break(__file__, line, cond=condition) is None
    tool.set_trace(sys._getframe(2))
    yield
    sys.settrace(None)
    assert f"({line})train()" in screen.getvalue(), screen.getvalue()


@contextlib.contextmanager
def _debugpy(line: int, condition: str | None) -> Iterator[None]:
    """The other process attaches, sets the point, and goes on at the stop."""
    import debugpy

    _, port = debugpy.listen(("127.0.0.1", 0))
    print(json.dumps({"port": port}), flush=True)
    debugpy.wait_for_client()
    yield


def measure(tool: str, point: str) -> None:
    """Print the fastest step of each case, bare and under the tool: other work only makes a step slower."""
    torch.manual_seed(0)
    ready = []
    for make, steps in CASES.values():
        model, x = make()
        ready.append((model, torch.optim.SGD(model.parameters(), lr=1e-4), x, steps))
        train(*ready[-1][:3], range(20))
    gc.collect()
    gc.disable()
    bare = [min(train(model, optimizer, x, range(steps))) for model, optimizer, x, steps in ready]
    seconds = []
    condition = CONDITION if point == ASKED else None
    with {"bare": _bare, "layerstep": _layerstep, "pdb": _pdb, "debugpy": _debugpy}[tool](
        line_of(point), condition
    ):
        for model, optimizer, x, steps in ready:
            train(model, optimizer, x, range(10))
            seconds.append(min(train(model, optimizer, x, range(steps))))
        train(*ready[0][:3], [-1])
    found = {
        "bare": bare,
        "seconds": seconds,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    print(json.dumps(found), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            measure(*line.strip().split(", "))
            return
        if os.waitpid(child, 0)[1]:
            print("{}", flush=True)


if __name__ == "__main__":
    main()
