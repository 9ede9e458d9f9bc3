"""A forward that runs and can begin again: calls its function in a loop, and follows its calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep._torch import hook_tables, modes_off
from layerstep._torch.collectives import collectives_so_far
from layerstep._torch.hidden_hooks import OwnHook
from layerstep._torch.process_state import global_forward_hooks
from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import build_stack
from layerstep.engine.causes import AtModule
from layerstep.engine.points import Counts, Edit
from layerstep.engine.restart import Restart
from layerstep.rewind.goal import Goal
from layerstep.rewind.outputs import Comparison, KeptOutput, keep_output
from layerstep.rewind.route import Boundary, Clock, Key, Place, Route, Search, find_call
from layerstep.rewind.silence import Silence
from layerstep.rewind.snapshot import Snapshot
from layerstep.rewind.weights import KeptWeights, WeightWriters

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["RunningForward"]

KEEP_BYTES = 64 << 20
"""Copies of outputs, to say where one differs. Of the others there is a checksum."""


class RunningForward:
    """An outermost call, from its beginning to its end."""

    def __init__(
        self,
        session: Session,
        module: nn.Module,
        writers: WeightWriters,
        arrived: Callable[[RunningForward], None],
    ) -> None:
        self._session = session
        self._writers = writers
        self._arrived = arrived
        self.module = module
        self.snapshot: Snapshot | None = None
        self.collectives = collectives_so_far()
        """Of all ranks' groups, at its beginning."""
        self.is_over = False
        """Has its function returned? It stands at the exit of its module then, if anywhere."""
        self.route = Route()
        self.boundaries: list[Boundary] = []
        """All calls from the beginning, as far as a run was followed with all modules tapped."""
        self.comparison = Comparison()
        self.silence = Silence(session.run)
        self.lost_way = ""
        """What the second run did not come to."""
        self.is_unsure = False
        """The module that ran is called several times alike, and it is not known which call it was."""
        self.clock = Clock()
        self._open: list[int] = []
        self._call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None
        self._goal = Goal()
        self._place: Place | None = None
        self._target: int | None = None
        """The number of the boundary to stop at; None while the calls are still being noted."""
        self._wanted: tuple[Key, int] | None = None
        """The same as the n-th time that a module is entered or left."""
        self._search = Search(self.route)
        self._is_complete = False
        """Do the boundaries go to the end of the forward?"""
        self._new: list[Boundary] = []
        """The boundaries of the run that goes on silently."""
        self._room = KEEP_BYTES
        self._is_thrown = False
        """`Restart` is on its way out, or was swallowed."""
        self._has_arrived = False
        self._edits: dict[int, Counts] = {}
        """What the edits had counted at the beginning, by their numbers."""
        self.changed_by = ""
        """What the user has changed since the run before, if anything."""

    # --- the loop ---

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """What the call runs in place of its forward."""

        def forward_that_can_begin_again(*args: Any, **kwargs: Any) -> Any:
            self._begin(args, kwargs)
            self._call = (forward, args, kwargs)
            return self._run()

        return forward_that_can_begin_again

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            with modes_off():
                self.snapshot = Snapshot(self.module, args, kwargs, self._writers)
            self.clock = Clock()
            edits = (point for point in self._session.points if isinstance(point, Edit))
            self._edits = {edit.number: edit.counts() for edit in edits}
        except Exception as error:
            self._session.fail(error)

    def _learn(self) -> None:
        """Does this module write weights in its forward? Then the next one keeps them, too."""
        if self.weights is None:
            return
        try:
            with modes_off():
                self.weights.forward_ends()
        except Exception as error:
            self._session.fail(error)

    def turn_streams_back(self) -> bool:
        """Put the random streams where they were at the beginning, for a rerun that leaves no trace."""
        if self.snapshot is None:
            return False
        self.snapshot.turn_streams_back()
        return True

    def run_again(self) -> Any:
        """The result of another run, at a stop after the end of the first."""
        self.is_over = False
        self._begin_again()
        return self._run()

    def _run(self) -> Any:
        assert self._call is not None
        forward, args, kwargs = self._call
        while True:
            try:
                given, named = self._stop_at_entry(args, kwargs) if self._target == 0 else (args, kwargs)
                result = forward(*given, **named)
            except BaseException as error:
                if not self._goes_again(error) and not self._goes_back_from(error):
                    self.is_over = True
                    self.release()
                    raise
            else:
                if not self._goes_again(None):
                    self.is_over = True
                    self._learn()
                    self.silence.leave_stdout()
                    return result
                del result
            self._begin_again()

    def _goes_again(self, error: BaseException | None) -> bool:
        """The function has returned or raised: is it to be called once more?"""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return False
        if self._is_thrown:
            return True
        if not self.is_silent:
            return False
        if self._target is None:
            self._is_complete = error is None
            self._resolve()
        else:
            self.lost_way = self._path(self.boundaries[self._target])
            self._aim(0)
        return True

    def _goes_back_from(self, error: BaseException) -> bool:
        """The exception leaves the forward: does the user go back from the stop there?"""
        if not isinstance(error, Exception) or not self._session.run.is_attached:
            return False
        try:
            self._session.raised_in_forward(error)
        except Restart:
            return True
        return False

    def _begin_again(self) -> None:
        """Put back what the forward may have written; the next run is silent up to its target."""
        self._is_thrown = False
        session = self._session
        try:
            with modes_off():
                if self.snapshot is not None:
                    self.snapshot.restore()
                session.run.seen_calls.clear()
                session.run.restarts += 1
                for point in session.points:
                    if isinstance(point, Edit):
                        point.count_from(self._edits.get(point.number, Counts(ignore=point.ignore)))
                session.backward_pass.graph.begin_again(self.module)
        except Exception as error:
            session.fail(error)
        self.clock = Clock()
        self._new = [Boundary(self.module, Phase.ENTER, (id(self.module),))]
        self._open = [id(self.module)]
        self._room = KEEP_BYTES
        self.silence.begin_run()
        self._search = Search(self.route)
        self._search.pass_by(self._new[0])

    # --- going back ---

    @property
    def is_silent(self) -> bool:
        return self.silence.is_on

    @property
    def weights(self) -> KeptWeights | None:
        """The weights as they were at its beginning, if they are kept."""
        return self.snapshot.weights if self.snapshot is not None else None

    @property
    def is_begun(self) -> bool:
        """Is its function called already? Before that, the run may stand at its entry."""
        return self._call is not None

    def has_other_hooks(self) -> bool:
        """Do hooks of the program get the result of the module?"""
        own = hook_tables(self.module).get("_forward_hooks", {}).values()
        return any(not isinstance(hook, OwnHook) for hook in (*own, *global_forward_hooks()))

    def is_running_here(self) -> bool:
        """Is its function on the stack of this thread?"""
        frame, code = sys._getframe(), RunningForward._run.__code__
        while frame is not None:
            if frame.f_code is code:
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def find_here(self) -> int | None:
        """The number of the boundary that the run stands at, if its way was noted already."""
        if self.is_over:
            return len(self.boundaries) if self._is_complete else None
        return self.route.find(self.boundaries)

    def leave_for(self, goal: Goal, place: Place | None) -> None:
        """Be silent from here on; `Restart` is thrown next. `place`: where the run is, between boundaries."""
        self._goal, self._place = goal, place
        self.comparison = Comparison()
        self.lost_way, self.is_unsure = "", False
        here = self.find_here() if place is None else None
        if goal == Goal():
            self._aim(0)
        else:
            self._aim(goal.number(self.boundaries, here) if here is not None else None)
        self._is_thrown = True
        self.silence.begin()

    def _resolve(self) -> None:
        """All calls up to the place that was left are known now: which boundary is the goal?"""
        search = self._search
        is_boundary = self._place is None and search.is_over
        here = search.number if is_boundary else len(self._new)  # at its end, or where it has raised
        if self._place is not None and not self._place.is_raised:
            here, self.is_unsure = find_call(self._new, self._place, search.last_stop)
            here += 1
        for number, output in search.seen:
            self._compare(number, before=output)
        self.boundaries = self._new
        target = self._goal.number(self.boundaries, here)
        if target is None:
            self.lost_way = f"a call of {self._goal.name} before here"
            target = min(here, len(self.boundaries) - 1)
        self._aim(target)

    def _aim(self, target: int | None) -> None:
        """Stop at that boundary; None: note all calls up to the place that was left, to find out which."""
        self._target = target
        self._wanted = None
        if target:
            key = self.boundaries[target].key
            self._wanted = key, sum(each.key == key for each in self.boundaries[: target + 1])

    def arrives(self, event: Event) -> bool:
        """A call of the silent run: is it where to stop?"""
        if self._is_thrown:
            return False
        boundary = self._note(event)
        if self._wanted is None:
            self._search.pass_by(boundary)
            if self._place is None and self._search.is_over:
                self._is_complete = False
                self._resolve()
                self._is_thrown = True
                raise Restart
            return False
        number = len(self._new) - 1
        if number < len(self.boundaries) and self.boundaries[number].key == boundary.key:
            self._compare(number, before=self.boundaries[number].output)
        key, left = self._wanted
        if boundary.key != key:
            return False
        self._wanted = key, left - 1
        if left > 1:
            return False
        self._arrive(number)
        return True

    def _note(self, event: Event) -> Boundary:
        if event.phase is Phase.ENTER:
            self._open.append(id(event.module))
        stack = tuple(self._open)
        output: KeptOutput = ()
        if event.phase is Phase.EXIT:
            while self._open and self._open.pop() != id(event.module):
                stack = tuple(self._open)
            output = self._kept(event.output)
        boundary = Boundary(event.module, event.phase, stack, self.clock.now, output)
        self._new.append(boundary)
        return boundary

    def _kept(self, output: Any) -> KeptOutput:
        with modes_off():
            kept, used = keep_output(output, room=self._room)
        self._room -= used
        return kept

    def _compare(self, number: int, *, before: KeptOutput) -> None:
        boundary = self._new[number]
        if boundary.phase is Phase.EXIT:
            self.comparison.compare(number, self._path(boundary), before=before, now=boundary.output)

    def _path(self, boundary: Boundary) -> str:
        return self._session.run.models.path_of(boundary.module)

    def _arrive(self, number: int) -> None:
        """The run stands at its target: it is heard again from here on."""
        self.boundaries[: number + 1] = self._new
        self._aim(None)
        self._new = []
        self.route.begin_at(number)
        self.silence.end()
        self._has_arrived = True
        self._arrived(self)

    def _stop_at_entry(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The taps at the entry were passed before; stop there all the same. The arguments to go on with."""
        if not self.boundaries:
            self.boundaries = self._new
        self._arrive(0)
        self._has_arrived = False
        session, event = self._session, Event(Phase.ENTER, self.module, args, kwargs)
        if not session.run.is_attached:
            return args, kwargs
        try:
            with session.standstill.pausing():
                stack = build_stack(sys._getframe(), session.run.models, event=event)
                edited = session.standstill.stop_in(stack, event, None, cause=AtModule())
            return (edited.args, edited.kwargs) if edited is not None else (args, kwargs)
        except Exception as error:
            session.fail(error)
        return args, kwargs

    # --- in the run as ever ---

    def stops_at(self, event: Event) -> None:
        """The run is about to stop at a module."""
        if self._has_arrived:
            self._has_arrived = False
        elif event.module is not self.module or event.phase is not Phase.ENTER or self._call is not None:
            output = self._kept(event.output) if event.phase is Phase.EXIT else ()
            self.route.stops((id(event.module), event.phase), output)

    def went_on_with(self, event: Event) -> None:
        """The stop has put another value into its event: the next run will have it, too."""
        if event.phase is not Phase.EXIT:
            return
        output = self._kept(event.output)
        if not self.route.went_on_with(output) and self.route.start < len(self.boundaries):
            self.boundaries[self.route.start].output = output

    def release(self) -> None:
        """It is over, or the debugger leaves: keep nothing. One that was thrown out still begins again."""
        self.silence.end()
        self.silence.leave_stdout()
        self.boundaries, self._new = [], []
        self._aim(None)
        self.route = Route()
        if not self._is_thrown:
            self.snapshot = None
