"""From a line to a view: a command if its first word is one, else Python in the paused frame."""

from __future__ import annotations

import contextlib
import keyword

from layerstep._torch import is_transforming
from layerstep.engine.resume import Resume
from layerstep.engine.session import Session
from layerstep.errors import BadArguments, BadCondition, UnknownCommand, UserError, message_of
from layerstep.expressions.expression import may_act
from layerstep.expressions.scope import EvaluationFailed
from layerstep.habits import known_elsewhere, shell_command
from layerstep.line_syntax import WORD, asked_about, check_length, is_python_after, without_comment
from layerstep.registry import Command, command_names, find_command, near, plugin_of, untold_troubles
from layerstep.side_effects.guard import Outcome
from layerstep.tensors.present import present
from layerstep.views import Fields, Group, Notice, Text, View

__all__ = ["Dispatcher"]


class Dispatcher:
    """The interpreter that sessions are given."""

    def __init__(self) -> None:
        self._repeat = ""

    def interpret(self, session: Session, line: str) -> View | Resume | None:
        """Answer one line, and say of names where they are from if it is not the function that runs here."""
        session.run.scope.borrowed.clear()
        answer = self._interpret(session, line)
        borrowed = session.run.scope.borrowed
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
            session.prompt.history.append(text)
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
    if session.run.scope.knows(word) or (rest and not rest[0].isspace()) or keyword.iskeyword(word):
        return None, text
    found = find_command(word)
    return (found, without_comment(rest).strip()) if found is not None else (None, text)


def _run(session: Session, command: Command, rest: str) -> View | Resume | None:
    if command.needs_pause and (session.run.pause is None or not session.run.pause.stack):
        hint = "`continue` starts the run" if session.run.pause is not None else "it answers at a stop"
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
        return UserError(
            f"{command.name} of {home} failed: {type(error).__name__}: {message_of(error)[:200]}"
        )
    return None


def expand_alias(session: Session, text: str) -> str:
    """Replace the user's own words: %1 … %9 are the arguments, %* all of them."""
    word, _, rest = text.partition(" ")
    body = session.prompt.aliases.get(word)
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
        value, printed, outcome = session.prompt.evaluate(text, deep=may_act(text))
    except EvaluationFailed as failure:
        raise _clearer(text, failure, is_forced=is_forced) from None
    views: list[View] = []
    if printed:
        views.append(Text(printed.rstrip("\n"), is_printed=True))
    if value is not None:
        number = session.run.results.keep(value)
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
