"""Alerts: said once while what they warn of lasts, kept, and sent to where the user wants them."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from layerstep.automation.hook import AlertSeverity
from layerstep.errors import UserError, message_of

__all__ = ["Alert", "Alerts", "CallbackSink", "JsonLinesSink", "LoggingSink", "Sink", "WebhookSink"]

KEPT = 1000


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that a hook, or the doctor, warns of."""

    source: str
    """The name of the hook, or of the rule."""
    severity: AlertSeverity
    message: str
    step: int
    last_step: int = 0
    count: int = 1
    """In how many steps in a row it came."""
    layer: str = ""
    timestamp: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


class Sink(Protocol):
    """Where alerts go."""

    def send(self, alert: Alert) -> None: ...


class Alerts:
    """Keeps the last alerts. An alert of one source and layer that comes in step after step is sent once.

    A sink that raises is taken off and named in `broken`.
    """

    def __init__(self) -> None:
        self.sinks: list[Sink] = []
        self.broken: list[str] = []
        self._kept: deque[Alert] = deque(maxlen=KEPT)
        self._open: dict[tuple[str, str], Alert] = {}

    @property
    def kept(self) -> tuple[Alert, ...]:
        """The oldest first."""
        return tuple(self._kept)

    def add_sink(self, sink: Sink) -> None:
        """Send alerts there from now on."""
        self.sinks.append(sink)

    def send(self, alert: Alert) -> bool:
        """Keep and send an alert; False if it goes on from the step before, and is only counted."""
        key = (alert.source, alert.layer)
        before = self._open.get(key)
        if before is not None and alert.step <= before.last_step + 1:
            counted = replace(
                before, last_step=alert.step, count=before.count + (alert.step > before.last_step)
            )
            with contextlib.suppress(ValueError):
                self._kept[self._kept.index(before)] = counted
            self._open[key] = counted
            return False
        alert = replace(alert, last_step=alert.step)
        if len(self._open) > KEPT:
            self._open.clear()
        self._open[key] = alert
        self._kept.append(alert)
        for sink in list(self.sinks):
            try:
                sink.send(alert)
            except Exception as error:
                self.sinks.remove(sink)
                self.broken.append(
                    f"{type(sink).__name__}: {type(error).__name__}: {message_of(error)}"[:200]
                )
        return True

    def close(self) -> None:
        """Let the sinks that send from a thread of their own send the rest, but not for long."""
        for sink in self.sinks:
            if isinstance(sink, WebhookSink):
                sink.close()


_LEVELS = {
    AlertSeverity.INFO: logging.INFO,
    AlertSeverity.WARNING: logging.WARNING,
    AlertSeverity.CRITICAL: logging.CRITICAL,
}


class LoggingSink:
    """Logs alerts by Python's `logging`."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("layerstep")

    def send(self, alert: Alert) -> None:
        self._logger.log(_LEVELS[alert.severity], "%s: %s (step %d)", alert.source, alert.message, alert.step)


class JsonLinesSink:
    """Appends each alert to a file, one JSON object a line; what is written survives a killed run."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def send(self, alert: Alert) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(alert.to_json() + "\n")


class CallbackSink:
    """Calls a function with each alert."""

    def __init__(self, function: Callable[[Alert], object]) -> None:
        self._function = function

    def send(self, alert: Alert) -> None:
        self._function(alert)


class WebhookSink:
    """Posts each alert as JSON to a URL, from a thread of its own.

    At most `most` alerts wait; more are dropped and counted. An endpoint that is slow or gone costs the run
    nothing.
    """

    def __init__(self, url: str, *, timeout: float = 5.0, most: int = 100) -> None:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{url!r} is no web address", "https://…")
        self._url = url
        self._timeout = timeout
        self._queue: queue.Queue[Alert | None] = queue.Queue(maxsize=most)
        self._thread: threading.Thread | None = None
        self.sent = self.failed = self.dropped = 0

    def send(self, alert: Alert) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._post_all, name="layerstep-webhook", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            self.dropped += 1

    def close(self, timeout: float = 2.0) -> None:
        """Wait for what is on its way, but not for long."""
        if self._thread is not None:
            end = time.monotonic() + timeout
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=timeout)
            self._thread.join(max(end - time.monotonic(), 0))
            self._thread = None

    def _post_all(self) -> None:
        while (alert := self._queue.get()) is not None:
            request = urllib.request.Request(
                self._url, alert.to_json().encode(), {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=self._timeout):
                    self.sent += 1
            except Exception:
                self.failed += 1
