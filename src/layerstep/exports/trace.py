"""The steps of a profile, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from layerstep.errors import UserError
from layerstep.profile.state import state_of
from layerstep.profile.trace import chrome_trace
from layerstep.registry import export

__all__ = ["write_trace"]


@export(".trace.json", of_session=True)
def write_trace(session: Any, path: Path) -> None:
    state = state_of(session)
    if not state.profile.steps:
        raise UserError("nothing is timed", "`profile 5` times the next 5 steps")
    found = chrome_trace(state.measured(), state.profile.notes)
    path.write_text(json.dumps(found), encoding="utf-8")
