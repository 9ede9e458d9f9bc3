"""What an edit replaces: `out`, `out[0, 3]`, `out.logits[…]`, `inp`, `kwargs.mask`, `grad_out`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from layerstep._torch.tensors import is_tensor
from layerstep.calls.events import Event, Phase
from layerstep.edits.exchange import exchange
from layerstep.edits.gradients import Gradient, with_gradient
from layerstep.errors import BadArguments, UserError
from layerstep.expressions.expression import UNREADABLE, reason_of, rewrite

__all__ = ["Target", "like"]

OF_A_CALL = ("out", "inp", "kwargs")
OF_A_BACKWARD = ("grad", "grad_out", "grad_in")


@dataclass(frozen=True, slots=True)
class Target:
    """A place in what a call is given or returns."""

    text: str
    base: str
    steps: tuple[str | CodeType, ...]
    """The way from the base: names of attributes, and indices as code."""

    @classmethod
    def parse(cls, text: str) -> Target:
        try:
            node = ast.parse(rewrite(text.strip()), mode="eval").body
        except UNREADABLE as error:
            raise BadArguments(f"{text!r} is no target: {reason_of(error)}") from None
        steps: list[str | CodeType] = []
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute):
                steps.append(node.attr)
            else:
                steps.append(_index(node.slice))
            node = node.value
        base = node.id if isinstance(node, ast.Name) else ""
        return cls(text.strip(), base if base in OF_A_CALL + OF_A_BACKWARD else "", tuple(reversed(steps)))

    @property
    def is_of_a_call(self) -> bool:
        return self.base in OF_A_CALL

    @property
    def is_of_a_backward(self) -> bool:
        """A gradient at a stop in the backward pass."""
        return self.base in OF_A_BACKWARD

    @property
    def name(self) -> str:
        """Of a target that is no value of a call: the tensor, without the index at its end."""
        return self.text.partition("[")[0]

    def index(self, names: dict[str, Any]) -> Any:
        """The index at its end; all of it without one."""
        last = self.steps[-1] if self.steps else ""
        return ... if isinstance(last, str) or "[" not in self.text else eval(last, names)

    @property
    def phase(self) -> Phase:
        return Phase.EXIT if self.base == "out" else Phase.ENTER

    def value(self, event: Event) -> Any:
        """What the base is at a call."""
        if self.base == "out":
            return event.output
        if self.base == "kwargs":
            return event.kwargs
        return event.args[0] if len(event.args) == 1 else event.args

    def replaced(
        self,
        event: Event,
        value: Any,
        names: dict[str, Any],
        *,
        gradient: Gradient = "stop",
        only: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Event:
        """The event with the value at this place, and nothing written to.

        `only` keeps a part of the old tensor, given both.
        """
        found = self.value(event)
        for at, step in enumerate(self.steps):
            if is_tensor(found):
                if at != len(self.steps) - 1 or isinstance(step, str):
                    raise UserError(f"{self.text}: a tensor has elements, no other parts")
                return _with(event, found, _indexed(found, eval(step, names), value))
            if (
                isinstance(found, dict)
                and at == len(self.steps) - 1
                and not is_tensor(_part(found, step, names))
            ):
                return _with_key(event, self.base, _key(step, names), value)
            found = _part(found, step, names)
        if is_tensor(found):
            new = like(value, found)
            return _with(event, found, with_gradient(found, only(found, new) if only else new, gradient))
        if self.steps:
            raise UserError(f"{self.text} is no tensor", "replace the whole: out = …")
        return _whole(event, self.base, value)


class _Slices(ast.NodeTransformer):
    """`1:3` is Python only in brackets; as code by itself it is `slice(1, 3, None)`."""

    def visit_Slice(self, node: ast.Slice) -> ast.expr:
        parts = [part or ast.Constant(None) for part in (node.lower, node.upper, node.step)]
        return ast.Call(ast.Name("slice", ast.Load()), parts, [])


def _index(node: ast.expr) -> CodeType:
    code = ast.fix_missing_locations(ast.Expression(_Slices().visit(node)))
    return compile(code, "<target>", "eval")


def like(value: Any, old: Tensor) -> Tensor:
    """A value as a tensor that can take the place of another: its dtype, its device, its shape if it fits."""
    if not is_tensor(value):
        if isinstance(value, int | float | complex | bool):
            return torch.full_like(old, value, requires_grad=False)
        try:
            value = torch.as_tensor(value, device=old.device)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(f"a {type(value).__name__} cannot take the place of a tensor") from None
    new: Tensor = value if value.dtype == old.dtype and value.device == old.device else value.to(old)
    if new.shape != old.shape:
        try:
            new = new.expand(old.shape).clone()
        except RuntimeError:
            return new  # of another shape on purpose: the program may know what to do with it
    return new


def _indexed(old: Tensor, index: Any, value: Any) -> Tensor:
    new = old.clone()
    new[index] = value.to(old) if is_tensor(value) else value
    return new


def _part(value: Any, step: str | CodeType, names: dict[str, Any]) -> Any:
    try:
        if isinstance(value, dict):
            return value[_key(step, names)]
        return getattr(value, step) if isinstance(step, str) else value[eval(step, names)]
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"there is no {_word(step, names)} in the {type(value).__name__}: {error}") from None


def _key(step: str | CodeType, names: dict[str, Any]) -> Any:
    return step if isinstance(step, str) else eval(step, names)


def _word(step: str | CodeType, names: dict[str, Any]) -> str:
    return f".{step}" if isinstance(step, str) else f"[{eval(step, names)!r}]"


def _with(event: Event, old: Tensor, new: Tensor) -> Event:
    """Exchange a tensor wherever the call has it."""
    if event.phase is Phase.EXIT:
        return event._replace(output=exchange(event.output, {id(old): new}))
    args, kwargs = exchange((event.args, event.kwargs), {id(old): new})
    return event._replace(args=args, kwargs=kwargs)


def _with_key(event: Event, base: str, key: Any, value: Any) -> Event:
    if base == "kwargs":
        return event._replace(kwargs={**event.kwargs, key: value})
    raise UserError(f"{base}[{key!r}] is no tensor", "replace the whole: out = …")


def _whole(event: Event, base: str, value: Any) -> Event:
    if base == "out":
        return event._replace(output=value)
    if base == "kwargs":
        if not isinstance(value, dict):
            raise UserError("kwargs must stay a dictionary")
        return event._replace(kwargs=value)
    if len(event.args) == 1:
        return event._replace(args=(value,))
    return event._replace(args=value if isinstance(value, tuple) else (value,))
