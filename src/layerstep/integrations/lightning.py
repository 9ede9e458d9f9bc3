"""A callback for the `Trainer` of Lightning."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import IO, Any

from layerstep.errors import MissingExtra
from layerstep.integrations.training import TrainingDebug
from layerstep.sinks.sink import Sink

__all__ = ["StepCallback"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The same library under two names. Each has classes of its own."""


def _callback() -> Any:
    """The base class of callbacks, of the package that the program uses."""
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise MissingExtra("lightning")


class StepCallback(_callback()):  # type: ignore[misc]  # one of two classes
    """Debugs each `fit` of a `Trainer`.

        trainer = Trainer(callbacks=[StepCallback("encoder.0.attn", doctor="basic")])
        trainer.fit(module, loader)

    `breakpoints` are what follows `break` at the prompt; `commands` are lines, as `DebugConsole` takes them;
    `doctor` is the level at which the doctor watches; `sinks` get what is recorded, as in
    `["tensorboard=runs/a"]`. After `fit`, or an exception in it, nothing is left on the model. Checkpoints
    hold nothing of it.
    """

    def __init__(
        self,
        *breakpoints: str,
        commands: Iterable[str] = (),
        doctor: str = "",
        sinks: Iterable[str | Sink] = (),
        input: Any = None,
        output: IO[str] | None = None,
    ) -> None:
        self._debug = TrainingDebug(
            breakpoints, commands=commands, doctor=doctor, sinks=sinks, input=input, output=output
        )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._debug.begin(pl_module, is_first_process=trainer.is_global_zero)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._debug.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._debug.fail(exception)
