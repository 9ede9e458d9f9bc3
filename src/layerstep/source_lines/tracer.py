"""What the two ways to follow lines have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, Protocol

__all__ = ["Mark", "Tracer", "Watched"]


class Mark:
    """Put on a frame as its `f_trace`, it tells that frame from all others and dies with it.

    A reference to the frame would keep the tensors of a function alive that has returned; its number is
    given again.
    """

    __slots__ = ("_local",)

    def __init__(self, local: Callable[[FrameType, str, Any], Any] | None = None) -> None:
        self._local = local

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._local(frame, event, arg) if self._local is not None else self


class Watched(Protocol):
    """What a tracer asks and tells."""

    @property
    def files(self) -> Mapping[str, Mapping[int, Any] | None]:
        """By file name as in code objects: the lines with points; None where nothing is of interest."""

    is_stepping: bool
    """A step by lines is under way: every line of interest is reported, and so are returns."""

    def follows(self, code: CodeType) -> bool:
        """Is this function followed line by line?"""

    def reached(self, frame: FrameType) -> None:
        """A line is about to run."""

    def returned(self, frame: FrameType, value: Any) -> None:
        """A function returns."""


class Tracer(Protocol):
    """One way to follow lines."""

    @property
    def words(self) -> str:
        """What it is, for `info cost`."""

    def mark(self, frames: Sequence[FrameType]) -> Mark:
        """Mark the frames that a step may end in; their lines are reported from now on."""

    def start(self) -> str:
        """Take note of what is watched now, and of this thread; a reason if that cannot be."""

    def rest(self) -> None:
        """A stop: this thread is ours until the next start."""

    def stop(self) -> None:
        """Take everything off."""

    def why_silent(self) -> str:
        """What keeps lines from being heard of here; empty if nothing does."""
