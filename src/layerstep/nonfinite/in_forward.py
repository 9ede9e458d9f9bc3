"""Find in a second run of a forward where a value that is not finite was born, and stop there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from layerstep._torch import modes_off
from layerstep._torch.modes import autograd_on
from layerstep.calls.operations import name_of
from layerstep.errors import first_line
from layerstep.hooks.temporary import watching_output
from layerstep.nonfinite.kernel_trace import KernelTrace, Link, Reached, storage_key
from layerstep.nonfinite.origin import Origin, Part
from layerstep.rerun.other_ranks import about_source
from layerstep.rerun.whole_call import CallStart, rerunning
from layerstep.tensors.containers import tensors_of

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = [
    "Verdict",
    "at_birth",
    "look_forward",
    "names_of",
    "origin_of_link",
    "trace",
    "with_operands",
]

Then = Callable[[Origin, Reached, FrameType | None], None]
"""Called with what was found, the kernel, and the frame above which the run itself lies."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a second run showed."""

    chain: tuple[Link, ...] = ()
    intended: bool = False
    """Every Inf was written on purpose."""
    trouble: str = ""
    """Why nothing was found."""


def look_forward(
    session: Session, snapshot: CallStart, module: nn.Module, *, wanted: Callable[[Tensor], bool]
) -> Verdict:
    """Run the call again and follow what is not finite, and `wanted`, in the output of a module."""
    trail = KernelTrace(names=names_of(snapshot.module))
    outputs: list[Any] = []
    try:
        with watching_output(module, outputs.append):
            _again(session, snapshot, trail)
    except Exception as error:  # the model's own code, or a line of ours: the run must not notice
        line = first_line(error)
        return Verdict(trouble=f"the call cannot be run again: {type(error).__name__}: {line}")
    bad = [tensor for tensor in tensors_of(outputs) if wanted(tensor)]
    if not bad:
        return Verdict(trouble="the second run was finite: it is not reproducible")
    links = [link for tensor in bad if (link := trail.link_of(tensor)) is not None]
    if not links:
        return Verdict(trouble="no kernel of the second run made it: it came in with the output")
    meant = [link for link in links if not link.intended]
    if not meant:
        return Verdict((links[0],), intended=True)
    return Verdict(tuple(trail.chain(meant[0])))


def trace(session: Session, snapshot: CallStart, tensor: Tensor) -> Verdict:
    """Run the call again and follow one bad value of it back to its birth."""
    trail = KernelTrace(names=names_of(snapshot.module), target=tensor)
    trouble = ""
    try:
        _again(session, snapshot, trail)
    except Exception as error:  # it may raise after what is looked for
        trouble = f"the call cannot be run again: {type(error).__name__}: {first_line(error)}"
    link = trail.same or trail.alike
    if link is None:
        return Verdict(trouble=trouble or "the second run was finite: it is not reproducible")
    note = "" if trail.same is not None else "the second run made other values of this shape"
    return Verdict(tuple(trail.chain(link)), intended=link.intended, trouble=note)


def at_birth(session: Session, snapshot: CallStart, origin: Origin, *, then: Then) -> bool:
    """Run the call once more, and be there just after the kernel that was found; no if it never came."""
    boundary = sys._getframe()
    last = origin.chain[-1]
    came = False

    def reached(here: Reached) -> None:
        nonlocal came
        if name_of(here.func) == last.kernel:
            came = True
            with modes_off(), autograd_on():  # what is typed there is above autograd, as in the run
                then(with_operands(origin, here), here, boundary)

    trail = KernelTrace(names=names_of(snapshot.module), stop_at=last.index, reached=reached)
    with contextlib.suppress(Exception):  # it ran a moment ago; if not now, who called says what is known
        _again(session, snapshot, trail)
    return came


def _again(session: Session, snapshot: CallStart, trail: KernelTrace) -> Any:
    with rerunning(session, snapshot):
        args, kwargs = snapshot.arguments()
        trail.names.update(_names_of_inputs(args, kwargs))
        with trail.on(may_fuse=not snapshot.grad and any(map(_may_fuse, snapshot.module.modules()))):
            return snapshot.module(*args, **kwargs)


def _may_fuse(module: nn.Module) -> bool:
    """Does torch run it as one kernel, unless a function mode is on?"""
    return isinstance(module, nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerEncoder)


def origin_of_link(session: Session, chain: tuple[Link, ...], *, seen: str, forward: int) -> Origin:
    """The end of a chain as an origin, without its operands."""
    last = chain[-1]
    source = next((each for each in last.sources if not each.intended), None)
    text = f"{source.name}: {source.bad}" if source is not None else ""
    return Origin(
        Part.BACKWARD if last.node else Part.FORWARD,
        seen,
        forward=forward,
        op=last.name,
        detail=last.kernel if not last.node else f"{last.kernel} in {last.node}",
        place=last.place,
        path=session.run.models.path_of(last.module) if last.module is not None else "",
        kind=type(last.module).__name__ if last.module is not None else "",
        bad=last.bad,
        source=text,
        chain=chain,
        note=about_source(session, text),
    )


def with_operands(origin: Origin, here: Reached) -> Origin:
    """The same with what went in and came out."""
    results = tensors_of(here.result)
    labels = [""] if len(results) == 1 else [f"[{n}]" for n in range(len(results))]
    return replace(
        origin,
        operands=here.operands,
        results=tuple((f"result{label}", each) for label, each in zip(labels, results, strict=True)),
    )


def names_of(module: nn.Module) -> dict[int, str]:
    """What the state of a model is called, by its memory."""
    return {storage_key(tensor): name for name, tensor in _state(module)}


def _names_of_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, str]:
    tensors = tensors_of(args)
    names = {storage_key(t): f"input {n}" if len(tensors) > 1 else "the input" for n, t in enumerate(tensors)}
    for name, value in kwargs.items():
        names |= {storage_key(tensor): f"the input {name}" for tensor in tensors_of(value)}
    return names


def _state(module: nn.Module) -> list[tuple[str, Tensor]]:
    parameters = [(f"parameter {name}", each) for name, each in module.named_parameters()]
    return parameters + [(f"buffer {name}", each) for name, each in module.named_buffers()]
