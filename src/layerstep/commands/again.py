from __future__ import annotations

import dataclasses
import re
from typing import Any

from layerstep.arguments import Expr, Given
from layerstep.calls.events import Phase
from layerstep.calls.stack import Frame
from layerstep.corefile.core_session import OpenedCore, opened_in
from layerstep.corefile.rerun import difference
from layerstep.engine.pause import Pause
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import BadArguments, UserError
from layerstep.line_syntax import expressions
from layerstep.registry import command
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import Rerun, Watcher, rerun
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import shape_line
from layerstep.views import Notice

_GIVEN = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)


@command(
    "again",
    group="run",
    args=Expr("NAME=EXPR …", optional=True, name="replaced"),
    examples=("again",),
    needs_pause=True,
)
def again(session: Session, given: Given) -> Notice | Resume:
    """Run the selected module once more, and compare.

    At an op, that is the module that the op ran in. It runs on the inputs that it was called with; NAME=EXPR
    replaces a keyword argument. In a live run the module runs on copies, without gradients and dropout, and
    the run is not changed. In a core file that was opened with `--model`, the module runs as it did then,
    with the same random numbers, and points and steps work in it. The answer says whether the output, or the
    exception, is the same.
    """
    replaced = _replaced(session, given.replaced)
    opened = opened_in(session)
    if opened is not None:
        return _of_file(opened, replaced)
    pause = session.run.pause
    frame = _call_around(pause)
    if pause is None or frame is None or frame.module is None or frame.call is not None:
        raise UserError("no module is running here", "stop in the forward of a module")
    progress = CallProgress.AFTER if frame.has_output else CallProgress.DURING
    if pause.phase is Phase.ENTER and frame is pause.stack[0]:
        progress = CallProgress.BEFORE
    result = rerun(
        session,
        frame.module,
        args=frame.args,
        kwargs={**frame.kwargs, **replaced},
        progress=progress,
        watcher=Watcher(),
    )
    if not frame.has_output:
        return Notice(f"{frame.path} gave {shape_line(result.output)}", _caveats(result, frame.path))
    with observing():
        what = difference(frame.output, result.output)
    if what:
        return Notice(f"{frame.path} gave another output: {what}", _caveats(result, frame.path), level="warn")
    alike = _caveats(dataclasses.replace(result, fused=False), frame.path)
    return Notice(f"{frame.path} gave the same output again, bit for bit", alike, level="good")


def _call_around(pause: Pause | None) -> Frame | None:
    """The call of a module that the selected frame is; at an op, the one that the op is in."""
    frames = pause.stack[pause.selected :] if pause is not None else []
    return next((frame for frame in frames if frame.op is None), None)


def _caveats(result: Rerun, path: str) -> str:
    """Why the rerun may differ from the run."""
    words = result.caveats(path)
    if result.fused:
        words.append("in the run a part of it may be one fused kernel, whose last digits differ")
    return "; ".join(words)


def _of_file(opened: OpenedCore, replaced: dict[str, Any]) -> Resume:
    if opened.rerun is None:
        raise UserError(
            "a core file has no code to run", "`layerstep open FILE --model package.module:function`"
        )
    if opened.core.selected.call is not None:
        raise UserError("the file was written in the backward pass", "`dump` at a stop in the forward")
    missing = [text for text in opened.rerun.missing if text.partition(" ")[0] not in replaced]
    if missing:
        name = missing[0].partition(" ")[0]
        hint = f"`again {name}=None`, say" if name.isidentifier() and "(weight)" not in missing[0] else ""
        raise UserError(f"the file does not hold {missing[0]}", hint)
    return Resume(Kind.AGAIN, given=replaced)


def _replaced(session: Session, text: str) -> dict[str, Any]:
    found = {}
    for piece in _pieces(text):
        match = _GIVEN.fullmatch(piece)
        if match is None:
            raise BadArguments(f"{piece!r} replaces nothing")
        found[match[1]] = session.prompt.evaluate(match[2])[0]
    return found


def _pieces(text: str) -> list[str]:
    """`a=1 b=(2, 3)` as two: each begins with a name and a sign."""
    starts = [match.start() for match in re.finditer(r"(?<!\S)[A-Za-z_]\w*=(?!=)", text)]
    if not starts or starts[0]:
        return expressions(text)
    return [text[start:end].strip(" ,") for start, end in zip(starts, [*starts[1:], None], strict=True)]
