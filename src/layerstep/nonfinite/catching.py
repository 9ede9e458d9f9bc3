"""The search of a session: what `catch nan`, `catch inf` and `catch nonfinite` ask, and when.

At the end of an outermost call its output is summed; at `backward()` the loss; after it the gradients; after
an optimizer's step the parameters. Only if one of them is not finite is anything run again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from layerstep.calls.events import Event, Phase
from layerstep.calls.op_frame import op_frame
from layerstep.calls.operations import Op, user_frame
from layerstep.calls.stack import Frame, build_stack
from layerstep.engine.instrument import Instrument
from layerstep.engine.points import Catch
from layerstep.engine.stop import Caught, Hold, Stop
from layerstep.errors import UnknownPath, UserError
from layerstep.module_paths.where import Where
from layerstep.nonfinite.catch import NonfiniteCatch
from layerstep.nonfinite.in_forward import at_birth, look_forward, origin_of_link, trace
from layerstep.nonfinite.kernel_trace import Link, Reached
from layerstep.nonfinite.live_check import LiveCheck
from layerstep.nonfinite.loss_and_backward import LossAndBackward
from layerstep.nonfinite.origin import Origin, Part
from layerstep.nonfinite.views import Born
from layerstep.rerun.whole_call import CallStart, note_start
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.finite import Bad, count_bad, is_finite, why_unread
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["NonfiniteSearch", "catch_nonfinite", "search_of"]

MOST_SNAPSHOTS = 8
"""Models whose latest call can be run again, in one thread; as many as forwards that wait for a backward."""


def search_of(session: Session) -> NonfiniteSearch:
    """The search of a session; it is made when it is first asked for."""
    return session.instruments.get(NonfiniteSearch)


def catch_nonfinite(
    session: Session,
    what: str,
    *,
    where: Where | None = None,
    sides: tuple[str, ...] = ("forward", "backward"),
    every_op: bool = False,
    set_by: str = "",
) -> Catch:
    """Set a catchpoint for values that are not finite: `nan`, `inf` or `nonfinite`."""
    search = search_of(session)
    point = session.points.add(
        Catch(
            where,
            what=what,
            root_phases=(Phase.ENTER, Phase.EXIT),
            set_by=set_by or f"catch {what}",
        )
    )
    search.add(NonfiniteCatch(point, what, sides, every_op=every_op))
    if where is not None:
        session.intake.set_or_leave_pending(point)
    session.rearm()
    return point


class _Here(threading.local):
    """What one thread is at: several may run a model at once."""

    def __init__(self) -> None:
        self.snapshots: dict[int, CallStart] = {}
        self.begun: Event | None = None
        self.has_told = False


class NonfiniteSearch(Instrument):
    """Answers for all catchpoints of values that are not finite."""

    command = "catch"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.muted: list[Where] = []
        """Where what is born is meant to be so."""
        self.passed_over = 0
        """How often something muted was born."""
        self.found: Origin | None = None
        """The last that was found."""
        self.listeners: list[Callable[[Origin], None]] = []
        """Told of each, before the stop."""
        self._here = _Here()
        self._catches: list[NonfiniteCatch] = []
        self._tolerated: set[int] = set()
        self.every_op = LiveCheck(self)
        self._loss_and_backward = LossAndBackward(self, self.every_op)

    @property
    def has_told(self) -> bool:
        """In this step something was found: what follows from it is no news."""
        return self._here.has_told

    @has_told.setter
    def has_told(self, value: bool) -> None:
        self._here.has_told = value

    def add(self, catch: NonfiniteCatch) -> None:
        """A new catchpoint asks here."""
        catch.point.check = partial(self._ask, catch)
        self._catches.append(catch)

    @property
    def active(self) -> list[NonfiniteCatch]:
        live = set(map(id, self.session.points))
        self._catches = [each for each in self._catches if id(each.point) in live]
        return [each for each in self._catches if each.point.enabled]

    def wants(self, side: str) -> bool:
        return any(side in each.sides for each in self.active)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Every parameter of every model, by its path."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for path, module in self.session.run.models.everything():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    found.setdefault(id(parameter), (f"{path}.{name}", parameter))
        return list(found.values())

    # --- what is installed ---

    def apply(self) -> None:
        active = self.active
        self._loss_and_backward.listen({side for each in active for side in each.sides})
        if not any(each.every_op for each in active):
            self.every_op.clear()
        if not active:
            self.clear()

    def clear(self) -> None:
        self._loss_and_backward.clear()
        self.every_op.clear()
        self._here = _Here()  # for every thread

    def cost(self) -> list[str]:
        """What is installed, in words."""
        if not self.active:
            return []
        words = ["each input of a model is copied; its output, the loss and the gradients are summed"]
        words += (
            ["functions after the model are noted until `backward()`"]
            if self._loss_and_backward.is_noting
            else []
        )
        return words + (["every operation is checked as it runs"] if self.every_op.is_on else [])

    # --- the forward ---

    def _ask(self, catch: NonfiniteCatch, event: Event) -> Caught | None:
        """A catchpoint's question at an event."""
        if event.phase is Phase.ENTER:
            if event is not self._here.begun:
                self._here.begun = event
                self._begin(event)
            return None
        asked = "forward" in catch.sides and catch.looks_at(event.module)
        seen = self._bad_in(event.output, catch, event.module) if asked else ""
        if seen and not self.has_told:
            return self._search_forward(catch, event, seen)
        snapshot = self._here.snapshots.get(id(event.module))
        if snapshot is not None and "backward" in catch.sides:
            self._loss_and_backward.wait(event, snapshot)
        return None

    def _begin(self, event: Event) -> None:
        models = self.session.run.models
        owner = models.owner_of(event.module)
        root = owner.root if owner is not None else None
        if owner is None or root is None or root is not event.module:
            return
        if owner.is_helper and owner is not models.main:  # a loss without parameters ends a forward
            return
        self._loss_and_backward.begin()
        self.has_told = False
        snapshots = self._here.snapshots
        snapshots.pop(id(event.module), None)
        while len(snapshots) >= MOST_SNAPSHOTS:  # a snapshot keeps its model alive
            del snapshots[next(iter(snapshots))]
        with contextlib.suppress(Exception):  # an input that cannot be copied: there is then no second run
            self._here.snapshots[id(root)] = note_start(
                root,
                event.args,
                event.kwargs,
                forward=owner.forwards,
                inside=[module for _, module in owner.names],
            )
        checking = next((each for each in self.active if each.every_op), None)
        if checking is not None:
            self.every_op.start(checking, root)

    def _bad_in(self, value: Any, catch: NonfiniteCatch, module: nn.Module) -> str:
        """What of an output is wanted, in words."""
        for tensor in tensors_of(value):
            if is_finite(tensor):
                catch.point.unread = catch.point.unread or why_unread(tensor)
                continue
            bad = count_bad(tensor)
            if catch.is_wanted(bad) and (bad.nan or id(module) not in self._tolerated):
                return f"the output of {self.session.run.models.path_of(module)} has {bad}"
        return ""

    def _search_forward(self, catch: NonfiniteCatch, event: Event, seen: str) -> Caught | None:
        self.has_told = True
        owner = self.session.run.models.owner_of(event.module)
        snapshot = self._here.snapshots.get(id(owner.root)) if owner is not None else None
        if snapshot is None:
            why = "its beginning was not kept: `why out` runs it again on its inputs as they are now"
            return Caught(f"{seen}; {why}")

        def is_wanted(tensor: Tensor) -> bool:
            return not is_finite(tensor) and catch.is_wanted(count_bad(tensor))

        verdict = look_forward(self.session, snapshot, event.module, wanted=is_wanted)
        if verdict.intended:
            self.has_told = False
            self._tolerate(event.module, verdict.chain[0])
            return None
        if verdict.trouble:
            self.note(Origin(Part.FORWARD, seen, forward=snapshot.forward, note=verdict.trouble))
            hint = f"`catch {catch.what} --every-op` checks it as it runs next time"
            return Caught(f"{seen}; {verdict.trouble}; {hint}")
        origin = origin_of_link(self.session, verdict.chain, seen=seen, forward=snapshot.forward)
        if self._is_muted(origin):
            return None
        self.note(origin)
        if self.session.prompt.dump_to is not None:  # a core file of the whole call can be run again
            return Caught(f"{seen}; born in {origin.op} of {origin.path} at {origin.place}")
        return Caught(seen, partial(self._stop_at_birth, catch.point, snapshot, origin))

    def _stop_at_birth(self, point: Catch, snapshot: CallStart, origin: Origin, hold: Hold) -> str:
        """Stop in a third run, at the operation itself, where its variables are alive."""

        def stop(origin: Origin, here: Reached, boundary: FrameType | None) -> None:
            hold(self.stop_in_call(point, origin, here, boundary))

        if at_birth(self.session, snapshot, origin, then=stop):
            return ""
        return f"born in {origin.op} at {origin.place}, which a third run did not reach"

    def note(self, origin: Origin) -> None:
        """Keep what was found, and tell the listeners."""
        self.found, self.has_told = origin, True
        for listener in self.listeners:
            listener(origin)

    def _tolerate(self, module: nn.Module, link: Link) -> None:
        self._tolerated.add(id(module))
        path = self.session.run.models.path_of(module)
        text = f"the output of {path} has {link.bad}, written on purpose by {link.name}"
        self.session.say(Notice(text, str(link.place)))

    def _is_muted(self, origin: Origin) -> bool:
        for where in self.muted if origin.path else ():
            with contextlib.suppress(UnknownPath):
                if any(origin.path == path for path, _ in where.look_up(self.session.run.models)):
                    self.passed_over += 1
                    return True
        return False

    def trace(self, tensor: Tensor, frame: Frame | None, seen: str) -> Origin:
        """Where a bad value was born, found by a rerun of the call that is running."""
        module = frame.module if frame is not None else None
        owner = self.session.run.models.owner_of(module) if module is not None else None
        snapshot = self._here.snapshots.get(id(owner.root)) if owner is not None else None
        note = ""
        if snapshot is None:
            snapshot, note = (
                self._as_it_is_now(),
                "its beginning was not kept: run on its inputs as they are now",
            )
        if snapshot is None:
            raise UserError("no call of a model is running here", "`catch nonfinite`, then `continue`")
        verdict = trace(self.session, snapshot, tensor)
        if not verdict.chain:
            return Origin(Part.FORWARD, seen, forward=snapshot.forward, note=verdict.trouble)
        origin = origin_of_link(self.session, verdict.chain, seen=seen, forward=snapshot.forward)
        filled = []
        at_birth(self.session, snapshot, origin, then=lambda found, *_: filled.append(found))
        origin = filled[0] if filled else origin
        words = [origin.note, note, verdict.trouble, "it was written on purpose" if verdict.intended else ""]
        return replace(origin, note="; ".join(word for word in words if word))

    def _as_it_is_now(self) -> CallStart | None:
        """The outermost call of this stop, if its beginning was not kept."""
        stack = self.session.run.pause.stack if self.session.run.pause is not None else []
        outer = next((f for f in reversed(stack) if f.module is not None and f.call is None), None)
        owner = self.session.run.models.owner_of(outer.module) if outer is not None and outer.module else None
        if outer is None or outer.module is None or owner is None:
            return None
        modules = [module for _, module in owner.names]
        return note_start(outer.module, outer.args, outer.kwargs, forward=owner.forwards, inside=modules)

    # --- stops ---

    def tell(
        self, origin: Origin, bad: Bad, *, frame: FrameType, side: str, about: Sequence[str] = ()
    ) -> None:
        """Stop at what was found outside of a call, if a catchpoint wants it. `about`: what is bad."""
        after = [q for q in self.active if side in q.sides and any(map(q.is_in, (origin.path, *about)))]
        catch = next((q for q in after if q.is_wanted(bad)), None)
        if catch is None or self._is_muted(origin):
            return
        self.note(origin)
        code = user_frame(frame)
        place = Frame(self.session.run.models, None, caller=code)
        if self.session.decision.meets(catch.point, place) is not None:
            self.session.standstill.stop(self._stop(catch.point, origin, [place], code))

    def stop_in_call(self, point: Catch, origin: Origin, here: Reached, boundary: FrameType | None) -> Stop:
        """The stop in the middle of a call, at the operation that made the value."""
        models, code = self.session.run.models, user_frame(here.frame)
        stack = build_stack(here.frame, models, event=None, until=boundary)
        named = dict(here.operands)
        op = Op(here.func, tuple(named.values()), {}, here.result, code)
        event = Event(Phase.KERNEL, stack[0].module if stack else None, op.args, {}, op.result, op=op)
        return self._stop(point, origin, [op_frame(event, models, depth=len(stack)), *stack], code)

    def _stop(self, point: Catch, origin: Origin, stack: list[Frame], code: FrameType | None) -> Stop:
        self.found = origin  # with its operands now
        return Stop(
            Born(origin, self.session.run.models),
            stack,
            point=point,
            reason=f"{point.label} {point.what}",
            forward=origin.forward,
            python=code,
        )
