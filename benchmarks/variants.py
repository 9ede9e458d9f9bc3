"""The ways to run a model that are compared. Each leaves the model as it found it."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.models import Case
from layerstep.engine.resume import Kind
from layerstep.engine.session import Session
from layerstep.engine.stepper import Intent
from layerstep.frontends.choose import open_session
from layerstep.views import Notice

__all__ = [
    "ALL_COMPUTING",
    "ALL_CONDITIONS",
    "ALL_POINTS",
    "ALL_POINTS_NO_BACK",
    "ALL_RECORDED",
    "ALL_STEPS",
    "ALL_STEPS_NO_BACK",
    "BARE",
    "BARE_AGAIN",
    "BOTH_HOOKS",
    "BY_HAND",
    "COMPUTING_BY_HAND",
    "EXIT_HOOKS",
    "NOTHING_ARMED",
    "VARIANTS",
    "NoKernel",
    "Run",
    "Variant",
    "attached",
    "check_clean",
    "new_session",
    "say",
]


class NoKernel(TorchDispatchMode):
    """The least that seeing every operation can cost."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


Run = Callable[[], Any]
Opener = Callable[[Case], AbstractContextManager[Run]]

ENOUGH = 10**9
"""More hits than a benchmark has."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A row: while its context is open, the callable it yields runs one forward."""

    name: str
    open: Opener
    needs: str = ""
    """The package that it measures, if that is not layerstep."""
    is_heavy: bool = False
    """So slow that one call a round and a few rounds must do."""
    of_tensors: bool = False
    """Only for models in which each module returns one tensor."""

    @property
    def is_missing(self) -> bool:
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None


@contextlib.contextmanager
def _bare(case: Case) -> Iterator[Run]:
    yield case.run


def new_session() -> Session:
    """A session as `layerstep run` opens it, with nobody to ask and its text put aside."""
    session, _ = open_session(batch=True, output=io.StringIO())
    return session


def say(session: Session, line: str) -> None:
    answer, _ = session.prompt.run_line(line)
    assert not (isinstance(answer, Notice) and answer.level == "error"), answer


@contextlib.contextmanager
def attached(session: Session, *, discover: bool) -> Iterator[None]:
    session.attach(discover=discover)
    try:
        yield
        assert session.run.is_attached, "the session stopped or failed on its way"
    finally:
        session.detach()


@contextlib.contextmanager
def _nothing_armed(case: Case) -> Iterator[Run]:
    session = new_session()
    with attached(session, discover=True):
        yield case.run
        assert len(session.run.models) == 1


@contextlib.contextmanager
def _points(case: Case, *, lines: tuple[str, ...]) -> Iterator[Run]:
    session = new_session()
    session.add_model(case.model)
    for line in lines:
        say(session, line.format(path=case.path))
    with attached(session, discover=False):
        yield case.run
        assert all(point.tried or point.hits for point in session.points)


@contextlib.contextmanager
def _endless_next(case: Case, *, lines: tuple[str, ...] = ()) -> Iterator[Run]:
    """A `next` that is looked for at every exit and never found: no call is at depth 0."""
    session = new_session()
    session.add_model(case.model)
    for line in lines:
        say(session, line)
    with attached(session, discover=False):
        session.run.intent = Intent(Kind.NEXT, depth=0, thread=threading.get_ident())
        session.rearm()
        yield case.run
        assert session.run.intent.kind is Kind.NEXT and session.installation.taps.modules


def _no_op_enter(module: nn.Module, args: Any, kwargs: Any) -> None: ...


def _no_op_exit(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None: ...


@contextlib.contextmanager
def _hooks(case: Case, *, enter: bool) -> Iterator[Run]:
    with contextlib.ExitStack() as handles:
        for module in case.model.modules():
            if enter:
                handle = module.register_forward_pre_hook(_no_op_enter, with_kwargs=True)
                handles.callback(handle.remove)
            handles.callback(module.register_forward_hook(_no_op_exit, with_kwargs=True).remove)
        yield case.run


@contextlib.contextmanager
def _hooks_that(case: Case, *, act: Callable[[Any], object]) -> Iterator[Run]:
    """Hooks by hand on all modules, which do something with the output."""

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        act(output)

    with contextlib.ExitStack() as handles:
        for module in case.model.modules():
            handles.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield case.run


_kept: deque[tuple[Any, ...]] = deque(maxlen=50_000)


def _measure(output: Any) -> None:
    """What `record` measures, in as few calls of torch as it takes."""
    while not isinstance(output, torch.Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    flat = output.detach().view(-1)
    low, high = torch.aminmax(flat)
    total, squares, count = flat.sum(), torch.dot(flat, flat), torch.count_nonzero(flat)
    figures = (low.item(), high.item(), total.item(), squares.item(), count.item())
    _kept.append((tuple(output.shape), *figures))


_EXPRESSION = "out.abs().max() > 1e6"
_compiled = compile(_EXPRESSION, "<hook>", "eval")


def _compute(output: Any) -> None:
    assert not eval(_compiled, {"out": output})


@contextlib.contextmanager
def _nnsight(case: Case) -> Iterator[Run]:
    from nnsight import NNsight  # type: ignore[import-untyped]

    model = NNsight(copy.deepcopy(case.model))  # a copy: its wrappers stay on the modules

    def run() -> Any:
        with model.trace(case.input):
            output = model.output.save()
        return output

    yield run


@contextlib.contextmanager
def _torchlens(case: Case) -> Iterator[Run]:
    import torchlens
    from torchlens.backends.torch.wrappers import unwrap_torch
    from torchlens.options import CaptureOptions

    model = copy.deepcopy(case.model)  # a copy: its wrappers stay on the modules
    options = CaptureOptions(layers_to_save="none")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a value left the graph as a Python number
            yield lambda: torchlens.trace(model, case.input, capture=options)
    finally:
        torchlens.release_model(model)
        unwrap_torch()  # it wraps the functions of torch for the whole process


BARE = Variant("bare", _bare)
BARE_AGAIN = Variant("bare, again (noise)", _bare)
NOTHING_ARMED = Variant("nothing armed, `layerstep run`", _nothing_armed)
EXIT_HOOKS = Variant("no-op exit hooks on all", partial(_hooks, enter=False))
BOTH_HOOKS = Variant("no-op enter and exit hooks on all", partial(_hooks, enter=True))
ALL_POINTS = Variant(
    "`break **`, each hit counted and ignored",
    partial(_points, lines=("break **", f"ignore 1 {ENOUGH}")),
)
ALL_POINTS_NO_BACK = Variant(
    "the same with `back off`", partial(_points, lines=("back off", "break **", f"ignore 1 {ENOUGH}"))
)
ALL_CONDITIONS = Variant("`break ** if out is None`", partial(_points, lines=("break ** if out is None",)))
ALL_RECORDED = Variant("`record **`", partial(_points, lines=("record **",)))
BY_HAND = Variant("the same figures in hooks by hand", partial(_hooks_that, act=_measure))
ALL_COMPUTING = Variant(
    f"`break ** if {_EXPRESSION}`", partial(_points, lines=(f"break ** if {_EXPRESSION}",)), of_tensors=True
)
COMPUTING_BY_HAND = Variant(
    "that expression in hooks by hand", partial(_hooks_that, act=_compute), of_tensors=True
)
ALL_STEPS = Variant("`next` that never ends", _endless_next)
ALL_STEPS_NO_BACK = Variant("such a `next` with `back off`", partial(_endless_next, lines=("back off",)))

VARIANTS = (
    BARE,
    BARE_AGAIN,
    NOTHING_ARMED,
    Variant("`break PATH if out is None`", partial(_points, lines=("break {path} if out is None",))),
    Variant(
        "`break PATH if out.isnan().any()`", partial(_points, lines=("break {path} if out.isnan().any()",))
    ),
    EXIT_HOOKS,
    BOTH_HOOKS,
    ALL_POINTS,
    ALL_POINTS_NO_BACK,
    ALL_CONDITIONS,
    ALL_COMPUTING,
    COMPUTING_BY_HAND,
    ALL_RECORDED,
    BY_HAND,
    ALL_STEPS,
    ALL_STEPS_NO_BACK,
    Variant("nnsight, saving the output", _nnsight, needs="nnsight"),
    Variant("torchlens, saving nothing", _torchlens, needs="torchlens", is_heavy=True),
)


def _torch_functions() -> list[Any]:
    """Some of what a tool may replace in torch."""
    return [nn.Module.__call__, functional.linear, torch.relu, torch.Tensor.add, torch.Tensor.__add__]


_AT_FIRST = _torch_functions()


def check_clean(model: nn.Module) -> None:
    """Nothing is left on the model, on `nn.Module` or on torch."""
    for name, module in model.named_modules():
        assert not module._forward_hooks and not module._forward_pre_hooks, name
        assert "forward" not in vars(module), name
    assert not torch_module._global_forward_hooks and not torch_module._global_forward_pre_hooks
    assert all(now is before for now, before in zip(_torch_functions(), _AT_FIRST, strict=True))
