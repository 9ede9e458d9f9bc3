from __future__ import annotations

import re

import torch

from layerstep.commands.inspect import one_tensor
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.tensors.grid import grid_of
from layerstep.tensors.observing import observing
from layerstep.tensors.present import tensor_view
from layerstep.tensors.shapes import shape_line
from layerstep.views import Group, Plot, View

MOST = (32, 72)  # rows and columns: a screen of 80 shows all of them

__all__ = ["without_log"]

_DIMS = re.compile(r"^(.*?)\s*(?:^|\s)(-?\d+)\s+(-?\d+)$", re.DOTALL)


@command(
    "heatmap",
    group="look",
    usage="[X] [ROWS COLUMNS] [--log]",
    examples=("heatmap out", "heatmap blocks.0.attn.qkv.weight", "heatmap out 2 1", "heatmap out --log"),
    complete="expression",
)
def heatmap(session: Session, rest: str) -> View:
    """Draw two dimensions of a tensor as a heatmap.

    The last two, or those that two numbers after X name: `heatmap out 1 2`. The other dimensions are taken
    at 0; index X to see more of them. A matrix larger than the screen is drawn by the means of blocks, and
    a block with a NaN or an infinity in it is marked. If both signs occur, zero is in the middle of the
    scale. `--log` shades by powers of ten: small values are seen next to large ones.
    """
    rest, log = without_log(rest)
    text, dims = _arguments(rest)
    name, tensor = one_tensor(session, text)
    if dims is not None:
        _check(tensor, dims)
    with observing():
        grid = grid_of(tensor, dims, most=MOST)
    title = f"{name}  {grid.place}".strip()
    across, down = (f"dimension {dim}" if tensor.dim() > 1 else "" for dim in _dims(tensor, dims)[::-1])
    plot = Plot(
        "heatmap", grid.rows, title, x_label=across, y_label=down, note=grid.note, log=log, cell=grid.block
    )
    return Group((tensor_view(tensor, limit=session.config.sample_above), plot))


def without_log(rest: str) -> tuple[str, bool]:
    """The line without `--log`, and whether it had it."""
    kept = re.sub(r"(?:^|\s)--log(?=\s|$)", "", rest)
    return kept.strip(), kept != rest


def _dims(tensor: torch.Tensor, dims: tuple[int, int] | None) -> tuple[int, int]:
    rank = max(tensor.dim(), 2)
    return (rank - 2, rank - 1) if dims is None else (dims[0] % rank, dims[1] % rank)


def _arguments(rest: str) -> tuple[str, tuple[int, int] | None]:
    """The expression, and two numbers at its end as dimensions."""
    match = _DIMS.match(rest)
    return (match[1], (int(match[2]), int(match[3]))) if match else (rest, None)


def _check(tensor: torch.Tensor, dims: tuple[int, int]) -> None:
    rank = tensor.dim()
    if any(not -rank <= dim < rank for dim in dims):
        raise BadArguments(
            f"{shape_line(tensor)} has no dimension {next(d for d in dims if not -rank <= d < rank)}"
        )
    if dims[0] % rank == dims[1] % rank:
        raise BadArguments("the two dimensions must differ")
