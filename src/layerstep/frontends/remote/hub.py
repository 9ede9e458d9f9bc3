"""The listening side: one thread talks to all clients, and the program never waits for it.

Whatever touches a tensor is done by the program's own thread: at a pause by its inbox, else as a peek between
two steps. This thread only reads, writes and hands over.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from layerstep.engine.messages import Message
from layerstep.engine.point import Point, PointKind
from layerstep.engine.session import Session
from layerstep.errors import message_of
from layerstep.frontends.remote.connection import Connection
from layerstep.frontends.remote.framing import PROTOCOL, WireError, encode
from layerstep.frontends.remote.metrics import Metrics
from layerstep.frontends.remote.requests import Requests
from layerstep.frontends.remote.sockets import (
    facts_of_this_process,
    open_socket,
    peer_is_allowed,
    remove_socket,
)
from layerstep.process.forks import keeps_session
from layerstep.render import wire
from layerstep.views import Notice

__all__ = ["Hub"]

GRACE_SECONDS = 10.0
"""How long a pause waits for a client after the last one has left: a page that is loaded again comes back."""
MOST_CLIENTS = 16
MOST_KEPT = 200
"""Messages that a new client is shown."""
MOST_WAITING = 5_000
"""Messages that wait for this thread. Beyond, lines of logpoints are left out, and their number is said."""
TICK_SECONDS = 0.25


class Hub:
    """Listens on a socket: the front end of all clients together, and a listener of what the session says."""

    has_keyboard = False

    def __init__(
        self, session: Session, *, argv: Sequence[str], hold: bool = False, is_alone: bool = True
    ) -> None:
        self._session = session
        self._argv = tuple(argv)
        self._hold = hold
        """Does a pause wait for a client, however long?"""
        self._is_alone = is_alone
        """Is there no other front end that holds a pause?"""
        self.metrics = Metrics(session)
        self._requests = Requests(session, self.metrics, self._post)
        self._clients: list[Connection] = []
        self._kept: deque[dict[str, Any]] = deque(maxlen=MOST_KEPT)
        self._news: deque[Callable[[], None]] = deque()
        """What the other threads have for this one."""
        self._left_out = 0
        self._number = 0
        self._paused_at = 0.0
        """Since when the run stands still; 0 while it runs."""
        self._left_at = float("-inf")
        """When the last client left."""
        self._resting: list[Point] = []
        """Points that take no effect until a client is there."""
        self._told_metric = 0
        self._is_over = False
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._let_go)

    def _begin(self) -> None:
        """Listen, in a thread of our own."""
        self._process = facts_of_this_process(self._argv, time.time())
        self._listener, self._path = open_socket(self._process)
        self._woken, self._waking = socket.socketpair()
        for each in (self._woken, self._waking):
            each.setblocking(False)
        sys.audit("layerstep.listen", str(self._path))
        self._thread = threading.Thread(target=self._serve, name="layerstep-wire", daemon=True)
        self._thread.start()

    # --- what the session calls, in the thread of the program ---

    def __call__(self, message: Message) -> None:
        """A message of the session."""
        if len(self._news) > MOST_WAITING and message.kind not in ("stop", "answer", "resume"):
            self._left_out += 1
            return
        self._post(lambda: self._tell(message))

    def paused(self) -> None:
        self._paused_at = time.monotonic()
        if self._is_over:
            self._leave_pause()
            return
        state = self._state()
        self._post(lambda: self._broadcast("state", state))

    def resumed(self) -> None:
        self._paused_at = 0.0
        self._post(lambda: self._broadcast("state", {"kind": "running", "stop": self._stop_number}))

    def close(self) -> None:
        """The run is over: say so, and be gone."""
        if self._is_over or os.getpid() != self._process.pid:
            return
        self._post(lambda: self._broadcast("state", {"kind": "ended", "stop": self._stop_number}))
        self._is_over = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2)
        remove_socket(self._path)

    def hand_over(self) -> Any:
        """Another process goes on with this run. It listens by itself."""
        self.close()

    def take_over(self, handed: Any) -> None:
        self._clients, self._news = [], deque()
        self._is_over = False
        self._begin()

    def _post(self, news: Callable[[], None]) -> None:
        self._news.append(news)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full buffer wakes it as well
            self._waking.send(b"\0")

    def _let_go(self) -> None:
        """In a forked child: it holds no descriptor of ours. The files belong to the parent."""
        for each in (self._listener, self._woken, self._waking, *(each.socket for each in self._clients)):
            with contextlib.suppress(OSError):
                each.close()
        self._clients = []
        if not keeps_session():
            self._is_over = True

    # --- the thread that talks ---

    def _serve(self) -> None:
        try:
            while not self._is_over:
                self._turn(TICK_SECONDS if self._clients or self._paused_at else None)
            self._turn(0)  # what was said last may have come after the last turn
            until = time.monotonic() + 1.0
            while any(each.has_output for each in self._clients) and time.monotonic() < until:
                self._turn(0.05)
        except Exception as error:  # a bug of ours ends the listening, never the run
            self._is_over = True
            self._session.say(
                Notice(f"the wire failed: {type(error).__name__}: {message_of(error)}", level="error")
            )
        finally:
            for client in self._clients:
                client.close()
            for each in (self._listener, self._woken, self._waking):
                each.close()
            self._leave_pause()

    def _turn(self, seconds: float | None) -> None:
        """Wait for something to do, and do it."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._listener, selectors.EVENT_READ)
            waiting.register(self._woken, selectors.EVENT_READ)
            for client in self._clients:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.has_output else 0)
                waiting.register(client.socket, wanted, client)
            for key, events in waiting.select(seconds):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    with contextlib.suppress(OSError):
                        self._woken.recv(4096)
                elif events & selectors.EVENT_READ:
                    self._read(key.data)
        while self._news:
            self._news.popleft()()
        self._tell_metrics()
        for client in self._clients:
            client.write()
        self._send_away()
        self._leave_pause_if_empty()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._clients) >= MOST_CLIENTS or not peer_is_allowed(connection):
            connection.close()
            return
        sys.audit("layerstep.connect", str(self._path))
        self._clients.append(Connection(connection))

    def _read(self, client: Connection) -> None:
        try:
            for document in client.read():
                self._request(client, document)
        except WireError as error:
            client.reply(None, error={"code": -32600, "message": str(error)})
            client.write()
            client.is_closed = True

    def _send_away(self) -> None:
        """Close the connections that are closed at the other end, that say nothing, or that do not read."""
        gone = [each for each in self._clients if each.is_closed or each.is_late]
        for client in gone:
            client.close()
            self._clients.remove(client)
        if any(each.name for each in gone) and not self._has_clients:
            self._left_at = time.monotonic()

    @property
    def _has_clients(self) -> bool:
        return any(each.name and not each.may_only_look for each in self._clients)

    # --- requests ---

    def _request(self, client: Connection, document: dict[str, Any]) -> None:
        number, method = document.get("id"), document.get("method")
        params = document.get("params", {})
        if not isinstance(method, str) or not isinstance(params, dict) or isinstance(number, (dict, list)):
            raise WireError("this is not a request")
        if not client.name:
            if method != "hello":
                raise WireError("the first line must be `hello`")
            self._hello(client, number, params)
            return
        if method == "hello":
            raise WireError("`hello` was said before")
        if method == "bye":
            self._bye(client, number)
        else:
            self._requests.answer(client, number, method, params)

    def _hello(self, client: Connection, number: Any, params: dict[str, Any]) -> None:
        if params.get("protocol") != PROTOCOL:
            raise WireError(f"this process speaks protocol {PROTOCOL}")
        mode = params.get("mode", "full")
        if mode not in ("full", "view"):
            raise WireError("the mode is `full` or `view`")
        client.name = str(params.get("client") or "a client")[:40]
        client.may_only_look = mode == "view"
        if not client.may_only_look:
            self._wake_points()
        client.wants_metrics = params.get("metrics") is True
        process = self._process
        facts = {
            "protocol": PROTOCOL,
            "version": process.version,
            "pid": process.pid,
            "argv": list(process.argv),
            "cwd": process.cwd,
            "rank": process.rank,
            "mode": mode,
            "state": self._state(),
            "messages": list(self._kept),
        }
        client.reply(number, result=facts)

    def _bye(self, client: Connection, number: Any) -> None:
        """The client leaves on purpose. What it leaves paused goes on at once, unless it is to be held."""
        client.reply(number, result={})
        client.write()
        client.close()
        self._send_away()
        self._left_at = float("-inf")

    # --- what is said ---

    @property
    def _stop_number(self) -> int:
        return self._session.prompt.stop_number

    def _state(self) -> dict[str, Any]:
        """Where the run stands."""
        pause, run = self._session.run.pause, self._session.run
        if pause is None:
            return {"kind": "running", "stop": self._stop_number, "step": run.training.count}
        facts = {} if pause.is_start else pause.facts(run.training.count)
        return {"kind": "paused", "stop": self._stop_number, "is_start": pause.is_start, **facts}

    def _tell(self, message: Message) -> None:
        if message.kind == "progress":
            return
        self._number += 1
        document = {
            "n": self._number,
            "kind": message.kind,
            "line": message.line,
            "origin": message.origin,
            "stop": message.stop,
            "view": wire.encode(message.view),
        }
        self._kept.append(document)
        self._broadcast("message", document)
        if self._left_out:
            count, self._left_out = self._left_out, 0
            self._tell(Message("notice", Notice(f"{count:,} messages were left out: they came too fast")))

    def _broadcast(self, method: str, params: dict[str, Any]) -> None:
        told = [client for client in self._clients if client.name]
        if told:
            line = encode({"method": method, "params": params})
            for client in told:
                client.send(line)

    def _tell_metrics(self) -> None:
        """The newest row, to those who asked for it; the others are there for `metrics`."""
        wanting = [client for client in self._clients if client.wants_metrics]
        if wanting and self.metrics.last > self._told_metric:
            self._told_metric = self.metrics.last
            rows = self.metrics.rows(self._told_metric, 1)
            line = encode({"method": "metric", "params": rows[0]}) if rows else b""
            for client in wanting if line else ():
                if not client.has_output:  # one that lags asks for what it has missed
                    client.send(line)

    # --- pauses without a client ---

    def _leave_pause_if_empty(self) -> None:
        paused_at = self._paused_at
        if not paused_at or not self._is_alone or self._hold or self._has_clients:
            return
        if time.monotonic() > self._left_at + GRACE_SECONDS:
            self._rest_points()
            self._leave_pause()

    def _rest_points(self) -> None:
        """Points that stop take no effect while no client is there: each would describe a stop for no one."""
        stopping = (PointKind.BREAK, PointKind.CATCH, PointKind.WATCH)
        resting = [each for each in self._session.points.shown if each.enabled and each.kind in stopping]
        for point in resting:
            point.enabled = False
        if resting:
            self._resting += resting
            self._session.rearm()
            what = "1 point rests" if len(resting) == 1 else f"{len(resting)} points rest"
            text = f"{what} until a client is attached"
            self._session.say(Notice(text))

    def _wake_points(self) -> None:
        resting, self._resting = self._resting, []
        for point in resting:
            point.enabled = True
        if resting:
            self._session.rearm()

    def _leave_pause(self) -> None:
        """No client is there: the run goes on."""
        if self._paused_at and self._is_alone:
            self._paused_at = 0.0
            self._session.prompt.leave(self._stop_number, "no client is attached")
