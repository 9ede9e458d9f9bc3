"""Makes the graph of a model: one forward runs again on copies, and nothing of the run changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from layerstep.engine.instrument import Instrument
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.graph.following import Following
from layerstep.graph.model_graph import ModelGraph
from layerstep.graph.picture import Picture, picture_of
from layerstep.graph.statistics import STATISTICS
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import rerun

__all__ = ["LastPicture", "graph_at_stop", "graph_of", "outermost_call", "picture_to_export"]


@dataclass(slots=True)
class LastPicture(Instrument):
    """What `graph` has shown last, for `export`."""

    session: Session
    picture: Picture | None = None
    graph: ModelGraph | None = None


def graph_of(
    session: Session,
    module: nn.Module,
    *,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    progress: CallProgress,
    by: str = "",
) -> ModelGraph:
    """Run a module again on copies of its arguments, and follow what flows in it."""
    if by not in STATISTICS:
        raise UserError(f"there is no statistic {by!r}", f"there are {', '.join(filter(None, STATISTICS))}")
    watcher = Following(session.run.models, module, STATISTICS[by])
    done = rerun(session, module, args=args, kwargs=kwargs, progress=progress, watcher=watcher)
    if by and all(call.value is None for call in watcher.calls):
        hint = "stop after `backward()` and before they are cleared" if by == "grad" else "take another"
        raise UserError(f"no module has a figure for `--by {by}`", hint)
    notes = []
    if done.dropped:
        notes.append("dropout did nothing")
    if any(each.role == "unseen" for each in watcher.operations):
        notes.append("inside modules of TorchScript and C++ nothing is seen")
    name = type(module).__name__
    return ModelGraph(name, watcher.calls, tuple(watcher.operations), by, tuple(notes))


def graph_at_stop(session: Session, *, by: str = "") -> ModelGraph:
    """The graph of the outermost call that runs at this stop."""
    module, args, kwargs = outermost_call(session)
    return graph_of(session, module, args=args, kwargs=kwargs, progress=CallProgress.DURING, by=by)


def outermost_call(session: Session) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model that runs at this stop, and what it was called with."""
    stack = session.run.pause.stack if session.run.pause is not None else []
    for frame in reversed(stack):
        if frame.module is not None and frame.call is None:
            return frame.module, frame.args, frame.kwargs
    raise UserError("no call of a model is running here", "`break PATH`, then `continue`")


def picture_to_export(session: Session) -> tuple[ModelGraph, Picture]:
    """What `graph` has shown last; else the graph of this stop, one level deep."""
    last = session.instruments.get(LastPicture)
    if last.graph is None or last.picture is None:
        graph = graph_at_stop(session)
        return graph, picture_of(graph)
    return last.graph, last.picture
