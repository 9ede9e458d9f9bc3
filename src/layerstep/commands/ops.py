from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

from torch import Tensor

from layerstep._torch import call_frames, called_module, is_scripted, is_wrapper
from layerstep.arguments import Flag, Given, Path
from layerstep.calls.operations import Kernels, Place, is_question, is_whole, name_of, place_of
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.layers.calls import LayerCall, calls_at, calls_here
from layerstep.ops.signatures import named_arguments
from layerstep.ops.unseen import why_no_ops
from layerstep.registry import command
from layerstep.rerun.module_call import Watcher, rerun
from layerstep.tensors.format import dims
from layerstep.tensors.observing import observing
from layerstep.tensors.present import short
from layerstep.tensors.shapes import tensors_in
from layerstep.views import Column, Figure, Group, Notice, Table, View

MOST_SHAPES = 4
FRAME_LINES = 6
"""Title, headings and notes."""


class _Seen(NamedTuple):
    path: str
    name: str
    shapes: str
    seconds: float
    place: Place


class _Ops(Watcher):
    """Writes down each op of a rerun: at the level of the code, or with `kernels` at that of aten."""

    def __init__(self, session: Session, *, kernels: bool) -> None:
        super().__init__()
        self._models = session.run.models
        self._kernels = Kernels(self._time) if kernels else None
        self.found: list[_Seen] = []

    def __enter__(self) -> Any:
        if self._kernels is not None:
            self._kernels.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        try:
            return super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            if self._kernels is not None:
                self._kernels.__exit__(*error)

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._kernels is not None or is_question(func):
            return super().see(func, args, kwargs)
        return self._time(func, args, kwargs, super().see)

    def _time(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any = None) -> Any:
        began = time.perf_counter()
        result = run(func, args, kwargs) if run is not None else func(*args, **kwargs)
        took = time.perf_counter() - began
        frame = sys._getframe(1)
        modules = (called_module(call)[0] for call in call_frames(frame))
        inner = next((module for module in modules if not is_wrapper(module)), None)
        path = self._models.path_of(inner) if inner is not None else ""
        shapes = _shapes(func, args, kwargs, result)
        self.found.append(_Seen(path, name_of(func), shapes, took, place_of(frame)))
        return result


def _shapes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> str:
    """`5×32, 96×32 → 5×96`: operands and result; a dtype where it is not the result's."""
    with observing():
        values = [value for _, value in named_arguments(func, args, kwargs)]
        operands = [tensor for _, tensor in tensors_in(values, most=MOST_SHAPES + 1)]
        results = [tensor for _, tensor in tensors_in(result, most=MOST_SHAPES + 1)]
        dtype = results[0].dtype if results else None
        out = _listed(results, dtype) if results else short(result)
        return f"{_listed(operands, dtype)} → {out}".strip()


def _listed(tensors: list[Tensor], dtype: Any) -> str:
    words = []
    for tensor in tensors[:MOST_SHAPES]:
        shape = dims(tuple(tensor.shape)) if not tensor.is_nested else "nested"
        words.append(
            shape if tensor.dtype == dtype else f"{shape} {str(tensor.dtype).removeprefix('torch.')}"
        )
    return ", ".join(words) + (", …" if len(tensors) > MOST_SHAPES else "")


@command(
    "ops",
    group="look",
    args=(Path(optional=True), Flag("aten")),
    examples=("ops", "ops blocks.1", "ops --aten"),
    needs_pause=True,
)
def ops(session: Session, given: Given) -> View:
    """List the ops that a module runs, with shapes and time.

    PATH is a module that is running, or that you stepped through or stopped at. Without PATH, it is the
    module of this stop. It runs once more on copies of its inputs, without dropout and hooks; the run is not
    changed. The time is that of this one rerun, in µs. `--aten` lists aten ops, which torch runs for them. If
    there are more rows than `config max_lines` allows, equal ops of one line share a row.
    """
    call = _call(session, given.path)
    watcher = _Ops(session, kernels=given.aten)
    done = rerun(
        session, call.module, args=call.args, kwargs=call.kwargs, progress=call.progress, watcher=watcher
    )
    if not watcher.found:
        raise UserError(f"no op was seen in {call.path}", why_no_ops(call.module))
    remarks = ["run again on copies; one sample of the time"]
    remarks += ["dropout did nothing"] if done.dropped else []
    scripted = [path for path, module in session.run.models.everything() if _is_inside(call, module, path)]
    remarks += [f"{scripted[0]} is TorchScript: one call, its ops are not seen"] if scripted else []
    total = sum(seen.seconds for seen in watcher.found)
    title = f"{call.path}  {len(watcher.found)} {'aten ops' if given.aten else 'ops'}, {total * 1e6:,.0f} µs"
    found = [seen._replace(path=_below(seen.path, call.path)) for seen in watcher.found]
    groups, left_out = _groups(found, max(session.run.config.max_lines - FRAME_LINES, 1))
    remarks += [f"{left_out:,} kinds of ops that took less are left out"] if left_out else []
    rows = tuple(_row(group) for group in groups)
    return Group((Notice(title, "; ".join(remarks)), Table(_COLUMNS, rows, note=_note(found))))


def _below(path: str, top: str) -> str:
    """A path as seen from the module that is listed; its own ops have a dot."""
    if path == top:
        return "."
    return path.removeprefix(f"{top}.")


def _is_inside(call: LayerCall, module: Any, path: str) -> bool:
    return is_scripted(module) and (path == call.path or path.startswith(f"{call.path}."))


def _call(session: Session, path: str) -> LayerCall:
    if path:
        return calls_at(session, path)[0]
    calls = calls_here(session)
    if not calls:
        raise UserError("no module is running here", "`ops PATH` names one that was passed in this forward")
    return calls[0]


_COLUMNS = (
    Column("module", "path"),
    Column("op", "code"),
    Column("shapes"),
    Column("µs", right=True),
    Column("line", "dim"),
)


def _groups(found: list[_Seen], most: int) -> tuple[list[list[_Seen]], int]:
    """The ops one by one, or by kind where they are too many, and how many kinds that makes too many."""
    if len(found) <= most:
        return [[seen] for seen in found], 0
    kinds: dict[tuple[str, str, str], list[_Seen]] = {}
    for seen in found:
        kinds.setdefault((seen.name, seen.shapes, seen.place.name), []).append(seen)
    slowest = sorted(kinds.values(), key=lambda kind: -sum(seen.seconds for seen in kind))
    shown = {id(kind) for kind in slowest[:most]}
    return [kind for kind in kinds.values() if id(kind) in shown], len(slowest[most:])


def _row(group: list[_Seen]) -> tuple[str, ...]:
    first = group[0]
    times = f" × {len(group)}" if len(group) > 1 else ""
    took = sum(seen.seconds for seen in group) * 1e6
    path = _common([seen.path for seen in group])
    return (path, first.name + times, first.shapes, _micros(took), first.place.name)


def _micros(took: float) -> str:
    return Figure(f"{took:,.0f}", took, "µs")


def _common(paths: list[str]) -> str:
    """`blocks.*.attn` for those of all blocks."""
    parts = [path.split(".") for path in dict.fromkeys(paths)]
    if len({len(part) for part in parts}) > 1:
        return f"{paths[0]}, …"
    return ".".join(names[0] if len(set(names)) == 1 else "*" for names in zip(*parts, strict=True))


def _note(found: list[_Seen]) -> str:
    whole = list(dict.fromkeys(seen.name for seen in found if is_whole(seen.name)))
    return f"{', '.join(whole[:3])}: one op each, nothing inside is seen at this level" if whole else ""
