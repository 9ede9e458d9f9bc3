"""Arming: carry out a plan, and what else a plan needs of torch, with a word to the user."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn

from layerstep.engine._torch import set_eager_stance
from layerstep.engine.plan import make_plan
from layerstep.engine.stepper import Intent, Reach
from layerstep.engine.taps import Sink, Taps
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Arming"]

_FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


class Arming:
    """What is installed for a session now."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.sink = Sink(session.report)
        self.taps = Taps(self.sink)
        self.is_eager = False
        """Compiled code runs eagerly on our account."""
        self._stance_before: str | None = None
        self._fused: list[weakref.ref[nn.Module]] = []
        self._has_told_fused = False
        self._told: set[str] = set()

    def apply(self, intent: Intent, enclosing: Iterable[nn.Module]) -> None:
        models = self._session.models
        plan = make_plan(models, self._session.points, intent=intent, enclosing=enclosing)
        self.taps.roots = {id(root) for model in models if (root := model.root) is not None}
        self.taps.apply(plan)
        self.sink.listening = intent.reach is not Reach.NOTHING
        self._take_stance(wanted=bool(plan) and any(model.compiled for model in models))
        if not self._has_told_fused:
            modules = [module for module, _ in plan.values() if isinstance(module, _FUSED)]
            self._fused = [weakref.ref(module) for module in modules]

    def clear(self) -> None:
        self.taps.clear()
        self.sink.listening = False
        self._fused = []
        self._take_stance(wanted=False)

    def _take_stance(self, *, wanted: bool) -> None:
        if wanted and not self.is_eager:
            before = set_eager_stance(True)
            self.is_eager = before is not None
            self._stance_before = before
            self._tell("compiled model: it runs eagerly while something is armed", "the numbers are eager's")
        elif not wanted and self.is_eager:
            if self._stance_before != "force_eager":
                set_eager_stance(False)
            self.is_eager = False

    def mention_fused(self) -> None:
        """Hooks inside an encoder layer switch its fused inference path off: other kernels run.

        Asked at each forward, because a model may go into eval mode after its points were set.
        """
        for reference in self._fused:
            module = reference()
            if module is not None and not module.training:
                self._fused, self._has_told_fused = [], True
                self._tell(
                    f"{type(module).__name__} leaves its fused path while it is tapped",
                    "every module inside is called; last digits may differ",
                )
                return

    def _tell(self, text: str, hint: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._session.say(Notice(text, hint))
