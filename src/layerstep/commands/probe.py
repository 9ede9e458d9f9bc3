from __future__ import annotations

from layerstep.arguments import Given, Word
from layerstep.doctor.probe import Found, Probe, all_probes, run_probe
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command, near
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View


def _names(session: Session) -> list[str]:
    return [each.name for each in all_probes()]


@command(
    "probe",
    group="train",
    args=Word("NAME", optional=True, completes=_names),
    examples=("probe", "probe eval-twice", "probe zero-input"),
)
def probe(session: Session, given: Given) -> View:
    """Try something on copies of the model and of its last batch.

    `probe` alone lists the probes and what each costs. `probe overfit` trains a copy on the last batch: a
    model that cannot learn one batch has a fault. Parameters, gradients, random streams and optimizers of the
    run stay as they are, and `perturbed?` says so. The batch and the loss come from the last training step
    that the doctor has looked at. So type `doctor on` first, and run a step. The probe computes the loss
    again with the operations that autograd has recorded between the model's output and `backward()`. If the
    result is not the loss of the run, the probe says so and does nothing. Probes that need no loss can also
    use the model call in which the run has stopped.
    """
    if not given.name:
        return _list()
    chosen = next((each for each in all_probes() if each.name == given.name), None)
    if chosen is None:
        close = near(given.name, _names(session))
        hint = f"did you mean {close[0]}?" if close else "`probe` lists them"
        raise BadArguments(f"no probe {given.name!r}", hint)
    return _view(chosen, run_probe(session, chosen))


def _list() -> Table:
    rows = tuple((each.name, each.summary, each.cost) for each in all_probes())
    columns = (Column("probe", "code"), Column("question"), Column("cost"))
    return Table(columns, rows, note="each works on copies; `probe NAME` runs one")


def _view(chosen: Probe, found: Found) -> View:
    batch = f"the batch of training step {found.step}" if found.step else "the call of this stop"
    took = f"{found.seconds:.2g} s" + ("; ended early, it had taken its time" if found.ran_out else "")
    items = (("did", found.did), ("with", batch), *found.figures, ("took", took))
    fields = Fields(
        (Span(chosen.summary),),
        tuple((name, Text(text)) for name, text in items),
    )
    answer = Notice(found.text, level=found.level)
    return Group((answer, fields) if found.plot is None else (answer, fields, found.plot))
