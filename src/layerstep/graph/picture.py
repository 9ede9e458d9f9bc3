"""What is drawn of a graph: the calls down to a depth, and the edges between them.

Operations between modules are left out unless they are asked for: an edge goes through them. One stays, as a
join, if it brings several values together that several others read; else each would be tied to each.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from layerstep.errors import UserError
from layerstep.graph.folding import folds_of
from layerstep.graph.model_graph import Flow, ModelGraph, ModuleCall, Operation, TensorKind

__all__ = ["Box", "Edge", "Frame", "Picture", "picture_of"]


@dataclass(frozen=True, slots=True)
class Box:
    """A module call, an operation, an input or an output."""

    key: str
    role: str
    """`module`, `op`, `join`, `input` or `output`."""
    name: str
    kind: str
    frame: int
    """The frame that it is in: the index of the call."""
    outputs: tuple[TensorKind, ...] = ()
    parameters: int = 0
    repeats: int = 1
    number: int = 1
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """A module call that is drawn open, around what is in it."""

    call: int
    parent: int
    name: str
    kind: str
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that goes from one box to another."""

    source: str
    target: str
    tensor: TensorKind


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes in the order in which they ran."""

    title: str
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    """The outermost first."""
    edges: tuple[Edge, ...]
    calls: int
    """How many module calls this stands for."""
    by: str = ""


def picture_of(graph: ModelGraph, path: str = "", *, depth: int = 1, ops: bool = False) -> Picture:
    """The graph down to a depth, of the model or of the first call of the module at a path."""
    root = graph.calls[0]
    if path and path != root.path:
        found = next((call for call in graph.calls if call.path == path), None)
        if found is None:
            raise UserError(f"{path} is not called in this forward", "`graph --depth 9` shows what is")
        root = found
    return _Drawing(graph, root, depth, ops).picture()


class _Drawing:
    def __init__(self, graph: ModelGraph, root: ModuleCall, depth: int, ops: bool) -> None:
        self._graph, self._root, self._ops = graph, root, ops
        self._owner: dict[int, int] = {}
        """The box that a call is drawn in; -1 for those that are open, and around what is asked for."""
        self._open: list[int] = []
        self._children: dict[int, list[ModuleCall]] = defaultdict(list)
        for call in graph.calls:
            self._children[call.parent].append(call)
        self._spread(depth)
        self._folds = folds_of(graph, self._children, self._open)
        self._consumers = self._count_consumers()
        self._shown: dict[str, Box] = {}
        self._order: dict[str, tuple[int, int, int]] = {}
        self._edges: dict[tuple[str, str], TensorKind] = {}

    def _spread(self, depth: int) -> None:
        levels = {self._root.index: 0}
        for call in self._graph.calls[self._root.index :]:
            if call.index != self._root.index:
                if call.parent not in levels:
                    continue
                levels[call.index] = levels[call.parent] + 1
            above = self._owner.get(call.parent, -1) if call is not self._root else -1
            is_open = call is self._root or levels[call.index] < depth
            if above < 0 and is_open and (self._has_parts(call) or call is self._root):
                self._open.append(call.index)
                above = -1
            elif above < 0:
                above = call.index
            self._owner[call.index] = above

    def _has_parts(self, call: ModuleCall) -> bool:
        is_own = self._ops and not call.package.startswith("torch.nn.")
        return bool(self._children.get(call.index)) or (is_own and call.end > call.start)

    def _is_outside(self, operation: Operation) -> bool:
        return self._root.parent >= 0 and operation.call not in self._owner

    def _target(self, operation: Operation) -> str:
        """Where an operation is read: the box that it is in, or itself."""
        owner = self._owner.get(operation.call, -1)
        if owner >= 0:
            return f"c{self._folds.call(owner)}"
        return f"o{self._folds.operation(operation.index)}"

    def _count_consumers(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = defaultdict(set)
        for operation in self._graph.operations:
            target = self._target(operation) if not self._is_outside(operation) else "output"
            for flow in operation.reads:
                for source in map(self._folds.operation, flow.sources):
                    if target != f"o{source}":  # the next of a chain that is folded
                        found[source].add(target)
        return found

    def picture(self) -> Picture:
        places: dict[int, frozenset[str]] = {}
        for operation in self._graph.operations:
            places[operation.index] = self._place(operation, places)
        for index, owner in self._owner.items():
            if index == owner:
                self._show_call(self._graph.calls[index], places)
        if self._root.parent >= 0:
            self._show_output(places)
        boxes = sorted(self._shown.values(), key=lambda box: self._order[box.key])
        at = {box.key: number for number, box in enumerate(boxes)}
        edges = [Edge(*pair, tensor) for pair, tensor in self._edges.items() if at[pair[0]] < at[pair[1]]]
        calls = sum(index != self._root.index for index in self._owner)
        title = self._root.path if self._root.parent >= 0 else self._graph.model
        return Picture(title, tuple(boxes), self._frames(), tuple(edges), calls, self._graph.by)

    def _place(self, operation: Operation, places: dict[int, frozenset[str]]) -> frozenset[str]:
        """The boxes that what an operation makes comes from."""
        if self._is_outside(operation):
            return self._outside(operation)
        owner = self._owner.get(operation.call, -1)
        sources = self._sources(operation.reads, places)
        if owner >= 0:
            key = f"c{self._folds.call(owner)}"
            start = self._graph.calls[owner].start
            self._connect([each for each in operation.reads if _is_from_before(each, start)], key, places)
            return frozenset((key,))
        role = operation.role
        first = self._folds.operation(operation.index)
        joins = len(sources) > 1 and len(self._consumers[first]) > 1
        is_join = joins or f"o{first}" in self._shown
        if role in ("input", "output") or (self._ops and role == "op") or is_join:
            return self._show_operation(operation, places)
        return frozenset(sources)

    def _show_operation(self, operation: Operation, places: dict[int, frozenset[str]]) -> frozenset[str]:
        first = self._folds.operation(operation.index)
        key = f"o{first}"
        if first == operation.index:
            role = operation.role if operation.role != "op" or self._ops else "join"
            if operation.role == "pass":
                role = "join"
            name = operation.name or "join"
            frame = operation.call if operation.call >= 0 else self._root.index
            box = Box(key, role, name, "", frame, operation.outputs)
            self._add(box, (operation.index, 1, 0))
        self._connect(operation.reads, key, places)
        return frozenset((key,))

    def _outside(self, operation: Operation) -> frozenset[str]:
        """What comes from around the module that is asked for: one box for each call that made it."""
        readers = self._consumers[self._folds.operation(operation.index)] - {"output"}
        if not readers and not any(operation.index in each.sources for each in self._root.inputs):
            return frozenset()
        call = operation.call
        name = self._graph.calls[call].path if call > 0 else operation.name
        key = f"o{operation.index}"
        box = Box(key, "input", name or "input", "", self._root.index, operation.outputs)
        self._add(box, (operation.index, 1, 0))
        return frozenset((key,))

    def _show_call(self, call: ModuleCall, places: dict[int, frozenset[str]]) -> None:
        first = self._folds.call(call.index)
        key = f"c{first}"
        if first == call.index:
            run = self._folds.runs.get(call.index, [call])
            box = Box(
                key,
                "module",
                _name_of(run),
                call.kind,
                call.parent,
                _outputs_of(run),
                sum(each.parameters for each in {each.path: each for each in run}.values()),
                len(run),
                call.number,
                max((each.value for each in run if each.value is not None), default=None),
            )
            self._add(box, (call.start, 0, call.index))
        self._connect(call.inputs, key, places)

    def _show_output(self, places: dict[int, frozenset[str]]) -> None:
        """What the module that is asked for gives to what is around it."""
        end = self._root.end
        inside = range(self._root.start, end)
        for operation in self._graph.operations[end:]:
            for flow in operation.reads:
                from_here = tuple(each for each in flow.sources if each in inside)
                if from_here:
                    self._add(Box("out", "output", "output", "", self._root.index), (end, 2, 0))
                    self._connect((Flow(from_here, flow.tensor),), "out", places)

    def _frames(self) -> tuple[Frame, ...]:
        frames = []
        for index in self._open:
            call = self._graph.calls[index]
            if self._folds.call(index) != index:
                continue
            run = self._folds.runs.get(index, [call])
            parent = call.parent if index != self._root.index else -1
            frames.append(Frame(index, parent, _name_of(run), call.kind, len(run)))
        return tuple(frames)

    def _add(self, box: Box, order: tuple[int, int, int]) -> None:
        frame = self._folds.call(box.frame)
        self._shown.setdefault(box.key, box if frame == box.frame else replace(box, frame=frame))
        self._order.setdefault(box.key, order)

    def _connect(self, flows: list[Flow] | tuple[Flow, ...], key: str, places: Places) -> None:
        for flow in flows:
            for source in self._sources((flow,), places):
                if source != key:
                    self._edges.setdefault((source, key), flow.tensor)

    @staticmethod
    def _sources(flows: tuple[Flow, ...], places: Places) -> set[str]:
        return {place for flow in flows for source in flow.sources for place in places[source]}


Places = dict[int, frozenset[str]]


def _is_from_before(flow: Flow, start: int) -> bool:
    return any(source < start for source in flow.sources)


def _outputs_of(run: list[ModuleCall]) -> tuple[TensorKind, ...]:
    """What a run returns; a first size that differs is -1."""
    found = []
    for kinds in zip(*(call.outputs for call in run), strict=True):
        first = kinds[0]
        if any(kind.shape != first.shape for kind in kinds):
            first = replace(first, shape=(-1, *first.shape[1:]))
        found.append(first)
    return tuple(found)


def _name_of(run: list[ModuleCall]) -> str:
    """`blocks.0…11` for a run of blocks; the path of one that is called again and again."""
    first, last = run[0].path, run[-1].path
    if first == last:
        return first
    above, _, name = first.rpartition(".")
    above_last, _, name_last = last.rpartition(".")
    return f"{first}…{name_last}" if above == above_last and name else f"{first}…{last}"
