"""The other end of the wire: a client in a process of its own. It imports no torch."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from layerstep.errors import UserError
from layerstep.frontends.remote.framing import PROTOCOL, Lines, WireError, encode
from layerstep.frontends.remote.sockets import connect

__all__ = ["Client", "Gone"]

MOST_BYTES = 64 << 20
"""Of a line that a process sends: the tree of a model of 10,000 modules has about a megabyte."""
HELLO_SECONDS = 10.0


class Gone(UserError):
    """The connection has ended: the process is gone, or it has sent this client away."""


class Client:
    """Sends requests, and hands each notification to `notified(method, params)` in a thread of its own."""

    def __init__(
        self,
        pid: int,
        *,
        name: str,
        mode: str = "full",
        metrics: bool = False,
        notified: Callable[[str, dict[str, Any]], None] = lambda method, params: None,
    ) -> None:
        self._notified = notified
        self._socket: socket.socket = connect(pid)
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._ready = threading.Event()
        """Set once the answer to `hello` is in use: what happens since then is told after it."""
        self.is_gone = False
        self._thread = threading.Thread(target=self._read, name="layerstep-client", daemon=True)
        self._thread.start()
        params = {"protocol": PROTOCOL, "client": name, "mode": mode, "metrics": metrics}
        try:
            self.hello = self.request("hello", **params).result(HELLO_SECONDS)
        except TimeoutError:
            self.close()
            raise UserError(
                f"process {pid} does not answer", "it may hang in a kernel; `py-spy dump` shows it"
            ) from None

    def begin(self) -> None:
        """Hand on notifications from now on."""
        self._ready.set()

    def request(self, method: str, **params: Any) -> Future[dict[str, Any]]:
        """Send a request; its answer, or a `UserError`."""
        number = next(self._numbers)
        future = self._waiting[number] = Future()
        try:
            if self.is_gone:
                raise OSError
            with self._sending:
                self._socket.sendall(encode({"id": number, "method": method, "params": params}))
        except OSError:
            self._waiting.pop(number, None)
            if not future.done():
                future.set_exception(Gone("the connection has ended"))
        return future

    def close(self) -> None:
        """Leave. Whoever wants to leave a pause behind at once says `bye` before."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._ready.set()

    def _read(self) -> None:
        lines = Lines(MOST_BYTES)
        try:
            while data := self._socket.recv(1 << 16):
                for document in lines.feed(data):
                    self._take(document)
        except (OSError, WireError):
            pass
        finally:
            self.is_gone = True
            self._socket.close()
            for future in list(self._waiting.values()):
                if not future.done():
                    future.set_exception(Gone("the connection has ended"))
            self._ready.wait(HELLO_SECONDS)
            self._notified("gone", {})

    def _take(self, document: dict[str, Any]) -> None:
        if "method" in document:
            self._ready.wait()
            self._notified(document["method"], document.get("params", {}))
            return
        error = document.get("error")
        future = self._waiting.pop(document.get("id", 0), None)
        if future is None and error is not None:  # what was sent last was no request
            future = next(iter(self._waiting.values()), None)
        if future is None or future.done():
            return
        if error is not None:
            hint = (error.get("data") or {}).get("hint", "")
            future.set_exception(UserError(str(error.get("message", "")), str(hint)))
        else:
            future.set_result(document.get("result") or {})
