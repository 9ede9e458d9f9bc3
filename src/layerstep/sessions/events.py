"""What a debugger has noticed: events with a time, a kind, a message and numbers."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

__all__ = ["DebugEvent", "Events"]

MOST = 1000


@dataclass(frozen=True, slots=True)
class DebugEvent:
    """One thing that was noticed."""

    event_type: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)
    timestamp: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    is_anomaly: bool = False


class Events:
    """The last events, how many of each kind there were in all, and the logger that gets them.

    Anomalies are logged as warnings. The others are logged only if `verbose` is on.
    """

    def __init__(self, logger: logging.Logger | None = None, *, verbose: bool = True) -> None:
        self._logger = logger
        self._verbose = verbose
        self._last: deque[DebugEvent] = deque(maxlen=MOST)
        self.counts: Counter[str] = Counter()
        self.anomalies = 0

    @property
    def last(self) -> tuple[DebugEvent, ...]:
        """The events that are kept, the oldest first."""
        return tuple(self._last)

    def add(self, kind: str, message: str, *, is_anomaly: bool = False, **data: Any) -> DebugEvent:
        """Keep an event, and log it."""
        event = DebugEvent(kind, message, data, is_anomaly=is_anomaly)
        self._last.append(event)
        self.counts[kind] += 1
        self.anomalies += is_anomaly
        if self._logger is not None and (is_anomaly or self._verbose):
            self._logger.log(logging.WARNING if is_anomaly else logging.INFO, "%s: %s", kind, message)
        return event

    def clear(self) -> None:
        """Forget them all."""
        self._last.clear()
        self.counts.clear()
        self.anomalies = 0
