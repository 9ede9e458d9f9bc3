"""A crash as a view: the cause in one line, what went in, the shapes on the way there, the likely fix."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep._torch.tensors import is_tensor
from layerstep.calls.stack import Frame
from layerstep.crashes.explain.explaining import explain
from layerstep.crashes.traceback_calls import Crash, PassedCall
from layerstep.errors import message_of
from layerstep.process.frames import forget_locals
from layerstep.tensors.shapes import shape_line
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View

__all__ = ["crash_view"]

MOST = 20
MOST_NAMES = 10


def crash_view(
    crash: Crash,
    *,
    forward: int = 0,
    reason: str = "",
    passed: Iterable[PassedCall] = (),
    more: Iterable[tuple[str, View]] = (),
) -> View:
    """What is shown at an exception; `passed` are the calls of this forward that were seen to finish."""
    explanation = explain(crash)
    frame = crash.inner
    title = [Span(frame.path, "path")] if frame is not None else []
    title.append(Span(f"raised {type(crash.error).__name__}", "bad"))
    if frame is not None:
        title.append(Span(type(frame.module).__name__, "type"))
    title += [Span(f"forward {forward}", "dim")] if forward else []
    title += [Span(reason, "dim")] if reason else []
    items: list[tuple[str, View]] = [("got", Text(_listed(explanation.got)))] if explanation.got else []
    items += [("has", Text(_listed(explanation.has)))] if explanation.has else []
    items += [("here", Text(names))] if (names := _variables(crash)) else []
    items += [("", Text(line)) for line in explanation.details]
    items += [("at", Text(str(crash.site)))] if crash.site is not None else []
    items += [("says", Text(_message(crash.error)))]
    items += [("try", Text(explanation.fix))] if explanation.fix else []
    items += list(more)
    views: list[View] = [Notice(explanation.cause, level="error"), Fields(tuple(title), tuple(items))]
    rows = [*passed, *(_row(each) for each in reversed(crash.stack) if each.module is not None)]
    if len(rows) > 1:
        note = f"{len(rows) - MOST} calls before these" if len(rows) > MOST else ""
        columns = (Column("path", "path"), Column("type", "type"), Column("in"), Column("out"))
        views.append(Table(columns, tuple(rows[-MOST:]), title="on the way there", note=note))
    return Group(tuple(views))


def _listed(values: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {text}" for name, text in values)


def _variables(crash: Crash) -> str:
    """The tensors that the failing line could see."""
    if crash.site is None:
        return ""
    frame = crash.site.frame
    names = [f"{name} {shape_line(value)}" for name, value in frame.f_locals.items() if is_tensor(value)]
    forget_locals(frame)
    more = f", … {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _message(error: BaseException) -> str:
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    more = f" … {len(lines) - 1} more lines" if len(lines) > 1 else ""
    return f"{type(error).__name__}: {first[:200]}{'…' if len(first) > 200 else ''}{more}"


def _row(frame: Frame) -> PassedCall:
    inputs = [shape_line(value) for value in frame.args[:4]]
    inputs += [f"{key}={shape_line(value)}" for key, value in list(frame.kwargs.items())[:4]]
    state = "raised" if frame.state == "raised" else "-"
    return frame.path, type(frame.module).__name__, ", ".join(inputs), state
