from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layerstep._torch.tensors import is_tensor
from layerstep.arguments import Expr, File, Given
from layerstep.engine.session import Session
from layerstep.engine.values import value_of
from layerstep.errors import UserError
from layerstep.registry import command
from layerstep.tensors.files import write_tensors
from layerstep.tensors.format import human_bytes
from layerstep.tensors.shapes import shape_line, tensors_in
from layerstep.views import Notice

MOST_TENSORS = 10_000


@command(
    "save-tensor",
    group="keep",
    args=(Expr("X", what="a value"), File()),
    examples=(
        "save-tensor out out.npy",
        "save-tensor blocks.0.attn attn.safetensors",
        "save-tensor inp inp.safetensors",
    ),
)
def save_tensor(session: Session, given: Given) -> Notice:
    """Write a tensor, or all in a container, to a file.

    FILE ends in .safetensors or .npy; an existing file is replaced. All tensors of a container or a module go
    into one .safetensors file, by name; `compare X FILE:NAME` reads one of them.
    """
    what, file = given.x, given.file
    tensors = _named(value_of(session.prompt, what), what)
    path = Path(os.path.expanduser(file))
    write_tensors(tensors, path)
    told = shape_line(next(iter(tensors.values()))) if len(tensors) == 1 else f"{len(tensors)} tensors"
    return Notice(f"{told} in {file}, {human_bytes(path.stat().st_size)}", level="good")


def _named(value: Any, what: str) -> dict[str, torch.Tensor]:
    """The tensors of a value, each under the name by which the file will know it."""
    if is_tensor(value):
        return {what: value}
    if isinstance(value, nn.Module):
        leaves = [
            *value.named_parameters(remove_duplicate=False),
            *value.named_buffers(remove_duplicate=False),
        ]
    else:
        leaves = tensors_in(value, most=MOST_TENSORS + 1)
    if not leaves:
        raise UserError(f"no tensor in {what}", f"it is a {type(value).__name__}")
    if len(leaves) > MOST_TENSORS:
        raise UserError(f"more than {MOST_TENSORS:,} tensors in {what}", "name a part of it")
    named = {_key(place): tensor for place, tensor in leaves}
    return named if len(named) == len(leaves) else dict(leaves)


def _key(place: str) -> str:
    """`['a'][0].b` as a.0.b"""
    return re.sub(r"""\[(['"]?)(.*?)\1\]""", r".\2", place).strip(".")
