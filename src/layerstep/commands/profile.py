from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from layerstep._torch.profilers import QuietProfiler, is_profiling
from layerstep.arguments import Choice, Flag, Form, Given, Number, Option, Word
from layerstep.commands import profile_views
from layerstep.commands.profile_views import SORTS, milliseconds, percent
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.profile.compare import Saved, compare_profiles, joined, load, saved_of, store
from layerstep.profile.profiling import WARM_UP
from layerstep.profile.state import KernelProfile, ProfileState, state_of
from layerstep.registry import command
from layerstep.tensors.observing import observing
from layerstep.views import Column, Figure, Notice, Table, View

KERNELS = 25
MOST_STEPS = 100_000


def _names(session: Session) -> Iterable[str]:
    """Of the profiles that are saved."""
    return list(state_of(session).saved)


@command(
    "profile",
    group="cost",
    args=(
        Form(""),
        Form("", Number("N", least=1, most=MOST_STEPS), Flag("report"), Flag("advice")),
        Form("on"),
        Form("off"),
        Form(
            "report",
            Option("by", Choice("module|type|op", default="module")),
            Option("sort", Choice("KEY", of=tuple(SORTS), default="own")),
            Flag("wide"),
            Flag("tree"),
            Flag("flame"),
        ),
        Form("advice"),
        Form("ops", Number("N", least=1, most=1000, optional=True, what="number of steps")),
        Form("save", Word("NAME", what="a name", completes=_names), Flag("add")),
        Form("compare", Word("A", completes=_names), Word("B", completes=_names)),
    ),
    examples=("profile 10", "profile on", "profile report", "profile advice", "profile ops", "profile off"),
)
def profile(session: Session, given: Given) -> View:
    """Time modules, forward and backward, and say what to do.

    `profile N` times the next N training steps. A step goes from one step of the optimizer to the next.
    Without an optimizer, N forwards of the main model are timed. The two steps before them do not count, nor
    do steps with a stop in them, nor what runs without gradients before or between training steps.
    `--report` and `--advice` show the report and the advice as soon as the steps are done.
    `profile on` times until `profile off`.
    `profile report` shows a row for each module. Its own time excludes the modules that it calls; own times
    add up to the step. Data is the time between two steps. Saved is what a module keeps for the backward.
    Peak is what its call needs beyond what was there before.
    `--sort` takes own, total, forward, backward, calls, params, flops, rate, saved or peak. `--wide` shows
    parameters, FLOP and memory in place of forward, backward and the spread. `--tree` marks the hot path,
    `--flame` draws it. `--by op` counts the functions of torch.
    `profile advice` says what costs time: the line, the possible gain, and how to check it.
    `profile ops N` runs torch.profiler over the next N steps. `profile ops` then lists the kernels by own
    time.
    `profile save NAME` keeps the samples, in a file if NAME ends in .json. `--add` adds them as one more
    round.
    `profile compare A B` reports only differences that are real.
    `export NAME.trace.json` writes the steps for Perfetto or chrome://tracing.

    While it times, each module's forward is replaced by one that notes the time, and autograd nodes note when
    the backward enters and leaves the module. The cost of this is measured and subtracted. In a step that
    does not count, the model runs once more on copies of its inputs, to count operations and FLOP by line.
    """
    state = state_of(session)
    with observing():
        if given.form in ("report", "advice", "save"):
            state.profile.answers = []
        if given.form:
            return _PARTS[given.form](state, given)
        return _now(state) if given.n is None else _begin(state, given)


def _now(state: ProfileState) -> View:
    if not state.profile.steps:
        return _nothing(state)
    state.profile.answers = []
    return profile_views.report(state, by="module", sort="own")


def _nothing(state: ProfileState) -> Notice:
    if state.profile.is_on:
        left = f"{state.profile.warming} more are left out first" if state.profile.warming else "go on"
        return Notice("profile is on, and no step is complete yet", left)
    return Notice("nothing is timed", "`profile 10` times the next 10 steps")


def _begin(state: ProfileState, given: Given) -> Notice:
    notice = _start(state, given.n)
    wanted = [word for word in ("report", "advice") if getattr(given, word)]
    if wanted:
        state.profile.answers = [f"profile {word}" for word in wanted]
    state.profile.on_done = partial(_tell, state) if wanted else None
    return notice


def _tell(state: ProfileState) -> None:
    """The steps are timed: say at once what was asked for."""
    for line in state.profile.answers:
        state.session.say(_now(state) if line == "profile report" else _advice(state))
    state.profile.answers = []


def _start(state: ProfileState, wanted: int | None = None) -> Notice:
    if state.kernels is not None and state.kernels.is_on:
        raise UserError("`profile ops` is at work", "`profile off` ends it")
    state.start(wanted)
    unit = "training step" if state.profile.is_training else "step"
    what = f"the next {wanted:,} {unit}s" if wanted and wanted > 1 else f"the next {unit}"
    text = f"profile: timing {what if wanted else 'every step'}, after {WARM_UP} that are left out"
    return Notice(text, "`profile report` shows them", "good")


def _off(state: ProfileState) -> Notice:
    was_on = state.profile.is_on or (state.kernels is not None and state.kernels.is_on)
    state.profile.stop()
    if state.kernels is not None:
        state.kernels.stop()
    if not was_on:
        return Notice("profile is off", "`profile on` begins")
    return Notice(f"profile is off; {len(state.profile.steps):,} {state.profile.word} are kept", level="good")


def _report(state: ProfileState, given: Given) -> View:
    if not state.profile.steps:
        return _nothing(state)
    if given.tree:
        return profile_views.tree(state)
    if given.flame:
        return profile_views.flame(state)
    return profile_views.report(state, by=given.by, sort=given.sort, wide=given.wide)


def _advice(state: ProfileState) -> View:
    if not state.profile.steps:
        return _nothing(state)
    return profile_views.advice_view(state.advice(), state)


def _ops(state: ProfileState, steps: int | None) -> View:
    if steps is None:
        return _kernels(state)
    if state.profile.is_on:
        raise UserError("profile is on, and torch's profiler would slow what it times", "`profile off` first")
    if is_profiling():
        raise UserError("the program uses torch.profiler itself", "torch has only one at a time")
    if state.kernels is not None:
        state.kernels.stop()
    state.kernels = KernelProfile(state.session, recorder=QuietProfiler())
    state.session.instruments.put(state.kernels)
    state.kernels.start(steps, warm_up=1)
    return Notice(
        f"torch.profiler records the next {steps} steps, after one", "`profile ops` shows them", "good"
    )


def _kernels(state: ProfileState) -> View:
    kernels = state.kernels
    if kernels is None or not kernels.steps or kernels.is_on:
        return Notice("no kernels are timed", "`profile ops 3` has torch.profiler record the next 3 steps")
    assert isinstance(kernels.recorder, QuietProfiler)
    kernels.answers = []
    averages = kernels.recorder.inner.key_averages()
    found = [each for each in averages if not each.key.startswith(("Profiler", "Optimizer."))]
    on_device = any(each.self_device_time_total for each in found)
    own = "self_device_time_total" if on_device else "self_cpu_time_total"
    whole = sum(getattr(each, own) for each in found) or 1.0
    found.sort(key=lambda each: -getattr(each, own))
    steps = len(kernels.steps)
    rows = tuple(
        (
            each.key[:40],
            milliseconds(getattr(each, own) / 1e6 / steps),
            percent(getattr(each, own) / whole),
            milliseconds((each.device_time_total if on_device else each.cpu_time_total) / 1e6 / steps),
            Figure(f"{each.count / steps:.0f}", each.count / steps),
        )
        for each in found[:KERNELS]
    )
    columns = (
        Column("kernel", "code"),
        *(Column(name, right=True) for name in ("own ms", "%", "total", "calls")),
    )
    where = "on the device" if on_device else "on the processor"
    note = f"a step, {where}, mean of {steps}; by torch.profiler, whose own cost is in it"
    return Table(columns, rows, note=note)


def _save(state: ProfileState, name: str, *, add: bool) -> Notice:
    if not state.profile.steps:
        raise UserError("nothing is timed", "`profile 100` first")
    saved = saved_of(state.measured())
    if add and _is_saved(state, name):
        saved = joined(_saved(state, name), saved)
    state.saved[name] = saved
    if name.endswith(".json"):
        try:
            store(saved, Path(os.path.expanduser(name)))
        except OSError as error:
            raise UserError(f"cannot write {name}", error.strerror or "") from None
    rounds = f" in {len(saved.rounds)} rounds" if len(saved.rounds) > 1 else ""
    return Notice(f"saved {len(saved.wall):,} steps{rounds} as {name}", "`profile compare A B`", "good")


def _is_saved(state: ProfileState, name: str) -> bool:
    return name in state.saved or (name.endswith(".json") and os.path.exists(os.path.expanduser(name)))


def _compare(state: ProfileState, a: str, b: str) -> View:
    return profile_views.comparison((a, b), compare_profiles(_saved(state, a), _saved(state, b)))


def _saved(state: ProfileState, name: str) -> Saved:
    if name in state.saved:
        return state.saved[name]
    if name.endswith(".json"):
        return load(Path(os.path.expanduser(name)))
    known = ", ".join(state.saved) or "none is"
    raise UserError(f"no profile is saved as {name!r}", f"saved: {known}")


_PARTS: dict[str, Callable[[ProfileState, Given], View]] = {
    "on": lambda state, given: _start(state),
    "off": lambda state, given: _off(state),
    "report": _report,
    "advice": lambda state, given: _advice(state),
    "ops": lambda state, given: _ops(state, given.n),
    "save": lambda state, given: _save(state, given.name, add=given.add),
    "compare": lambda state, given: _compare(state, given.a, given.b),
}
