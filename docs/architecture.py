"""The parts of the architecture page that are read from the source: the order, the sizes, the files."""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["PARTS"]

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "layerstep"
WIDTH = 100
HUB = "layerstep.engine.session"


def contract() -> dict[str, list[str]]:
    """The import contract in pyproject.toml that orders the rooms."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for each in project["tool"]["importlinter"]["contracts"]:
        if each["type"] == "layers":
            return dict(each)
    raise LookupError("pyproject.toml has no contract of type `layers`")


def layers() -> list[list[str]]:
    """The rooms that exist, from top to bottom; those on one level are together."""
    levels = []
    for line in contract()["layers"]:
        names = line.replace("|", " ").replace(":", " ").replace("(", " ").replace(")", " ").split()
        rooms = [name.removeprefix("layerstep.") for name in names]
        levels.append([room for room in rooms if is_folder(room) or (SOURCE / f"{room}.py").exists()])
    return levels


def is_folder(room: str) -> bool:
    return (SOURCE / room / "__init__.py").exists()


def shown(room: str) -> str:
    return f"{room}/" if is_folder(room) else room


def diagram() -> str:
    """The rooms as text, level by level: each may import what is drawn below its own level."""
    lines = []
    for number, rooms in enumerate(layers(), 1):
        for room in rooms:
            level = f"{number:2}" if room == rooms[0] else "  "
            lines.append(f"{level}  {shown(room):18}{gist(room)}".rstrip())
    picture = "\n".join(lines)
    return f"```text\n{picture}\n```"


def gist(room: str) -> str:
    """What a room says about itself, as far as it fits on the line."""
    text = summary(SOURCE / room / "__init__.py" if is_folder(room) else SOURCE / f"{room}.py")
    sentence, room_left = text.partition(". ")[0].removesuffix("."), WIDTH - 22
    if len(sentence) > room_left:
        sentence = sentence.partition(": ")[0]
    return textwrap.shorten(sentence, room_left, placeholder=" …")


def imports_of(path: Path) -> set[str]:
    """The modules of layerstep that a file imports, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in below if is_module(name)} or {node.module}
    return {name for name in found if name.startswith("layerstep.")}


def is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def files_of(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py")) if is_folder(room) else [SOURCE / f"{room}.py"]


def rounded(paths: list[Path]) -> str:
    """Lines to the next hundred: a page that named each line would be out of date every day."""
    lines = sum(len(path.read_text().splitlines()) for path in paths)
    return f"{max(100, round(lines, -2)):,}"


def sizes() -> str:
    """Files and lines for each folder, and how much hangs on the session."""
    rooms = [room for level in layers() for room in level]
    rows = ["| folder | files | lines, about |", "| --- | --: | --: |"]
    for room in filter(is_folder, rooms):
        files = files_of(room)
        rows.append(f"| `{room}/` | {len(files)} | {rounded(files)} |")
    single = sorted(SOURCE.glob("*.py"))
    rows.append(f"| files in no folder | {len(single)} | {rounded(single)} |")
    everything = sorted(SOURCE.rglob("*.py"))
    rows.append(f"| all | {len(everything)} | {rounded(everything)} |")
    users = [path for path in everything if HUB in imports_of(path)]
    by_commands = sum("commands" in path.relative_to(SOURCE).parts for path in users)
    used = imports_of(SOURCE.parent.joinpath(*HUB.split(".")).with_suffix(".py"))
    hub = (
        f"`{HUB.removeprefix('layerstep.')}` is imported by {len(users)} files, {by_commands} of them "
        f"commands. It imports {len(used)} modules of layerstep."
    )
    return "\n".join(rows) + f"\n\n{hub}"


def summary(path: Path) -> str:
    """The first line of a file's docstring, else the summaries of what it registers, else its names."""
    tree = ast.parse(path.read_text())
    if text := ast.get_docstring(tree):
        return text.partition("\n")[0]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if lines := [(ast.get_docstring(each) or "").partition("\n")[0] for each in functions if registers(each)]:
        return " ".join(lines)
    return f"Parts of other commands: {', '.join(f'`{name}`' for name in exported(tree))}."


def registers(function: ast.FunctionDef) -> bool:
    calls = [each.func for each in function.decorator_list if isinstance(each, ast.Call)]
    return any(isinstance(each, ast.Name) and each.id in ("command", "export", "rule") for each in calls)


def exported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from ast.literal_eval(node.value)


def table(paths: list[Path]) -> str:
    rows = [f"| `{path.name}` | {summary(path).replace('|', chr(92) + '|')} |" for path in paths]
    return "\n".join(["| file | |", "| --- | --- |", *rows])


def files() -> str:
    """Every folder with its files, in the order of the diagram."""
    out = [f"### Files in no folder\n\n{table(sorted(SOURCE.glob('*.py')))}"]
    for room in (room for level in layers() for room in level if is_folder(room)):
        folders = [SOURCE / room, *sorted(p.parent for p in (SOURCE / room).glob("*/__init__.py"))]
        for folder in folders:
            name = folder.relative_to(SOURCE).as_posix()
            paths = sorted(p for p in folder.glob("*.py") if p.name != "__init__.py")
            about = summary(folder / "__init__.py")
            out.append(f"### `{name}/`\n\n{about}" + (f"\n\n{table(paths)}" if paths else ""))
    return "\n\n".join(out)


PARTS: dict[str, Callable[[], str]] = {"diagram": diagram, "sizes": sizes, "files": files}
