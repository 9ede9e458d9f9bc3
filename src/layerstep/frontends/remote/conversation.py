"""What a client knows of the run that it is attached to: its state, and how each message is shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from layerstep.errors import UserError
from layerstep.frontends.remote.client import Client
from layerstep.render.wire import decode
from layerstep.views import Notice, View

__all__ = ["Conversation", "waiting"]

PATIENCE_SECONDS = 1.0
"""After which a line that has no answer yet is explained."""


class Conversation:
    """One client's view of the run; `show(view, line, origin)` is called in the client's own thread."""

    def __init__(self, pid: int, *, name: str, show: Callable[[View, str, str], None]) -> None:
        self._show = show
        self._changed = threading.Condition()
        self.is_over = False
        self.client = Client(pid, name=name, notified=self._notified)
        self.state: dict[str, Any] = self.client.hello["state"]
        self._name = name
        self._last = max((each["n"] for each in self.client.hello["messages"]), default=0)

    @property
    def is_paused(self) -> bool:
        return bool(self.state["kind"] == "paused") and not self.is_over

    def begin(self) -> None:
        """Show the stop that the run stands at, and from now on what is said."""
        stops = [each for each in self.client.hello["messages"] if each["kind"] == "stop"]
        if self.is_paused and stops:
            self._show(decode(stops[-1]["view"]), "", "")
        self.client.begin()

    def submit(self, line: str) -> View | None:
        """Send a line, and wait for its answer. At a pause it is meant for the stop that was shown.

        The answer is shown as a message, as every other client shows it; only what is refused is returned.
        """
        stop = {"stop": self.state["stop"]} if self.is_paused else {}
        answer = self.client.request("submit", line=line, **stop)
        try:
            try:
                answer.result(PATIENCE_SECONDS)
            except TimeoutError:
                if not self.is_paused:
                    self._show(
                        Notice("the line waits until the program's next step", "Ctrl-C stops the run"), "", ""
                    )
                answer.result()
        except UserError as error:
            return Notice(error.message, error.hint, level="error")
        return None

    def wait_for_pause(self) -> None:
        """Wait until the run stands still, or is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_paused or self.is_over)

    def leave(self) -> None:
        """Say goodbye. If no other client is attached, the run goes on."""
        if not self.is_over:
            self.client.request("bye").exception(2)
        self.client.close()

    def _notified(self, method: str, params: dict[str, Any]) -> None:
        if method == "message":
            if params["n"] > self._last:
                self._told(params)
            return
        with self._changed:
            if method == "state":
                self.state = params
            self.is_over = self.is_over or method == "gone" or params.get("kind") == "ended"
            self._changed.notify_all()

    def _told(self, message: dict[str, Any]) -> None:
        try:
            view = decode(message["view"])
        except UserError as error:
            view = Notice(error.message, level="warn")
        mine = message["origin"] == self._name
        self._show(view, "" if mine else message["line"], message["origin"])


def waiting(state: dict[str, Any]) -> str:
    """Where a run stands, in a few words."""
    if state["kind"] != "paused":
        return "running"
    if state.get("is_start"):
        return "not started"
    return f"paused at {state.get('path') or state.get('reason') or 'a line'}"
