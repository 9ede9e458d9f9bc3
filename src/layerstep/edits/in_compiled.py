"""Edits that act in compiled code, and leave it compiled: `scale`, `steer` and `ablate` with `--compiled`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerstep.edits.made import Made, times
from layerstep.errors import BadArguments, UserError
from layerstep.hooks.affine import AffineForward
from layerstep.module_paths.where import Where

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["CompiledEdits"]


class CompiledEdits:
    """The stand-ins on the modules of compiled models. Each stays the same for all edits of its module."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, AffineForward] = {}

    def make(self, where: str, *, factor: float, added: Tensor | None, line: str) -> Made:
        """Let what a module returns be multiplied and added to in every call."""
        path, stand_in = self._stand_in(where)
        before = int(stand_in.acted)
        number = self._session.points.next_number()

        def turn(on: bool) -> None:
            with torch.no_grad():
                stand_in.factor.fill_(factor if on else 1.0)
                stand_in.added = (added if on and added is not None else torch.zeros(())).to(stand_in.factor)
            stand_in.turn(on)

        def undo() -> str:
            turn(False)
            return "what it did in calls that are over stays" if int(stand_in.acted) > before else ""

        def state() -> str:
            return times(int(stand_in.acted) - before)

        turn(True)
        return Made(number, line, path, state, undo, lambda: turn(True))

    def _stand_in(self, where: str) -> tuple[str, AffineForward]:
        found = Where.parse(where).look_up(self._session.run.models)
        if len(found) != 1:
            raise BadArguments("--compiled takes one module", "an edit without it takes any number")
        path, module = found[0]
        owner = self._session.run.models.owner_of(module)
        if owner is None or not owner.compiled:
            raise UserError(f"{path} is not in a compiled model", "leave --compiled out")
        stand_in = self._known.setdefault(id(module), AffineForward(module))
        if stand_in.is_on:
            raise UserError(f"{path} has an edit in its compiled code already", "`undo N` takes it back")
        if "forward" in module.__dict__:
            raise UserError(f"{path} has a forward of its own, set from outside", "leave --compiled out")
        return path, stand_in

    def clear(self) -> None:
        """Take all of them off."""
        for stand_in in self._known.values():
            stand_in.turn(False)
        self._known.clear()
