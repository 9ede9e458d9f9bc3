"""What a session hands to the checkpoint in which the run goes on.

The checkpoint has the session as it was then. The lines that were typed since, the points that were set since
and what is still to be typed belong to the user, who does not go back.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerstep.config import Config
from layerstep.engine.messages import Watch
from layerstep.engine.point import Point
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.expressions.expression import Expression
from layerstep.views import Notice

__all__ = ["Conversation", "PointNote", "conversation", "go_on_with", "set_at_stop", "set_points"]


@dataclass(frozen=True, slots=True)
class PointNote:
    """A point, by the line that sets it again."""

    number: int
    line: str
    condition: str
    ignore: int
    enabled: bool
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Plain data: it goes through a socket."""

    points: tuple[PointNote, ...]
    last_number: int
    watches: dict[int, str]
    aliases: dict[str, str]
    config: Config
    typed: tuple[str, ...]
    """The lines of the session."""
    script: tuple[str, ...]
    """Given lines that are still to be run."""
    wrong_lines: tuple[str, ...]
    caught: tuple[str, ...]
    transcript: str | None
    dump_to: Path | None
    frontend: Any
    """What the front end hands over; None if there is none."""


def conversation(session: Session) -> Conversation:
    """What is to be handed over; the front end reads nothing after this."""
    prompt = session.prompt
    return Conversation(
        points=tuple(map(_note, session.points.shown)),
        last_number=session.points.last,
        watches={number: watch.expression.text for number, watch in prompt.watches.items()},
        aliases=dict(prompt.aliases),
        config=session.run.config,
        typed=tuple(prompt.history),
        script=tuple(prompt.script),
        wrong_lines=tuple(prompt.wrong_lines),
        caught=tuple(session.standstill.caught),
        transcript=prompt.transcript,
        dump_to=prompt.dump_to,
        frontend=prompt.frontend.hand_over() if prompt.frontend is not None else None,
    )


def _note(point: Point) -> PointNote:
    condition = point.condition.text if point.condition is not None else ""
    return PointNote(point.number, point.line(), condition, point.ignore, point.enabled, point.commands)


def go_on_with(session: Session, handed: Conversation) -> None:
    """Called first in the checkpoint: the same conversation goes on. The points are set at its first stop."""
    session.turns.begin_anew()  # a thread that is not here may have held a lock
    prompt = session.prompt
    session.run.config = handed.config
    prompt.aliases = dict(handed.aliases)
    prompt.history = list(handed.typed)
    prompt.script.clear()
    prompt.script.extend(handed.script)
    prompt.wrong_lines = list(handed.wrong_lines)
    session.standstill.caught = list(handed.caught)
    prompt.transcript = handed.transcript
    prompt.dump_to = handed.dump_to
    if handed.frontend is None:
        prompt.frontend = None  # it has given up since
    elif prompt.frontend is not None:
        prompt.frontend.take_over(handed.frontend)


def set_points(session: Session, handed: Conversation) -> list[PointNote]:
    """Have the points and watches that were handed over, and no others; the points that could not be set.

    Called where nothing is paused: at a line of the program, `break 4` would be its line 4, not the layer.
    """
    wanted = {note.number: note for note in handed.points}
    for point in session.points.shown:
        note = wanted.get(point.number)
        if note is None or note.line != point.line():
            session.points.delete(point)
    unset = [note for note in handed.points if _set(session, note)]
    session.prompt.watches = {
        number: Watch(Expression.parse(text)) for number, text in handed.watches.items()
    }
    session.points.last = handed.last_number
    session.prompt.history = list(handed.typed)
    session.rearm()
    return unset


def set_at_stop(session: Session, notes: list[PointNote]) -> list[Notice]:
    """Set points that need a stop, such as a watchpoint on a variable; what to say about the others."""
    typed, last = list(session.prompt.history), session.points.last
    found = [(note, trouble) for note in notes if (trouble := _set(session, note))]
    session.prompt.history, session.points.last = typed, last
    session.rearm()
    return [
        Notice(f"point {note.number} cannot be set here: {trouble}", f"`{note.line}`", level="warn")
        for note, trouble in found
    ]


def _set(session: Session, note: PointNote) -> str:
    """Why it could not be set, or nothing."""
    answer = None
    if all(point.number != note.number for point in session.points):
        session.points.last = note.number - 1
        answer = session.prompt.answer(note.line)
    with contextlib.suppress(UserError):
        point = session.points.get(note.number)
        point.enabled, point.ignore, point.commands = note.enabled, note.ignore, note.commands
        if note.condition and (point.condition is None or point.condition.text != note.condition):
            point.condition = Expression.parse(note.condition)
        return ""
    return answer.text if isinstance(answer, Notice) else "its line sets none"
