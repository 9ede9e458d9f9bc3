"""Training steps: what backward points and recorded gradients cost, against the hooks people write today."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.models import Case, all_cases
from benchmarks.variants import Run, Variant, attached, new_session, say

__all__ = [
    "BARE",
    "CAUGHT",
    "RECORDED",
    "TRAINING",
    "Stepper",
    "TrainingCase",
    "bare",
    "training_cases",
    "under",
]


BATCH = 8


@dataclass(frozen=True, slots=True)
class TrainingCase(Case):
    """A model of which training steps are measured; each variant brings its own optimizer."""


def training_cases() -> list[TrainingCase]:
    """In training mode: the real models, and 400 small parameters."""
    return [
        TrainingCase(
            f"a training step of {case.name}, batch {BATCH}",
            case.model.train(),
            case.input.expand(BATCH, *case.input.shape[1:]).contiguous(),
            case.path,
            is_real=case.is_real,
        )
        for case in all_cases()
    ]


class Stepper:
    """An optimizer that changes nothing, so that every step is the same; its hooks run as in any other."""

    def __init__(self, model: nn.Module) -> None:
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def run(self, case: Case) -> None:
        with torch.enable_grad():
            out = case.model(case.input)
            getattr(out, "logits", out).float().square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@contextlib.contextmanager
def bare(case: Case) -> Iterator[Run]:
    yield partial(Stepper(case.model).run, case)


@contextlib.contextmanager
def under(case: Case, *, lines: tuple[str, ...]) -> Iterator[Run]:
    session = new_session()
    session.add_model(case.model)
    with attached(session, discover=False):
        for line in lines:
            say(session, line.format(path=case.path))
        yield partial(Stepper(case.model).run, case)
        assert session.run.training.count, "no step was seen"


@contextlib.contextmanager
def _hooks_with_item(case: Case) -> Iterator[Run]:
    """A hook a parameter that takes the norm of its gradient to the host, as watching tools do."""
    norms: dict[str, float] = {}

    def watch(name: str, gradient: torch.Tensor) -> None:
        norms[name] = gradient.norm().item()

    with contextlib.ExitStack() as handles:
        for name, parameter in case.model.named_parameters():
            handles.callback(parameter.register_hook(partial(watch, name)).remove)
        yield partial(Stepper(case.model).run, case)


@contextlib.contextmanager
def _full_hooks(case: Case) -> Iterator[Run]:
    with contextlib.ExitStack() as handles, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does not see this output or that input
        for module in case.model.modules():
            handles.callback(module.register_full_backward_hook(lambda *_: None).remove)
        yield partial(Stepper(case.model).run, case)


@contextlib.contextmanager
def _detect_anomaly(case: Case) -> Iterator[Run]:
    stepper = Stepper(case.model)

    def run() -> None:
        with torch.autograd.set_detect_anomaly(True):
            stepper.run(case)

    yield run


@contextlib.contextmanager
def _finite_hooks(case: Case) -> Iterator[Run]:
    """`isfinite().all()` of the output of each module, as people write it by hand."""

    def check(module: nn.Module, args: object, output: object) -> None:
        tensors = output if isinstance(output, tuple) else (output,)
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and not torch.isfinite(tensor).all():
                raise FloatingPointError(type(module).__name__)

    with contextlib.ExitStack() as handles:
        for module in case.model.modules():
            handles.callback(module.register_forward_hook(check).remove)
        yield partial(Stepper(case.model).run, case)


class _EachOp(TorchDispatchMode):
    """It counts and does not raise: the mask of a healthy GPT-2 has -inf, and would be an alarm at once."""

    alarms = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            is_float = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            if is_float and not torch.isfinite(tensor).all():
                self.alarms += 1
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@contextlib.contextmanager
def _each_op(case: Case) -> Iterator[Run]:
    """`isfinite().all()` of the result of each kernel, forward and backward."""
    stepper = Stepper(case.model)

    def run() -> None:
        with _EachOp():
            stepper.run(case)

    yield run


BARE = Variant("bare", bare)
CAUGHT = Variant("`catch nonfinite`", partial(under, lines=("catch nonfinite",)))
RECORDED = Variant("`grad record`, every step", partial(under, lines=("grad record",)))
TRAINING = (
    BARE,
    Variant("bare, again (noise)", bare),
    Variant("nothing armed", partial(under, lines=())),
    Variant("`break PATH backward if False`", partial(under, lines=("break {path} backward if False",))),
    Variant("`break ** backward if False`", partial(under, lines=("break ** backward if False",))),
    RECORDED,
    Variant("a hook with `.item()` on each parameter", _hooks_with_item),
    Variant("`register_full_backward_hook` on all", _full_hooks),
    CAUGHT,
    Variant("`catch nonfinite --every-op`", partial(under, lines=("catch nonfinite --every-op",))),
    Variant("`detect_anomaly`", _detect_anomaly),
    Variant("`isfinite().all()` in a hook of each module", _finite_hooks),
    Variant("`isfinite().all()` of each op", _each_op),
)
"""The first two have the names of those of the forward, so that the same tables serve."""
