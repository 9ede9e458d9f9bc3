"""Rerun one module on the arguments of its call, and leave no trace.

Inputs are copied. Random streams, weights, buffers and attributes that the forward writes are put back.
Hooks are not called, points are silent, autograd records nothing, dropout does nothing.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from layerstep._torch import (
    function_modes,
    function_modes_off,
    function_modes_on,
    hooks_hidden,
    is_in_jvp,
    is_transformed,
    is_transforming,
)
from layerstep._torch.encoders import may_be_one_kernel
from layerstep._torch.guards import no_grad_unseen
from layerstep._torch.modes import users_modes_aside
from layerstep._torch.process_state import global_hooks_silent
from layerstep._torch.tensors import is_tensor
from layerstep.errors import UserError, first_line
from layerstep.expressions.scope import stdout_of_this_thread
from layerstep.rerun.attributes import attributes_kept
from layerstep.rerun.copies import Copies
from layerstep.rerun.kv_caches import Caches, CallProgress
from layerstep.rerun.other_ranks import no_collectives, waits_for_ranks
from layerstep.rerun.weights import weights_kept
from layerstep.side_effects.guard import undisturbed
from layerstep.side_effects.random_streams import RandomState
from layerstep.tensors.clones import is_freed
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Rerun", "Watcher", "leaving_no_trace", "length_of", "rerun"]

_DROPOUTS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
    torch.dropout_,
}


@dataclass(frozen=True, slots=True)
class Rerun:
    """The output of a rerun, and why it may differ from the run's."""

    output: Any
    dropped: bool
    """Dropout acted in the run, and not here."""
    drew: bool
    """It drew random numbers, apart from dropout."""
    unhooked: bool
    """The user has hooks in the module, which were not called."""
    grew: tuple[str, ...]
    """The attributes or inputs that each call adds to. If one is a cache, it held this call already."""
    fused: bool
    """In the run a fused kernel may have computed a part of it, with other last digits."""

    def caveats(self, path: str) -> list[str]:
        """Why its output may differ from the run's, in words."""
        grew = ", ".join(self.grew[:3])
        notes = (
            (self.dropped, "dropout was left out"),
            (self.drew, "it draws random numbers: they are not those of the run"),
            (self.unhooked, "hooks of yours in it were not called"),
            (grew, f"the call has changed {grew} already: `break {path} enter` to see it as it was"),
        )
        return [words for holds, words in notes if holds]


class Watcher(TorchFunctionMode):
    """Sees every function of torch that the module calls; dropout does nothing under it."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped = False
        self._alone = not function_modes()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._alone:
            return self.see(func, args, kwargs)
        with function_modes_off():  # a mode of the user below this one must see nothing
            return self.see(func, args, kwargs)

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the result of a function. Subclasses override it to look for something."""
        if func in _DROPOUTS:
            chance = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            acts = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
            self.dropped |= bool(acts) and chance > 0
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


@contextlib.contextmanager
def leaving_no_trace(session: Session, module: nn.Module) -> Iterator[tuple[list[str], list[Any]]]:
    """Let the module run meanwhile: no hook is called, nothing is printed, and all state is put back.

    Gives two lists: the names of what a call adds to, filled at the end, and the hooks of the module and its
    parts.
    """
    if kind := waits_for_ranks(module):
        path = session.run.models.path_of(module)
        raise UserError(f"{path} cannot be rerun: {kind} would wait for the other ranks")
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        path = session.run.models.path_of(module)
        raise UserError(f"{path} cannot be rerun: a lazy layer in it has no weights yet", "run it once")
    if is_in_jvp():
        path = session.run.models.path_of(module)
        raise UserError(f"{path} cannot be rerun in torch.func.jvp", "stop at a module outside it")
    with contextlib.ExitStack() as stack:
        stack.enter_context(session.run.evaluating())
        stack.enter_context(users_modes_aside())
        stack.enter_context(undisturbed(session.run.models, deep=False))
        stack.enter_context(weights_kept(module))
        grew = stack.enter_context(attributes_kept(module))
        hooks = stack.enter_context(hooks_hidden(module))
        stack.enter_context(global_hooks_silent())
        stack.enter_context(stdout_of_this_thread())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # the program has had these warnings
        stack.enter_context(no_collectives())
        yield grew, hooks


def rerun(
    session: Session,
    module: nn.Module,
    *,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    progress: CallProgress,
    watcher: Watcher,
) -> Rerun:
    """Run the module's forward on copies of its inputs under `watcher`."""
    if any(map(is_freed, (*module.parameters(), *module.buffers()))):
        path = session.run.models.path_of(module)
        raise UserError(f"{path} cannot be rerun: not all of its weights are in memory at this stop")
    if is_transforming() and not any(map(is_transformed, tensors_of((args, kwargs)))):
        # What it then gives a weight (`self.double()`) belongs to the transform: a segmentation fault later.
        path = session.run.models.path_of(module)
        why = "the run has called it outside the transform of torch.func that it is in"
        raise UserError(f"{path} cannot be rerun here: {why}", "stop at a module outside it")
    fused = any(map(may_be_one_kernel, module.modules()))
    with contextlib.ExitStack() as stack:
        grew, hooks = stack.enter_context(leaving_no_trace(session, module))
        stack.enter_context(no_grad_unseen())
        _leave_autocast_cache(stack)
        with observing():
            copies = Copies(progress, length_of(args, kwargs), session.instruments.get(Caches))
            args, kwargs = copies.of(args), copies.of(kwargs)
        streams = RandomState()
        try:
            with function_modes_on(), watcher:
                output = module(*args, **kwargs)
        except UserError:
            raise
        except Exception as error:  # the module's own code, on inputs that may have changed since
            line = first_line(error)
            raise UserError(f"{session.run.models.path_of(module)} cannot be rerun: {line}") from None
        with observing():
            drew = bool(streams.changed())
            written = ["an input"] if copies.were_written() else []
    unhooked = any(not type(hook).__module__.startswith("layerstep.") for hook in hooks)
    changed = tuple(written + grew) if progress is CallProgress.AFTER else ()
    return Rerun(output, watcher.dropped, drew, unhooked, changed, fused)


def length_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many tokens a call processes: [batch, tokens, …] of its first tensor."""
    first = next((x for x in (*args, *kwargs.values()) if is_tensor(x) and x.dim() >= 2), None)
    return int(first.shape[1]) if first is not None and not first.is_nested else 0


def _leave_autocast_cache(stack: contextlib.ExitStack) -> None:
    """Keep the rerun out of autocast's cache: older torch would give the run weights without gradients."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
