"""What was said in a session, kept for its report: views only, and bounded."""

from __future__ import annotations

import time
from collections import deque

from layerstep.engine.instrument import Instrument
from layerstep.engine.messages import Message
from layerstep.engine.session import Session
from layerstep.views import Fields, Group, Plot, Table, Text, View

__all__ = ["Conversation"]

MOST_MESSAGES = 2_000
MOST_WEIGHT = 1_000_000
"""Numbers, cells and characters of all of them: about 50 MB."""


class Conversation(Instrument):
    """The messages of a session with the time of each; the oldest go first."""

    def __init__(self, session: Session) -> None:
        self.began = time.time()
        self.messages: deque[tuple[float, Message]] = deque()
        self.forgotten = 0
        self._weight = 0

    def hear(self, message: Message) -> None:
        """Keep a message, unless it only says how far work has come."""
        if message.kind == "progress":
            return
        self.messages.append((time.time(), message))
        self._weight += _weight(message.view)
        while len(self.messages) > MOST_MESSAGES or self._weight > MOST_WEIGHT:
            self._weight -= _weight(self.messages.popleft()[1].view)
            self.forgotten += 1


def _weight(view: View) -> int:
    if isinstance(view, Group):
        return sum(map(_weight, view.views))
    if isinstance(view, Fields):
        return sum(_weight(part) for _, part in view.items)
    if isinstance(view, Plot):
        return sum(map(len, view.values))
    if isinstance(view, Table):
        return 10 * sum(map(len, view.rows))
    return len(view.text) if isinstance(view, Text) else 100
