"""What a typed line writes into tensors that no model owns: inputs, outputs, locals, optimizer state.

Torch counts the writes to a tensor, so a look before and after is enough. Inference tensors have no count,
and writes through `.data` or numpy are not counted: for these the values are summed up while they are small.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor

from layerstep.engine.guard import Outcome, state_of, undisturbed
from layerstep.engine.models import Models
from layerstep.engine.random_streams import OtherThreads, RandomState
from layerstep.engine.reachable import MOST, Reach
from layerstep.engine.run import Run
from layerstep.process.frames import forget_locals, is_ours, is_program_file
from layerstep.tensors.observing import checksum, observing, size_of, version_of

__all__ = ["Baseline", "LineEffects", "Marks", "in_reach"]

LINE_BYTES = 16 << 20
"""Values that are read around each line, for tensors without a count of writes."""
STATE_BYTES, PAUSE_BYTES = 1 << 30, 256 << 20
"""Values that are read once a pause, of the models and of the rest, for writes that are not counted."""

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


class _Mark(NamedTuple):
    name: str
    tensor: weakref.ref[Tensor]
    version: int
    """-1: it has no count of writes."""
    sum: int | None


class Marks:
    """Tensors as they are now. Each is held weakly: a line may let go of one."""

    def __init__(self, reach: Reach, *, budget: int, every: bool) -> None:
        self._marks: list[_Mark] = []
        self.unchecked: list[str] = []
        """What may change unseen: tensors by name, then what was not looked at."""
        self.large = 0
        """Tensors whose values were to be summed and are too large: only counted writes are seen."""
        with observing():
            for name, tensor in reach.tensors:
                version = version_of(tensor)
                size = size_of(tensor) if every or version < 0 else None
                is_small = size is not None and size <= budget
                budget -= size if is_small and size is not None else 0
                if not is_small and version < 0:
                    self.unchecked.append(name)
                elif not is_small and every:
                    self.large += 1
                sum_ = checksum(tensor) if is_small else None
                self._marks.append(_Mark(name, weakref.ref(tensor), version, sum_))
        if reach.is_cut:
            self.unchecked.append(f"all but the first {MOST:,} objects in reach")

    def __len__(self) -> int:
        return len(self._marks)

    def changed(self) -> list[str]:
        """The names of those that are no longer what they were."""
        with observing():
            return [mark.name for mark in self._marks if _has_changed(mark)]


def _has_changed(mark: _Mark) -> bool:
    tensor = mark.tensor()
    if tensor is None:
        return False
    if version_of(tensor) != mark.version:
        return True
    return mark.sum is not None and (size_of(tensor) is None or checksum(tensor) != mark.sum)


class Baseline:
    """The run before the first line of a pause that could write."""

    def __init__(self, models: Models, reach: Reach) -> None:
        self.streams, self.threads = RandomState(), OtherThreads()
        state = Reach()
        state.tensors += state_of(models)
        self.state = Marks(state, budget=STATE_BYTES, every=True)
        self.others = Marks(reach, budget=PAUSE_BYTES, every=True)

    def changed(self) -> list[str]:
        """What is other than it was, also where no write was counted."""
        return self.state.changed() + self.others.changed()

    @property
    def unchecked(self) -> list[str]:
        large = self.state.large + self.others.large
        more = [f"uncounted writes to {large} large tensors"] if large else []
        return self.state.unchecked + self.others.unchecked + more


class LineEffects:
    """What the lines of a session have done to its run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.disturbed: list[tuple[str, Outcome]] = []
        """Each line that did something, with what it did."""
        self.baseline: Baseline | None = None
        """What `perturbed?` compares with: taken before the first line of a pause that could write."""

    def begin_pause(self) -> None:
        self.baseline = None

    @contextlib.contextmanager
    def watching(self, line: str, *, deep: bool) -> Iterator[Outcome]:
        """Run a typed line undisturbing; what it did is kept. `deep`: also what it wrote on purpose."""
        marks = self._marks_before() if deep else None
        outcome = Outcome()
        try:
            with undisturbed(self._run.models, deep=deep) as outcome:
                yield outcome
        finally:  # a line that raises has written what it has written
            if marks is not None:
                outcome.changed += [name for name in marks.changed() if name not in outcome.changed]
                outcome.unchecked += marks.unchecked
            if outcome.is_worth_telling:
                self.disturbed.append((line, outcome))

    def _marks_before(self) -> Marks:
        with observing():
            reach = in_reach(self._run)
        if self.baseline is None:
            self.baseline = Baseline(self._run.models, reach)
        return Marks(reach, budget=LINE_BYTES, every=False)


def in_reach(run: Run) -> Reach:
    """What a line at this pause can get at, the state of the models aside, which is looked at by itself."""
    reach, pause = Reach(), run.pause
    for _, tensor in state_of(run.models):
        reach.skip(tensor)
    for number, frame in enumerate(pause.stack if pause is not None else ()):
        reach.place = "" if number == 0 else f" of {frame.path}"
        reach.add("out", frame.output if frame.has_output else None)
        reach.add("inp", frame.inp)
        reach.add("kwargs", frame.kwargs)
        if frame.call is not None:
            reach.add("grad_out", frame.call.grad_out)
            reach.add("grad_in", frame.call.grad_in)
    reach.place = ""
    for path, module in run.models.everything():
        kept = run.seen_calls.get(module)
        if kept is not None:
            reach.add(f"{path}.output", kept[2])
            reach.add(f"{path}.input", kept[0])
    _add_frames(reach, pause.python if pause is not None else None)
    for stepped in run.training.optimizers:
        if (optimizer := stepped.optimizer) is not None:
            reach.add(f"{stepped.kind}.state", optimizer.state)
    for model in run.models:
        if (root := model.root) is not None:
            reach.add_module(model.name, root)
    return reach


def _add_frames(reach: Reach, frame: FrameType | None) -> None:
    """The variables of the code from the stop outwards, up to the outermost function of the program.

    What has called the program, as a test runner does, holds thousands of objects that no line means.
    """
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    while frames and not is_program_file(frames[-1].f_code.co_filename):
        frames.pop()
    for each in frames:
        if not is_ours(each) and not each.f_code.co_filename.startswith((_TORCH, "<frozen")):
            is_module = each.f_code.co_name == "<module>"
            reach.place = "" if is_module else f" in {each.f_code.co_name}"
            for name, value in list(each.f_locals.items()):
                if not name.startswith("__"):
                    reach.add(name, value)
            forget_locals(each)
    reach.place = ""
