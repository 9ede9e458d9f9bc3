from __future__ import annotations

import torch

from layerstep.arguments import Expr, Flag, Given, Number
from layerstep.engine.session import Session
from layerstep.engine.values import one_tensor
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.tensors.grid import grid_of
from layerstep.tensors.observing import observing
from layerstep.tensors.present import tensor_view
from layerstep.tensors.shapes import shape_line
from layerstep.views import Group, Plot, View

MOST = (32, 72)  # rows and columns: a screen of 80 shows all of them


@command(
    "heatmap",
    group="look",
    args=(
        Expr("X", optional=True),
        Number("ROWS COLUMNS", least=None, count=2, optional=True, name="dims"),
        Flag("log"),
    ),
    examples=("heatmap out", "heatmap blocks.0.attn.qkv.weight", "heatmap out 2 1", "heatmap out --log"),
)
def heatmap(session: Session, given: Given) -> View:
    """Draw two dimensions of a tensor as a heatmap.

    It draws the last two dimensions; `heatmap out 1 2` draws others. The other dimensions are taken at index
    0; index X to see more of them. If the matrix is larger than the screen, each cell is the mean of a block,
    and a block with a NaN or an Inf in it is marked. If both signs occur, zero is in the middle of the scale.
    `--log` shades by powers of ten, so that small values show next to large ones.
    """
    dims: tuple[int, int] | None = given.dims
    name, tensor = one_tensor(session.prompt, given.x)
    if dims is not None:
        _check(tensor, dims)
    with observing():
        grid = grid_of(tensor, dims, most=MOST)
    title = f"{name}  {grid.place}".strip()
    across, down = (f"dimension {dim}" if tensor.dim() > 1 else "" for dim in _dims(tensor, dims)[::-1])
    plot = Plot(
        "heatmap",
        grid.rows,
        title,
        x_label=across,
        y_label=down,
        note=grid.note,
        log=given.log,
        cell=grid.block,
    )
    return Group((tensor_view(tensor, limit=session.run.config.sample_above), plot))


def _dims(tensor: torch.Tensor, dims: tuple[int, int] | None) -> tuple[int, int]:
    rank = max(tensor.dim(), 2)
    return (rank - 2, rank - 1) if dims is None else (dims[0] % rank, dims[1] % rank)


def _check(tensor: torch.Tensor, dims: tuple[int, int]) -> None:
    rank = tensor.dim()
    if any(not -rank <= dim < rank for dim in dims):
        raise BadArguments(
            f"{shape_line(tensor)} has no dimension {next(d for d in dims if not -rank <= d < rank)}"
        )
    if dims[0] % rank == dims[1] % rank:
        raise BadArguments("the two dimensions must differ")
