from __future__ import annotations

import os
import re
from pathlib import Path

from layerstep.arguments import File, Given, Option, Word
from layerstep.corefile import MOST_BYTES, SUFFIX, RestoredCore, collect, write_core
from layerstep.corefile.core_session import opened_in
from layerstep.engine.session import Session
from layerstep.errors import BadArguments, UserError
from layerstep.registry import command
from layerstep.tensors.format import human_bytes
from layerstep.views import Fields, Span, Text, View

__all__ = ["facts_of"]

_UNITS = {"": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


@command(
    "dump",
    group="keep",
    args=(File(optional=True), Option("max", Word("BYTES"), "limits the size of the file: 100MB, say")),
    examples=("dump", "dump stop.lscore", "dump small.lscore --max 10MB"),
    needs_pause=True,
)
def dump(session: Session, given: Given) -> View:
    """Write this stop to a file, to be opened elsewhere.

    The file holds the module tree, the stack with its inputs and outputs, source lines, random streams, the
    exception if there is one, and the weights of the selected module. To store a larger part, type `up`
    first. `layerstep open FILE` shows it without the model's code; with `--model` it also runs the module
    again. FILE ends in .lscore; an existing file is replaced. If it would exceed BYTES (512MB), the batch and
    then the weights are left out. Without FILE, `dump` says what the file would hold, or, in an opened core
    file, what it holds.
    """
    file = given.file
    opened = opened_in(session)
    if opened is not None:
        if file:
            raise UserError(f"this stop is out of {opened.core.path.name} already", "copy that file")
        return facts_of(opened.core)
    most = _bytes(given.max) if given.max else MOST_BYTES
    if not file:
        core = collect(session, most=most)
        title = (Span("a core file of this stop", "good"), Span(f"about {human_bytes(core.nbytes)}", "dim"))
        return _contents(title, core.holds, core.left_out)
    path = Path(os.path.expanduser(file))
    if path.suffix not in ("", SUFFIX) and not os.path.isdir(path):
        raise BadArguments(f"{path.suffix} is not a core file", f"dump {path.stem}{SUFFIX}")
    written = write_core(session, path, most=most)
    name = str(Path(file).with_name(written.path.name)) if not os.path.isdir(path) else written.path
    title = (Span(f"written to {name}", "good"), Span(human_bytes(written.nbytes), "dim"))
    return _contents(title, list(written.holds), list(written.left_out))


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9][0-9_]*)\s*([KMG]B)?", text.upper())
    if match is None:
        raise BadArguments(f"--max {text} is no number of bytes", "100MB, say")
    return int(match[1].replace("_", "")) * _UNITS[match[2] or ""]


def _contents(title: tuple[Span, ...], holds: list[tuple[str, int, int]], left_out: list[str]) -> Fields:
    items: list[tuple[str, View]] = [
        (name, Text(human_bytes(size) + (f" in {count:,}" if count > 1 else "")))
        for name, count, size in holds
        if size
    ]
    items += [("left out", Text(f"{part}: only shapes are in the file")) for part in left_out]
    return Fields(title, tuple(items))


def facts_of(core: RestoredCore, *, brief: bool = False) -> View:
    """What an opened file is about; as it is shown first, without the traceback."""
    contents = core.contents
    stop, made = contents["stop"], contents["environment"]
    title = (Span(core.path.name, "path"), Span("core file", "good"), Span(f"{stop['time']} UTC", "dim"))
    machine = f"{made['platform']}, {made['cpus']} CPUs"
    versions = f"layerstep {made['layerstep']}, torch {made['torch']}, python {made['python']}"
    items: list[tuple[str, View]] = [("made by", Text(f"{versions}, {machine}"))]
    if made["devices"]:
        items.append(("devices", Text(f"{', '.join(made['devices'][:4])}; tensors are on the CPU here")))
    modes = contents["modes"]
    words = ["grad" if modes["grad"] else "no grad"]
    words += [f"autocast {device} {dtype}" for device, dtype in modes["autocast"].items()]
    words += ["inference mode"] if modes["inference"] else []
    words.append(f"{modes['threads']} threads")
    items.append(("under", Text(", ".join(words))))
    if core.exception is not None and not brief:
        items.append(("raised", Text(str(core.exception["traceback"]).rstrip())))
    items += [
        ("point", Text(f"{point['line']}, hit {point['hits']} times")) for point in contents["points"][:10]
    ]
    items.append(("weights", Text(_weights(core))))
    items += [("left out", Text(f"{part}: only shapes are here")) for part in contents["left_out"]]
    return Fields(title, tuple(items))


def _weights(core: RestoredCore) -> str:
    module = core.selected.module
    state = [] if module is None else [*module.parameters(), *module.buffers()]
    if not state:
        return "none are in the file, only shapes"
    missing = sum(hasattr(tensor, "not_in_core") for tensor in state)
    if missing == len(state):
        return "only shapes are in the file"
    if missing:
        return f"of {missing} of {len(state)} only shapes are in the file"
    if any(root is module for root, _, _ in core.roots):
        return "all are in the file"
    return f"those of {core.selected.path} are in the file, of the others only shapes"
