"""The callbacks of trainers, called as trainers call them. `tests/apps` has real trainings."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from layerstep import Quit, UserError, api
from layerstep.integrations.training import TrainingDebug
from layerstep.sinks.sink import Sink


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def train(model: nn.Module) -> list[torch.Tensor]:
    """The parameters, buffers and random numbers after four steps."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(torch.randn(6, 4)), torch.randint(2, (6,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [*model.state_dict().values(), torch.get_rng_state()]


def hooks_on(model: nn.Module) -> list[Any]:
    tables = (vars(module) for module in model.modules())
    return [found for table in tables for name, found in table.items() if name.endswith("_hooks") and found]


def debugged(*points: str, **options: Any) -> tuple[TrainingDebug, io.StringIO]:
    output = io.StringIO()
    return TrainingDebug(points, output=output, **options), output


@pytest.mark.parametrize(
    ("points", "options", "said"),
    [
        ((), {}, ""),
        (("0 if step == 2",), {"commands": ["continue", "stats out", "continue"]}, "percentiles"),
        ((), {"doctor": "basic"}, "(the end of the training) doctor report"),
        (("3 enter if step == 99",), {}, "the condition never held"),
        (("nosuch",), {}, "no module 'nosuch'"),
    ],
)
def test_a_training_stays_the_same_and_nothing_is_left(
    points: tuple[str, ...], options: dict[str, Any], said: str
) -> None:
    bare = train(make_model())
    debug, output = debugged(*points, **options)
    model = make_model()
    debug.begin(model)
    after = train(model)
    debug.end()
    assert all(map(torch.equal, after, bare))
    assert said in output.getvalue() and "a bug in layerstep" not in output.getvalue()
    assert not hooks_on(model) and api._current is None and debug.console is None


class Losses(Sink):
    """Keeps the losses of a training, and that it is told of the end."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.is_closed = False

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.steps += [step] if "loss" in values else []

    def close(self) -> None:
        self.is_closed = True


def test_what_is_recorded_goes_to_sinks() -> None:
    losses = Losses()
    debug, _ = debugged(doctor="basic", sinks=[losses])
    for _ in range(2):
        model = make_model()
        debug.begin(model)
        train(model)
        debug.end()
    assert losses.steps == [1, 2, 3, 4] * 2 and losses.is_closed


def test_nothing_is_armed_without_a_point() -> None:
    model, (debug, _) = make_model(), debugged()
    debug.begin(model)
    assert debug.console is not None and not hooks_on(model)
    debug.end()


def test_an_exception_is_explained_and_everything_is_removed() -> None:
    model, (debug, _) = make_model(), debugged("0 if step == 9")
    debug.begin(model)
    with pytest.raises(RuntimeError) as failed, debug:
        model(torch.zeros(1, 5))
    assert "in 0 (Linear)" in failed.value.__notes__[0]
    assert not hooks_on(model) and api._current is None


def test_quit_ends_the_training() -> None:
    model, (debug, _) = make_model(), debugged("0", commands=["continue", "quit"])
    debug.begin(model)
    with pytest.raises(Quit), debug:
        train(model)
    assert not hooks_on(model) and api._current is None


def test_a_second_training_begins_anew() -> None:
    first, second = make_model(), make_model()
    debug, _ = debugged("0 if step == 9")
    debug.begin(first)  # it fails, and no one tells the callback
    debug.begin(second)
    assert not hooks_on(first) and hooks_on(second)
    debug.end()


def test_it_is_copied_and_pickled_without_its_console() -> None:
    model, (debug, _) = make_model(), debugged("0", commands=["continue"])
    debug.begin(model)
    for other in (copy.deepcopy(debug), pickle.loads(pickle.dumps(debug))):
        assert other.console is None and other._lines == debug._lines
    debug.end()


class Connected(Losses):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_copy_has_the_sinks_that_have_names() -> None:
    """Another one may hold a file or a connection, which a checkpoint cannot."""
    debug, _ = debugged(sinks=[Connected(), "mlflow=http://127.0.0.1:9"])
    assert pickle.loads(pickle.dumps(debug))._sinks == ("mlflow=http://127.0.0.1:9",)


def test_other_processes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (debug, _) = make_model(), debugged("0")
    debug.begin(model, is_first_process=False)
    assert debug.console is None and not hooks_on(model)
    monkeypatch.setenv("LAYERSTEP", "0")
    debug.begin(model)
    assert debug.console is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"doctor": "hard"}, "no level 'hard'; there are basic, advanced, extreme"),
        ({"commands": ["contineu 3 4"]}, "did you mean continue"),
        ({"sinks": ["tensorbord=a"]}, "no sink 'tensorbord'"),
        ({"sinks": "wandb"}, r"sinks is a list; sinks=\['wandb'\]"),
        ({"commands": "continue"}, r"commands is a list of lines; commands=\['continue'\]"),
    ],
)
def test_wrong_arguments_are_told_before_the_training(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainingDebug((), **options)


def test_the_handler_of_transformers_calls_it() -> None:
    callbacks = pytest.importorskip("transformers.trainer_callback")
    from layerstep.integrations.transformers import StepCallback

    output, model = io.StringIO(), make_model()
    callback = StepCallback("0 if step == 1", commands=["continue", "where", "continue"], output=output)
    handler = callbacks.CallbackHandler([callback, callbacks.DefaultFlowCallback()], model, None, None, None)
    state, control = callbacks.TrainerState(), callbacks.TrainerControl()
    state.is_world_process_zero = True
    handler.on_train_begin(None, state, control)
    train(model)
    handler.on_train_end(None, state, control)
    assert "Linear" in output.getvalue()
    assert not hooks_on(model) and api._current is None


@pytest.mark.parametrize(
    ("module", "blocked"),
    [("lightning", ("lightning", "pytorch_lightning")), ("transformers", ("transformers",))],
)
def test_an_absent_library_is_named_with_its_pip_command(module: str, blocked: tuple[str, ...]) -> None:
    code = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in blocked)
    code += f"import layerstep.integrations.{module}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(f"this needs an extra: pip install 'layerstep[{module}]'"), done.stderr
