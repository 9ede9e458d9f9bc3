"""The lines of earlier sessions, for this user's eyes only."""

from __future__ import annotations

import os

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from layerstep.config import state_dir

__all__ = ["typed_lines"]


def typed_lines() -> History:
    """The history that every prompt of this user shares."""
    folder = state_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = folder / "history"
        os.close(os.open(file, os.O_CREAT | os.O_APPEND, 0o600))
        os.chmod(file, 0o600)
        return FileHistory(str(file))
    except OSError:
        return InMemoryHistory()
