from __future__ import annotations

from layerstep.arguments import Given, Word
from layerstep.edits.edits import Edits
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Group, View


@command("undo", group="change", args=Word("N | all", optional=True, name="which"), examples=("undo all",))
def undo(session: Session, given: Given) -> View:
    """Take back the last edit, edit N, or all of them.

    An edit at calls no longer acts. A weight gets its old values back, unless something else has written to
    it since. Effects of earlier calls stay: statistics of batch norms, caches, steps of an optimizer.
    `restart` begins the running forward again.
    """
    return Group(tuple(session.instruments.get(Edits).undo(given.which)))


@command("redo", group="change", args=(), examples=("redo",))
def redo(session: Session, given: Given) -> View:
    """Make the edit again that was undone last."""
    return session.instruments.get(Edits).redo()
