"""Rerun the module of a core file in a model that has the code, and compare.

The stored state is put into the module; it is called with the stored inputs, under the stored modes, with the
random streams where they were when the call began.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch import below_everything, is_transformed, unwrap
from layerstep._torch.tensors import raw_bytes
from layerstep.calls.events import Phase
from layerstep.corefile.environment import MOST_TEXT, under_modes
from layerstep.corefile.rebuild import RestoredCore
from layerstep.corefile.streams import Streams
from layerstep.corefile.tree import own_tensors
from layerstep.corefile.values import tensors_with_places, without_home
from layerstep.errors import UserError, message_of
from layerstep.expressions.scope import stdout_of_this_thread
from layerstep.hooks.temporary import replacing_forward
from layerstep.module_paths.names import Names
from layerstep.tensors.kinds import readable
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import shape_of

__all__ = ["CoreRerun", "RerunResult", "difference"]


@dataclass(frozen=True, slots=True)
class RerunResult:
    """The outcome of a rerun."""

    output: Any
    error: Exception | None
    is_same: bool | None
    """None where the file has nothing to compare with."""
    message: str
    notes: tuple[str, ...]


class CoreRerun:
    """The selected module of a file, in a model with the code."""

    def __init__(self, core: RestoredCore, model: nn.Module) -> None:
        self.core = core
        self.model = model
        path = core.contents["stop"]["local"]
        found = Names(model).module_at(path) if path is not None else None
        if found is None or core.selected.module is None:
            raise UserError(
                f"the model has no {core.selected.path}", f"it is a {type(unwrap(model)).__name__}"
            )
        self.module: nn.Module = found
        self._stored: nn.Module = core.selected.module
        self.notes = [*_kinds_differ(self._stored, found), *_settings_differ(self._stored, found)]
        load_state(self._stored, found)

    def run(
        self,
        given: dict[str, Any],
        *,
        silently: Callable[[], contextlib.AbstractContextManager[None]],
        raised: Callable[[Exception], None],
    ) -> RerunResult:
        """Call the module.

        `given` replaces arguments; trials run under `silently`; `raised` gets an error.
        """
        core, notes = self.core, list(self.notes)
        with silently():
            start = self._start(given)
        if start is None:
            notes.append("the random streams could not be turned back to where the call began")
        load_state(self._stored, self.module)
        args, kwargs = self._inputs(given)
        output, error = None, None
        with under_modes(core.contents["modes"]):
            (start or core.streams).restore()
            try:
                output = _call(self.module, args, kwargs)
            except Exception as problem:
                error = problem
                raised(problem)
        if self._ends_where_it_did() is False:
            notes.append("the random streams ended elsewhere than in the run")
        is_same, message = self._compare(output, error)
        if is_same is False and _made_elsewhere(core):
            notes.append(_made_elsewhere(core))
        return RerunResult(output, error, is_same, message, tuple(notes))

    @property
    def missing(self) -> list[str]:
        """What a rerun needs and the file does not hold; positional arguments by their names."""
        names = self._positional()
        return [_argument_name(text, names) for text in self.core.missing]

    def _positional(self) -> list[str]:
        try:
            parameters = inspect.signature(self.module.forward).parameters.values()
        except (ValueError, TypeError):  # not written in Python
            return []
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [parameter.name for parameter in parameters if parameter.kind in kinds]

    def _inputs(self, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Fresh arguments. What is given by name replaces an argument, positional or not."""
        args, kwargs = self.core.fresh_inputs()
        positional = list(args)
        names = self._positional()[: len(positional)]
        for name, value in given.items():
            if name in names:
                positional[names.index(name)] = value
            else:
                kwargs[name] = value
        return positional, kwargs

    # --- the random streams ---

    def _start(self, given: dict[str, Any]) -> Streams | None:
        """The streams at the beginning of the call. A trial tells how many numbers it draws."""
        stored = self.core.streams
        if self.core.phase is Phase.ENTER and self.core.contents["stop"]["selected"] == 0:
            return stored
        if self.core.phase is None:
            return None  # it is not known how far into the call the run was
        end = self._trial(stored, given)
        return stored.before(stored, end) if end is not None else None

    def _trial(self, stored: Streams, given: dict[str, Any]) -> Streams | None:
        """The streams when a copy of the module has come as far as the run had."""
        try:
            trial = copy.deepcopy(self.module)
        except Exception:  # it cannot be copied: its state is put back after the trial
            trial = self.module
        args, kwargs = self._inputs(given)
        stop = _Stop()
        inner = self._inner(trial)
        with contextlib.ExitStack() as stack:
            if inner is not None:
                forward = stop.forward(inner, before=self.core.phase is Phase.ENTER)
                stack.enter_context(replacing_forward(inner, forward))
            stack.enter_context(under_modes(self.core.contents["modes"]))
            stack.enter_context(stdout_of_this_thread())
            stored.restore()
            with contextlib.suppress(Exception):
                trial(*args, **kwargs)
            return stop.streams or Streams()

    def _inner(self, trial: nn.Module) -> nn.Module | None:
        """The module that the run stopped at, if the selected one was still running around it."""
        stop = self.core.contents["stop"]
        innermost = self.core.stack[0].module
        if not stop["selected"] or self.core.exception is not None or innermost is None:
            return None
        path = next((name for name, part in self._stored.named_modules() if part is innermost), None)
        return Names(trial).module_at(path) if path else None

    def _ends_where_it_did(self) -> bool | None:
        """None where the run did not stop at the end of the call."""
        if self.core.contents["stop"]["selected"] or self.core.phase not in (Phase.EXIT, Phase.RAISED):
            return None
        return Streams().same_as(self.core.streams)

    # --- the comparison ---

    def _compare(self, output: Any, error: Exception | None) -> tuple[bool | None, str]:
        stored = self.core.exception
        path = self.core.selected.path
        if error is not None:
            kind, message = type(error).__name__, without_home(message_of(error))[:MOST_TEXT]
            first = message.partition("\n")[0][:200]
            if stored is None:
                return False, f"{path} raised {kind}: {first}; in the run it had not"
            if (kind, message) == (stored["type"], stored["message"]):
                return True, f"{path} raised the same {kind} again: {first}"
            return False, f"{path} raised another exception: {kind}: {first}"
        if stored is not None:
            return False, f"{path} raised nothing; in the run it was {stored['type']}"
        if not self.core.selected.has_output:
            return None, f"{path} has run; the file has no output to compare with"
        with observing():
            what = difference(self.core.selected.output, output)
        if what:
            return False, f"{path} gave another output: {what}"
        return True, f"{path} gave the same output again, bit for bit"


def _argument_name(text: str, names: list[str]) -> str:
    match = re.match(r"args\.(\d+)(?=\W)", text)
    if match is None or int(match[1]) >= len(names):
        return text
    return names[int(match[1])] + text[match.end() :]


def _call(module: nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call it from a line of its own, so that the stack can show the caller."""
    linecache.cache[_SITE] = (0, None, [_LINE + "\n"], _SITE)
    return eval(compile(_LINE, _SITE, "eval"), {"module": module, "args": args, "kwargs": kwargs})


_SITE, _LINE = "<core>/again", "module(*args, **kwargs)"


class _Reached(Exception):
    """Ends a trial."""


class _Stop:
    """Ends a trial at a module, and keeps the streams there."""

    def __init__(self) -> None:
        self.streams: Streams | None = None

    def forward(self, module: nn.Module, *, before: bool) -> Callable[..., Any]:
        """A forward that ends the trial, `before` the module's own has run or after it."""
        forward = module.forward

        def until(*args: Any, **kwargs: Any) -> Any:
            if not before:
                forward(*args, **kwargs)
            self.streams = Streams()
            raise _Reached

        return until


def load_state(stored: nn.Module, module: nn.Module) -> None:
    """Put the parameters, buffers and training flags of a stored module into one that has the code."""
    for path, part in stored.named_modules():
        target = Names(module).module_at(path) if path else unwrap(module)
        if target is None:
            raise UserError(f"the model has no {path} in {type(module).__name__}", "the code is another one")
        parameters, buffers = own_tensors(target)
        for table, other in ((part._parameters, parameters), (part._buffers, buffers)):
            if missing := sorted(set(table) ^ set(other)):
                where = "the code" if missing[0] in other else "the file"
                name = f"{path}.{missing[0]}" if path else missing[0]
                raise UserError(f"only {where} has {name}", "the code is another one")
            for name, value in table.items():
                _load(other[name], value, f"{path}.{name}" if path else name, home=(target, name))
        target.training = part.training


def _load(present: Tensor | None, value: Tensor | None, path: str, *, home: tuple[nn.Module, str]) -> None:
    if value is None or present is None:
        if (value is None) != (present is None):
            raise UserError(f"{path} is None in {'the file' if value is None else 'the code'}")
        return
    if tuple(present.shape) != tuple(value.shape):
        shapes = f"{list(value.shape)} in the file and {list(present.shape)} in the code"
        raise UserError(f"{path} is {shapes}", "the code is another one, or builds it differently")
    with torch.no_grad():
        fresh = value.detach().clone()
        device = torch.device(getattr(value, "core_device", "cpu"))
        if device.type == "cuda" and torch.cuda.device_count() > (device.index or 0):
            fresh = fresh.to(device)
    try:
        present.data = fresh  # the same object: others that refer to it see the values too
        present.requires_grad_(value.requires_grad)
    except RuntimeError:  # another kind of tensor, such as one on the meta device
        target, name = home
        if name in target._parameters:
            target._parameters[name] = nn.Parameter(fresh, requires_grad=value.requires_grad)
        else:
            target._buffers[name] = fresh


def _kinds_differ(stored: nn.Module, module: nn.Module) -> list[str]:
    was, is_now = type(stored).__name__, type(module).__name__
    return [f"it was a {was}, and is a {is_now} in the code"] if was != is_now else []


def _settings_differ(stored: nn.Module, module: nn.Module) -> list[str]:
    """Settings that differ between the file and the code: `eps`, `p`."""
    found = []
    names = Names(module)
    for path, part in stored.named_modules():
        target = names.module_at(path) if path else unwrap(module)
        for name, value in part.__dict__.items():
            if name.startswith("_") or name == "training" or target is None or name not in target.__dict__:
                continue
            now = target.__dict__[name]
            if type(now) is type(value) and now != value and now == now:
                found.append(f"{path}.{name}".strip(".") + f" is {now} in the code, and was {value}")
    return found[:5]


def _made_elsewhere(core: RestoredCore) -> str:
    made, here = core.contents["environment"]["torch"], str(torch.__version__)
    return f"the file was made by torch {made}, and this is {here}" if made != here else ""


def difference(stored: Any, output: Any) -> str:
    """How two values differ, to the bit; "" if they do not."""
    one, other = list(tensors_with_places(stored)), list(tensors_with_places(output))
    if len(one) != len(other):
        return f"{len(other)} tensors, and {len(one)} in the run"
    for (place, was), (_, now) in zip(one, other, strict=True):
        at = f" at {place}" if place else ""
        if getattr(was, "not_in_core", False):
            return f"not known, the values{at} are not in the file"
        if was.dtype != now.dtype or shape_of(was) != shape_of(now):
            shapes = list(shape_of(now)), list(shape_of(was))
            return f"{now.dtype} {shapes[0]}{at}, and {was.dtype} {shapes[1]} in the run"
        if not _same_bits(was, now):
            return f"the values{at} differ{_how_far(was, now)}"
    return ""


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.is_meta or other.is_meta:
        return one.is_meta and other.is_meta
    if is_transformed(one) or is_transformed(other):
        with below_everything():
            inner = [readable(each)[0] for each in (one, other)]
            return len(inner[0]) == len(inner[1]) and all(map(_same_bits, *inner))
    if one.layout is not torch.strided or one.is_nested or one.is_quantized:
        parts = [_parts(each) for each in (one, other)]
        return all(map(_same_bits, *parts)) if len(parts[0]) == len(parts[1]) else False
    return torch.equal(*(raw_bytes(each.detach().resolve_conj().resolve_neg()) for each in (one, other)))


def _parts(tensor: Tensor) -> list[Tensor]:
    tensor = tensor.detach()
    if tensor.is_nested:
        return list(tensor.unbind())
    return [tensor.dequantize() if tensor.is_quantized else tensor.to_dense()]


def _how_far(was: Tensor, now: Tensor) -> str:
    try:
        far = (was.detach().cpu().double() - now.detach().cpu().double()).abs()
        return f" by {float(far[far == far].max()):.3g} at most"
    except Exception:  # complex, empty, all NaN
        return ""
