"""One client, as the listening process sees it: what it has sent, and what it has not read yet."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from typing import Any

from layerstep.frontends.remote.framing import Lines, encode

__all__ = ["Connection"]

HELLO_SECONDS = 5.0
"""In which the first line must be there."""
MOST_UNREAD = 16 << 20
"""Bytes that wait for a client. One that does not read is sent away; the run never waits for it."""
CHUNK = 1 << 16


class Connection:
    """A socket that never blocks, with its lines in and its bytes out."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setblocking(False)
        self.name = ""
        """What the client calls itself; empty until its hello."""
        self.may_only_look = False
        self.wants_metrics = False
        self.is_closed = False
        self._lines = Lines()
        self._out: deque[bytes] = deque()
        self._unread = 0
        self._since = time.monotonic()

    @property
    def is_late(self) -> bool:
        """Has it said nothing for too long?"""
        return not self.name and time.monotonic() - self._since > HELLO_SECONDS

    @property
    def has_output(self) -> bool:
        return bool(self._out)

    def read(self) -> list[dict[str, Any]]:
        """The documents that have arrived; a `WireError` where what arrived is none."""
        try:
            data = self.socket.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            self.is_closed = True
            return []
        return self._lines.feed(data)

    def send(self, line: bytes) -> None:
        """Hand in a line; it goes out as fast as the client reads."""
        self._out.append(line)
        self._unread += len(line)
        if self._unread > MOST_UNREAD:
            self.is_closed = True

    def reply(self, number: Any, **answer: Any) -> None:
        self.send(encode({"id": number, **answer}))

    def write(self) -> None:
        """Send what the client takes now."""
        while self._out:
            try:
                sent = self.socket.send(self._out[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.is_closed = True
                return
            self._unread -= sent
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
                return
            self._out.popleft()

    def close(self) -> None:
        self.is_closed = True
        with contextlib.suppress(OSError):
            self.socket.close()
