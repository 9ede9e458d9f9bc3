"""What torch's own operators say about themselves. Seen on torch 2.13.0."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["arguments_of", "given_arguments", "is_composite", "packet_of", "schema_of", "written_arguments"]


def schema_of(func: Any) -> Any:
    """The schema of a kernel's operator; None for a Python function or an operator of higher order."""
    return getattr(func, "_schema", None)


def arguments_of(func: Any) -> list[Any]:
    """The arguments that an operator's schema declares. Fallback: none."""
    schema = schema_of(func)
    return list(schema.arguments) if schema is not None else []


@functools.cache
def written_arguments(func: Any) -> tuple[tuple[int, Any], ...]:
    """The arguments that a kernel writes by its schema, each with its position.

    A schema can leave out a write: batch norm's does not declare its running statistics.
    """
    return tuple(
        (place, each)
        for place, each in enumerate(arguments_of(func))
        if each.alias_info is not None and each.alias_info.is_write
    )


def given_arguments(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any, bool]]:
    """The name and value of each argument that a call gives, and whether the kernel writes there."""
    written = {place for place, _ in written_arguments(func)}
    for place, argument in enumerate(arguments_of(func)):
        if place < len(args):
            yield argument.name, args[place], place in written
        elif argument.name in kwargs:
            yield argument.name, kwargs[argument.name], place in written


def packet_of(func: Any) -> Any:
    """`aten.add` of `aten.add.Tensor`; None for an operator of higher order."""
    return getattr(func, "_overloadpacket", None)


def is_composite(func: Any) -> bool:
    """Does torch compute this operator by calling others?"""
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))
