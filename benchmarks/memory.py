"""What it costs to measure memory in training steps, beside what people use now."""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from benchmarks.measure import Effort, Overhead, Times
from benchmarks.models import Case
from benchmarks.training import BARE, TrainingCase, bare, training_cases, under
from benchmarks.variants import NoKernel, Run, Variant, check_clean

__all__ = ["MEMORY", "measure_memory"]

WARM_UP = 12
"""Steps before the clock runs: a census is taken at each of the first ten, then only now and then."""
STEPS = 8


@contextlib.contextmanager
def _by_hand(case: Case) -> Iterator[Run]:
    """What autograd saves, as people write it: a stack kept by hooks, and torch's saved tensor hooks."""
    stack, sizes = [""], dict[str, int]()

    def enter(module: nn.Module, args: object, *, name: str) -> None:
        stack.append(name)

    def leave(module: nn.Module, args: object, output: object) -> None:
        stack.pop()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes[stack[-1]] = sizes.get(stack[-1], 0) + tensor.untyped_storage().nbytes()
        return tensor

    with contextlib.ExitStack() as handles, bare(case) as step:
        for name, module in case.model.named_modules():
            handles.callback(module.register_forward_pre_hook(partial(enter, name=name)).remove)
            handles.callback(module.register_forward_hook(leave).remove)

        def run() -> None:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                step()

        yield run


@contextlib.contextmanager
def _no_op_mode(case: Case) -> Iterator[Run]:
    with bare(case) as step:

        def run() -> None:
            with NoKernel():
                step()

        yield run


@contextlib.contextmanager
def _profiler(case: Case) -> Iterator[Run]:
    with bare(case) as step:

        def run() -> None:
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
            ):
                step()

        yield run


MEMORY = (
    BARE,
    Variant("bare, again (noise)", bare),
    Variant("`memory on`", partial(under, lines=("memory on",))),
    Variant("`leaks on`", partial(under, lines=("leaks on",))),
    Variant("a dispatch mode that does nothing", _no_op_mode),
    Variant("hooks by hand: only what is saved", _by_hand),
    Variant("`torch.profiler`, `profile_memory=True`", _profiler),
)


def measure_memory(effort: Effort) -> Overhead:
    """Whole runs of steps of the GPT-2-like model, not the fastest step: a census comes only now and then."""
    case = next(case for case in training_cases() if "GPT" in case.name)
    found = Overhead(case, case.calls())
    order = random.Random(0)
    gc.unfreeze()  # a census must see what it would see elsewhere
    for _ in range(max(3, effort.rounds // 8)):
        now = list(MEMORY)
        order.shuffle(now)
        found.rounds.append({variant.name: _take(variant, case) for variant in now})
    return found


def _take(variant: Variant, case: TrainingCase) -> Times:
    with variant.open(case) as run:
        for _ in range(WARM_UP if "leaks" in variant.name else 2):
            run()
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(STEPS):
            run()
        taken = Times((time.perf_counter() - wall) / STEPS, (time.thread_time() - cpu) / STEPS)
    check_clean(case.model)
    gc.collect()
    return taken
