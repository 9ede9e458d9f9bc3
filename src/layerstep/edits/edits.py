"""The edits of a session: what was changed on purpose, how often it acted, and the way back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import Frame
from layerstep.edits.acting import Acting, Make, Occasion, Reach, only_tokens
from layerstep.edits.gradients import Gradient
from layerstep.edits.in_backward import gradient_set, show_gradients
from layerstep.edits.in_compiled import CompiledEdits
from layerstep.edits.in_weights import write_weight
from layerstep.edits.made import Made, times
from layerstep.edits.of_gradients import ParameterGradient
from layerstep.edits.other_holders import kept_elsewhere
from layerstep.edits.same_call import SameCall
from layerstep.edits.target import Target
from layerstep.engine.instrument import Instrument
from layerstep.engine.pause import Pause
from layerstep.engine.points import Edit
from layerstep.errors import BadArguments, UserError
from layerstep.expressions.expression import Expression
from layerstep.expressions.scope import run_python
from layerstep.module_paths.where import Where
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Edits"]


class Edits(Instrument):
    """All edits of a session, in their order."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._compiled = CompiledEdits(session)
        self.made: list[Made] = []
        self.why_refused = ""
        """Why no edit may be made, if so."""
        self._tried: list[Edit] | None = None
        self._is_told = False
        self._undone: list[Made] = []
        """Those that can be made again, the last undone at the end."""

    @property
    def in_force(self) -> list[Made]:
        return [each for each in self.made if not each.is_undone]

    @property
    def past(self) -> str:
        """What edits that were undone have done before, in words."""
        over = [each for each in self.made if each.is_undone and "acted" in each.state()]
        return (
            f"edits that were undone acted before: {', '.join(str(e.number) for e in over)}" if over else ""
        )

    def for_rerun(self) -> list[Edit]:
        """The edits at calls that are in force, as they act in a rerun."""
        points = [point for point in self._session.points if isinstance(point, Edit) and point.enabled]
        return [
            replace(point, change=point.change.anew()) for point in points if isinstance(point.change, Acting)
        ]

    @property
    def written(self) -> set[str]:
        """The weights that edits in force have written."""
        return {each.where for each in self.in_force if each.is_weight}

    def stopped(self) -> list[Notice]:
        """Whoever looks at values that were edited must know it."""
        self._forget_old_calls()
        edits = self.in_force
        if not edits:
            return []
        return [Notice(_listed(edits, 3), "`perturbed?` lists them, `undo` takes them back", level="warn")]

    def ended(self) -> Notice | None:
        """What is said at the end of the program: a run without stops tells nothing of its edits before."""
        edits = [each for each in self.in_force if not each.state().startswith("not yet")]
        return Notice(_listed(edits, 10), self.past, level="warn") if edits else None

    def _forget_old_calls(self) -> None:
        """A `set` in a call that cannot run again needs no tap any more."""
        pause = self._session.run.pause
        event = pause.event if pause is not None else None
        for point in self._session.points:
            change = point.change if isinstance(point, Edit) else None
            if isinstance(change, SameCall) and event is not None and change.is_over(event):
                self._session.points.delete(point)

    def clear(self) -> None:
        """Edits at calls go with the taps. What was written into weights stays, and that must be known."""
        if self._session.run.is_attached:
            return
        self._compiled.clear()
        written = [each for each in self.in_force if each.is_weight]
        if written and not self._is_told:
            self._is_told = True
            names = ", ".join(dict.fromkeys(each.where for each in written))
            self._session.say(
                Notice(f"edits stay in {names}", "`undo all` before takes them back", level="warn")
            )

    def check_allowed(self) -> None:
        if self.why_refused:
            raise UserError(self.why_refused, "run with --allow-edits")

    # --- at calls ---

    def add(
        self,
        where: str,
        make: Make,
        *,
        line: str,
        phase: Phase = Phase.EXIT,
        reach: Reach | None = None,
        condition: Expression | None = None,
        is_random: bool = False,
    ) -> Edit:
        """An edit as a numbered point, which acts in each call that it reaches."""

        def acted_first(before: Event, after: Event) -> None:
            path = self._session.run.models.path_of(before.module)
            if kept := kept_elsewhere(before, after, path):
                self._session.say(Notice(f"edit {point.number}: {kept}", level="warn"))

        acting = Acting(
            self._session.run, reach or Reach(), make, is_random=is_random, acted_first=acted_first
        )
        point = Edit(Where.parse(where), phase=phase, condition=condition, change=acting, set_by=line)
        if self._tried is not None:
            self._tried.append(point)
            return point
        self.check_allowed()
        points = self._session.points
        points.add(point)
        self._session.intake.set_or_leave_pending(point)

        def redo() -> None:
            points.put_back(point)
            self._session.intake.set_or_leave_pending(point)

        def undo() -> str:
            points.delete(point)
            self._session.rearm()
            return "what it did in calls that are over stays" if point.hits else ""

        def state() -> str:
            if not point.hits and point not in list(points):
                return "deleted"
            why = f": {acting.why_not}" if not point.hits and acting.why_not else ""
            return times(point.hits) + why

        self._keep(Made(point.number, line, where, state, undo, redo))
        return point

    @property
    def is_trying(self) -> bool:
        return self._tried is not None

    @contextlib.contextmanager
    def trying(self) -> Iterator[list[Edit]]:
        """Meanwhile edits are collected, and none takes effect in the run."""
        self._tried = []
        try:
            yield self._tried
        finally:
            self._tried = None

    def by_expression(self, text: str, *, target: Target, gradient: Gradient, reach: Reach) -> Make:
        """Replaces the target by what an expression gives at the call."""
        expression = Expression.parse(text)

        def make(occasion: Occasion) -> Event:
            names = self._session.run.scope_at(occasion.place)
            value = expression.evaluate(names)
            only = only_tokens(reach, occasion)
            return target.replaced(occasion.event, value, names, gradient=gradient, only=only)

        return make

    def by_function(self, where: str, change: Callable[[Any], Any] | Any, *, condition: str = "") -> Edit:
        """Replaces what modules return by what a function makes of it, or by a value."""
        whole = Target("out", "out", ())

        def make(occasion: Occasion) -> Event:
            value = change(occasion.event.output) if callable(change) else change
            return whole.replaced(occasion.event, value, {})

        asked = Expression.parse(condition) if condition else None
        return self.add(where, make, line=f"edit {where} from code", condition=asked)

    def take_back(self, number: int) -> None:
        """Undo an edit, if it is in force."""
        if any(each.number == number for each in self.in_force):
            self.undo(str(number))

    # --- in this call only ---

    def set_here(self, target: Target, text: str, *, line: str, gradient: Gradient) -> Notice:
        """Replace a value of the call that the run stands at."""
        pause, event, frame = self._here()
        if event.op is not None or event.call is not None:
            raise UserError("no call of a module begins or ends here", "`break PATH` stops at one")
        if event.phase is not target.phase:
            when = "enter" if target.phase is Phase.ENTER else "exit"
            done = "has not finished" if when == "exit" else "has had its inputs"
            raise UserError(
                f"{frame.path} {done}", f"`break {frame.path} {when}` stops where {target.base} can be set"
            )
        before = pause.edited or event
        names = self._session.run.scope_at(frame)
        value, _ = run_python(text, names)
        after = target.replaced(before, value, names, gradient=gradient)
        make = self.by_expression(text, target=target, gradient=gradient, reach=Reach())
        again = self._again(SameCall(self._session.run, before, make, forward=pause.forward), before, line)
        self._keep_here(pause, frame, (before, after), line=line, show=_show, again=again)
        text = f"edit {again.number}: {target.text} of {frame.path} is replaced in this call"
        return Notice(text, kept_elsewhere(before, after, frame.path), level="good")

    def _again(self, change: SameCall, event: Event, line: str) -> Edit:
        """Lets a `set` act where its call runs again: in a recomputation, and after `back`."""
        path = self._session.run.models.path_of(event.module).partition("|")[0]
        where = Where.parse(path)
        point = Edit(where, phase=event.phase, change=change, set_by=line, is_of_one_call=True)
        self._session.points.add(point)
        self._session.intake.set_or_leave_pending(point)
        return point

    def set_gradient_here(self, target: Target, text: str, *, line: str) -> Notice:
        """Replace a gradient at a stop in the backward pass."""
        pause, event, frame = self._here()
        if not event.phase.is_backward or event.op is not None:
            raise UserError(
                f"{target.base}: the backward pass is not at a module here",
                f"`break {frame.path} backward` stops at one",
            )
        before = pause.edited or event
        names = self._session.run.scope_at(frame)
        after = gradient_set(target, text, event=before, frame=frame, names=names)
        number = self._keep_here(pause, frame, (before, after), line=line, show=show_gradients)
        return Notice(
            f"edit {number}: {target.text} of {frame.path} is replaced in this backward pass", level="good"
        )

    def _here(self) -> tuple[Pause, Event, Frame]:
        """The stop at which a value is to be replaced."""
        self.check_allowed()
        pause = self._session.run.pause
        if pause is None or pause.event is None or not pause.stack:
            raise UserError("no call of a module begins or ends here", "`break PATH` stops at one")
        return pause, pause.event, pause.stack[0]

    def _keep_here(
        self,
        pause: Pause,
        frame: Frame,
        events: tuple[Event, Event],
        *,
        line: str,
        show: Callable[[Frame, Event], None],
        again: Edit | None = None,
    ) -> int:
        """Let the run go on with another event than that of the stop; the number of this edit."""
        before, pause.edited = events
        show(frame, pause.edited)
        points, forward = self._session.points, pause.forward
        number = again.number if again is not None else points.next_number()
        where = "forward" if not before.phase.is_backward else "the backward pass of forward"

        def undo() -> str:
            if again is not None:
                points.delete(again)
            if self._session.run.pause is pause:
                pause.edited = before
                show(frame, before)
                return ""
            hint = "; if it still runs, `restart` begins it again without the edit" if again else ""
            return f"{where} {forward} went on with its value{hint}"

        def state() -> str:
            is_here = self._session.run.pause is pause
            return "acts when the run goes on" if is_here else f"acted in {where} {forward}"

        self._keep(Made(number, line, frame.path, state, undo))
        return number

    # --- in weights ---

    def set_weight(self, target: Target, text: str, *, line: str) -> Notice:
        """Write into a parameter, a buffer or a gradient, and keep what it was."""
        self.check_allowed()
        made, told = write_weight(self._session, target, text, line=line)
        self._keep(made)
        return told

    def edit_gradient(self, found: ParameterGradient, *, line: str) -> Notice:
        """Edit the gradient of a parameter before each step."""
        self.check_allowed()
        found.turn(True)
        number = self._session.points.next_number()

        def undo() -> str:
            found.turn(False)
            return "what it did in steps that are over stays" if found.acted else ""

        where = f"{found.name}.grad"
        self._keep(Made(number, line, where, lambda: times(found.acted), undo, lambda: found.turn(True)))
        return Notice(f"edit {number} at {where}, before each step: {found.text}", level="good")

    def edit_compiled(self, where: str, *, factor: float, added: Tensor | None = None, line: str) -> Notice:
        """Edit what a module of a compiled model returns, in the compiled code."""
        if self._tried is not None:
            raise UserError("a rerun is eager", "leave --compiled out")
        self.check_allowed()
        made = self._compiled.make(where, factor=factor, added=added, line=line)
        self._keep(made)
        text = f"edit {made.number} at {made.where}, in the compiled code"
        return Notice(text, "the next forward compiles the model once more", level="good")

    # --- back ---

    def undo(self, which: str) -> list[Notice]:
        """Take back the last edit, one by its number, or all."""
        if which == "all":
            chosen = list(reversed(self.in_force))
        elif which:
            chosen = [each for each in self.in_force if str(each.number) == which]
            if not chosen:
                raise BadArguments(f"no edit {which}", "`perturbed?` lists the edits")
        else:
            chosen = self.in_force[-1:]
        if not chosen:
            return [Notice("no edit is in force")]
        told = []
        for each in chosen:
            try:
                rest = each.undo()
            except UserError as error:
                if len(chosen) == 1:
                    raise
                told.append(Notice(f"not undone: {error}", error.hint, level="warn"))
                continue
            each.is_undone = True
            if each.redo is not None:
                self._undone.append(each)
            told.append(Notice(f"undone: edit {each.number}, {each.line}", rest))
        return told

    def redo(self) -> Notice:
        """Make the edit again that was undone last."""
        self.check_allowed()
        if not self._undone:
            return Notice("no edit was undone that can be made again")
        last = self._undone.pop()
        assert last.redo is not None
        last.redo()
        last.is_undone = False
        return Notice(f"edit {last.number} is in force again: {last.line}", level="good")

    def _keep(self, made: Made) -> None:
        self.made.append(made)


def _listed(edits: list[Made], most: int) -> str:
    words = "; ".join(f"{each.number} at {each.where} ({each.state()})" for each in edits[:most])
    return f"edited: {words}" + (f"; {len(edits) - most} more" if len(edits) > most else "")


def _show(frame: Frame, event: Event) -> None:
    """Let the stop show the values that the run goes on with."""
    if event.phase is Phase.EXIT:
        frame.output = event.output
    else:
        frame.args, frame.kwargs = event.args, event.kwargs
