from __future__ import annotations

from layerstep.arguments import Choice, Flag, Form, Given, Keyword, Pattern, Where, Word
from layerstep.calls.events import Phase
from layerstep.crashes.catch_checks import CHECKS
from layerstep.crashes.catching import EXCEPTION, Crashes, exception_check
from layerstep.engine.points import Catch
from layerstep.engine.session import Session
from layerstep.module_paths.where import Where as WherePattern
from layerstep.nonfinite.catch import SIDES
from layerstep.nonfinite.catching import catch_nonfinite
from layerstep.points.description import confirmation
from layerstep.registry import command
from layerstep.views import View

_IN = Keyword("in", Pattern(name="inside"))
_NOT_FINITE = ("nan", "inf", "nonfinite")


@command(
    "catch",
    group="stop",
    args=(
        Form(
            "|".join(_NOT_FINITE),
            _IN,
            Choice("|".join(SIDES), many=True, optional=True, name="sides", what="side"),
            Flag("every-op"),
        ),
        Form(EXCEPTION, Word("TYPE", optional=True), _IN),
        Form("|".join(check for check in CHECKS if check != "slow"), Where(optional=True)),
        Form("slow", Word("MS", what="milliseconds"), Where(optional=True)),
    ),
    examples=(
        "catch nonfinite",
        "catch nan in blocks.* forward",
        "catch nan backward",
        "catch exception",
        "catch exception RuntimeError in blocks.*",
        "catch shape blocks.*",
        "catch dtype",
        "catch nograd head",
        "catch slow 50 blocks.*",
    ),
)
def catch(session: Session, given: Given) -> View:
    """Stop where something goes wrong.

    `catch nan`, `catch inf` and `catch nonfinite` check each model's output, the loss and the gradients;
    `param` checks the parameters after a step. Each check costs one sum. If one fails, layerstep runs the
    call again on copies, and stops in that rerun at the operation that made the value. `why` shows it again.
    An Inf written on purpose, as in masks, does not count. `mute PATH` silences a module. `in WHERE` checks
    only what these modules return. `--every-op` checks each operation as it runs, for values that a rerun
    does not make again. It is slow.
    `catch exception` stops where a module raises, or where an exception ends the program. The stop comes
    before any handler sees the exception, and explains it. `in WHERE` also stops at exceptions that the model
    itself catches later. Meanwhile layerstep notes in-place writes. If a backward pass then fails because a
    value was overwritten, the stop names the line that wrote it.
    `catch shape WHERE` stops when a layer's output has another shape than at first.
    `catch dtype` stops when it has another dtype.
    `catch nograd` stops when it needs no gradient although gradients are on.
    `catch slow MS` stops when a call took longer.
    """
    if given.form in _NOT_FINITE:
        point = catch_nonfinite(
            session,
            given.form,
            where=WherePattern.parse(given.inside) if given.inside else None,
            sides=given.sides or ("forward", "backward"),
            every_op=given.every_op,
            set_by=f"catch {given.typed}",
        )
    elif given.form == EXCEPTION:
        point = _exception(session, given)
    else:
        point = _at_modules(session, given)
    return confirmation(point, what=f" {point.what}")


def _at_modules(session: Session, given: Given) -> Catch:
    """The catches that ask at the exit of each module."""
    check, phases = CHECKS[given.form](given.ms)
    point = session.points.add(
        Catch(
            WherePattern.parse(given.where or "**"),
            what=given.form,
            check=check,
            phases=phases,
            set_by=f"catch {given.typed}",
        )
    )
    session.intake.set_or_leave_pending(point)
    return point


def _exception(session: Session, given: Given) -> Catch:
    """`exception [TYPE] [in WHERE]`."""
    where = WherePattern.parse(given.inside) if given.inside else None
    # Discovery meets the outermost calls without a tap there.
    is_met = where is not None or session.intake.discovery.is_on
    point = session.points.add(
        Catch(
            where,
            what=EXCEPTION,
            check=exception_check(given.type),
            phase=Phase.RAISED,
            root_phases=() if is_met else (Phase.RAISED,),
            set_by=f"catch {given.typed}",
        )
    )
    session.instruments.get(Crashes)  # it notes in-place writes while such a point is set
    if where is not None:
        session.intake.set_or_leave_pending(point)
    session.rearm()
    return point
