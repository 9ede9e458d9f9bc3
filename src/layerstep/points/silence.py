"""Why a point has not stopped."""

from __future__ import annotations

import ast
import inspect
import textwrap

from torch import nn

from layerstep._torch.compiling import graph_calls
from layerstep.engine.point import Point
from layerstep.engine.points import BreakAtOp, Catch, Edit
from layerstep.engine.session import Session
from layerstep.module_paths.models import Model
from layerstep.ops.silence import why_silent
from layerstep.source_lines.places import Place
from layerstep.source_lines.silence import why_line_silent
from layerstep.watchpoints.watchpoint import Watchpoint

__all__ = ["defined", "silence_of", "why_uncalled"]


def silence_of(session: Session, point: Point) -> str:
    """Why a point has not fired, in one line; empty if it has."""
    if point.hits or point.kind == "until":
        return ""
    if not point.enabled:
        return "disabled"
    if isinstance(point, Watchpoint):
        return point.silence()
    if isinstance(point.source_line, Place) and not (point.condition is not None and point.tried):
        return why_line_silent(session, point.source_line)
    if point.is_pending:
        return f"pending: {point.trouble or 'no model has run yet' + _hidden_in_compiled(session)}"
    if isinstance(point, Catch):
        unread = f"; a value cannot be read here: {point.unread}" if point.unread else ""
        return f"nothing caught so far{unread}"
    if point.condition is not None and point.tried:
        return f"reached {point.tried} times, the condition never held"
    if point.recomputed:
        return "never fired, because it was only recomputed in backward; `config recompute on` stops there"
    if isinstance(point, BreakAtOp):
        return why_silent(session, point)
    return _silence_of_modules(session, point)


def _silence_of_modules(session: Session, point: Point) -> str:
    if isinstance(point, Edit) and point.change.why_not:
        return f"never acted: {point.change.why_not}"
    modules = [(path, session.run.models.at(path)) for path, _ in point.targets[:50]]
    if point.phase.is_backward and session.backward_pass.graph.calls:
        reasons = [session.backward_pass.why_unseen(module) for _, module in modules if module is not None]
    else:
        reasons = [why_uncalled(session, module, path) for path, module in modules if module is not None]
    word = "acted" if isinstance(point, Edit) else "fired"
    if reasons and all(reasons):
        return f"never {word}, because {reasons[0]}"
    if session.run.models.main and session.run.models.main.forwards:
        return "not yet: no call since it was set" if isinstance(point, Edit) else "never fired"
    return f"never {word}: no forward yet"


def why_uncalled(session: Session, module: nn.Module, path: str) -> str:
    """What keeps this module's hooks from being run; empty if nothing does."""
    model = session.run.models.owner_of(module)
    kind = type(module).__name__
    if model is not None and (not_in_graph := _not_in_graph(model, module)):
        return not_in_graph
    if "forward" not in defined(type(module)):
        items = f"{path}.*"
        return f"{kind} has no forward of its own: it is never called, its items are; break at {items}"
    if _calls_past_hooks(type(module)):
        return f"{kind} overrides __call__: its hooks do not run, those of its children do"
    if model is None:
        return ""
    by_parent = _taken_by_parent(model, module)
    if by_parent:
        return by_parent
    if model.forwards == 0:
        return f"{model.name} has not been called yet"
    if model.compiled and not session.installation.is_eager and session.installation.taps.modules:
        return f"{model.name} is compiled and runs without hooks"
    return ""


def _hidden_in_compiled(session: Session) -> str:
    """Compiled functions that may have run a model where nothing could see it."""
    names = [str(each) for each in session.compiled]
    return f"; {', '.join(names[:3])}: compiled, its calls of modules are not seen" if names else ""


def _not_in_graph(model: Model, module: nn.Module) -> str:
    """A graph of torch.fx or torch.export calls the modules that its nodes name, and no others."""
    for path in model.names.paths_of(module):
        for length in range(path.count(".") + 1):
            head = ".".join(path.split(".")[:length])
            graph = model.names.module_at(head)
            targets = graph_calls(graph) if graph is not None else None
            inside = path[len(head) :].lstrip(".")
            if targets is None or inside in targets:
                continue
            owner = head or model.name
            below = any(target.startswith(inside + ".") for target in targets)
            advice = f"break at {path}.**" if below else f"break at {owner}, or at an op in it: break op:NAME"
            return f"{owner} is a traced graph that runs the ops of {inside} and never calls it; {advice}"
    return ""


def _calls_past_hooks(kind: type) -> bool:
    """Has it a `__call__` of its own that does not hand on to torch's?"""
    if kind.__call__ is nn.Module.__call__ or "__call__" not in defined(kind):
        return False
    try:
        return "super()" not in inspect.getsource(kind.__call__)
    except Exception:  # no source, or one that was edited since and is no Python now
        return False


def defined(kind: type) -> set[str]:
    """The names that a class of modules has of its own, torch's base aside."""
    return {name for base in kind.__mro__ if base not in (nn.Module, object) for name in base.__dict__}


def _taken_by_parent(model: Model, module: nn.Module) -> str:
    """The parent may read the weights itself or call `.forward` past the hooks: its source tells."""
    for path in model.names.paths_of(module):
        parent = model.names.parent_of(path)
        if parent is None:
            continue
        name, owner = path.rpartition(".")[2], type(parent).__name__
        if isinstance(parent, nn.MultiheadAttention) and name == "out_proj":
            return (
                f"{owner} reads the weights of {name} and never calls it; break at {path.rpartition('.')[0]}"
            )
        calls, direct, reads = _uses(type(parent), name)
        if calls:
            return ""
        if direct:
            return f"{owner}.forward calls {name}.forward(…), past the hooks; break at its children"
        if reads:
            return f"{owner}.forward uses {name}.{reads} itself and never calls {name}; break at {owner}"
    return ""


def _uses(kind: type, name: str) -> tuple[bool, bool, str]:
    """How a class uses `self.NAME` in its forward: calls it, calls its `.forward`, reads an attribute."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind.forward)))  # type: ignore[attr-defined]
    except Exception:  # no source, or one that was edited since and is no Python now
        return True, False, ""
    calls = direct = False
    reads = ""
    mentioned = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == name:
            mentioned = True
        if isinstance(node, ast.Call) and _is_child(node.func, name):
            calls = True
        elif isinstance(node, ast.Attribute) and _is_child(node.value, name):
            direct = direct or node.attr == "forward"
            reads = reads or (node.attr if node.attr in ("weight", "bias") else "")
    return calls or not mentioned, direct, reads


def _is_child(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.value, ast.Name)
