"""The command line: `layerstep run script.py`, `doctor`, `attach`, `diff a.py b.py`, `open FILE`, `demo`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from layerstep import __version__
from layerstep.config import is_disabled
from layerstep.errors import Quit, UserError
from layerstep.visible import visible

if TYPE_CHECKING:
    from layerstep.engine.session import Session
    from layerstep.program import Program

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
    commands = parser.add_subparsers(
        dest="command", metavar="run | doctor | attach | diff | open | demo", required=True
    )
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
    _add_sinks(run)
    run.add_argument("--allow-edits", action="store_true", help="with --batch: let commands change the run")
    run.add_argument(
        "--listen",
        action="store_true",
        help="let `layerstep attach` reach the program; LAYERSTEP_LISTEN=1, too",
    )
    run.add_argument(
        "--hold", action="store_true", help="with --listen: a stop waits for a client, however long"
    )
    run.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    run.add_argument("script", nargs="?", help="the script to run")
    run.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    _add_doctor(
        commands.add_parser(
            "doctor", help="watch a training and say what is wrong with it", usage=_DOCTOR_USAGE
        )
    )
    attaching = commands.add_parser(
        "attach", help="open the prompt of a program that listens, from another terminal"
    )
    attaching.add_argument(
        "pid", nargs="?", type=int, metavar="PID", help="the process; the only one if left out"
    )
    attaching.add_argument("--list", action="store_true", help="list the programs that listen")
    _add_diff(commands.add_parser("diff", help="run two programs and name the layer where they differ"))
    opening = commands.add_parser("open", help="open a core file that `dump` wrote")
    _add_common(opening)
    opening.add_argument("--model", metavar="NAME", help="package.module:function that makes the model")
    opening.add_argument("file", help="the core file")
    commands.add_parser("demo", help="a guided first session on a small transformer")
    return parser


def _add_sinks(parser: argparse.ArgumentParser) -> None:
    where = "hand on what is recorded: "
    parser.add_argument("--tensorboard", metavar="DIR", help=f"{where}event files for TensorBoard")
    parser.add_argument("--mlflow", metavar="URI", help=f"{where}a run on the MLflow server there")
    parser.add_argument("--wandb", action="store_true", help=f"{where}a run of Weights & Biases")
    parser.add_argument(
        "--sink",
        metavar="NAME[=WHERE]",
        action="append",
        default=[],
        help=f"{where}a sink of another package",
    )


def _sinks(options: argparse.Namespace) -> list[str]:
    """What was asked for, as `open_sinks` takes it."""
    named = [f"{name}={value}" for name in ("tensorboard", "mlflow") if (value := getattr(options, name))]
    return [*named, *(["wandb"] if options.wandb else []), *options.sink]


_DOCTOR_USAGE = "layerstep doctor [options] (script.py | -m module) [args …]"


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--level",
        choices=("basic", "advanced", "extreme"),
        default="basic",
        help="how much of a training step it may take: 2, 10 or 25 %%",
    )
    parser.add_argument("--steps", metavar="N", type=int, help="end the program after N training steps")
    parser.add_argument(
        "--json", metavar="FILE", help="write steps and findings as lines of JSON; - is stdout"
    )
    parser.add_argument("--html", metavar="FILE", help="write the report as a page")
    parser.add_argument(
        "--off",
        metavar="RULE",
        action="append",
        default=[],
        help="silence a rule; may be repeated",
    )
    _add_sinks(parser)
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    parser.add_argument("script", nargs="?", help="the script to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tol", metavar="T", type=float, help="the relative error from which values differ")
    parser.add_argument("--map", metavar="FILE", help="lines `path of A = path of B`")
    parser.add_argument(
        "--forward", metavar="N", type=int, default=1, help="the forward to compare; the first is 1"
    )
    parser.add_argument("--save", metavar="FILE", help="run A alone, and write what its layers do")
    parser.add_argument("first", metavar="A", help='a script, "script.py with arguments", or a saved run')
    parser.add_argument("second", metavar="B", nargs="?", help="the same")


_COMMANDS = ("run", "doctor", "attach", "diff", "open", "demo")


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
        answers = {"open": _open, "doctor": _doctor, "attach": _attach, "diff": _diff, "run": _run}
        return answers[options.command](options)
    except UserError as error:
        print(visible(f"layerstep: {error}"), file=sys.stderr)
        return error.exit_code
    except Quit as leaving:
        return int(leaving.code or 0)


def _program(options: argparse.Namespace) -> Program:
    if not options.module and not options.script:
        word = options.command
        raise UserError("nothing to run", f"layerstep {word} script.py, or layerstep {word} -m module")
    if options.script and not os.path.exists(options.script):  # before torch is imported, which takes a while
        raise UserError(f"cannot read {options.script}", os.strerror(errno.ENOENT))
    from layerstep.program import ModuleProgram, Program

    return Program(options.script, options.args) if not options.module else ModuleProgram(options.module)


def _doctor(options: argparse.Namespace) -> int:
    if options.steps is not None and options.steps < 1:
        raise UserError(f"--steps {options.steps}", "a number of training steps, 1 or more")
    page = _file_to_write(options.html)
    program = _program(options)
    if is_disabled():
        return program.run()
    from layerstep.checkup import Checkup, diagnose
    from layerstep.doctor.budget import Level
    from layerstep.frontends.choose import open_session
    from layerstep.sinks.opening import open_sinks

    with _json_file(options.json) as json:
        session, _ = open_session(batch=True)
        open_sinks(session, _sinks(options), program=program.script)
        wanted = Checkup(Level(options.level), options.steps, json, page, tuple(options.off))
        return diagnose(program, session, wanted)


def _diff(options: argparse.Namespace) -> int:
    if options.forward < 1 or (options.tol is not None and not options.tol > 0):
        raise UserError("--forward takes a number from 1, --tol a number above 0")
    if (options.second is None) == (options.save is None):
        raise UserError("diff takes two programs", "layerstep diff a.py b.py, or --save FILE a.py")
    given = [text for text in (options.first, options.second) if text is not None]
    words = [shlex.split(text) or [""] for text in given]
    for text, (script, *_) in zip(given, words, strict=True):  # before torch is imported
        if not os.path.exists(script) and not os.path.exists(text):
            raise UserError(f"cannot read {script or 'nothing'}", os.strerror(errno.ENOENT))
    save_to = _file_to_write(options.save)
    from layerstep.frontends.choose import open_session
    from layerstep.program_diff import ProgramDiff, diff_programs, record_program

    session, _ = open_session(batch=True)
    if save_to is not None:
        return record_program(words[0], session, save_to, options.forward)
    wanted = ProgramDiff(options.first, options.second, options.tol, options.forward, options.map)
    return diff_programs(wanted, session)


def _run(options: argparse.Namespace) -> int:
    program = _program(options)
    if is_disabled():
        return program.run()
    from layerstep.edits.edits import Edits
    from layerstep.frontends.choose import open_session
    from layerstep.program import Stay, debug, debug_afterwards
    from layerstep.sinks.opening import open_sinks

    lines, dump_to = _commands(options.given), _file_to_write(options.dump)
    with _json_file(options.json) as json:
        listens = options.listen or options.hold or os.environ.get("LAYERSTEP_LISTEN") == "1"
        use_pipe = (not lines or not os.environ.get("CI")) and not listens
        session, screen = open_session(commands=lines, json=json, use_pipe=use_pipe, batch=options.batch)
        if listens:
            screen.only_notices = session.prompt.frontend is None  # the rest is for those who attach
            _listen(session, options)
        session.prompt.dump_to = dump_to
        open_sinks(session, _sinks(options), program=program.script)
        if options.batch and not options.allow_edits:
            session.instruments.get(Edits).why_refused = "edits change the run, and this is batch work"
        if options.post_mortem:
            return debug_afterwards(program, session)
        on_terminal = (
            not options.batch and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
        )
        return debug(program, session, stay=Stay.ALWAYS if options.stay else Stay(on_terminal))


def _listen(session: Session, options: argparse.Namespace) -> None:
    from layerstep.frontends.remote.listening import listen_on
    from layerstep.views import Notice

    argv = options.module or [options.script, *options.args]
    listen_on(session, argv=argv, hold=options.hold)
    session.say(Notice(f"process {os.getpid()} listens", f"`layerstep attach {os.getpid()}`"))


def _attach(options: argparse.Namespace) -> int:
    from layerstep.frontends.remote.attach import attach, show_processes

    return show_processes() if options.list else attach(options.pid)


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


def _file_to_write(name: str | None) -> Path | None:
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
