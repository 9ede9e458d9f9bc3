"""The one way to stop: each source says why by a class of its own, and all stops are served alike."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layerstep
from layerstep import DebugConsole
from layerstep.crashes.raised import Raised
from layerstep.engine.causes import AtLine, AtModule, InBackward
from layerstep.engine.messages import Message
from layerstep.engine.session import Session
from layerstep.engine.stop import Nothing
from layerstep.nonfinite.views import Born
from layerstep.ops.views import AfterOp
from layerstep.render.screen import to_text
from layerstep.views import View
from layerstep.watchpoints.views import Written
from zoo import console_on

SESSIONS: list[Session] = []
LOOKS: list[Callable[[Session], Any]] = []
SEEN: list[Any] = []


def look() -> None:
    """What the line `LOOK` calls at a stop."""
    SEEN.append(LOOKS[-1](SESSIONS[-1]))


LOOK = f"!__import__('sys').modules[{__name__!r}].look()"


@pytest.fixture(autouse=True)
def _forgotten() -> Any:
    assert sys.modules[__name__].look is look
    yield
    for each in (SESSIONS, LOOKS, SEEN):
        each.clear()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x.relu())


X = torch.ones(3, 2)


class Debugged:
    """A console on a net: lines before the run, then `LOOK` and lines at each stop, and all that was said."""

    def __init__(
        self,
        *before: str,
        at_stop: tuple[str, ...] = (LOOK, "continue"),
        stops: int = 9,
        look: Callable[[Session], Any] = lambda session: type(session.run.pause.stop.cause),  # type: ignore[union-attr]
    ) -> None:
        torch.manual_seed(0)
        self.model = Net()
        lines = [*before, "continue", *(at_stop * stops)]
        self.console = DebugConsole(self.model, commands=lines, output=io.StringIO())
        self.session = self.console.session
        SESSIONS.append(self.session)
        LOOKS.append(look)
        self.messages: list[Message] = []
        self.session.listen(self.messages.append)

    def run(self, program: Callable[[Net], Any] = lambda model: model(X)) -> list[Any]:
        """Run a program; what was seen at the stops."""
        with self.console:
            program(self.model)
        assert self.session.prompt.wrong_lines == []
        return SEEN

    def said(self, kind: str) -> list[str]:
        return [to_text(message.view, width=200) for message in self.messages if message.kind == kind]


# --- each source has a cause of its own ---


def trained(model: Net) -> None:
    model(X).sum().backward()


def written(model: Net) -> None:
    with torch.no_grad():
        model.head.weight.add_(1)


def traced(model: Net) -> None:
    layerstep.set_trace()


def not_finite(model: Net) -> None:
    with torch.no_grad():
        model.first.bias.zero_()
        model.head.weight.fill_(torch.inf)
    model(torch.zeros(3, 2))


def crashed(model: Net) -> None:
    with pytest.raises(RuntimeError):
        model(torch.ones(3, 5))


def called(model: Net) -> None:
    model(X)


LINE = Net.forward.__code__.co_firstlineno + 2


@dataclass
class Source:
    line: str
    program: Callable[[Net], None]
    cause: type
    path: str | None
    reason: str

    @property
    def lines(self) -> list[str]:
        return [self.line] if self.line else []

    def __str__(self) -> str:
        return f"{self.program.__name__}: {self.line.replace(__file__, 'here')}"


SOURCES = [
    Source("break head", called, AtModule, "head", "break 1"),
    Source("break head enter", called, AtModule, "head", "break 1"),
    Source("break head backward", trained, InBackward, "head", "break 1"),
    Source(f"break {__file__}:{LINE}", called, AtLine, "Net", "break 1"),
    Source("", traced, AtLine, None, "set_trace()"),
    Source("break op:relu", called, AfterOp, "Net", "break 1"),
    Source("watch --stop head.weight", written, Written, None, "watch 1"),
    Source("catch exception", crashed, Raised, "first", "catch 1"),
    Source("catch nan", not_finite, Born, "head", "catch 1"),
]


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_each_source_of_stops_has_a_cause_of_its_own(source: Source) -> None:
    debugged = Debugged(*source.lines)
    assert debugged.run(source.program) == [source.cause]
    (stop,) = [message.stop for message in debugged.messages if message.kind == "stop"]
    assert stop is not None
    assert stop["path"] == source.path
    assert source.reason in stop["reason"]
    assert debugged.session.run.pause is None


@pytest.mark.parametrize(
    ("line", "causes"),
    [
        ("step", [AtModule] * 3),
        ("into", [AtModule] * 2),
        ("step op", [AtModule, AfterOp, AtModule]),
    ],
)
def test_a_step_is_a_stop_of_the_place_that_it_comes_to(line: str, causes: list[type]) -> None:
    debugged = Debugged("break first enter", at_stop=(LOOK, line), stops=3)
    assert debugged.run() == causes
    reasons = [message.stop["reason"] for message in debugged.messages if message.stop is not None]
    assert reasons[0] == "break 1" and set(reasons[1:]) <= {""}


def test_before_the_run_there_is_no_cause() -> None:
    debugged = Debugged(LOOK, at_stop=())
    assert debugged.run() == [Nothing]
    assert debugged.said("stop") == []


# --- describing a stop ---


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_stop_may_be_described_again_and_again(source: Source) -> None:
    """The views are equal, and no count and no watched expression has changed."""

    def twice(session: Session) -> tuple[list[View], list[tuple[Any, ...]]]:
        assert session.run.pause is not None
        before, states = len(debugged.messages), []
        for _ in range(3):
            states.append(
                (
                    [(point.hits, point.tried, point.ignore) for point in session.points],
                    [(watch.expression.text, watch.last) for watch in session.prompt.watches.values()],
                    list(session.points),
                    session.standstill.caught.copy(),
                )
            )
            session.prompt.show(session.run.pause.stop)
        return [message.view for message in debugged.messages[before:]], states

    debugged = Debugged(*source.lines, "watch 1 + 1", look=twice)
    ((views, states),) = debugged.run(source.program)
    (shown,) = [message.view for message in debugged.messages if message.kind == "stop"]
    assert states[0] == states[1] == states[2]
    assert views[1] == views[0] == views[2]
    assert to_text(views[0], width=200) in to_text(shown, width=200)
    assert "1 + 1 = 2" in to_text(views[0], width=200)


def test_a_watched_expression_says_how_it_looked_at_the_last_stop_however_often_it_is_shown() -> None:
    debugged = Debugged(
        "watch name",
        "break first",
        "break head",
        look=lambda session: session.prompt.show(session.run.pause.stop),  # type: ignore[union-attr]
    )
    debugged.run()
    first, second = debugged.said("stop")
    assert "name = first" in first and "was" not in first
    assert "name = head   was first" in second


def test_a_stop_that_is_only_described_is_not_the_last_stop_of_a_watched_expression() -> None:
    debugged = Debugged(
        "watch name",
        "break first",
        f"commands 2 silent; {LOOK}; continue",
        "break head",
        look=lambda session: session.prompt.show(session.run.pause.stop),  # type: ignore[union-attr]
    )
    debugged.run()
    (shown,) = debugged.said("stop")
    assert "name = head" in shown and "was" not in shown


# --- serving a stop ---


def numbers(session: Session) -> list[int]:
    return [point.number for point in session.points]


def test_a_temporary_point_is_gone_at_its_stop() -> None:
    debugged = Debugged("tbreak first", "break head", look=numbers)
    assert debugged.run(lambda model: (model(X), model(X))) == [[2]] * 3
    assert [text.split()[0] for text in debugged.said("stop")] == ["first", "head", "head"]


def test_a_temporary_point_that_is_passed_by_stays() -> None:
    debugged = Debugged("tbreak first", "ignore 1 1", "tbreak head if forward > 1", look=numbers)
    assert debugged.run(lambda model: (model(X), model(X), model(X))) == [[2], []]


def test_any_stop_ends_an_until() -> None:
    debugged = Debugged("break first", at_stop=(LOOK, "until out.sum() > 1e9"), look=numbers)
    assert debugged.run(lambda model: (model(X), model(X))) == [[1], [1]]


def test_the_commands_of_a_point_run_at_its_stop_up_to_the_one_that_resumes() -> None:
    debugged = Debugged("break head", f"commands 1 {LOOK}; print 6 * 7; continue; print 'never'")
    assert debugged.run() == [AtModule]
    answers = [message for message in debugged.messages if message.origin == "break 1"]
    assert [message.line for message in answers] == [LOOK, "print 6 * 7", "continue"]
    assert "42" in to_text(answers[1].view)
    assert len(debugged.said("stop")) == 1


def test_after_commands_that_do_not_resume_the_user_is_asked() -> None:
    debugged = Debugged("break head", "commands 1 print 6 * 7")
    assert debugged.run() == [AtModule]
    typed = [message.line for message in debugged.messages if message.line and not message.origin]
    assert typed[-2:] == [LOOK, "continue"]


def test_silent_shows_nothing_and_the_commands_run() -> None:
    debugged = Debugged("break head", f"commands 1 silent; {LOOK}; continue", "break first")
    assert debugged.run() == [AtModule, AtModule]
    assert [text.split()[0] for text in debugged.said("stop")] == ["first"]


def test_silent_is_heard_only_as_the_first_command() -> None:
    debugged = Debugged("break head", f"commands 1 {LOOK}; silent; continue")
    assert debugged.run() == [AtModule]
    assert len(debugged.said("stop")) == 1


def test_a_condition_that_raises_is_said_before_the_stop() -> None:
    debugged = Debugged(
        "break head if out.nothing",
        look=lambda session: session.run.pause.stop.trouble,  # type: ignore[union-attr]
    )
    (trouble,) = debugged.run()
    assert "raised AttributeError" in trouble
    (shown,) = debugged.said("stop")
    assert shown.index("raised AttributeError") < shown.index("head")


def test_two_points_at_one_event_are_one_stop() -> None:
    def hits(session: Session) -> list[int]:
        return [point.hits for point in session.points]

    debugged = Debugged("break head", "break head", look=hits)
    assert debugged.run() == [[1, 1]]
    assert len(debugged.said("stop")) == 1


@pytest.mark.parametrize(
    ("line", "program"), [("catch exception", crashed), ("catch nan", not_finite)], ids=["exception", "nan"]
)
def test_what_a_catchpoint_has_caught_is_kept_for_the_exit_code(
    line: str, program: Callable[[Net], None]
) -> None:
    debugged = Debugged(line)
    debugged.run(program)
    assert len(debugged.session.standstill.caught) == len(debugged.said("stop")) == 1
    assert line.split()[1] in debugged.session.standstill.caught[0]


def test_detach_ends_all_stops_and_leaves_no_hook() -> None:
    debugged = Debugged("break first", "break head", at_stop=(LOOK, "detach"))
    assert debugged.run() == [AtModule]
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in debugged.model.modules())


def test_a_stop_after_a_detach_is_none() -> None:
    debugged = Debugged("break head", at_stop=(LOOK, "detach"))
    assert debugged.run() == [AtModule]
    debugged.session.standstill.stop_here(sys._getframe(), "late")
    assert len(debugged.said("stop")) == 1 and debugged.session.run.pause is None


def test_after_a_stop_nothing_of_it_is_held() -> None:
    pauses = []
    debugged = Debugged("break head", look=lambda session: pauses.append(session.run.pause))
    debugged.run()
    (pause,) = pauses
    assert isinstance(pause.stop.cause, Nothing)
    assert pause.stack == [] and pause.event is None and pause.python is None
    assert debugged.session.run.scope.frame is None and debugged.session.run.scope.stack == []


def test_continue_keeps_what_was_told_to_be_ignored() -> None:
    """`ignore 1 2` at a stop of point 1, then `continue`: the next two hits are passed, as in gdb."""
    model = nn.Sequential(nn.Linear(2, 2))
    lines = ["break 0", "continue", "ignore 1 2", "continue", "continue", "continue"]
    console, seen = console_on(model, lines)
    with console:
        for _ in range(5):
            model(torch.ones(1, 2))
    assert [forward for forward in range(1, 6) if f"forward {forward}" in seen.text] == [1, 4, 5]
