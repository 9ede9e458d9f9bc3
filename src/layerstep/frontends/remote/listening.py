"""Lets clients attach to a session of this process."""

from __future__ import annotations

from collections.abc import Sequence

from layerstep.engine.lifetime import call_at_exit
from layerstep.engine.session import Session
from layerstep.frontends.remote.hub import Hub
from layerstep.frontends.several import Several

__all__ = ["listen_on"]

_hubs: list[Hub] = []
"""They live as long as the process: at its end each says so."""


def listen_on(session: Session, *, argv: Sequence[str], hold: bool = False) -> Hub:
    """Open the socket of this process. `hold`: a pause waits for a client, however long."""
    own = session.prompt.frontend
    hub = Hub(session, argv=argv, hold=hold, is_alone=own is None)
    session.listen(hub)
    session.prompt.frontend = hub if own is None else Several(own, hub)
    hub.metrics.start()
    _hubs.append(hub)
    call_at_exit(hub.close)
    return hub
