"""Every error layerstep raises on purpose.

    LayerstepError
    ├─ UserError            wrong input: one line, a hint, suggestions; exit code 2
    │  ├─ UnknownCommand    no command or name of that spelling
    │  ├─ UnknownPath       no module at that path, or several
    │  ├─ BadCondition      an expression that does not compile
    │  └─ BadArguments      a command used with the wrong words
    ├─ MissingExtra         an optional dependency is absent; names the pip command
    └─ RecordingError       a file of ours that cannot be read

`Quit` is not among them: it is a `SystemExit`, so that no `except Exception` in a
training loop can swallow the user's wish to leave.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence

__all__ = [
    "QUIT_EXIT_CODE",
    "BadArguments",
    "BadCondition",
    "LayerstepError",
    "MissingExtra",
    "Quit",
    "RecordingError",
    "UnknownCommand",
    "UnknownPath",
    "UserError",
    "describe_bug",
]

QUIT_EXIT_CODE = 130
"""What a shell reports for a program that its user interrupted."""


class LayerstepError(Exception):
    """Base of all; never raised itself."""


class UserError(LayerstepError):
    """Wrong input. `str()` is the one line that the user sees."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "", *, suggestions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.suggestions = tuple(suggestions)
        if not hint and suggestions:
            hint = "did you mean " + ", ".join(suggestions) + "?"
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UnknownCommand(UserError):
    """No command or name of that spelling."""


class UnknownPath(UserError):
    """No module at that path, or several."""


class BadCondition(UserError):
    """An expression that does not compile."""


class BadArguments(UserError):
    """A command used with the wrong words."""


class MissingExtra(LayerstepError):
    """An optional dependency is absent."""

    def __init__(self, extra: str, package: str = "layerstep") -> None:
        super().__init__(f"this needs an extra: pip install '{package}[{extra}]'")


class RecordingError(LayerstepError):
    """A file of ours that cannot be read."""


class Quit(SystemExit):
    """The user typed `quit`: unwinds the run and ends the process with code 130."""

    def __init__(self) -> None:
        super().__init__(QUIT_EXIT_CODE)


def message_of(error: BaseException) -> str:
    """What an exception says. It may be one of the program's, and its own `__str__` may fail."""
    try:
        return str(error)
    except Exception as trouble:
        return f"its __str__ raised {type(trouble).__name__}"


def first_line(error: BaseException) -> str:
    """The first line of what an exception says."""
    return message_of(error).partition("\n")[0]


def describe_bug(error: BaseException) -> str:
    """A bug of ours in one line, with the line of code it came from."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" at {os.path.basename(last[0].filename)}:{last[0].lineno}" if last else ""
    return f"a bug in layerstep: {type(error).__name__}: {message_of(error)}{at}"
