"""An opened core file: a prompt at its stop, and a rerun of its module where the code is."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from layerstep.api import use_session
from layerstep.commands.dump import facts_of
from layerstep.corefile import read_core
from layerstep.corefile.core_session import OpenedCore, opened_in
from layerstep.corefile.rerun import CoreRerun, RerunResult
from layerstep.crashes.catching import Crashes
from layerstep.dispatch import Dispatcher
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import Quit, RecordingError, UserError, first_line
from layerstep.imports import start_in
from layerstep.views import Notice, View

__all__ = ["CoreDispatcher", "load_model", "look_around", "open_core"]


class CoreDispatcher(Dispatcher):
    """Answers lines at a file's stop as at any other; what would let the run go on is turned down."""

    def interpret(self, session: Session, line: str) -> View | Resume | None:
        answer = super().interpret(session, line)
        opened = opened_in(session)
        if opened is None or not isinstance(answer, Resume):
            return answer
        if answer.kind in (Kind.QUIT, Kind.DETACH, Kind.AGAIN):
            return answer
        if opened.rerun is not None:
            hint = "`again` runs the module again, with points and steps"
        else:
            hint = "`layerstep open FILE --model package.module:function` can run the module again"
        raise UserError("this is a core file: nothing can be resumed", hint)


def open_core(path: Path, model: str | None) -> OpenedCore:
    """Read a file and, if its code is named, build the model and put the stored state into it."""
    try:
        core = read_core(path)
    except RecordingError as error:
        raise UserError(str(error)) from None
    if model is None:
        return OpenedCore(core, None)
    built = load_model(model)
    try:
        return OpenedCore(core, CoreRerun(core, built))
    except UserError:
        raise
    except Exception as error:  # a kind of module that takes no state as others do
        raise UserError(f"{model} does not take the state of {core.selected.path}: {_line(error)}") from None


def look_around(opened: OpenedCore, session: Session) -> int:
    """Serve lines at the stop of a file until the user leaves; the exit code."""
    use_session(session)
    try:
        with _one_line(opened):
            opened.recall(session)
            facts = facts_of(opened.core, brief=True)
            opened.enter(session)
            pause = opened.make_pause(session, is_start=False)
        session.say(facts)
        while True:
            session.attach()
            with _one_line(opened):
                resume = session.standstill.hold(pause)
            if resume is None or resume.kind is not Kind.AGAIN:
                return 0
            _run_again(opened, session, resume.given)
            opened.enter(session)
            pause = opened.make_pause(session, is_start=True)
    except Quit:
        return 0
    finally:
        session.detach()
        session.close()
        use_session(None)


@contextlib.contextmanager
def _one_line(opened: OpenedCore) -> Iterator[None]:
    """Whatever a damaged file makes of its reader is one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{opened.core.path} is damaged", _line(error)) from None


def _run_again(opened: OpenedCore, session: Session, given: dict[str, Any]) -> None:
    assert opened.rerun is not None
    opened.use_code(session)
    result = opened.rerun.run(
        given, silently=session.run.evaluating, raised=session.instruments.get(Crashes).raised
    )
    _tell(session, result)


def _tell(session: Session, result: RerunResult) -> None:
    level = {True: "good", False: "warn", None: "info"}[result.is_same]
    session.say(Notice(result.message, level=level))  # type: ignore[arg-type]
    for note in result.notes:
        session.say(Notice(note))


def load_model(name: str) -> nn.Module:
    """`package.module:function` or `file.py:function`: what it returns is the model."""
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise UserError(f"--model {name} names no model", "package.module:function, or file.py:function")
    found: object = _import(where)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UserError(f"{where} has no {attribute}")
        found = getattr(found, part)
    if callable(found) and not isinstance(found, nn.Module):
        try:
            found = found()
        except Exception as error:
            raise UserError(f"{name} raised {_line(error)}") from None
    if not isinstance(found, nn.Module):
        raise UserError(f"{name} gives a {type(found).__name__}", "it should give an nn.Module")
    return found


def _import(where: str) -> ModuleType:
    file = Path(where)
    is_file = file.suffix == ".py"
    start_in(str(file.resolve().parent) if is_file else os.getcwd())
    try:
        if not is_file:
            return importlib.import_module(where)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
        return module
    except Exception as error:
        raise UserError(f"cannot import {where}: {_line(error)}") from None


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"[:200]
