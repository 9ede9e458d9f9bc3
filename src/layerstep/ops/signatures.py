"""What the arguments of an operation are called: by its schema, by its Python signature, or by neither."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from layerstep._torch.operators import arguments_of, schema_of
from layerstep.calls.operations import name_of, plain_name

__all__ = ["named_arguments"]

_BY_HAND = {"getitem": ("self", "index"), "setitem": ("self", "index", "value"), "type": ("self", "dtype")}


def named_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The arguments that were given, each with its name; a number where that is not known."""
    names = _from_schema(func, args, kwargs) or _from_python(func, args, kwargs)
    if names is None:
        names = _from_aten(func, args, kwargs)
    if names is None:
        names = [(str(place), value) for place, value in enumerate(args)] + list(kwargs.items())
    return names


def _from_schema(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]] | None:
    """An aten operator knows its own schema."""
    if schema_of(func) is None:
        return None
    names = [argument.name for argument in arguments_of(func)]
    return [*zip(names, args, strict=False), *kwargs.items()]


def _from_python(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]] | None:
    """A function that is written in Python; one that takes `*args` says nothing."""
    if not inspect.isfunction(func):
        return None
    try:
        signature = inspect.signature(func)
        bound = signature.bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(signature.parameters[name].kind in loose for name in bound):
        return None
    return list(bound.items())


def _from_aten(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]] | None:
    """A function in C has the arguments of the aten operator of its name; of several, the first that fits."""
    name = plain_name(name_of(func))
    if name in _BY_HAND and len(args) <= len(_BY_HAND[name]):
        return [*zip(_BY_HAND[name], args, strict=False), *kwargs.items()]
    for given in (kwargs, {}):  # some functions take more than their operator does
        for names, kinds in _overloads(name):
            found = _fit(names, kinds, args, given)
            if found is not None:
                return found if given else [*found, *kwargs.items()]
    if inspect.ismethoddescriptor(func) and args:
        rest = [(str(place), value) for place, value in enumerate(args[1:], start=1)]
        return [("self", args[0]), *rest, *kwargs.items()]
    return None


@functools.cache
def _overloads(name: str) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    if packet is None:
        return ()
    found = []
    for overload in packet.overloads():
        arguments = [each for each in arguments_of(getattr(packet, overload)) if not each.is_out]
        found.append((tuple(a.name for a in arguments), tuple(str(a.type) for a in arguments)))
    return tuple(found)


def _fit(
    names: tuple[str, ...], kinds: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Any]] | None:
    """The arguments under these names; None if they cannot be this overload's."""
    given = _gathered(kinds, args)
    words = {"input": "self"} if "self" in names and "input" not in names else {}
    by_name = {words.get(key, key): value for key, value in kwargs.items()}
    if len(given) > len(names) or any(key not in names[len(given) :] for key in by_name):
        return None
    found = [*zip(names, given, strict=False), *by_name.items()]
    return found if all(_suits(kinds[names.index(name)], name, value) for name, value in found) else None


def _gathered(kinds: tuple[str, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`x.view(2, 3)` gives a list of numbers one by one."""
    for place, kind in enumerate(kinds):
        if kind in ("List[int]", "List[SymInt]") and len(args) > place and _is_size(args[place]):
            numbers = [value for value in args[place:] if _is_size(value)]
            return (*args[:place], numbers, *args[place + len(numbers) :])
    return args


def _is_size(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


_KINDS: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor,),
    "List[Tensor]": (list, tuple),
    "int": (int, torch.SymInt),
    "SymInt": (int, torch.SymInt),
    "float": (float, int),
    "bool": (bool,),
    "str": (str,),
    "number": (int, float, complex, torch.SymInt, torch.SymFloat),
    "Scalar": (int, float, complex),
    "List[int]": (list, tuple, int),
    "List[SymInt]": (list, tuple, int),
}
_WORDS = {torch.dtype: "dtype", torch.device: "device", torch.layout: "layout"}
"""A schema calls these `int`: they suit the argument of their name. Of types not listed any value suits."""


def _suits(kind: str, name: str, value: Any) -> bool:
    if type(value) in _WORDS:
        return name == _WORDS[type(value)]
    if value is None or isinstance(value, torch.memory_format):
        return True
    wanted = _KINDS.get(kind.removeprefix("Optional[").removesuffix("]") if "Optional" in kind else kind)
    return wanted is None or isinstance(value, wanted)
