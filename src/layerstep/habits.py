"""Words of pdb, gdb, IPython and the shell that mean nothing here: the answer names what does."""

from __future__ import annotations

import re
import shutil

from layerstep.errors import UnknownCommand, UserError

__all__ = ["known_elsewhere", "shell_command"]

_WORDS = {
    "_": "the last result is `$`, the one before it `$$`",
    "__": "the last result is `$`, the one before it `$$`",
    "who": "`info locals` lists the names here",
    "whos": "`info locals` lists the names here",
    "backtrace": "`where` shows the modules that are running",
    "ptype": "`inspect X` says what X is",
    "retval": "`out` is what the module returned",
    "rv": "`out` is what the module returned",
    "run": "`continue` starts the run or lets it go on",
    "kill": "`quit` ends the program",
    "unalias": "`alias NAME` drops an alias",
    "exceptions": "`catch exception` stops where a module raises",
    "bp": "`break WHERE` sets a point",
    "stepout": "`finish` runs to the end of the module",
    "stepover": "`next` runs to the next module at this level",
    "stepinto": "`into` stops in the next module below",
    "cls": "Ctrl-L clears the screen",
}
_MAGICS = {
    "timeit": "`profile 5` times 5 steps by module; `import timeit` times an expression",
    "time": "`profile 5` times 5 steps by module; `import timeit` times an expression",
    "prun": "`profile 5` times 5 steps by module",
    "lprun": "`profile 5` times 5 steps by module",
    "memit": "`memory` shows what holds memory",
    "mprun": "`memory` shows what holds memory",
    "who": _WORDS["who"],
    "whos": _WORDS["who"],
    "debug": "`layerstep run --post-mortem script.py` opens the prompt where it crashes",
    "pdb": "`catch exception` stops where a module raises",
    "run": "`layerstep run script.py` runs a script, `source FILE` a file of commands",
    "hist": "the arrow keys bring back earlier lines; `transcript FILE` writes them down",
    "history": "the arrow keys bring back earlier lines; `transcript FILE` writes them down",
    "alias": "`alias NAME = LINE` gives a line a name",
    "pinfo": "`X?` or `help X` explains",
    "pdoc": "`X?` or `help X` explains",
    "psource": "`list PATH` shows the source of a module",
    "quickref": "`help` lists the commands",
    "magic": "`help` lists the commands",
}
_SHELL = {"cd", "ls", "pwd", "cat", "env", "pip", "conda", "sx", "system", "bash", "sh"}


def known_elsewhere(text: str) -> UserError | None:
    """The answer to a line that another debugger would have understood; None for any other line."""
    match = re.match(r"(%{1,2})?(\w+)", text)
    if match is None:
        return UnknownCommand("`%%` begins a cell of a notebook") if text.startswith("%%") else None
    sign, word = match.groups()
    if not sign:
        return UnknownCommand(f"no command or name {word!r}", _WORDS[word]) if word in _WORDS else None
    if word in _SHELL:
        return shell_command(f"{word}{text[match.end() :]}")
    hint = _MAGICS.get(word, "`help` lists the commands; any other line is Python")
    return UnknownCommand(f"{sign}{word} belongs to IPython", hint)


def shell_command(text: str) -> UserError | None:
    """The answer to `!ls`, where the word is a program; None if it is none."""
    word = text.split()[0] if text.split() else ""
    if not re.fullmatch(r"[\w.-]+", word) or not (word in _SHELL or shutil.which(word)):
        return None
    line = text if len(text) <= 60 else f"{text[:59]}…"
    return UnknownCommand("`!` runs Python here, not a shell", f"`import os; os.system({line!r})`")
