"""Two front ends on one session: the terminal of the process, and the clients on the wire."""

from __future__ import annotations

from typing import Any

from layerstep.engine.messages import Frontend

__all__ = ["Several"]


class Several:
    """Asks all of them at a pause; whichever line comes first is answered first."""

    def __init__(self, first: Frontend, second: Frontend) -> None:
        self._all = (first, second)

    @property
    def has_keyboard(self) -> bool:
        return any(each.has_keyboard for each in self._all)

    def paused(self) -> None:
        for each in self._all:
            each.paused()

    def resumed(self) -> None:
        for each in self._all:
            each.resumed()

    def close(self) -> None:
        for each in self._all:
            each.close()

    def hand_over(self) -> Any:
        return [each.hand_over() for each in self._all]

    def take_over(self, handed: Any) -> None:
        for each, its in zip(self._all, handed, strict=True):
            each.take_over(its)
