"""The line that makes a container grow, found in the source by the name of the container's owner."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from layerstep.memory.holders import running_frames
from layerstep.module_paths.models import Models

__all__ = ["Line", "growing_line"]

_GROWING = {"append", "appendleft", "extend", "add", "insert", "update", "setdefault", "put", "push"}
_VARIABLE = re.compile(r"(?P<name>\w+)\S* in (?P<function>[\w<>]+)\(\) at (?P<file>\S+):\d+$")
_GLOBAL = re.compile(r"global (?P<module>[\w.]+)\.(?P<name>\w+)")
_ATTRIBUTE = re.compile(r"(?:a (?P<kind>\w+)\.(?P<name>\w+)|\.(?P<name2>\w+) of a (?P<kind2>\w+))")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the program."""

    file: str
    number: int

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number}  {self.text}"


def growing_line(holder: str, models: Models) -> Line | None:
    """The line that adds to the container that `holder_of` has named; None if there is none."""
    holder = holder.removeprefix("the autograd graph behind ")
    for name, file, is_attribute, line in _candidates(holder, models):
        number = _find(file, name, is_attribute=is_attribute, near=line)
        if number:
            return Line(file, number)
    return None


def _candidates(holder: str, models: Models) -> Iterator[tuple[str, str, bool, int]]:
    """The (name, file, is it an attribute, a line of its function) that the words may mean."""
    if match := _VARIABLE.match(holder):
        for frame in running_frames():
            code = frame.f_code
            if code.co_name == match["function"] and os.path.basename(code.co_filename) == match["file"]:
                yield match["name"], code.co_filename, False, frame.f_lineno or 0
                return
    if match := _GLOBAL.search(holder):
        file = getattr(sys.modules.get(match["module"]), "__file__", None)
        if file:
            yield match["name"], file, False, 0
    if match := _ATTRIBUTE.search(holder):
        kind = match["kind"] or match["kind2"]
        for cls in _classes(kind, models):
            try:
                yield match["name"] or match["name2"], inspect.getfile(cls), True, 0
            except (TypeError, OSError):  # defined at a prompt
                continue


def _classes(name: str, models: Models) -> list[type]:
    """The classes of this name among the models' modules, and their base classes."""
    found: dict[type, None] = {}
    for _, module in models.everything():
        if type(module).__name__ == name:
            found.update(dict.fromkeys(type(module).__mro__))
    return [cls for cls in found if cls not in (nn.Module, object)]


def _find(file: str, name: str, *, is_attribute: bool, near: int) -> int:
    """The first line that makes this name longer, in the function of a line if there is one, else in the
    file; 0 if there is none. Another function may have a variable of the same name.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return 0
    for part in (_function_at(tree, near), tree):
        lines = [line for node in ast.walk(part) if (line := _grows(node, name, is_attribute))]
        if lines:
            return min(lines)
    return 0


def _function_at(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function around a line; the whole where there is none."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno, default=tree)


def _grows(node: ast.AST, name: str, is_attribute: bool) -> int:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_so = node.func.attr in _GROWING and _is_name(node.func.value, name, is_attribute)
    elif isinstance(node, ast.AugAssign):
        is_so = _is_name(node.target, name, is_attribute)
    elif isinstance(node, ast.Assign):
        into = any(_is_item_of(target, name, is_attribute) for target in node.targets)
        again = any(_is_name(target, name, is_attribute) for target in node.targets) and any(
            _is_name(part, name, is_attribute) for part in ast.walk(node.value)
        )
        is_so = into or again
    else:
        return 0
    return int(getattr(node, "lineno", 0)) if is_so else 0


def _is_item_of(node: ast.AST, name: str, is_attribute: bool) -> bool:
    return isinstance(node, ast.Subscript) and _is_name(node.value, name, is_attribute)


def _is_name(node: ast.AST, name: str, is_attribute: bool) -> bool:
    if isinstance(node, ast.Subscript):  # self.history["loss"].append(…)
        return _is_name(node.value, name, is_attribute)
    if is_attribute:
        return isinstance(node, ast.Attribute) and node.attr == name
    return isinstance(node, ast.Name) and node.id == name
