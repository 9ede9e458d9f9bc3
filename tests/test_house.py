"""Claims of the architecture that hold for every file, read from the syntax trees of the sources."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import layerstep
from layerstep.errors import MissingExtra

SOURCE = Path(layerstep.__file__).parent
PATHS = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
Trees = dict[str, ast.Module]
pytestmark = pytest.mark.xdist_group("house")  # one process parses the sources, which takes 2 s


@pytest.fixture(scope="module")
def trees() -> Trees:
    return {path: ast.parse((SOURCE / path).read_text()) for path in PATHS}


BY_CONVENTION = {
    # The tables of a module, which every tool reads: `named_parameters()` is slower and leaves out aliases.
    "_parameters",
    "_buffers",
    "_modules",
    # Base classes in public files of torch.nn, which have no other name.
    "_ConvNd",
    "_BatchNorm",
    "_InstanceNorm",
    "_NormBase",
    "_MaxPoolNd",
    "_AvgPoolNd",
    "_Loss",
    # Python's own.
    "_fields",
    "_replace",
    "_asdict",
    "_getframe",
    "_current_frames",
    "_exit",
}
ELSEWHERE = {
    # Progress bars of tqdm and rich: neither has a way to hide a bar and show it again.
    "frontends/bars.py": {
        "_console",
        "_instances",
        "_live",
        "_live_render",
        "_live_stack",
        "_lock",
        "_shape",
    },
    # A figure of our own: the public functions of plotext draw on one figure, which is the program's.
    "render/chart.py": {"_limit_size"},
    # What Python's Process objects hand to their process.
    "process/workers.py": {"_config"},
    # Threads that Python did not start, or whose function it does not tell.
    "engine/threads.py": {"_DummyThread"},
    "side_effects/random_streams.py": {"_count", "_target", "_inst", "_bit_generator"},
    # The streams behind the functions of `random` and `np.random`.
    "side_effects/stream_memory.py": {"_inst", "_rand"},
    # argparse tells its options in no other way.
    "frontends/completion.py": {"_actions"},
    # `version_of` moves to `_torch/tensors.py`, where there is one already.
    "side_effects/guard.py": {"_version"},
    "tensors/observing.py": {"_version"},
}
KERNELS = ("torch.ops.", "aten.", "_aten.")
"""`aten._softmax` is the name of a kernel, not of a Python API."""


def dotted(node: ast.AST) -> str:
    """`torch.nn.Module` of an expression that is only names; a call or an index in it is an empty name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(parts)])


def private_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of each private attribute of another object, and of each private import."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            if dotted(node.value) not in ("self", "cls") and not dotted(node).startswith(KERNELS):
                names = [node.attr]
        elif isinstance(node, ast.Import):
            names = [part for each in node.names for part in each.name.split(".")[1:]]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(each.name for each in node.names)]
        elif isinstance(node, ast.Call) and dotted(node.func) in ("getattr", "hasattr", "setattr"):
            names = [each.value for each in node.args[1:2] if isinstance(each, ast.Constant)]
        yield from (
            (node.lineno, name) for name in names if name.startswith("_") and not name.startswith("__")
        )


def defined(tree: ast.AST) -> set[str]:
    """The names that a file gives to functions, classes, variables and attributes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if dotted(node.value) in ("self", "cls") else set()
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_a_file_uses_no_private_name_that_it_does_not_define(trees: Trees) -> None:
    """So private names of torch occur in `_torch/` only, where each has its fallback."""
    found = []
    for path in (path for path in PATHS if not path.startswith("_torch/")):
        if uses := list(private_uses(trees[path])):
            allowed = BY_CONVENTION | ELSEWHERE.get(path, set()) | defined(trees[path]) | {"_torch"}
            found += [f"{path}:{line}: {name}" for line, name in uses if name not in allowed]
    assert not found, "\n".join(found)


REGISTERS = ("register_forward_", "register_full_backward_", "register_backward_hook", "register_module_")
TABLES = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}
MODULES = {"module", "model", "layer", "part", "root", "child", "inner", "target", "twin"}
"""What this code calls a module, to tell `module.forward = f` from `call.forward = 3`."""


def put_on_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of each use of a hook's register function or table, and of each new forward."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (node.attr.startswith(REGISTERS) or node.attr in TABLES):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, each.name) for each in node.names if each.name.startswith(REGISTERS))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if node.attr == "forward" and dotted(node.value).rpartition(".")[2] in MODULES:
                yield node.lineno, f"{dotted(node)} ="
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and is_forward(node):
            yield node.lineno, "__dict__['forward'] ="


def is_forward(node: ast.Subscript) -> bool:
    return dotted(node.value).endswith("__dict__") and getattr(node.slice, "value", "") == "forward"


def test_only_taps_put_anything_on_a_module(trees: Trees) -> None:
    """`_torch/` may look into the tables of hooks, but registers none."""
    found = {
        (path, line): name
        for path in PATHS
        for line, name in put_on_modules(trees[path])
        if not (path.startswith("_torch/") and name in TABLES)
    }
    assert {path for path, _ in found} == {"hooks/taps.py", "hooks/temporary.py"}, found


@pytest.mark.parametrize("package", ["views", "render"])
def test_views_are_rendered_without_torch(package: str) -> None:
    """A front end in another process needs no torch, which takes a second to import."""
    files = [path for path in PATHS if path.split("/")[0].removesuffix(".py") == package]
    names = ["layerstep." + path.removesuffix(".py").replace("/", ".") for path in files]
    script = f"import {', '.join(names)}, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_tensors_are_measured_without_a_session(trees: Trees) -> None:
    """What measures tensors knows neither the debugger nor a feature, so that anything may call it."""
    below = {"_torch", "views", "errors", "visible", "files", "config", "documentation", "imports", "tensors"}
    for path in (path for path in PATHS if path.startswith("tensors/")):
        named = [node.module or "" for node in ast.walk(trees[path]) if isinstance(node, ast.ImportFrom)]
        ours = {name.split(".")[1] for name in named if name.startswith("layerstep.")}
        assert ours <= below, path


def module_of(path: str) -> str:
    return "layerstep." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.AST) -> set[str]:
    """The modules of layerstep that a file names: at its top, under `TYPE_CHECKING`, and in functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            longer = {f"{node.module}.{each.name}" for each in node.names}
            names |= longer & MODULES_OF_OURS or {node.module}
    return names & MODULES_OF_OURS


MODULES_OF_OURS = {module_of(path) for path in PATHS}


def test_no_files_import_each_other_in_a_circle(trees: Trees) -> None:
    """An import for types counts too: two files that name each other can only be understood together."""
    graph = {module_of(path): imported(tree) - {module_of(path)} for path, tree in trees.items()}
    assert graph["layerstep.engine.session"] > {"layerstep.engine.run", "layerstep.engine.points"}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_every_folder_has_a_place_in_the_order_of_imports() -> None:
    """And every feature is in all three contracts: a folder that none names may import anything."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())
    layers, no_screen, apart = project["tool"]["importlinter"]["contracts"]
    levels = [re.findall(r"layerstep\.(\w+)", level) for level in layers["layers"]]
    folders = {path.split("/")[0] for path in PATHS if "/" in path}
    assert folders <= {room for level in levels for room in level}, "add it to `layers` in pyproject.toml"
    features = next({f"layerstep.{room}" for room in level} for level in levels if "watchpoints" in level)
    assert features == set(apart["modules"]) and features <= set(no_screen["source_modules"])


def test_the_parts_of_the_engine_do_not_know_the_session(trees: Trees) -> None:
    """They are given what they need; the session is where they are put together."""
    users = [path for path, tree in trees.items() if "layerstep.engine.session" in imported(tree)]
    assert users and not [path for path in users if path.startswith("engine/")]


def test_no_frame_is_found_by_counting_calls(trees: Trees) -> None:
    """A function may ask for its own frame or its caller's. Others change when a function is extracted."""
    for path, tree in trees.items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
        depths = [call.args[0] for call in calls if dotted(call.func).rpartition(".")[2] == "_getframe"]
        far = [each for each in depths if not (isinstance(each, ast.Constant) and each.value <= 1)]
        assert not far, (path, far[0].lineno)


def test_files_are_small_and_name_what_is_public(trees: Trees) -> None:
    for name, tree in trees.items():
        path = Path(name)
        assert len((SOURCE / path).read_text().splitlines()) <= 400, f"split {path} along a real seam"
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        long = [f.name for f in functions if f.end_lineno - f.lineno > 60]  # type: ignore[operator]
        assert not long, path
        if path.parent.name != "commands" and path.name not in ("__init__.py", "__main__.py", "script.py"):
            try:
                module = importlib.import_module(module_of(name))
            except MissingExtra:
                continue
            assert all(hasattr(module, each) for each in module.__all__), path
            assert inspect.getdoc(module), path


def test_a_name_that_a_module_gives_out_is_used(trees: Trees) -> None:
    """Vulture, in `make lint`, finds the other names that are used nowhere."""
    used, given = set(layerstep.__all__), []
    for path, tree in trees.items():
        # registered by their decorators, or imported by programs and pytest
        exports = Path(path).parent.name in ("exports", "rules", "probes", "integrations", "sinks")
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                    used.add(name)
                case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)) if not exports:
                    given += [(path, ast.literal_eval(name)) for name in names]
    assert len(given) > 500
    assert [each for each in given if each[1] not in used] == []
