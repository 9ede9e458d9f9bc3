"""Why a point at a line has not stopped, in a few words."""

from __future__ import annotations

import os
import sys
import threading

from torch.utils.data import Dataset, IterableDataset

from layerstep._torch.dynamo import compiled_codes
from layerstep.engine.session import Session
from layerstep.source_lines.places import Place, known_files
from layerstep.source_lines.statements import read_source
from layerstep.source_lines.watcher import SourceLines

__all__ = ["why_line_silent"]


def why_line_silent(session: Session, place: Place) -> str:
    """One line, for a point that was never hit."""
    lines = session.instruments.get(SourceLines)
    name = os.path.basename(place.file or place.tail)
    if place.is_pending:
        return f"pending: {place.trouble or f'no file {place.tail} was loaded so far'}"
    if blocked := lines.why_silent():
        return f"never fired, because {blocked}"
    source = read_source(place.file)
    function = place.function or (source.function_at(place.line) if source is not None else "")
    if compiled := _compiled(place, function):
        return f"never fired, because {compiled}"
    if place.was_entered:
        around = f"{function}() ran" if function else f"{name} ran"
        return f"never fired: {around}, but not to line {place.line}"
    if _is_of_dataset(function):
        return f"never fired: {function}() did not run in this process; DataLoader workers are not followed"
    known = {os.path.realpath(file) for file in known_files("")} | {os.path.realpath(lines.script or ".")}
    if place.file not in known:
        return f"never fired: {name} was not loaded"
    leaves_out = lines.follows_new_threads_only and threading.active_count() > 1
    here = "; threads that ran before the point was set are not followed" if leaves_out else ""
    return f"never fired: {function or name}{'()' if function else ''} did not run{here}"


def _compiled(place: Place, function: str) -> str:
    codes = compiled_codes()
    for code in codes:
        if code.co_qualname == function and os.path.realpath(code.co_filename) == place.file:
            return f"{function}() is compiled: it runs as a graph, without lines (TORCH_COMPILE_DISABLE=1)"
    name = function.rpartition(".")[2]
    callers = [code.co_qualname for code in codes if name and name in code.co_names]
    if callers and not place.was_entered:
        return f"{function}() did not run as Python: {callers[0]}() is compiled with all that it calls"
    return ""


def _is_of_dataset(function: str) -> bool:
    """Is this a method of a dataset, which DataLoader calls in its workers?"""
    owner, _, _ = function.rpartition(".")
    classes = [*Dataset.__subclasses__(), *IterableDataset.__subclasses__()]
    return bool(owner) and "torch.utils.data" in sys.modules and any(c.__qualname__ == owner for c in classes)
