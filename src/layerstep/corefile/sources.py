"""Source lines in a core file, and frames at these lines when it is opened.

A file is known by its base name. When a core is opened, its lines go into Python's cache of lines, and each
call site becomes the frame of a generator that waits at that line. So commands show these frames like any
other.
"""

from __future__ import annotations

import inspect
import keyword
import linecache
import os
import types
from collections.abc import Generator
from types import CodeType, FrameType
from typing import Any

from layerstep.errors import RecordingError

__all__ = ["RestoredSources", "Sources"]

AROUND = 20
"""Lines on either side, where the function is too long to take whole."""
MOST_LINES, MOST_BYTES = 1_000, 8 << 20
"""The most lines of one function, and of all of them."""
LAST_LINE = 1_000_000


class Sources:
    """Collects the lines that a file needs."""

    def __init__(self) -> None:
        self._files: dict[str, dict[int, str]] = {}
        self._nbytes = 0

    def site(self, frame: FrameType, line: int = 0) -> dict[str, Any]:
        """The place of a frame, with the source of its function."""
        code, line = frame.f_code, line or frame.f_lineno
        first = max(code.co_firstlineno, 1)
        if code.co_name == "<module>" or not self._take_function(code):
            low = max(line - AROUND, 1)
            self._take(code.co_filename, low, linecache.getlines(code.co_filename)[low - 1 :][: 2 * AROUND])
        return {
            "file": self._number(code.co_filename),
            "name": code.co_qualname,
            "first": min(first, line),
            "line": line,
        }

    def line(self, file: str, line: int) -> dict[str, Any]:
        """A place given by file and line."""
        self._take(file, line, linecache.getlines(file)[line - 1 : line])
        return {"file": self._number(file), "line": line}

    def function(self, function: Any) -> dict[str, Any] | None:
        """A function written in Python: its place and name."""
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if not isinstance(code, CodeType) or not self._take_function(code):
            return None
        return {
            "file": self._number(code.co_filename),
            "first": code.co_firstlineno,
            "name": code.co_qualname,
        }

    def _take_function(self, code: CodeType) -> bool:
        try:
            lines, first = inspect.getsourcelines(code)
        except Exception:  # no source, or one that has changed since and cannot be read as Python
            return False
        if len(lines) > MOST_LINES:
            return False
        return self._take(code.co_filename, max(first, 1), lines)

    def _take(self, file: str, first: int, lines: list[str]) -> bool:
        known = self._files.setdefault(file, {})
        new = {n: line.rstrip("\n") for n, line in enumerate(lines, first) if n not in known}
        size = sum(map(len, new.values()))
        if self._nbytes + size > MOST_BYTES:
            return False
        self._nbytes += size
        known |= new
        return True

    def _number(self, file: str) -> int:
        self._files.setdefault(file, {})
        return list(self._files).index(file)

    def encode(self) -> list[dict[str, Any]]:
        """Each file by its base name, its lines in runs: [first, [text, …]]."""
        found = []
        for file, known in self._files.items():
            runs: list[tuple[int, list[str]]] = []
            for number in sorted(known):
                if not runs or runs[-1][0] + len(runs[-1][1]) != number:
                    runs.append((number, []))
                runs[-1][1].append(known[number])
            found.append({"name": os.path.basename(file) or file, "runs": runs})
        return found


class RestoredSources:
    """Puts the lines of a file where `list` and `where` look for them."""

    def __init__(self, files: list[dict[str, Any]]) -> None:
        self._names: list[str] = []
        self._waiting: list[Generator[None, None, None]] = []  # a frame lives only as long as its generator
        for number, file in enumerate(files):
            name = f"<core {number}>/{os.path.basename(str(file['name']))}"
            self._names.append(name)
            linecache.cache[name] = (0, None, _whole(file["runs"]), name)

    def file(self, site: dict[str, Any]) -> str:
        number = site["file"]
        if not isinstance(number, int) or not 0 <= number < len(self._names):
            raise RecordingError("it names a source that it does not have")
        return self._names[number]

    def frame(self, site: dict[str, Any] | None) -> FrameType | None:
        """A frame at that place."""
        if site is None:
            return None
        code = self._code(site, "yield", names=tuple(site.get("locals", ())))
        values = site.get("locals", {})
        waiting = types.FunctionType(code, {"__name__": "__core__"})(**values)
        next(waiting)
        self._waiting.append(waiting)
        frame: FrameType = waiting.gi_frame
        return frame

    def code(self, place: dict[str, Any] | None) -> CodeType | None:
        """A code object with the name and place of that function, but not its instructions."""
        return None if place is None else self._code({**place, "line": place["first"]}, "pass", names=())

    def _code(self, site: dict[str, Any], body: str, *, names: tuple[str, ...]) -> CodeType:
        first, line, name = site["first"], site["line"], str(site["name"])
        if not (isinstance(first, int) and isinstance(line, int) and 0 < first <= line < LAST_LINE):
            raise RecordingError("it names an impossible line")
        if not all(isinstance(n, str) and n.isidentifier() and not keyword.iskeyword(n) for n in names):
            raise RecordingError("it names an impossible variable")
        between = "\n" * (line - first) + " "
        text = "\n" * (first - 1) + f"def stand_in({', '.join(names)}):{between}{body}"
        module = compile(text, self.file(site), "exec")
        made = next(each for each in module.co_consts if isinstance(each, CodeType))
        return made.replace(co_name=name.rpartition(".")[2] or name, co_qualname=name)


def _whole(runs: Any) -> list[str]:
    """The lines of a file from the first; unknown lines are empty."""
    lines: list[str] = []
    for first, texts in runs:
        if not isinstance(first, int) or not len(lines) < first < LAST_LINE:
            raise RecordingError("its sources are out of order")
        lines += ["\n"] * (first - 1 - len(lines))
        lines += [f"{text}\n" for text in texts]
    return lines
