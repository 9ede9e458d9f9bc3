"""What typed lines do to the run: what each could get at, and what it wrote."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import FrameType

import torch

from layerstep.engine.run import Run
from layerstep.process.frames import forget_locals, is_ours, is_program_file
from layerstep.side_effects.guard import Outcome, state_of, undisturbed
from layerstep.side_effects.marks import Baseline, Marks
from layerstep.side_effects.reachable import Reach
from layerstep.tensors.observing import observing

__all__ = ["LineEffects", "in_reach"]

LINE_BYTES = 16 << 20
"""Values that are read around each line, for tensors without a count of writes."""

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


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
