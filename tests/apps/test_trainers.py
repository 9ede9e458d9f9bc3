"""Callbacks in the trainers of other packages: the training stays bit-equal, and nothing is left."""

from __future__ import annotations

import copy
import importlib
import io
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
importlib.import_module("vision_ops")  # before what imports torchvision

import lightning as L  # noqa: E402
import transformers  # noqa: E402

from layerstep import UserError, api  # noqa: E402
from layerstep.integrations import lightning as in_lightning  # noqa: E402
from layerstep.integrations import transformers as in_transformers  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

LINES = ["catch nonfinite", "log {where} '{{out.shape}}'", "continue", "stats out", "where", "continue"]


class Net(L.LightningModule):
    """With dropout, which draws random numbers, and batch norm, which has buffers."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.fails_at = fails_at
        self.body = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 2)
        )

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x = batch[0][:, :5] if index == self.fails_at else batch[0]
        return nn.functional.cross_entropy(self.body(x), batch[1])

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", nn.functional.cross_entropy(self.body(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)


def loader() -> Any:
    made = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(
        torch.randn(32, 8, generator=made), torch.randint(2, (32,), generator=made)
    )
    return torch.utils.data.DataLoader(data, batch_size=8)


def fitted(folder: Path, *callbacks: Any, epochs: int = 2, net: Net | None = None, **options: Any) -> Net:
    """A module that was trained; the random numbers begin the same each time."""
    L.seed_everything(0, verbose=False)
    net = net or Net()
    fit = {key: options.pop(key) for key in ("ckpt_path",) if key in options}
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=list(callbacks),
        **options,
    )
    trainer.fit(net, loader(), loader(), **fit)
    return net


def state(model: nn.Module) -> list[torch.Tensor]:
    return [*(value.clone() for value in model.state_dict().values()), torch.get_rng_state()]


def are_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def is_clean(model: nn.Module) -> bool:
    """Is nothing of a debugger left on a model, on optimizers and in the process?"""
    hooks = [
        found
        for module in model.modules()
        for name, found in vars(module).items()
        if name.endswith("_hooks") and found
    ]
    forwards = [module for module in model.modules() if "forward" in vars(module)]
    steps = [*optimizers._global_optimizer_pre_hooks, *optimizers._global_optimizer_post_hooks]
    return not hooks and not forwards and not steps and api._current is None


def callbacks_of(kind: Any, where: str) -> list[tuple[Any, io.StringIO]]:
    """A callback of each sort, and where its words go."""
    made = []
    for options in (
        {},
        {"commands": [line.format(where=where) for line in LINES]},
        {"doctor": "advanced"},
    ):
        output = io.StringIO()
        points = (f"{where} if step == 2",) if options else ()
        made.append((kind(*points, output=output, **options), output))
    return made


def test_lightning_trains_the_same(tmp_path: Path) -> None:
    bare = state(fitted(tmp_path, enable_checkpointing=False))
    for callback, output in callbacks_of(in_lightning.StepCallback, "body.0"):
        net = fitted(tmp_path, callback, enable_checkpointing=False)
        assert are_equal(state(net), bare), output.getvalue()
        assert is_clean(net)
        assert "a bug in layerstep" not in output.getvalue()
    said = callbacks_of(in_lightning.StepCallback, "body.0")
    fitted(tmp_path, said[1][0], enable_checkpointing=False)
    assert "percentiles" in said[1][1].getvalue()
    fitted(tmp_path, said[2][0], enable_checkpointing=False)
    assert "the end of the training" in said[2][1].getvalue()


def test_a_lightning_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    bare = state(fitted(tmp_path, epochs=1))
    callback = in_lightning.StepCallback("body.0 if step == 2", commands=["continue"], output=io.StringIO())
    saved = L.pytorch.callbacks.ModelCheckpoint(tmp_path / "with", save_last=True)
    assert are_equal(state(fitted(tmp_path, callback, saved, epochs=1)), bare)
    assert b"layerstep" not in Path(saved.last_model_path).read_bytes()
    again = fitted(tmp_path, copy.deepcopy(callback), ckpt_path=saved.last_model_path)
    resumed = fitted(tmp_path, ckpt_path=saved.last_model_path)
    assert are_equal(state(again), state(resumed)) and is_clean(again)


def test_lightning_that_fails_is_explained(tmp_path: Path) -> None:
    net, callback = Net(fails_at=2), in_lightning.StepCallback(output=io.StringIO())
    with pytest.raises(RuntimeError) as failed:
        fitted(tmp_path, callback, net=net, enable_checkpointing=False)
    assert "body.0" in "".join(failed.value.__notes__)
    assert is_clean(net)


def test_lightning_in_two_processes(tmp_path: Path) -> None:
    """Forked: a new process would import torchvision, whose operators a CPU torch does not load."""
    options = {"devices": 2, "strategy": "ddp_fork", "enable_checkpointing": False, "epochs": 1}
    bare = fitted(tmp_path, **options)
    callback = in_lightning.StepCallback("body.0 if step == 1", commands=["continue", "where", "continue"])
    assert are_equal(state(fitted(tmp_path, callback, **options))[:-1], state(bare)[:-1])
    assert pickle.loads(pickle.dumps(callback))._debug.console is None


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, length: int = 12, *, breaks_at: int = -1) -> None:
        self._rows = torch.randint(50, (24, length), generator=torch.Generator().manual_seed(1))
        self._breaks_at = breaks_at

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        row = self._rows[index] + (1000 if index == self._breaks_at else 0)
        return {"input_ids": row, "labels": row}


def trained(folder: Path, *callbacks: Any, resume: Any = None, breaks_at: int = -1, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    arguments = transformers.TrainingArguments(
        str(folder),
        **{
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "max_steps": 4,
            "report_to": [],
            "disable_tqdm": True,
            "logging_strategy": "no",
            "use_cpu": True,
            "save_strategy": "no",
            **options,
        },
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Rows(breaks_at=breaks_at), callbacks=list(callbacks)
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    return model


WHERE = "transformer.h.1.mlp"


def test_transformers_trains_the_same(tmp_path: Path) -> None:
    bare = state(trained(tmp_path))
    made = callbacks_of(in_transformers.StepCallback, WHERE)
    for callback, output in made:
        model = trained(tmp_path, callback)
        assert are_equal(state(model), bare), output.getvalue()
        assert is_clean(model)
        assert "a bug in layerstep" not in output.getvalue()
    assert "percentiles" in made[1][1].getvalue()
    assert "the end of the training" in made[2][1].getvalue()


def test_a_transformers_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    bare = state(trained(tmp_path / "bare", save_strategy="steps", save_steps=2))
    callback = in_transformers.StepCallback(
        f"{WHERE} if step == 1", commands=["continue"], output=io.StringIO()
    )
    folder = tmp_path / "with"
    assert are_equal(state(trained(folder, callback, save_strategy="steps", save_steps=2)), bare)
    saved = folder / "checkpoint-2"
    assert not [file for file in saved.iterdir() if b"layerstep" in file.read_bytes()]
    again = trained(folder, callback, resume=str(saved))
    assert are_equal(state(again), bare) and is_clean(again)


def test_transformers_that_fails_is_explained(tmp_path: Path) -> None:
    callback = in_transformers.StepCallback(WHERE, commands=["continue"], output=io.StringIO())
    with pytest.raises(IndexError) as failed, callback:
        trained(tmp_path, callback, breaks_at=3, per_device_train_batch_size=24)
    assert "transformer.wte" in "".join(failed.value.__notes__)
    assert api._current is None and callback._debug.console is None


def test_a_training_after_one_that_failed_begins_anew(tmp_path: Path) -> None:
    callback = in_transformers.StepCallback(f"{WHERE} if step == 1", output=io.StringIO())
    with pytest.raises(IndexError):
        trained(tmp_path, callback, breaks_at=3, per_device_train_batch_size=24)
    model = trained(tmp_path, callback)
    assert is_clean(model)


@pytest.mark.parametrize("module", [in_lightning, in_transformers])
def test_wrong_arguments_are_told_at_once(module: Any) -> None:
    with pytest.raises(UserError, match="no level 'hard'"):
        module.StepCallback(doctor="hard")
    with pytest.raises(UserError, match="did you mean continue"):
        module.StepCallback(commands=["contineu 3 4"])


def test_the_example_for_accelerate() -> None:
    example = HERE.parent.parent / "examples" / "with_accelerate.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "percentiles" in done.stderr and "loss" in done.stdout
