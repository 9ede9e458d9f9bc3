from __future__ import annotations

from layerstep.arguments import Given, Text
from layerstep.engine.points import Edit
from layerstep.engine.session import Session
from layerstep.module_paths.models import why_one_call
from layerstep.points.setting import place_named
from layerstep.points.silence import silence_of, why_uncalled
from layerstep.registry import command
from layerstep.source_lines.places import Place
from layerstep.views import Notice


@command(
    "why-not",
    group="look",
    args=Text("PATH | FILE:LINE | N", completes="path"),
    examples=("why-not blocks.0.attn", "why-not blocks"),
    only_looks=True,
)
def why_not(session: Session, given: Given) -> Notice:
    """Say why a module or a point does not stop.

    PATH is a module, FILE:LINE a line, N the number of a point. A module may never be called, its parent may
    call `forward` directly or only read its weights, it may be scripted or compiled, or not be reached yet.
    """
    rest = given.path
    if rest.isdigit():
        point = session.points.get(rest)
        did = f"edit {rest} has acted" if isinstance(point, Edit) else f"point {rest} has stopped or logged"
        times = "once" if point.hits == 1 else f"{point.hits} times"
        return Notice(silence_of(session, point) or f"{did} {times}")
    place = place_named(session, rest)
    if place is not None:
        return Notice(_of_line(session, place))
    if whole := session.run.models.scripted_above(rest):
        return Notice(f"{why_one_call(whole)}; break at {whole}")
    path, module = session.run.models.find(rest)
    in_backward = session.backward_pass.why_unseen(module) if session.installation.sink.noting else ""
    return Notice(
        why_uncalled(session, module, path)
        or (f"in backward: {in_backward}" if in_backward else "")
        or f"nothing keeps {path} from stopping; `break {path}` when it is called next"
    )


def _of_line(session: Session, place: Place) -> str:
    """Of a line: what the points there have to say."""
    same = [
        (point, here)
        for point in session.points.shown
        if (here := point.source_line) is not None and (here.file, here.line) == (place.file, place.line)
    ]
    if not same:
        return f"no point is set at {place.label}; `break {place.text}` sets one"
    point = same[0][0]
    return silence_of(session, point) or f"point {point.number} has stopped {point.hits} times"
