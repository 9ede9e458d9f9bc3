"""Docstrings, also where `python -OO` has dropped them: then they are read from the source."""

from __future__ import annotations

import ast
import functools
import inspect
import sys

__all__ = ["documentation"]


def documentation(thing: object) -> str:
    """The docstring of a class or function, unindented; empty if there is none."""
    try:
        kept = inspect.getdoc(thing)
    except Exception:  # a __doc__ of the user's that raises
        return ""
    if isinstance(kept, str) and kept:
        return kept
    return _from_source(thing) if sys.flags.optimize >= 2 else ""


def _from_source(thing: object) -> str:
    code = getattr(inspect.unwrap(thing) if callable(thing) else thing, "__code__", None)
    try:
        file = code.co_filename if code is not None else inspect.getsourcefile(thing)  # type: ignore[arg-type]
        name = getattr(thing, "__qualname__", "")
        return _of_file(file).get(name, "") if file and name else ""
    except (OSError, TypeError, ValueError):
        return ""


@functools.lru_cache(maxsize=128)
def _of_file(file: str) -> dict[str, str]:
    """The docstrings of a file by the qualified names of what they are about."""
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, str] = {}
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, prefix = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = prefix + child.name
                found[name] = ast.get_docstring(child) or ""
                inside = "" if isinstance(child, ast.ClassDef) else "<locals>."
                waiting.append((child, f"{name}.{inside}"))
            else:
                waiting.append((child, prefix))
    return found
