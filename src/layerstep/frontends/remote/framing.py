"""One JSON-RPC object a line, and nothing else: what does not begin as one is refused at its first byte."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from layerstep.errors import UserError

__all__ = ["MOST_BYTES", "PROTOCOL", "Lines", "WireError", "encode"]

PROTOCOL = 1
"""Raised when a method or a field changes its meaning or goes away."""
MOST_BYTES = 1 << 20
"""Of a line that a client sends."""


class WireError(UserError):
    """What came over the wire is no line of this protocol: the connection is closed."""


def encode(document: dict[str, Any]) -> bytes:
    """A document as a line. Control characters are escaped, so that it holds no other line end."""
    text = json.dumps({"jsonrpc": "2.0", **document}, allow_nan=False, separators=(",", ":"))
    return text.encode("ascii") + b"\n"


class Lines:
    """Cuts what arrives into lines, and reads them."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The documents that are whole now; a `WireError` where one is none."""
        self._begun += data
        *whole, begun = self._begun.split(b"\n")
        self._begun = bytearray(begun)
        for line in (*whole, begun):
            if len(line) > self._most:
                raise WireError(f"a line has more than {self._most:,} bytes")
            if line and not line.startswith(b"{"):
                raise WireError("this is not JSON-RPC")
        return [decode(bytes(line)) for line in whole]


def decode(line: bytes) -> dict[str, Any]:
    """A line as a document; strict: no NaN, no name twice in an object, no other encoding."""
    try:
        found = json.loads(line.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a line is not JSON: {type(error).__name__}") from None
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        raise WireError("this is not JSON-RPC 2.0")
    return found


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
