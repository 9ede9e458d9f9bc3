"""What commands return: a closed set of plain, frozen, JSON-able documents.

A command never prints. Each front end renders this set once, so that a new command
appears in the terminal, in pipes and in JSON without a line of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Column",
    "Fields",
    "Figure",
    "Group",
    "Level",
    "Node",
    "Notice",
    "Plot",
    "PlotKind",
    "Role",
    "Source",
    "Span",
    "Stack",
    "StackFrame",
    "Table",
    "TensorView",
    "Text",
    "Tree",
    "View",
]

Role = Literal["plain", "path", "type", "dim", "code", "good", "warn", "bad", "key"]
Level = Literal["info", "good", "warn", "error"]


class Figure(str):
    """A number as people read it, and the number itself: JSON carries that one, whole and with its unit."""

    value: float
    unit: str

    def __new__(cls, text: str, value: float, unit: str = "") -> Figure:
        made = super().__new__(cls, text)
        made.value, made.unit = value, unit
        return made


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line and the part it plays; renderers choose the colour."""

    text: str
    role: Role = "plain"


@dataclass(frozen=True, slots=True)
class Text:
    """Free text, kept as it is."""

    text: str
    is_printed: bool = False
    """The user's own line printed it: its colours are the user's."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One line from the debugger to the user."""

    text: str
    hint: str = ""
    level: Level = "info"


@dataclass(frozen=True, slots=True)
class TensorView:
    """The tensor line: shape first, then values, then memory."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    layout: str = ""
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    nan: int = 0
    inf: int = 0
    zero: int = 0
    count: int = 0
    sampled: int | None = None
    nbytes: int | None = None
    requires_grad: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fields:
    """A title line, then labelled values."""

    title: tuple[Span, ...]
    items: tuple[tuple[str, View], ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A table column; numbers align to the right."""

    name: str
    role: Role = "plain"
    right: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings, with a closing note."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One line of a tree and what hangs below it."""

    label: str
    kind: str = ""
    detail: str = ""
    mark: str = ""
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Tree:
    """A module tree."""

    root: Node
    note: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """Source lines with an arrow at the current one."""

    file: str
    first: int
    lines: tuple[str, ...]
    current: int | None = None
    title: str = ""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One module on the stack: who, with what, from where."""

    index: int
    path: str
    kind: str
    state: str
    inputs: str
    output: str
    location: str
    code: str
    selected: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """The modules that are running, innermost first."""

    frames: tuple[StackFrame, ...]
    note: str = ""


PlotKind = Literal["histogram", "line", "bar", "heatmap", "sparkline"]


@dataclass(frozen=True, slots=True)
class Plot:
    """Numbers to be drawn; a figure of itself in every front end.

    histogram: one row of counts in `values`, one more edges in `x`. line: a row for each line, `names` them,
    `x` the positions (0, 1, … if empty). bar: one row, `labels` name its bars. heatmap: the rows of the
    matrix, `names` label them and `labels` the columns. sparkline: one row. NaN is a gap; in a heatmap, a
    cell that is not finite is marked.
    """

    kind: PlotKind
    values: tuple[tuple[float, ...], ...]
    title: str = ""
    x: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    x_label: str = ""
    y_label: str = ""
    note: str = ""
    log: bool = False
    """The values by powers of ten; zero and less are then gaps. In a heatmap: the sizes, zero is blank."""
    cell: tuple[int, int] = (1, 1)
    """Of how many rows and columns of the whole each value of a heatmap is the mean."""


@dataclass(frozen=True, slots=True)
class Group:
    """Several views, one below the other."""

    views: tuple[View, ...]


View = Text | Notice | TensorView | Fields | Table | Tree | Source | Stack | Plot | Group
