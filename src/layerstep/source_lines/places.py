"""Where a point at a line is: from `train.py:32`, `Net.forward` or `40` to a file and a line.

A place is found in the text of the program's files, so that it can be set before the program has started.
One whose file is not known yet waits until code of such a file runs.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from layerstep.errors import UnknownPath
from layerstep.process.frames import OURS, is_program_file
from layerstep.source_lines.statements import SourceFile, read_source

__all__ = ["Place", "find_function", "find_place", "function_names", "known_files", "parse_place"]

_FORM = re.compile(r"(?P<file>\S.*?)(?::(?P<line>\d+)|(?<=\.py):(?P<function>[A-Za-z_][\w.]*))")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


@dataclass(slots=True, eq=False)
class Place:
    """A line, or the beginning of a function."""

    text: str
    """As it was asked for."""
    tail: str
    """The end of the path of its file."""
    spot: str
    """The line that was asked for, or the function."""
    file: str = ""
    """The file, when it is known."""
    line: int = 0
    function: str = ""
    """The qualified name of the function it must be in, if its line alone does not tell."""
    trouble: str = ""
    """Why it can never stop, though the file is there."""
    was_entered: bool = False
    """Has the function around it run since it was set?"""

    @property
    def is_pending(self) -> bool:
        return not self.line

    @property
    def label(self) -> str:
        """`train.py:32`, or `Net.forward train.py:12`."""
        if self.is_pending:
            return self.text
        spot = f"{os.path.basename(self.file)}:{self.line}"
        return f"{self.function} {spot}" if self.function else spot

    @property
    def moved(self) -> str:
        """A word about a line that has no code of its own."""
        if self.is_pending or not self.spot.isdigit() or int(self.spot) == self.line:
            return ""
        if self.function:
            return f"line {self.spot} has no code of its own; it stops at the first line of {self.function}"
        if int(self.spot) < self.line:
            return f"line {self.spot} has no code; it stops at the next line that has"
        return f"line {self.spot} belongs to the statement at line {self.line}"

    def settle(self, file: str) -> bool:
        """Take this file for its own, if its path ends so; is it set then?"""
        if not self.is_pending or not _ends_in(file, self.tail):
            return False
        source = read_source(file)
        if source is None:
            return False
        self.file = os.path.realpath(file)
        self._find_line(source)
        return not self.is_pending

    def _find_line(self, source: SourceFile) -> None:
        name = os.path.basename(self.file)
        if self.spot.isdigit():
            self.line, self.function = source.stop_for(int(self.spot))
            if not self.line:
                self.trouble = f"{name} has no code at line {self.spot} or after it"
            return
        found = source.named(self.spot)
        if len(found) == 1:
            self.line, self.function = found[0].body, found[0].name
        elif found:
            self.trouble = f"{self.spot} could be {', '.join(each.name for each in found[:6])}"
        else:
            self.trouble = f"{name} has no function {self.spot}"


def parse_place(text: str, *, here: str = "") -> Place | None:
    """A place of the form `FILE:LINE`, `FILE.py:FUNCTION`, or `LINE` of the file `here`."""
    if here and text.removeprefix(":").isdigit():
        return Place(text, here, text.removeprefix(":"))
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    file = match["file"] if os.path.splitext(match["file"])[1] else f"{match['file']}.py"
    return Place(text, file, match["line"] or match["function"])


def find_place(place: Place, script: str) -> None:
    """Settle a place if its file is known; raise if it can never be."""
    files = _files_ending_in(place.tail, script)
    if len(files) > 1:
        shown = ", ".join(_distinct(files)[:6])
        raise UnknownPath(f"{place.tail} is the end of {len(files)} files: {shown}", "type more of the path")
    for file in files:
        place.settle(file)
        if place.trouble:
            raise UnknownPath(place.trouble, "`list` shows the source at a stop")
        if place.is_pending:
            raise UnknownPath(f"{place.tail} is no Python source")


def find_function(name: str, script: str) -> Place | None:
    """The place of a function: of a loaded module, or of the script before it has started."""
    if not _NAME.fullmatch(name):
        return None
    found = {(place.file, place.line): place for place in _functions(name, script)}
    if len(found) > 1:
        labels = ", ".join(sorted(place.label for place in found.values())[:6])
        raise UnknownPath(f"{name} is the name of {len(found)} functions: {labels}", "FILE:LINE names one")
    return next(iter(found.values()), None)


def _functions(name: str, script: str) -> Iterator[Place]:
    for file, local in [(script, name), *_in_files_of_modules(name)]:
        source = read_source(file) if file else None
        named = source.named(local) if source is not None else []
        if source is not None and (len(named) == 1 or any(each.name == local for each in named)):
            yield Place(name, file, local, os.path.realpath(file), named[0].body, named[0].name)
    for module in _program_modules():
        place = _loaded(name, vars(module), name)
        if place is not None:
            yield place
    head, _, rest = name.partition(".")
    while rest:
        module_found = sys.modules.get(head)
        place = _loaded(name, vars(module_found), rest) if module_found is not None else None
        if place is not None:
            yield place
        step, _, rest = rest.partition(".")
        head = f"{head}.{step}"


def _in_files_of_modules(name: str) -> Iterator[tuple[str, str]]:
    """The files that `import` would load for the front part of a dotted name, and the rest of it."""
    parts = name.split(".")
    for cut in range(1, len(parts)):
        if ".".join(parts[:cut]) in sys.modules:
            continue
        for folder in sys.path:
            base = Path(folder or ".", *parts[:cut])
            for file in (base.with_suffix(".py"), base / "__init__.py"):
                if is_program_file(str(file)) and file.is_file():
                    yield str(file), ".".join(parts[cut:])


def _loaded(text: str, names: dict[str, Any], dotted: str) -> Place | None:
    """A function by its dotted name in a namespace; no property is asked and no code is run."""
    value: Any = None
    for part in dotted.split("."):
        value = names.get(part)
        if isinstance(value, type):
            names = {key: each for base in reversed(value.__mro__) for key, each in vars(base).items()}
        elif isinstance(value, ModuleType):
            names = vars(value)
        else:
            names = {}
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    value = value.fget if isinstance(value, property) else value
    if not isinstance(value, FunctionType):
        return None
    code = inspect.unwrap(value).__code__
    source = read_source(code.co_filename)
    found = [each for each in source.functions if each.first == code.co_firstlineno] if source else []
    if not found:
        return None
    file = os.path.realpath(code.co_filename)
    return Place(text, file, dotted, file, found[0].body, found[0].name)


def _program_modules() -> list[ModuleType]:
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return [module for module in modules if is_program_file(_file_of(module))]


def _file_of(module: ModuleType) -> str:
    file = module.__dict__.get("__file__")
    return file if isinstance(file, str) else ""


def known_files(script: str) -> list[str]:
    """The program's own files that are loaded, and the script."""
    modules = _program_modules()
    if script:  # before it has started, `__main__` is the file behind the command `layerstep`
        modules = [module for module in modules if module is not sys.modules.get("__main__")]
    return list(dict.fromkeys([*([script] if script else []), *map(_file_of, modules)]))


def function_names(script: str) -> list[str]:
    """The functions of the program's own files, for completion."""
    sources = (read_source(file) for file in known_files(script)[:50])
    return sorted({each.name for source in sources if source is not None for each in source.functions})


def _files_ending_in(tail: str, script: str) -> list[str]:
    """The program's files whose path ends so, else a file on the disk, else a library's."""
    given = os.path.expanduser(tail)
    own = [file for file in known_files(script) if _ends_in(file, tail)]
    if own:
        return _distinct_files(own)
    folders = ["", os.path.dirname(script), *sys.path]
    on_disk = [file for each in folders if os.path.isfile(file := os.path.join(each, given))]
    if on_disk:
        return _distinct_files(on_disk)[:1]
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    files = [file for module in modules if _ends_in(file := _file_of(module), tail)]
    return _distinct_files(file for file in files if not file.startswith(OURS))


def _distinct_files(files: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(os.path.realpath(file) for file in files))


def _distinct(files: list[str]) -> list[str]:
    """The shortest ends of paths that tell these files apart."""
    for parts in range(2, 8):
        ends = [os.sep.join(file.split(os.sep)[-parts:]) for file in files]
        if len(set(ends)) == len(files):
            return ends
    return files


def _ends_in(file: str, tail: str) -> bool:
    wanted = os.path.normpath(os.path.expanduser(tail)).split(os.sep)
    if os.path.isabs(tail):
        return bool(file) and os.path.realpath(file) == os.path.realpath(tail)
    return os.path.realpath(file).split(os.sep)[-len(wanted) :] == wanted if file else False
