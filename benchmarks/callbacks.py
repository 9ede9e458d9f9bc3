"""`python -m benchmarks.callbacks`: a step of each trainer with the callback, as a ratio to one without."""

from __future__ import annotations

import io
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

STEPS = 40
ROUNDS = 9
VARIANTS: dict[str, dict[str, Any] | None] = {
    "bare": None,
    "nothing armed": {},
    "catch nonfinite": {"commands": ["catch nonfinite"]},
    "doctor, basic": {"doctor": "basic"},
}
WIDTH = 512


def lightning_steps(options: dict[str, Any] | None) -> float:
    """The median time of a step."""
    import lightning as L

    from layerstep.integrations.lightning import StepCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Net(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.mse_loss(self.body(batch[0]), batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    class Clock(L.Callback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_train_batch_end(self, *_: Any) -> None:
            self.times.append(time.perf_counter())

    clock = Clock()
    callbacks = [clock] if options is None else [clock, StepCallback(output=io.StringIO(), **options)]
    data = torch.utils.data.TensorDataset(torch.randn(STEPS * 64, WIDTH))
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=64))
    return _median(clock.times)


def transformers_steps(options: dict[str, Any] | None) -> float:
    """The median time of a step."""
    import transformers

    from layerstep.integrations.transformers import StepCallback

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.times.append(time.perf_counter())

    clock = Clock()
    callbacks = [clock] if options is None else [clock, StepCallback(output=io.StringIO(), **options)]
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(100, (STEPS * 4, 32))]
    config = transformers.GPT2Config(vocab_size=100, n_positions=32, n_embd=128, n_layer=4, n_head=4)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            max_steps=STEPS,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=True,
            save_strategy="no",
        )
        model = transformers.GPT2LMHeadModel(config)
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=callbacks)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return _median(clock.times)


def _median(times: list[float]) -> float:
    """Of the second half: the doctor looks at each of the first ten steps."""
    return statistics.median(
        b - a for a, b in zip(times[STEPS // 2 :], times[STEPS // 2 + 1 :], strict=False)
    )


def main() -> None:
    warnings.filterwarnings("ignore")
    trainers: list[Callable[[dict[str, Any] | None], float]] = [lightning_steps, transformers_steps]
    for steps in trainers:
        rounds = [{name: steps(given) for name, given in VARIANTS.items()} for _ in range(ROUNDS)]
        for name in VARIANTS:
            ratio = statistics.median(each[name] / each["bare"] for each in rounds)
            milliseconds = 1000 * statistics.median(each[name] for each in rounds)
            sys.stdout.write(f"{steps.__name__:20} {name:16} {milliseconds:8.2f} ms  {ratio:.3f}\n")


if __name__ == "__main__":
    main()
