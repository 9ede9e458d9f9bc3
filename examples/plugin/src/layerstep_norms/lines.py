"""The sink `lines`: numbers as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from layerstep.registry import sink
from layerstep.sinks.sink import Sink


@sink("lines", takes="FILE")
class Lines(Sink):
    """Writes the numbers of each step to FILE, as a line of JSON: `{"step": 1, "loss": 0.5}`."""

    def __init__(self, where: str) -> None:
        self._path = Path(where).expanduser()

    def open(self) -> None:
        self._file = self._path.open("w", encoding="utf-8")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
