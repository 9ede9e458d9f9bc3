"""What of a view goes into a file."""

from __future__ import annotations

from typing import TypeVar

from layerstep.views import Fields, Group, View

__all__ = ["last_of"]

V = TypeVar("V")


def last_of(view: View, kind: type[V]) -> V | None:
    """The last view of a kind, in a group, among fields or by itself."""
    if isinstance(view, Group | Fields):
        parts = view.views if isinstance(view, Group) else [value for _, value in view.items]
        found = (last_of(part, kind) for part in reversed(parts))
        return next((part for part in found if part is not None), None)
    return view if isinstance(view, kind) else None
