"""The census: which tensors are alive at the end of each step, and since when.

It asks Python's garbage collector for all its objects, which takes 40 ms for 165,000 of them (measured). So
only the first steps are all counted; later ones as often as a share of the time allows.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from layerstep._torch import is_in_backward, is_tracing
from layerstep._torch.saved import key_of
from layerstep.calls.events import Phase
from layerstep.calls.stack import call_depth
from layerstep.memory.owned import buffers_of, gradients_of, parameters_of, states_of
from layerstep.memory.step_instrument import StepInstrument
from layerstep.tensors.autograd_graph import size_of
from layerstep.tensors.observing import observing
from layerstep.training_steps.borders import Call, End
from layerstep.training_steps.steps import Stepped

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Census", "Count", "census_of"]

ALWAYS = 10
"""The first steps, each of which is counted; after them as many as `SHARE` of the time allows."""
SHARE = 0.05
KEPT = 512


@dataclass(frozen=True, slots=True)
class Count:
    """One census: how many tensors were alive that belong to no model or optimizer."""

    step: int
    tensors: int
    bytes: int
    with_graph: int


def census_of(session: Session) -> Census:
    """The census of a session; it is made when it is first asked for."""
    return session.instruments.get(Census)


class Census(StepInstrument):
    """Counts at the ends of training steps; of forwards, where no optimizer steps."""

    command = "leaks"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.counts: deque[Count] = deque(maxlen=KEPT)
        self.was_on = False
        self.unit = "step"
        self._born: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._unveiled: dict[int, weakref.ref[Tensor]] = {}
        self._taken = 0
        self._boundaries = 0
        self._next = 0.0

    def start(self) -> None:
        self.is_on = self.was_on = True
        self.is_read = False
        self._restart("forward")
        self._borders.start()
        if self._session.run.is_attached:
            self.apply()

    def apply(self) -> None:
        if not self.is_on:
            return
        self._taps.apply_to(self._session.run.models.tappable, Phase.ENTER)
        training = self._session.run.training
        training.listen(training.after, self._after_step, True)

    def unread(self) -> list[str]:
        return [] if self.is_read or not self.was_on else ["leaks"]

    def shortfall(self) -> str:
        """`leaks` itself says what is missing."""
        return ""

    def cost(self) -> list[str]:
        """What is installed, in words."""
        if not self.is_on:
            return []
        return [f"a census of live tensors at the end of steps: at most {SHARE:.0%} of the time"]

    def _uninstall(self) -> None:
        self._taps.clear()
        self._session.run.training.listen(self._session.run.training.after, self._after_step, False)

    def _report(
        self, phase: Phase, points: Any, module: Any, args: Any, kwargs: Any, output: Any, frame: FrameType
    ) -> None:
        session = self._session
        if session.run.is_silent or self._borders.is_training or is_in_backward() or is_tracing():
            return
        try:
            model = session.run.models.by_root(module)
            if model is not None and not model.is_helper and call_depth(frame) == 1:
                is_border = self._borders.called(module) is Call.FORWARD
                if self._borders.is_new_unit:
                    self._restart("forward")
                if is_border:
                    self._boundary()
        except Exception as error:
            session.fail(error)

    def _after_step(self, stepped: Stepped) -> None:
        if self._borders.begin_training():
            self._restart("step")
        if self._borders.stepped(stepped) is not End.NONE:
            self._boundary()

    def _restart(self, unit: str) -> None:
        """Start counting again: counts of forwards say nothing about training steps."""
        self.unit = unit
        self.counts.clear()
        self._born.clear()
        self._taken = self._boundaries = 0
        self._next = 0.0

    def _boundary(self) -> None:
        self._boundaries += 1
        now = time.monotonic()
        if self._taken < ALWAYS or now >= self._next:
            self._take()
            spent = time.monotonic() - now
            self._next = now + spent + spent / SHARE

    def _take(self) -> None:
        with observing():
            born, sizes, graphs = dict[int, tuple[weakref.ref[Tensor], int]](), dict[int, int](), 0
            for tensor in self.others():
                known = self._born.get(id(tensor))
                birth = known[1] if known is not None and known[0]() is tensor else self._boundaries
                born[id(tensor)] = (weakref.ref(tensor), birth)
                sizes[key_of(tensor) or -id(tensor)] = size_of(tensor)
                graphs += tensor.grad_fn is not None
        self._born = born
        self._taken += 1
        self.counts.append(Count(self._boundaries, len(born), sum(sizes.values()), graphs))

    def others(self) -> list[Tensor]:
        """Every tensor that Python knows of, except parameters, buffers, gradients and optimizer state."""
        models, training = self._session.run.models, self._session.run.training
        kept = (parameters_of(models), buffers_of(models), gradients_of(models), states_of(models, training))
        owned = {key_of(tensor) for each in kept for _, tensor in each}
        owned.discard(0)
        found = (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))
        others = [tensor for tensor in found if key_of(tensor) not in owned]
        return [tensor for tensor in others if self._unveiled.get(id(tensor), _nothing)() is not tensor]

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Looking at a graph's saved tensors makes Python objects of them: do not count these."""
        known = {id(tensor) for tensor in self.others()}
        try:
            yield
        finally:
            alive = {at: reference for at, reference in self._unveiled.items() if reference() is not None}
            seen = (tensor for tensor in self.others() if id(tensor) not in known)
            alive.update((id(tensor), weakref.ref(tensor)) for tensor in seen)
            self._unveiled = alive

    def survivors(self) -> list[tuple[Tensor, int]]:
        """The tensors that have outlived the step after the one that made them, and that step's number."""
        last = self.counts[-1].step if self.counts else 0
        earlier = max((count.step for count in self.counts if count.step < last), default=0)
        alive = ((reference(), birth) for reference, birth in self._born.values() if birth < earlier)
        return [(tensor, birth) for tensor, birth in alive if tensor is not None]


def _nothing() -> None:
    """Where a reference is missing."""
