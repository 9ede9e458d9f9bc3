"""The statements of a source file, and the instructions at which each of them begins.

Python reports a line whenever the line number changes, so a call that spans four lines is reported five
times, and a `with` block again at its end. A stop belongs to a statement: this file tells the reports apart.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import os
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

__all__ = ["Function", "SourceFile", "begins_in", "codes_in", "read_source"]

_LOOPS = {"FOR_ITER": (ast.For,), "GET_ANEXT": (ast.AsyncFor,)}
"""The instruction that a loop jumps back to, in the middle of its header."""
_BLOCKS = (ast.With, ast.AsyncWith)
"""Statements whose line is reported once more when they are left."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a file: its qualified name, and the line at which its body begins."""

    name: str
    first: int
    """The line of its `def`, or of its first decorator."""
    last: int
    body: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """What is known of a file without running it."""

    path: str
    statement_at: dict[int, int]
    """The first line of the statement that covers a line."""
    kinds: dict[int, type[ast.AST]]
    """The kind of the statement that begins at a line."""
    stops: dict[int, int]
    """The line that is reported when a statement begins, by the first line of the statement."""
    functions: tuple[Function, ...]

    def stop_for(self, line: int) -> tuple[int, str]:
        """The line at which a point for this line stops, and the function it must be in; 0 if none is left.

        The line of a `def` means its body: the `def` itself runs once, when the file is loaded.
        """
        statement = self.statement_at.get(line)
        if statement is not None and self.kinds[statement] in (ast.FunctionDef, ast.AsyncFunctionDef):
            inner = next((each for each in self.functions if each.first == statement), None)
            if inner is not None:
                return inner.body, inner.name
        if statement is not None and statement in self.stops:
            return self.stops[statement], ""
        later = min((first for first in self.stops if first > line), default=0)
        return self.stop_for(later) if later else (0, "")

    def named(self, name: str) -> list[Function]:
        """The functions called so: by their qualified name, or by its end."""
        exact = [each for each in self.functions if each.name == name]
        return exact or [each for each in self.functions if each.name.endswith(f".{name}")]

    def function_at(self, line: int) -> str:
        """The qualified name of the function that holds a line; empty at the top of the file."""
        around = [each for each in self.functions if each.first <= line <= each.last]
        return max(around, key=lambda each: each.first).name if around else ""


def read_source(path: str) -> SourceFile | None:
    """Read and parse a file once per change; None if it cannot be read or is no Python."""
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError:
        return None
    return _read(path, changed)


@functools.lru_cache(maxsize=64)
def _read(path: str, changed: int) -> SourceFile | None:
    try:
        with tokenize.open(path) as file:
            text = file.read()
        tree = ast.parse(text)
        code = compile(text, path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    statement_at, kinds = _statements(tree)
    ends = {_first_line(node): node.end_lineno or 0 for node in ast.walk(tree) if isinstance(node, ast.stmt)}
    source = SourceFile(path, statement_at, kinds, {}, ())
    stops: dict[int, int] = {}
    functions = []
    for each in codes_in(code):
        lines = [(offset, line) for offset, line in dis.findlinestarts(each) if line]
        begins = begins_in(each, source)
        reported = [(line, statement_at.get(line, line)) for offset, line in lines if offset in begins]
        for line, statement in reported:
            stops.setdefault(statement, line)
        if not each.co_name.startswith("<") and each.co_flags & inspect.CO_NEWLOCALS:  # a class body has not
            first = each.co_firstlineno
            body = reported[0][0] if reported else first
            functions.append(Function(each.co_qualname, first, ends.get(first, first), body))
    return SourceFile(path, statement_at, kinds, stops, tuple(functions))


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """A code object and those of the functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def begins_in(code: CodeType, source: SourceFile | None) -> frozenset[int]:
    """The offsets of the instructions with which a statement begins, or a loop comes round.

    Without the source every line that Python reports counts as a statement.
    """
    prologue, first = _body(code)
    found, seen = {first}, set()
    before: int | None = None
    for offset, line in dis.findlinestarts(code):
        if not line or offset <= prologue:
            continue
        statement = source.statement_at.get(line, line) if source is not None else line
        is_exit = statement in seen and source is not None and source.kinds.get(statement) in _BLOCKS
        if statement != before and not is_exit:
            found.add(offset)
        seen.add(statement)
        before = statement
    return frozenset(found | _loop_heads(code, source))


def _body(code: CodeType) -> tuple[int, int]:
    """The offset of the last instruction before the body, and of the first in it."""
    prologue = -1
    for instruction in dis.get_instructions(code):
        if prologue >= 0:
            return prologue, instruction.offset
        if instruction.opname == "RESUME":
            prologue = instruction.offset
    return -1, 0


def _loop_heads(code: CodeType, source: SourceFile | None) -> set[int]:
    heads: set[int] = set()
    if source is None:
        return heads
    line = 0
    starts = dict(dis.findlinestarts(code))
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        kinds = _LOOPS.get(instruction.opname)
        if kinds and source.kinds.get(source.statement_at.get(line, 0)) in kinds:
            heads.add(instruction.offset)
    return heads


def _statements(tree: ast.Module) -> tuple[dict[int, int], dict[int, type[ast.AST]]]:
    statement_at: dict[int, int] = {}
    kinds: dict[int, type[ast.AST]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            continue
        first, last = _header(node)
        kinds.setdefault(first, type(node))
        for line in range(first, last + 1):
            statement_at.setdefault(line, first)
    return statement_at, kinds


def _header(node: ast.stmt | ast.ExceptHandler | ast.match_case) -> tuple[int, int]:
    """The lines of a statement without its block."""
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, max(node.body[0].lineno - 1, node.pattern.lineno)
    first = _first_line(node)
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not body:
        return first, node.end_lineno or node.lineno
    inner = body[0].pattern.lineno if isinstance(body[0], ast.match_case) else _first_line(body[0])
    return first, max(first, inner - 1)


def _first_line(node: ast.stmt | ast.ExceptHandler) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])
