from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from layerstep._torch import is_scripted
from layerstep.arguments import Given, Number, Path
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.module_paths.models import Model
from layerstep.registry import command
from layerstep.views import Group, Node, Tree, View

FEWEST_FOLDED = 3
"""So many equal neighbours are drawn once."""
MOST_MARKS = 24
"""A point at more modules than this is named below the tree instead of at each of them."""


@command(
    "tree",
    group="look",
    args=(Path(optional=True), Number("DEPTH", optional=True)),
    examples=("tree", "tree blocks.0", "tree 2"),
    only_looks=True,
)
def tree(session: Session, given: Given) -> View:
    """Draw the modules, their points, and where the run is.

    Equal neighbours are folded into one line. `tree PATH` begins at a module; a number limits the depth.
    """
    begin, depth = given.path, given.depth or 0
    if not begin and depth and session.run.models.at(given.typed) is not None:  # a module may be called 2
        begin, depth = given.typed, 0
    drawing = _Drawing(session, depth)
    if begin:
        path, module = session.run.models.find(begin)
        return Tree(drawing.node(module, path, begin, 1), drawing.note)
    models = [model for model in session.run.models if not model.is_helper] or list(session.run.models)
    if not models:
        raise UserError("no model has run yet", "`continue` starts the run")
    trees = tuple(
        Tree(drawing.node(root, _prefix(session, m), m.name, 1))
        for m in models
        if (root := m.root) is not None
    )
    last = Tree(trees[-1].root, drawing.note)
    return last if len(trees) == 1 else Group((*trees[:-1], last))


def _prefix(session: Session, model: Model) -> str:
    return model.name if session.run.models.are_several or model.is_helper else ""


_PLAIN = (bool, int, float, str, tuple)


def _walk(module: nn.Module) -> Iterator[nn.Module]:
    """A module and all below it, each once; ten times as quick as `modules()`."""
    waiting, seen = [module], {id(module)}
    while waiting:
        one = waiting.pop()
        yield one
        for child in one._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


def _size(parameter: Tensor) -> int:
    """How many elements; -1 for a lazy parameter, which has none yet."""
    return -1 if type(parameter) is not nn.Parameter and is_lazy(parameter) else parameter.numel()


def _settings(leaf: nn.Module) -> list[object]:
    """The plain attributes of a leaf; torch's own classes name theirs, which is quicker than to look."""
    names = getattr(type(leaf), "__constants__", None)
    values = [leaf.__dict__.get(name) for name in names] if names else leaf.__dict__.values()
    return [value for value in values if _is_plain(value)]


def _is_plain(value: object) -> bool:
    """Can it be compared by its value? In a tuple there may be anything."""
    return type(value) in _PLAIN and (type(value) is not tuple or all(map(_is_plain, value)))


class _Drawing:
    def __init__(self, session: Session, depth: int) -> None:
        self.depth = depth
        self.most = session.run.config.max_lines
        self.lines = 0
        self.marks: dict[int, list[str]] = {}
        self.notes: list[str] = []
        for point in session.points.shown:
            sign = ("●" if point.enabled else "○") + str(point.number)
            if len(point.targets) > MOST_MARKS:
                self.notes.append(f"{sign} is at {len(point.targets)} modules")
                continue
            for _, key in point.targets:
                self.marks.setdefault(key, []).append(sign)
        stack = session.run.pause.stack if session.run.pause is not None else []
        self.running = {id(frame.module) for frame in stack}
        self.here = id(stack[0].module) if stack else 0
        self.special = self.running | self._with_ancestors(session)
        self._looks: dict[int, int] = {}
        self._sizes: dict[int, dict[int, int]] = {}

    def _with_ancestors(self, session: Session) -> set[int]:
        """The modules that hold a point, themselves or below: they are not folded."""
        found = set()
        for point in session.points.shown:
            for path, key in point.targets if len(point.targets) <= MOST_MARKS else ():
                found.add(key)
                while path:
                    path = path.rpartition(".")[0]
                    found.add(id(session.run.models.at(path)))
        return found

    @property
    def note(self) -> str:
        cut = [f"cut at {self.most} lines; `tree PATH` or `tree DEPTH` shows less"]
        return "\n".join(self.notes + (cut if self.lines >= self.most else []))

    def node(self, module: nn.Module, path: str, label: str, level: int) -> Node:
        self.lines += 1
        children: list[Node] = []
        if (not self.depth or level <= self.depth) and not is_scripted(module):
            children = self._children(module, path, level)
        return Node(
            label,
            type(module).__name__,
            self._detail(module, is_leaf=not module._modules),
            self._mark(module),
            tuple(children),
        )

    def _children(self, module: nn.Module, path: str, level: int) -> list[Node]:
        named = [(name, child) for name, child in module._modules.items() if child is not None]
        nodes: list[Node] = []
        index = 0
        while index < len(named) and self.lines < self.most:
            run = self._run(named, index)
            name, child = named[index]
            label = f"{name}…{named[index + run - 1][0]}" if run > 1 else name
            node = self.node(child, f"{path}.{name}" if path else name, label, level + 1)
            if run > 1:
                node = Node(
                    node.label,
                    f"{run} × {node.kind}",
                    f"{node.detail} each".strip(),
                    node.mark,
                    node.children,
                )
            nodes.append(node)
            index += run
        return nodes

    def _run(self, named: list[tuple[str, nn.Module]], start: int) -> int:
        """How many neighbours from here look the same and have nothing to show of their own."""
        first = named[start][1]
        if id(first) in self.special:
            return 1
        end = start + 1
        while end < len(named) and self._is_like(named[end][1], first):
            end += 1
        return end - start if end - start >= FEWEST_FOLDED else 1

    def _is_like(self, module: nn.Module, first: nn.Module) -> bool:
        return id(module) not in self.special and self._look(module) == self._look(first)

    def _look(self, module: nn.Module) -> int:
        """A number that equal subtrees share: types, names, shapes of parameters, settings of leaves."""
        key = id(module)
        if key not in self._looks:
            look: list[object] = []
            sizes = self._sizes[key] = {}
            for part in _walk(module):
                look.append(type(part))
                look += list(part._modules.keys()) or _settings(part)  # TorchScript's cannot be iterated
                for parameter in part._parameters.values():
                    if parameter is not None:
                        sizes[id(parameter)] = size = _size(parameter)
                        look.append(size if size < 0 else parameter.shape)
            self._looks[key] = hash(tuple(look))
        return self._looks[key]

    def _sizes_of(self, module: nn.Module) -> dict[int, int]:
        """The size of each parameter of a subtree, a tied one once; out of what is known of its children."""
        key = id(module)
        if key not in self._sizes:
            own = module._parameters
            sizes = self._sizes[key] = {id(p): _size(p) for p in own.values() if p is not None} if own else {}
            for child in module._modules.values():
                if child is not None:
                    sizes.update(self._sizes_of(child))
        return self._sizes[key]

    def _detail(self, module: nn.Module, *, is_leaf: bool) -> str:
        sizes = self._sizes_of(module).values()
        count = "lazy" if min(sizes, default=0) < 0 else f"{sum(sizes):,}"
        extra = " ".join(module.extra_repr().split())[:60] if is_leaf else ""
        return "  ".join(part for part in ("" if count == "0" else count, extra) if part)

    def _mark(self, module: nn.Module) -> str:
        marks = list(self.marks.get(id(module), []))
        if id(module) in self.running:
            marks.append("← here" if id(module) == self.here else "← running")
        return " ".join(marks)
