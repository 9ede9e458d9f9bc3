"""What the census and the meter share: taps on the outermost modules, and the borders of steps."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from layerstep.engine.instrument import Instrument
from layerstep.hooks.taps import Sink, Taps
from layerstep.training_steps.borders import Borders

if TYPE_CHECKING:
    from layerstep.calls.events import Phase
    from layerstep.engine.session import Session

__all__ = ["StepInstrument"]


class StepInstrument(Instrument):
    """Is on or off, and gets the calls of the outermost modules while it is on."""

    def __init__(self, session: Session) -> None:
        self.is_on = False
        self.is_read = False
        """Were the results shown since it began?"""
        self._session = session
        self._borders = Borders(session.run.models, session.run.training)
        self._sink = Sink(self._report, _ignore, _ignore)
        self._sink.listening = True
        self._taps = Taps(self._sink)

    def stop(self) -> None:
        """Remove everything that is installed; keep what was measured."""
        self.is_on = False
        self._uninstall()

    def clear(self) -> None:
        """The session detaches."""
        self.stop()

    def _report(
        self, phase: Phase, points: Any, module: Any, args: Any, kwargs: Any, output: Any, frame: FrameType
    ) -> None:
        raise NotImplementedError

    def _uninstall(self) -> None:
        raise NotImplementedError


def _ignore(*_: Any) -> None:
    """Ignore the other reports of a tap."""
