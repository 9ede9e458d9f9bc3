"""From a line to a view: a command if its first word is one, else Python in the paused frame."""

from __future__ import annotations

import contextlib
import keyword
import re
from dataclasses import replace
from typing import Any

import torch

from layerstep._torch import is_transforming
from layerstep.crashes.traceback_calls import Crash
from layerstep.engine.backward import Call
from layerstep.engine.events import Phase, Resume
from layerstep.engine.expression import may_act
from layerstep.engine.guard import Outcome
from layerstep.engine.messages import Watch
from layerstep.engine.overwritten_inputs import before_call
from layerstep.engine.pause import Pause
from layerstep.engine.scope import EvaluationFailed
from layerstep.engine.session import Session
from layerstep.engine.stack import Frame, function_label, location_at, location_of
from layerstep.errors import BadArguments, BadCondition, UnknownCommand, UserError
from layerstep.habits import known_elsewhere, shell_command
from layerstep.line_syntax import WORD, asked_about, check_length, is_python_after, without_comment
from layerstep.nonfinite.origin import Origin
from layerstep.nonfinite.views import origin_view
from layerstep.ops.views import op_view
from layerstep.registry import Command, command_names, find_command, near, plugin_of, untold_troubles
from layerstep.tensors.present import present, short, tensor_view
from layerstep.tensors.shapes import shape_line, tensors_in
from layerstep.views import Fields, Group, Notice, Span, Text, View
from layerstep.visible import visible
from layerstep.watchpoints.views import fields_of

__all__ = ["Dispatcher"]

_MOST_SHOWN = 6


class Dispatcher:
    """The interpreter that sessions are given."""

    def __init__(self) -> None:
        self._repeat = ""

    def interpret(self, session: Session, line: str) -> View | Resume | None:
        """Answer one line, and say of names where they are from if it is not the function that runs here."""
        session.scope.borrowed.clear()
        answer = self._interpret(session, line)
        borrowed = session.scope.borrowed
        if not borrowed or answer is None or isinstance(answer, Resume):
            return answer
        words = ", ".join(f"{name} from {origin}" for name, origin in list(borrowed.items())[:4])
        return Group((answer, Notice(words)))

    def _interpret(self, session: Session, line: str) -> View | Resume | None:
        """Answer one line; an empty one repeats the last step-like command."""
        text = line.strip()
        if not text:
            text = self._repeat
            if not text:
                return None
        elif text.startswith("#"):
            return Text("")
        else:
            check_length(text)
            session.history.append(text)
        self._repeat = ""
        if text.startswith("!"):
            return _python(session, text[1:].strip(), is_forced=True)
        asked = asked_about(text)
        text = expand_alias(session, text) if asked is None else f"help {asked}"
        command, rest = find(session, text)
        for trouble in untold_troubles():
            session.say(Notice(trouble, level="warn"))
        if command is None:
            return _python(session, text)
        # Ctrl-C after `continue` or `step` is for the run that goes on, so it does not cancel these.
        is_cancelled = (
            contextlib.nullcontext() if command.group == "run" else session.interrupts.cancellable()
        )
        with is_cancelled:
            answer = _run(session, command, rest)
        if command.repeats:
            self._repeat = text
        return answer

    def describe(self, session: Session, pause: Pause) -> View:
        """What is shown at a stop."""
        changed = session.writes.unseen()
        stop = self._describe(session, pause)
        if pause.thread_name:
            stop = _titled(stop, Span(f"thread {pause.thread_name}", "dim"))
        return Group((*changed, stop)) if changed else stop

    def _describe(self, session: Session, pause: Pause) -> View:
        write = session.writes.at(pause)
        if write is not None:
            others = [(n, watch) for n, watch in session.watches.items() if watch.point is not write.point]
            watched = [(f"watch {n}", _watched(session, watch)) for n, watch in others]
            return fields_of(write, pause, limit=session.config.sample_above, more=watched)
        if isinstance(pause.finding, Origin):
            return Group((origin_view(session, pause.finding), _describe_line(session, pause)))
        if pause.crash is not None:
            return _describe_crash(session, pause, pause.crash)
        if pause.event is None:
            return _describe_line(session, pause)
        frame = pause.stack[0]
        if frame.op is not None:
            watched = [(f"watch {n}", _watched(session, watch)) for n, watch in session.watches.items()]
            return op_view(pause, frame, limit=session.config.sample_above, more=watched)
        if frame.call is not None:
            return _describe_backward(session, pause, frame, frame.call)
        return _describe_call(session, pause, frame)

    def explain(self, crash: Crash) -> str:
        """An exception in a few lines, to be noted on it."""
        from layerstep.crashes.explain.explaining import note_of  # twenty files, wanted only after a crash

        return visible(note_of(crash))


def _titled(view: View, more: Span) -> View:
    """A stop with one word more in its title line."""
    if isinstance(view, Fields) and view.title:
        return replace(view, title=(*view.title, more))
    if isinstance(view, Group):
        for number, part in enumerate(view.views):
            if (titled := _titled(part, more)) is not part:
                return Group((*view.views[:number], titled, *view.views[number + 1 :]))
    return view


def find(session: Session, text: str) -> tuple[Command | None, str]:
    """The command that a line names, and the rest of the line; None where the line is Python."""
    match = WORD.fullmatch(text)
    if match is None:
        return None, text
    word, rest = match.groups()
    exact = find_command(word, prefix=False)
    if is_python_after(word, rest):
        return None, text
    if exact is not None:
        return exact, without_comment(rest).strip()
    if session.scope.knows(word) or (rest and not rest[0].isspace()) or keyword.iskeyword(word):
        return None, text
    found = find_command(word)
    return (found, without_comment(rest).strip()) if found is not None else (None, text)


def _run(session: Session, command: Command, rest: str) -> View | Resume | None:
    if command.needs_pause and (session.pause is None or not session.pause.stack):
        hint = "`continue` starts the run" if session.pause is not None else "it answers at a stop"
        raise UserError(f"{command.name}: nothing has stopped yet", hint)
    try:
        answer: View | Resume | None = command.function(session, command.parse(rest))
        return answer
    except (BadArguments, BadCondition) as error:
        if error.hint:
            raise
        raise type(error)(error.message, command.hint(rest)) from None
    except UserError:
        raise
    except Exception as error:
        told = _told(command, error)
        if told is None:
            raise
        raise told from None


def _told(command: Command, error: Exception) -> UserError | None:
    """An error that is no bug of ours, in one line."""
    if isinstance(error, OSError) and error.filename is not None:  # a name that the file system refuses
        return UserError(f"cannot use {error.filename}", error.strerror or "")
    if isinstance(error, RuntimeError) and is_transforming():
        place = "inside vmap or another transform of torch.func"
        return UserError(f"{command.name} needs values, and {place} there are none", "stop outside of it")
    home = plugin_of(command)
    if home:
        return UserError(f"{command.name} of {home} failed: {type(error).__name__}: {str(error)[:200]}")
    return None


def expand_alias(session: Session, text: str) -> str:
    """Replace the user's own words: %1 … %9 are the arguments, %* all of them."""
    word, _, rest = text.partition(" ")
    body = session.aliases.get(word)
    if body is None:
        return text
    words = rest.split()
    if "%" not in body:
        return f"{body} {rest}".strip()
    for number in range(9, 0, -1):
        body = body.replace(f"%{number}", words[number - 1] if number <= len(words) else "")
    return body.replace("%*", rest).strip()


def _python(session: Session, text: str, *, is_forced: bool = False) -> View | None:
    with session.interrupts.cancellable():
        return _evaluate(session, text, is_forced=is_forced)


def _evaluate(session: Session, text: str, *, is_forced: bool) -> View | None:
    try:
        value, printed, outcome = session.evaluate(text, deep=may_act(text))
    except EvaluationFailed as failure:
        raise _clearer(text, failure, is_forced=is_forced) from None
    views: list[View] = []
    if printed:
        views.append(Text(printed.rstrip("\n"), is_printed=True))
    if value is not None:
        number = session.results.keep(value)
        shown = present(value)
        label = f"${number}" if number is not None else "="
        views.append(Fields((), ((label, shown),)))
    views += _side_effects(outcome)
    return Group(tuple(views)) if views else None


def _clearer(text: str, failure: EvaluationFailed, *, is_forced: bool) -> UserError:
    """A line that is no Python either was probably meant to be a command, here or elsewhere."""
    match = WORD.match(text)
    word = match[1] if match else ""
    missing = getattr(failure.error, "name", word) if isinstance(failure.error, NameError) else None
    is_name = missing == word
    if isinstance(failure.error, SyntaxError) or (missing is not None and text.startswith(missing)):
        told = shell_command(text) if is_forced else known_elsewhere(text)
        if told is not None:
            return told
    if word and word not in command_names() and (is_name or isinstance(failure.error, SyntaxError)):
        close = near(word, command_names())
        if close or is_name:
            hint = "" if close else "`help` lists the commands"
            return UnknownCommand(f"no command or name {word!r}", hint, suggestions=close)
    return failure


def _side_effects(outcome: Outcome) -> list[View]:
    notices: list[View] = []
    if outcome.changed:
        notices.append(
            Notice(f"this line changed {_some(outcome.changed)}", "`perturbed?` keeps the list", level="warn")
        )
    if outcome.restored:
        notices.append(Notice(f"put back after this line: {_some(outcome.restored)}"))
    return notices


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _values(label: str, value: Any, limit: int) -> list[tuple[str, View]]:
    """The lines of one input or output: a line a tensor, a word for the rest."""
    if isinstance(value, (tuple, dict)) and not value:
        return []
    leaves = tensors_in(value, most=_MOST_SHOWN + 1)
    if not leaves:
        return [(label, Text(short(value)))]
    rows: list[tuple[str, View]] = [
        (label + place, tensor_view(tensor, limit=limit)) for place, tensor in leaves[:_MOST_SHOWN]
    ]
    if len(leaves) > _MOST_SHOWN:
        rows.append((label, Text(f"… more tensors: `inspect {label}`")))
    return rows


def _watched(session: Session, watch: Watch) -> View:
    if watch.point is not None:
        return Text(f"{watch.point.label}: {watch.point.state}")
    try:
        value = watch.expression.evaluate(session.scope)
        now = short(value)
    except Exception as error:
        now = f"<{type(error).__name__}: {error}>".split("\n")[0][:100]
    before, watch.last = watch.last, now
    changed = "" if before is None or before == now else f"   was {before}"
    return Text(f"{watch.expression.text} = {now}{changed}")


def _describe_call(session: Session, pause: Pause, frame: Frame) -> View:
    title = [
        Span(frame.path, "path"),
        Span("entered" if pause.phase is Phase.ENTER else "done", "good"),
        Span(type(frame.module).__name__, "type"),
        Span(f"forward {pause.forward}", "dim"),
    ]
    if pause.reason:
        title.append(Span(pause.reason, "dim"))
    limit = session.config.sample_above
    inp, note = before_call(frame.overwritten, frame.inp, limit=session.config.copy_input_bytes, name="inp")
    items = _values("inp", inp, limit) + ([("", Text(note))] if note else [])
    for name, value in list(frame.kwargs.items())[:_MOST_SHOWN]:
        if tensors_in(value, most=1):
            items += _values(f"{name}=", value, limit)
    if frame.has_output:
        items += _values("out", frame.output, limit)
    if pause.python is not None:
        items.append(("at", Text(location_of(pause.python))))
    items += [(f"watch {n}", _watched(session, watch)) for n, watch in session.watches.items()]
    stop = Fields(tuple(title), tuple(items))
    return Group((Notice(pause.trouble, level="error"), stop)) if pause.trouble else stop


def _describe_backward(session: Session, pause: Pause, frame: Frame, call: Call) -> View:
    title = [
        Span(frame.path, "path"),
        Span(frame.state, "good"),
        Span(type(frame.module).__name__, "type"),
        Span(f"forward {call.forward}", "dim"),
    ]
    if pause.reason:
        title.append(Span(pause.reason, "dim"))
    limit = session.config.sample_above
    items: list[tuple[str, View]] = []
    for name, gradients in (("grad_out", call.grad_out), ("grad_in", call.grad_in)):
        known = [gradient for gradient in gradients if gradient is not None]
        items += _values(name, known[0] if len(known) == 1 else tuple(known), limit)
    items += _parameters(session, call)
    items += [("made at", Text(location_at(*call.made_at)))] if call.made_at[0] else []
    items += [(f"watch {n}", _watched(session, watch)) for n, watch in session.watches.items()]
    stop = Fields(tuple(title), tuple(items))
    return Group((Notice(pause.trouble, level="error"), stop)) if pause.trouble else stop


def _parameters(session: Session, call: Call) -> list[tuple[str, View]]:
    """Which parameters of the module have their gradient of this pass already."""
    ready = {
        name: session.backpass.is_ready(p) for name, p in call.module.named_parameters() if p.requires_grad
    }
    if not ready:
        return []
    if len(ready) > 4:
        return [("params", Text(f"gradients of {sum(ready.values())} of {len(ready)} are there"))]
    words = (f"{name} {'has its gradient' if there else 'not yet'}" for name, there in ready.items())
    return [("params", Text(", ".join(words)))]


def _describe_crash(session: Session, pause: Pause, crash: Crash) -> View:
    from layerstep.crashes.views import crash_view

    running = {id(frame.module) for frame in crash.stack}
    passed = [
        (path, type(module).__name__, ", ".join(map(shape_line, kept[0][:4])), shape_line(kept[2]))
        for path, module in session.models.everything()
        if id(module) not in running and (kept := session.kept.get(module)) is not None
    ]
    watched = [(f"watch {n}", _watched(session, watch)) for n, watch in session.watches.items()]
    return crash_view(crash, forward=pause.forward, reason=pause.reason, passed=passed, more=watched)


def _describe_line(session: Session, pause: Pause) -> View:
    inner = pause.stack[0] if pause.stack else None
    title: list[Span] = []
    items: list[tuple[str, View]] = []
    is_line = inner is not None and inner.at_line
    if not is_line:
        title.append(Span(pause.reason or "paused", "good"))
    elif inner is not None and inner.within is not None:
        title.append(Span(function_label(inner.within), "key"))
        title.append(Span("returns" if inner.has_output else "", "good"))
    if inner is not None and inner.module is not None:
        title += [Span(inner.path, "path"), Span(type(inner.module).__name__, "type")]
    if is_line:
        title.append(Span(pause.reason, "dim"))
    if pause.python is not None:
        items.append(("at", Text(location_of(pause.python))))
    limit = session.config.sample_above
    if inner is not None and inner.at_line:
        items += _values("returns", inner.output, limit) if inner.has_output else _locals(inner, limit)
    items += [(f"watch {n}", _watched(session, watch)) for n, watch in session.watches.items()]
    stop = Fields(tuple(span for span in title if span.text), tuple(items))
    return Group((Notice(pause.trouble, level="error"), stop)) if pause.trouble else stop


def _locals(frame: Frame, limit: int) -> list[tuple[str, View]]:
    """The tensors of the function that runs: first those that the line names."""
    assert frame.within is not None
    named = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", location_of(frame.within).partition("  ")[2]))
    known = frame.within.f_locals
    tensors = {
        name: known[name] for name in (*named, *known) if issubclass(type(known.get(name)), torch.Tensor)
    }
    rows: list[tuple[str, View]] = [
        (name, tensor_view(value, limit=limit)) for name, value in list(tensors.items())[:_MOST_SHOWN]
    ]
    if len(tensors) > _MOST_SHOWN:
        rows.append(("more", Text(f"{len(tensors) - _MOST_SHOWN} more tensors: `info locals`")))
    return rows
