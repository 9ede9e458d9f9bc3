"""From what a user asks for to sinks that are fed: `tensorboard=runs/a`, or a sink of the user's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from layerstep.engine.session import Session
from layerstep.errors import MissingExtra, UserError, first_line
from layerstep.registry import all_sinks, near, plugin_of, untold_troubles
from layerstep.side_effects.random_streams import RandomState
from layerstep.sinks.feed import Feed
from layerstep.sinks.sink import Sink
from layerstep.views import Notice

__all__ = ["check_sinks", "close_sinks", "open_sinks"]


def check_sinks(wanted: Iterable[str | Sink]) -> None:
    """A `UserError` if one of them cannot be opened; none is opened."""
    for each in wanted:
        if not isinstance(each, Sink):
            _made(each)


def open_sinks(session: Session, wanted: Iterable[str | Sink], *, program: str = "") -> None:
    """Hand on what the session records: to trackers by name, with `=` and a place, or to sinks.

    `program` is the script that runs, if that is not what Python was started with. A `UserError` if a name is
    unknown or its package is missing. Each gets a thread of its own.
    """
    try:
        made = [(type(each).__name__, each) if isinstance(each, Sink) else _made(each) for each in wanted]
    finally:
        for trouble in untold_troubles():
            session.say(Notice(trouble, level="warn"))
    for _, sink in made:
        sink.program = os.path.basename(program or (sys.argv[0] if sys.argv else ""))
    session.instruments.get(Feed).start(made)


def close_sinks(session: Session) -> None:
    """Hand on what is left, and wait for the trackers for a bounded time."""
    for instrument in session.instruments:
        if isinstance(instrument, Feed):
            instrument.stop()


def _made(text: str) -> tuple[str, Sink]:
    name, _, where = text.partition("=")
    known = all_sinks()
    entry = known.get(name)
    if entry is None:
        raise UserError(f"no sink {name!r}", f"there are {', '.join(known)}", suggestions=near(name, known))
    if entry.takes and not where:
        raise UserError(f"{name} needs a place", f"{name}={entry.takes}")
    streams = RandomState()
    try:
        sink: Sink = entry.make(where)
    except MissingExtra as missing:
        raise UserError(f"{name}: {missing}") from None
    except UserError:
        raise
    except Exception as error:  # the class may be of another package
        of = f" of {home}" if (home := plugin_of(entry)) else ""
        raise UserError(f"the sink {name}{of} failed: {type(error).__name__}: {first_line(error)}") from None
    finally:
        streams.restore()  # a package may draw while it is imported
    return name, sink
