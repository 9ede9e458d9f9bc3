"""Reports as plain data, for JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from layerstep.errors import UserError

__all__ = ["as_json", "as_plain", "write"]


def as_plain(value: Any) -> Any:
    """Dictionaries, lists, words and numbers; a number that JSON lacks is a word."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): as_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, str | int | bool | None) else str(value)


def as_json(value: Any) -> str:
    """The same as text."""
    return json.dumps(as_plain(value), indent=2, allow_nan=False)


def write(text: str, path: str | Path) -> Path:
    """Write a file; its folder is made if it is not there."""
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    return file
