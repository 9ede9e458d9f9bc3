"""What a look at a tensor costs: all figures of the tensor line, against a sum and other tools."""

from __future__ import annotations

import gc
import importlib.util
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Effort, Spread
from layerstep.tensors.summary import summarize

__all__ = ["LINE", "WAYS", "Inspection", "Looks", "inspect_tensors"]

LARGE, SMALL = 1 << 28, 1 << 24
"""Elements of the tensor that is looked at, and as many of them as the slow ways are given."""
LAYERS = 1000


@dataclass(frozen=True, slots=True)
class Way:
    """A row: how to look at a tensor."""

    name: str
    run: Callable[[Tensor], Any]
    needs: str = ""
    most: int = LARGE
    """Elements; a way that is slow, or says less about more, looks only at so many."""

    @property
    def is_missing(self) -> bool:
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None


def _naive(tensor: Tensor) -> list[float]:
    """What one types: nine figures, nine passes and some copies."""
    figures = (
        tensor.isnan().sum(), tensor.isinf().sum(), (tensor == 0).sum(), tensor.min(), tensor.max(),
        tensor.mean(), tensor.std(), tensor.abs().mean(), tensor.norm(),
    )  # fmt: skip
    return [float(figure) for figure in figures]


def _lovely(tensor: Tensor) -> str:
    import lovely_tensors  # type: ignore[import-untyped]

    return str(lovely_tensors.lovely(tensor))


def _treescope(tensor: Tensor) -> str:
    """Of the numpy array: treescope 0.1.10 asks a tensor for `names`, which torch 2.13 no longer has.

    From 100,000 elements on it shows no figures.
    """
    import treescope  # type: ignore[import-untyped]

    text: str = treescope.render_to_text(tensor.numpy())
    return text


SUM = Way("`t.sum()`", lambda tensor: tensor.sum())
LINE = Way("layerstep, the tensor line", partial(summarize, brief=True))
WAYS = (
    SUM,
    LINE,
    Way("layerstep, all that `stats` counts", summarize),
    Way("nine calls of torch", _naive, most=SMALL),
    Way("lovely-tensors", _lovely, needs="lovely_tensors", most=SMALL),
    Way("treescope, of `t.numpy()`", _treescope, needs="treescope", most=99_999),
)


@dataclass(frozen=True, slots=True)
class Looks:
    """The samples of one dtype: for each round, the seconds of each way and of the sum beside it."""

    dtype: str
    size: int
    extra: float
    """MB that the tensor line takes beside the tensor."""
    rounds: list[dict[str, tuple[float, float]]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def elements(self, way: Way) -> int:
        return min(self.size, way.most)

    def ratio(self, way: Way) -> Spread:
        return Spread.of(times[way.name][0] / times[way.name][1] for times in self.rounds)

    def per_element(self, way: Way) -> Spread:
        """In ns."""
        return Spread.of(times[way.name][0] / self.elements(way) * 1e9 for times in self.rounds)


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that was found out about looking."""

    looks: list[Looks]
    layers: Spread
    """Milliseconds of the tensor lines of 1,000 weights of 64 × 64."""


def inspect_tensors(effort: Effort) -> Inspection:
    size = LARGE if effort.heavy_rounds > 1 else SMALL
    return Inspection(
        [_look(dtype, size, effort) for dtype in (torch.float32, torch.bfloat16)], _layers(effort)
    )


def _look(dtype: torch.dtype, size: int, effort: Effort) -> Looks:
    """Run every way once a round, in a new order, each right after a sum of the same elements."""
    order, name = random.Random(0), str(dtype).removeprefix("torch.")
    result = Looks(name, size, _extra_memory(name, size))
    tensor = torch.empty(size, dtype=dtype).normal_()
    ways = [way for way in WAYS if not way.is_missing]
    for way in list(ways):
        try:
            way.run(tensor[:1000])
        except Exception as error:  # a tool that cannot: the table says so
            result.failed[way.name] = type(error).__name__
            ways.remove(way)
    for _ in range(max(3, effort.heavy_rounds)):
        order.shuffle(ways)
        result.rounds.append({way.name: _beside(way, tensor[: result.elements(way)]) for way in ways})
        gc.collect()
    return result


def _beside(way: Way, tensor: Tensor) -> tuple[float, float]:
    start = time.perf_counter()
    SUM.run(tensor)
    middle = time.perf_counter()
    way.run(tensor)
    return time.perf_counter() - middle, middle - start


_CHILD = """
import threading, psutil, torch
from layerstep.tensors.summary import summarize
torch.set_num_threads(1)
tensor = torch.empty({size}, dtype=torch.{dtype}).normal_()
summarize(tensor[:10])
process, ended, seen = psutil.Process(), threading.Event(), []
def watch():
    while not ended.wait(0.001):
        seen.append(process.memory_info().rss)
thread = threading.Thread(target=watch)
thread.start()
before = process.memory_info().rss
summarize(tensor)
ended.set()
thread.join()
print(max(seen) - before)
"""


def _extra_memory(dtype: str, size: int) -> float:
    """In MB: the most that a process of its own is seen to hold while it looks, over what it held before."""
    command = [sys.executable, "-c", _CHILD.format(size=size, dtype=dtype)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(answer.stdout) / (1 << 20)


def _layers(effort: Effort) -> Spread:
    weights, taken = [torch.randn(64, 64) for _ in range(LAYERS)], []
    for _ in range(effort.answers):
        start = time.perf_counter()
        for weight in weights:
            summarize(weight, brief=True)
        taken.append((time.perf_counter() - start) * 1e3)
    return Spread.of(taken)
