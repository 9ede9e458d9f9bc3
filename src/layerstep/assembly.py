"""A session put together: the engine, the commands, and the instruments that take part from the beginning."""

from __future__ import annotations

from collections.abc import Callable

from layerstep.config import Config
from layerstep.crashes.catching import Crashes
from layerstep.dispatch import Dispatcher
from layerstep.engine.instrument import Instrument
from layerstep.engine.session import Interpreter, Session
from layerstep.exports.conversation import Conversation
from layerstep.ops.stepping import OpSteps
from layerstep.rerun.kv_caches import Caches
from layerstep.rewind.rewinding import Rewind
from layerstep.source_lines.watcher import SourceLines
from layerstep.watchpoints.watchpoints import Watchpoints

__all__ = ["assemble"]

_FROM_THE_BEGINNING: tuple[Callable[[Session], Instrument], ...] = (
    Watchpoints,
    SourceLines,
    Caches,
    OpSteps,
    Crashes,
    Rewind,
)
"""The other instruments are made when a command first asks for them."""


def assemble(config: Config, interpreter: Interpreter | None = None) -> Session:
    """A session that answers all commands; it has no front end yet."""
    session = Session(interpreter or Dispatcher(), config)
    for kind in _FROM_THE_BEGINNING:
        session.instruments.get(kind)
    session.listen(session.instruments.get(Conversation).hear)
    return session
