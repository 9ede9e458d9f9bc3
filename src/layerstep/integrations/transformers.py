"""A callback for the `Trainer` of transformers."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import IO, Any, Self

from layerstep.errors import MissingExtra
from layerstep.integrations.training import TrainingDebug
from layerstep.sinks.sink import Sink

try:
    from transformers.trainer_callback import TrainerCallback
except ModuleNotFoundError:
    raise MissingExtra("transformers") from None

__all__ = ["StepCallback"]


class StepCallback(TrainerCallback):
    """Debugs each training of a `Trainer`.

        callback = StepCallback("lm_head if not out.isfinite().all()", doctor="basic")
        trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[callback])
        with callback:
            trainer.train()

    `breakpoints` are what follows `break` at the prompt; `commands` are lines, as `DebugConsole` takes them;
    `doctor` is the level at which the doctor watches; `sinks` get what is recorded, as in
    `["tensorboard=runs/a"]`. The `with` block explains an exception of the training and removes everything
    after it. Without the block, the next training or `detach()` does that: transformers does not tell a
    callback about an exception.
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

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        self._debug.begin(model, is_first_process=state.is_world_process_zero)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._debug.end()

    def detach(self) -> None:
        """Take everything off the model."""
        self._debug.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._debug.__exit__(kind, error, trace)
