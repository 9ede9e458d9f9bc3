"""The stack at a stop at a line: the program's functions and the module calls between them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import FrameType

from layerstep.engine.models import Models
from layerstep.engine.stack import OURS, Frame, build_stack, is_ours, is_program_file

__all__ = ["is_inline", "line_stack", "program_frames"]

_PROGRAM = os.path.join(OURS, "program.py")


def program_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the program itself, innermost first: no library, no comprehension."""
    while frame is not None and not _starts_program(frame):
        if is_program_file(frame.f_code.co_filename) and not is_inline(frame):
            yield frame
        frame = frame.f_back


def is_inline(frame: FrameType) -> bool:
    """Is this a comprehension or a generator expression: a part of a statement?"""
    return frame.f_code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


def _starts_program(frame: FrameType) -> bool:
    """Is this where `layerstep run` starts a script? What lies further out is not the program's."""
    return frame.f_code.co_filename == _PROGRAM


def line_stack(frame: FrameType, models: Models) -> list[Frame]:
    """What runs at a line, innermost first: a frame for each function, or for the module that it runs for.

    The innermost function is on it, whoever wrote it; further out, only those of the program.
    """
    modules = build_stack(frame, models, event=None)
    stack: list[Frame] = []
    between: list[FrameType] = []
    waiting = list(modules)
    here: FrameType | None = frame
    while here is not None and not _starts_program(here):
        is_shown = here is frame or is_program_file(here.f_code.co_filename)
        if waiting and here is waiting[0].caller:
            stack += _group(between, waiting.pop(0), models, depth=len(waiting) + 1)
            between = []
            while waiting and waiting[0].caller is here:
                stack.append(waiting.pop(0))
        if is_shown and not is_ours(here):
            between.append(here)
        here = here.f_back
    return [*stack, *(_function(each, models, depth=0) for each in between)]


def _group(frames: list[FrameType], module: Frame, models: Models, *, depth: int) -> list[Frame]:
    """The functions that run in a module call: the outermost of them is its forward, or a hook."""
    if frames:
        module.within, module.within_line, module.at_line = frames[-1], frames[-1].f_lineno, True
    return [*(_function(each, models, depth=depth) for each in frames[:-1]), module]


def _function(frame: FrameType, models: Models, *, depth: int) -> Frame:
    entry = Frame(models, None, depth=depth)
    entry.within, entry.within_line, entry.at_line = frame, frame.f_lineno, True
    return entry
