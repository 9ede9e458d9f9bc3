"""What clients ask of a session: each request is answered at once, or by the thread of the program."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from layerstep.dispatch import expand_alias, find
from layerstep.engine.session import Session
from layerstep.errors import UserError, message_of
from layerstep.frontends.completion import complete
from layerstep.frontends.remote.connection import Connection
from layerstep.frontends.remote.metrics import Metrics
from layerstep.line_syntax import is_complete
from layerstep.render import wire
from layerstep.views import View

__all__ = ["Requests"]


class Requests:
    """Answers `submit`, `complete`, `interrupt` and `metrics`.

    `post` hands a piece of work to the thread that talks to the clients.
    """

    def __init__(
        self, session: Session, metrics: Metrics, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self._session = session
        self._metrics_kept = metrics
        self._post = post

    def answer(self, client: Connection, number: Any, method: str, params: dict[str, Any]) -> None:
        """Answer a request; what is wrong with it is an answer, too."""
        handlers = {
            "submit": self._submit,
            "complete": self._complete,
            "interrupt": self._interrupt,
            "metrics": self._metrics,
        }
        handler = handlers.get(method)
        if handler is None:
            client.reply(number, error={"code": -32601, "message": f"there is no method {method[:40]!r}"})
            return
        try:
            handler(client, number, params)
        except UserError as error:
            _refuse(client, number, error)
        except Exception as error:
            _fail(client, number, error)

    def _submit(self, client: Connection, number: Any, params: dict[str, Any]) -> None:
        line = _text(params, "line")
        stop, frame = _number(params, "stop"), _number(params, "frame")
        command, _ = find(self._session, expand_alias(self._session, line.strip()))
        if client.may_only_look and (command is None or not command.only_looks or line.lstrip()[:1] == "!"):
            raise UserError(
                "this client may only look", "`where`, `tree`, `list`, `info`, `findings`, `health`"
            )
        prompt = self._session.prompt
        if self._session.run.pause is not None or stop is not None or (command and command.at_once):
            answer = prompt.submit(line, stop=stop, frame=frame, origin=client.name)
        else:
            answer = prompt.peeks.ask(line, origin=client.name)
        answer.add_done_callback(lambda done: self._post(lambda: _answer(client, number, done)))

    def _complete(self, client: Connection, number: Any, params: dict[str, Any]) -> None:
        line = _text(params, "line")
        found = complete(self._session, line) if params.get("candidates", True) else []
        rows = [{"text": c.text, "length": c.length, "note": c.note, "shown": c.shown} for c in found]
        typed = f"!{line}" if self._session.prompt.interacting and line.strip() else line
        client.reply(number, result={"candidates": rows, "is_complete": is_complete(typed)})

    def _interrupt(self, client: Connection, number: Any, params: dict[str, Any]) -> None:
        if client.may_only_look:
            raise UserError("this client may only look")
        if not self._session.run.is_attached:
            raise UserError("the debugger is detached")
        if self._session.run.pause is None:
            self._session.standstill.stop_soon()
        else:
            self._session.interrupts.cancel()
        client.reply(number, result={})

    def _metrics(self, client: Connection, number: Any, params: dict[str, Any]) -> None:
        rows = self._metrics_kept.rows(
            _number(params, "from") or 0, min(_number(params, "most") or 1_000, 10_000)
        )
        client.reply(number, result={"rows": rows, "last": self._metrics_kept.last})


def _refuse(client: Connection, number: Any, error: UserError) -> None:
    client.reply(number, error={"code": 1, "message": error.message, "data": {"hint": error.hint}})


def _fail(client: Connection, number: Any, error: BaseException) -> None:
    text = f"{type(error).__name__}: {message_of(error)[:500]}"
    client.reply(number, error={"code": -32603, "message": text})


def _answer(client: Connection, number: Any, done: Future[View | None]) -> None:
    """Send what a line was answered."""
    error = done.exception()
    if isinstance(error, UserError):
        _refuse(client, number, error)
    elif error is not None:
        _fail(client, number, error)
    else:
        view = done.result()
        client.reply(number, result={"view": wire.encode(view) if view is not None else None})


def _text(params: dict[str, Any], name: str) -> str:
    found = params.get(name)
    if not isinstance(found, str):
        raise UserError(f"{name} is a text")
    return found


def _number(params: dict[str, Any], name: str) -> int | None:
    found = params.get(name)
    if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
        raise UserError(f"{name} is a number")
    return found
