"""What is said when a forward has come back to an earlier place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.rewind.running_forward import RunningForward

__all__ = ["arrival"]

NOT_PUT_BACK = "globals, files and slots are not put back, and some kernels differ from run to run"


def arrival(forward: RunningForward) -> list[Notice]:
    """Did it come back to the same bits? And what was not shown a second time."""
    found, notices = forward.comparison, []
    printed = forward.silence.printed
    more = f"{printed} printed line{'s' if printed != 1 else ''} not shown again" if printed else ""
    if forward.lost_way:
        notices.append(Notice(f"the forward did not come to {forward.lost_way}", level="warn"))
    if forward.is_unsure:
        text = "the module that ran is called several times alike; this may be another of its calls"
        notices.append(Notice(text, level="warn"))
    if found.different:
        path, where = found.different[0]
        text = f"not the same bits: {path}{f', {where}' if where else ''}"
        why = f"you have changed {forward.changed_by} since" if forward.changed_by else NOT_PUT_BACK
        count = f"{len(found.different)} of {found.compared} outputs differ; {why}"
        notices.append(Notice(text, "; ".join(filter(None, (count, more))), level="warn"))
    elif found.compared:
        text = f"came back to the same bits: {found.compared} of {found.compared} outputs"
        notices.append(Notice(text, more, level="good"))
    elif not forward.lost_way:
        notices.append(Notice("the forward has begun again; no module has finished before here", more))
    return notices
