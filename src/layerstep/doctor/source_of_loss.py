"""Lines of the source around a `backward()`: the one that made its loss, and a call that follows it."""

from __future__ import annotations

import ast
import functools
import linecache
from types import FrameType

from layerstep.calls.operations import user_frame
from layerstep.doctor.finding import Place
from layerstep.process.frames import program_frames

__all__ = ["call_after", "line_of", "program_frame", "where_made"]


def program_frame(frame: FrameType) -> FrameType:
    """The innermost frame of the program itself. A library that trains for it, such as a trainer, is passed
    over; of a program that is a library itself, the innermost frame that is not torch's.
    """
    return next(program_frames(frame), None) or user_frame(frame) or frame


def line_of(frame: FrameType) -> Place:
    """The line that runs in a frame."""
    return Place(file=frame.f_code.co_filename, line=frame.f_lineno)


def where_made(frame: FrameType) -> Place:
    """The line that made the loss whose `backward()` runs in this frame; that of `backward()` if unknown."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    made = _assignment(file, "".join(linecache.getlines(file, frame.f_globals)), line)
    return Place(file=file, line=made or line)


def call_after(place: Place, names: tuple[str, ...]) -> Place:
    """The first call of a function of such a name behind a line, in the same function; else the line."""
    made = _call("".join(linecache.getlines(place.file)), place.line, names)
    return Place(file=place.file, line=made or place.line)


@functools.lru_cache(maxsize=64)
def _call(source: str, line: int, names: tuple[str, ...]) -> int:
    tree = _parsed(source)
    if tree is None:
        return 0
    found = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in names
        and node.lineno > line
        and _is_near(tree, node.lineno, line)
    ]
    return min(found, default=0)


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=64)
def _assignment(file: str, source: str, line: int) -> int:
    tree = _parsed(source)
    if tree is None:
        return 0
    names = _names_at(tree, line)
    found = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        and node.lineno <= line
        and names & _targets(node)
        and _is_near(tree, node.lineno, line)
    ]
    return max((each for each in found if not _divides(tree, each, names)), default=max(found, default=0))


def _names_at(tree: ast.AST, line: int) -> set[str]:
    """The names in the call of `backward` on a line. Where a library makes that call, the loss may be an
    argument of its own; a trainer and its data are not what made the loss.
    """
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    names = {name.id for call in calls for name in ast.walk(call) if isinstance(name, ast.Name)}
    if any("backward" in getattr(call.func, "attr", "") for call in calls):
        return names
    return {name for name in names if "loss" in name.lower()}


def _targets(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _divides(tree: ast.AST, line: int, names: set[str]) -> bool:
    """`loss = loss / 4`: it only scales what another line made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and node.lineno == line:
            return True
        if isinstance(node, ast.Assign) and node.lineno == line and isinstance(node.value, ast.BinOp):
            used = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
            return bool(used & _targets(node) & names)
    return False


def _is_near(tree: ast.AST, line: int, other: int) -> bool:
    """Are two lines in the same function, or both outside of any?"""
    return _function_at(tree, line) == _function_at(tree, other)


def _function_at(tree: ast.AST, line: int) -> int:
    inside = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(inside, default=0)
