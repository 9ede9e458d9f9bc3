"""The command line: `layerstep run script.py`, `layerstep open FILE`, `layerstep demo`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from layerstep import __version__
from layerstep.config import is_disabled
from layerstep.errors import Quit, UserError
from layerstep.visible import visible

__all__ = ["main"]


class _Given(argparse.Action):
    """-e and -x, in the order in which they were given."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.given = [*(getattr(namespace, "given", None) or []), (option_string, values)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="layerstep",
        description="A debugger for PyTorch models.",
        epilog="`layerstep train.py` is `layerstep run train.py`.",
    )
    parser.add_argument("--version", action="version", version=f"layerstep {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="run | open | demo", required=True)
    run = commands.add_parser(
        "run",
        help="run a script under the debugger",
        usage="layerstep run [options] (script.py | -m module) [args …]",
    )
    _add_common(run)
    run.add_argument(
        "--post-mortem", action="store_true", help="run at full speed; open the prompt where it crashes"
    )
    run.add_argument(
        "--stay",
        action="store_true",
        help="open the prompt at the end of the program; on a terminal it opens if no breakpoint was reached",
    )
    run.add_argument(
        "--dump", metavar="FILE", help="write a core file here when a catchpoint catches something"
    )
    run.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    run.add_argument("script", nargs="?", help="the script to run")
    run.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    opening = commands.add_parser("open", help="open a core file that `dump` wrote")
    _add_common(opening)
    opening.add_argument("--model", metavar="NAME", help="package.module:function that makes the model")
    opening.add_argument("file", help="the core file")
    commands.add_parser("demo", help="a guided first session on a small transformer")
    return parser


_COMMANDS = ("run", "open", "demo")


def _with_command(argv: Sequence[str]) -> Sequence[str]:
    """`layerstep train.py` runs it, `layerstep x.lscore` opens it, `layerstep help` is `--help`."""
    if argv and argv[0] == "help":
        return ["--help"] if len(argv) == 1 else [argv[1], "--help"]
    if not argv or argv[0] in (*_COMMANDS, "-h", "--help", "--version"):
        return argv
    if argv[0].endswith(".lscore"):
        return ["open", *argv]
    is_script = argv[0].endswith(".py") or argv[0].startswith("-") or os.path.isfile(argv[0])
    return ["run", *argv] if is_script else argv


def _add_common(parser: argparse.ArgumentParser) -> None:
    again = "run a command first; may be given again"
    parser.add_argument("-e", metavar="COMMAND", action=_Given, help=again)
    parser.add_argument("-x", metavar="FILE", action=_Given, help="run the commands in a file first")
    parser.add_argument("--batch", action="store_true", help="never ask: detach when the commands run out")
    parser.add_argument("--json", metavar="FILE", help="write every view as a line of JSON; - is stdout")
    parser.set_defaults(given=[])


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: the script's own; 2 for wrong use; 130 after `quit`."""
    options = _parser().parse_args(_with_command(sys.argv[1:] if argv is None else argv))
    try:
        if options.command == "demo":
            from layerstep.demo.tour import play

            return play()
        return _open(options) if options.command == "open" else _run(options)
    except UserError as error:
        print(visible(f"layerstep: {error}"), file=sys.stderr)
        return error.exit_code
    except Quit as leaving:
        return int(leaving.code or 0)


def _run(options: argparse.Namespace) -> int:
    if not options.module and not options.script:
        raise UserError("nothing to run", "layerstep run script.py, or layerstep run -m module")
    if options.script and not os.path.exists(options.script):  # before torch is imported, which takes a while
        raise UserError(f"cannot read {options.script}", os.strerror(errno.ENOENT))
    from layerstep.program import ModuleProgram, Program

    program = Program(options.script, options.args) if not options.module else ModuleProgram(options.module)
    if is_disabled():
        return program.run()
    from layerstep.frontends.choose import open_session
    from layerstep.program import Stay, debug, debug_afterwards

    lines, dump_to = _commands(options.given), _dump_to(options.dump)
    with _json_file(options.json) as json:
        use_pipe = not lines or not os.environ.get("CI")
        session, _ = open_session(commands=lines, json=json, use_pipe=use_pipe, batch=options.batch)
        session.prompt.dump_to = dump_to
        if options.post_mortem:
            return debug_afterwards(program, session)
        on_terminal = (
            not options.batch and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
        )
        return debug(program, session, stay=Stay.ALWAYS if options.stay else Stay(on_terminal))


def _open(options: argparse.Namespace) -> int:
    if not os.path.exists(options.file):  # before torch is imported, which takes a while
        raise UserError(f"cannot read {options.file}", os.strerror(errno.ENOENT))
    from layerstep.frontends.choose import open_session
    from layerstep.opening import CoreDispatcher, look_around, open_core

    lines = _commands(options.given)
    opened = open_core(Path(options.file), options.model)
    with _json_file(options.json) as json:
        use_pipe = not lines or not os.environ.get("CI")
        session, _ = open_session(
            commands=lines, json=json, use_pipe=use_pipe, batch=options.batch, interpreter=CoreDispatcher()
        )
        return look_around(opened, session)


def _dump_to(name: str | None) -> Path | None:
    if name is None:
        return None
    path = Path(os.path.expanduser(name))
    if not (os.path.isdir(path) or os.path.isdir(path.parent)):
        raise UserError(f"cannot write {name}", os.strerror(errno.ENOENT))
    return path


def _commands(given: Sequence[tuple[str, str]]) -> list[str]:
    """The lines of -e and -x; one that can be nothing is found out before the script runs."""
    from layerstep.line_syntax import joined, read_commands
    from layerstep.wrong_lines import check_lines

    lines: list[str] = []
    for option, value in given:
        lines += [value] if option == "-e" else joined(read_commands(value))
    check_lines(lines)
    return lines


@contextlib.contextmanager
def _json_file(name: str | None) -> Iterator[IO[str] | None]:
    if name is None or name == "-":
        yield sys.stdout if name else None
        return
    try:
        file = open(name, "w", encoding="utf-8")  # noqa: SIM115 - closed below, after the run
    except OSError as error:
        raise UserError(f"cannot write {name}", error.strerror or "") from None
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # a full disk is no reason for the run to end otherwise
            file.close()
