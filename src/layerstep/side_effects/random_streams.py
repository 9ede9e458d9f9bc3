"""Random streams: those of the process, those that objects of the program hold, and who may draw."""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import random
import threading
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerstep._torch.guards import observation
from layerstep._torch.tensors import is_tensor
from layerstep.process.frames import is_program_file
from layerstep.process.thread_frames import frames_of_threads
from layerstep.side_effects.stream_memory import bit_generator, hidden_stream, numpy_state, python_state

__all__ = ["Generators", "OtherThreads", "RandomState", "copy_of_generator", "is_generator", "same_state"]


@functools.cache
def _generators() -> tuple[type, ...]:
    """Asked for when they are needed: numpy loads `np.random` at its first use, which takes 10 ms."""
    of_numpy = (np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    return (torch.Generator, *of_numpy, random.Random)


class RandomState:
    """The random streams of a process: torch on every device in use, `random`, numpy."""

    def __init__(self) -> None:
        self.torch = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self.python = python_state()
        self.bits = bit_generator()
        self.numpy: Any = _numpy_state()
        """As a dictionary, because a program may choose another bit generator; None if it has no state."""

    def changed(self) -> list[str]:
        """The streams that have moved since."""
        moved = []
        with observation():
            if not torch.equal(torch.get_rng_state(), self.torch):
                moved.append("torch")
        if self.cuda and any(map(_differ, torch.cuda.get_rng_state_all(), self.cuda)):
            moved.append("cuda")
        if python_state() != self.python:
            moved.append("random")
        if bit_generator() is not self.bits or not same_state(_numpy_state(), self.numpy):
            moved.append("numpy")
        return moved

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        if self.bits is not None and bit_generator() is not self.bits:
            np.random.set_bit_generator(self.bits)  # type: ignore[attr-defined]
        if self.numpy is not None:
            np.random.set_state(self.numpy)


def _differ(one: Tensor, other: Tensor) -> bool:
    return not torch.equal(one, other)


def _numpy_state() -> Any:
    try:
        return numpy_state()
    except Exception:  # a bit generator of the program's own that has no state to read
        return None


def same_state(one: Any, other: Any) -> bool:
    """Would generators with these states draw the same numbers?"""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if is_tensor(one):
        return torch.equal(one, other)
    return bool(one == other)


def is_generator(value: Any) -> bool:
    """Is it a source of random numbers of the program's own, not one of the process?"""
    return issubclass(type(value), _generators()) and id(value) not in _of_the_process()


def _of_the_process() -> set[int]:
    known = (torch.default_generator, getattr(random, "_inst", None), hidden_stream())
    return {id(each) for each in (*known, bit_generator(), *torch.cuda.default_generators)}


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.state if isinstance(generator, np.random.BitGenerator) else generator.getstate()


def _put_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator | np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = state
    else:
        generator.setstate(state)


def copy_of_generator(generator: Any) -> Any:
    """Another one that will draw the same numbers; itself where it cannot be copied."""
    try:
        if isinstance(generator, torch.Generator):
            twin: Any = torch.Generator(generator.device)
        elif isinstance(generator, np.random.Generator):
            twin = type(generator)(type(generator.bit_generator)())
        elif isinstance(generator, np.random.RandomState):
            twin = np.random.RandomState(type(generator._bit_generator)())
        else:
            twin = type(generator)()
        _put_state(twin, _state_of(generator))
    except Exception:  # the system's own source, or a class of the program's that takes arguments
        return generator
    return twin


_STANDARD = os.path.dirname(threading.__file__)
_RUN_ANYTHING = tuple(
    os.path.join(_STANDARD, *place)
    for place in (("threading.py",), ("concurrent", ""), ("multiprocessing", "pool.py"), ("asyncio", ""))
)
"""Where threads begin that run whatever they are given: timers, executors, pools."""


class Generators:
    """Generators that objects of the program hold, with their states at the time they were added."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[Any, Any]] = {}

    def add(self, generator: Any) -> None:
        if id(generator) not in self._states:
            with contextlib.suppress(Exception):  # the system's own source has no state
                self._states[id(generator)] = (generator, _state_of(generator))

    def all(self) -> list[Any]:
        return [generator for generator, _ in self._states.values()]

    def restore(self) -> list[str]:
        """Put back those that were drawn from; their kinds."""
        moved = []
        for generator, state in self._states.values():
            with contextlib.suppress(Exception):
                if not same_state(_state_of(generator), state):
                    _put_state(generator, state)
                    moved.append(type(generator).__name__)
        return moved

    def rewind(self) -> None:
        """Put all of them where they were."""
        for generator, state in self._states.values():
            with contextlib.suppress(Exception):
                _put_state(generator, state)


class OtherThreads:
    """Have other threads of the program run since? Then they may have drawn from the process's streams.

    To put a stream back then would make them draw the same numbers twice. The system counts the time that
    each thread has run in nanoseconds: one that waits has not run at all.
    """

    def __init__(self) -> None:
        self._times = _run_times()

    @property
    def are_there(self) -> bool:
        """Were there any when this began?"""
        return bool(self._times)

    def have_run(self) -> bool:
        now = _run_times()
        return now != self._times or None in now.values()


def _run_times() -> dict[int, str | None]:
    """How long each other thread has run, None where that is not known or it runs at this moment."""
    threads = threading.enumerate()
    others = [thread for thread in threads if thread.ident != threading.get_ident()]
    times = {thread.native_id or 0: _run_time(thread.native_id) for thread in others if _may_draw(thread)}
    if _thread._count() > len(threads) - 1:  # started without the module `threading`
        known = {thread.ident for thread in threads}
        if any(_may_draw_at(frame) for ident, frame in frames_of_threads().items() if ident not in known):
            times[0] = None
    return times


def _may_draw_at(frame: FrameType | None) -> bool:
    """Does a thread that stands here run code of the program, or did it begin where threads run anything?"""
    first = ""
    while frame is not None:
        first = frame.f_code.co_filename
        if is_program_file(first):
            return True
        frame = frame.f_back
    return first.startswith(_RUN_ANYTHING)


def _may_draw(thread: threading.Thread) -> bool:
    """Does it run code of the program? The threads of libraries come and go, and draw nothing.

    A progress bar, a pinned-memory copier or a logger wakes up during many a line. If that kept the streams
    from being put back, a look at a layer with dropout would change the run.
    """
    if thread.name.startswith("layerstep-"):
        return False
    begins: Any = getattr(thread, "_target", None) or type(thread).run
    code = getattr(getattr(begins, "__func__", begins), "__code__", None)
    if code is None:
        return True
    return is_program_file(code.co_filename) or code.co_filename.startswith(_RUN_ANYTHING)


def _run_time(thread: int | None) -> str | None:
    """What Linux says of a thread. Elsewhere nothing is known, and a thread counts as one that has run."""
    try:
        with open(f"/proc/self/task/{thread}/stat") as file:
            is_running = file.read().rpartition(")")[2].split()[0] == "R"
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            return None if is_running else file.read()
    except (OSError, IndexError):
        return None
