from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from layerstep._torch.profilers import QuietProfiler, is_profiling
from layerstep.commands import profile_views
from layerstep.commands.profile_views import SORTS, check_choice, milliseconds
from layerstep.engine.guard import observing
from layerstep.engine.session import Session
from layerstep.errors import BadArguments, UserError
from layerstep.line_syntax import options
from layerstep.profile.compare import Saved, compare_profiles, joined, load, saved_of, store
from layerstep.profile.profiling import WARM_UP, Profile
from layerstep.profile.state import ProfileState, state_of
from layerstep.registry import command
from layerstep.views import Column, Notice, Table, View

KERNELS = 25
MOST_STEPS = 100_000


def _candidates(session: Session, rest: str) -> Iterable[str]:
    words = rest.split(" ")
    first, last = words[0], words[-1]
    found: Iterable[str] = (*_PARTS,)
    if first == "report" and len(words) > 1:
        found = {"--by": ("module", "type", "op"), "--sort": tuple(SORTS)}.get(
            words[-2], ("--by", "--sort", "--tree", "--flame", "--wide")
        )
    elif first == "compare" and len(words) > 1:
        found = state_of(session).saved
    return [word for word in found if word.startswith(last)]


@command(
    "profile",
    group="cost",
    usage="[on | off | N [--report] [--advice]]\n"
    "        | report [--by module|type|op] [--sort KEY] [--wide] [--tree] [--flame]\n"
    "        | advice | ops [N] | save NAME [--add] | compare A B",
    examples=("profile 10", "profile on", "profile report", "profile advice", "profile ops", "profile off"),
    complete=_candidates,
)
def profile(session: Session, rest: str) -> View:
    """Time modules, forward and backward, and say what to do.

    `profile N` times the next N training steps, each from one step of the optimizer to the next; without
    an optimizer, N forwards of the main model. Two before them are left out, and so is what runs without
    gradients before or between training steps. With `--report` or `--advice` it shows that when they are
    done. `profile on` goes on until `profile off`. Each module has a stand-in for its forward meanwhile
    that notes the time, and autograd nodes on its border note when the backward comes by; what that costs
    is measured and taken out. In a step that is left out the model is run once more on copies of its
    inputs, to count operations and FLOP by line.
    Steps with a stop in them do not count.
    `profile report`: own time is without the modules that are called inside, and adds up to the step.
    Data is the time between two steps; saved is what a module keeps for the backward, peak what its call
    needs beyond what was there.
    `--sort` takes own, total, forward, backward, calls, params, flops, rate, saved, peak; `--wide` shows
    parameters, FLOP and memory in place of both ways and the spread; `--tree` marks the hot path, `--flame`
    draws it; `--by op` counts functions of torch.
    `profile advice`: what the numbers say costs time, with the line, the gain, and how to check it.
    `profile ops N`: torch.profiler over the next N steps; `profile ops` shows its kernels by their own time.
    `profile save NAME` keeps the samples (in a file if it ends in .json), with `--add` as one more round of
    it; `profile compare A B` tells only differences that are real. `export NAME.trace.json` writes the steps
    for Perfetto or chrome://tracing.
    """
    word, _, more = rest.partition(" ")
    state = state_of(session)
    with observing():
        if not word:
            return _now(state)
        if word.isdecimal():
            return _begin(state, rest)
        if word not in _PARTS:
            raise BadArguments(f"profile has no {word!r}", f"there is {', '.join(_PARTS)}, or a number")
        if word in ("report", "advice", "save"):
            state.profile.answers = []
        return _PARTS[word](state, more.strip())


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


def _begin(state: ProfileState, rest: str) -> Notice:
    text, chosen = options(rest, "report advice")
    if not text.isdecimal():
        raise BadArguments(f"{text.partition(' ')[2]!r} is too much", "profile N [--report] [--advice]")
    wanted = int(text)
    if not 0 < wanted <= MOST_STEPS:
        raise BadArguments(f"{text} steps? From 1 to {MOST_STEPS:,}", "profile 10")
    notice = _on(state, "", wanted)
    if chosen:
        state.profile.answers = [f"profile {each}" for each in ("report", "advice") if each in chosen]
    state.profile.on_done = partial(_tell, state) if chosen else None
    return notice


def _tell(state: ProfileState) -> None:
    """The steps are timed: say at once what was asked for."""
    for line in state.profile.answers:
        state.session.say(_PARTS[line.removeprefix("profile ")](state, ""))
    state.profile.answers = []


def _on(state: ProfileState, rest: str, wanted: int | None = None) -> Notice:
    _no_more(rest, "profile on")
    if state.kernels is not None and state.kernels.is_on:
        raise UserError("`profile ops` is at work", "`profile off` ends it")
    state.start(wanted)
    unit = "training step" if state.profile.is_training else "step"
    what = f"the next {wanted:,} {unit}s" if wanted and wanted > 1 else f"the next {unit}"
    text = f"profile: timing {what if wanted else 'every step'}, after {WARM_UP} that are left out"
    return Notice(text, "`profile report` shows them", "good")


def _off(state: ProfileState, rest: str) -> Notice:
    _no_more(rest, "profile off")
    was_on = state.profile.is_on or (state.kernels is not None and state.kernels.is_on)
    state.profile.stop()
    if state.kernels is not None:
        state.kernels.stop()
    if not was_on:
        return Notice("profile is off", "`profile on` begins")
    return Notice(f"profile is off; {len(state.profile.steps):,} {state.profile.word} are kept", level="good")


def _report(state: ProfileState, rest: str) -> View:
    left, chosen = options(rest, "tree flame wide", "by sort")
    _no_more(left, "profile report [--by module|type|op] [--sort KEY] [--wide] [--tree] [--flame]")
    by = check_choice("--by", chosen.get("by", "module"), ("module", "type", "op"))
    sort = check_choice("--sort", chosen.get("sort", "own"), tuple(SORTS))
    if not state.profile.steps:
        return _nothing(state)
    if "tree" in chosen:
        return profile_views.tree(state)
    if "flame" in chosen:
        return profile_views.flame(state)
    return profile_views.report(state, by=by, sort=sort, wide="wide" in chosen)


def _advice(state: ProfileState, rest: str) -> View:
    _no_more(rest, "profile advice")
    if not state.profile.steps:
        return _nothing(state)
    return profile_views.advice_view(state.advice(), state)


def _ops(state: ProfileState, rest: str) -> View:
    if not rest:
        return _kernels(state)
    if not rest.isdecimal() or not 0 < int(rest) <= 1000:
        raise BadArguments(f"{rest!r} is no number of steps", "profile ops 3")
    if state.profile.is_on:
        raise UserError("profile is on, and torch's profiler would slow what it times", "`profile off` first")
    if is_profiling():
        raise UserError("the program uses torch.profiler itself", "torch has only one at a time")
    if state.kernels is not None:
        state.kernels.stop()
        state.session.instruments.remove(state.kernels)
    state.kernels = Profile(state.session, recorder=QuietProfiler())
    state.session.instruments.append(state.kernels)
    state.kernels.start(int(rest), warm_up=1)
    return Notice(
        f"torch.profiler records the next {rest} steps, after one", "`profile ops` shows them", "good"
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
            f"{100 * getattr(each, own) / whole:.1f}",
            milliseconds((each.device_time_total if on_device else each.cpu_time_total) / 1e6 / steps),
            f"{each.count / steps:.0f}",
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


def _save(state: ProfileState, rest: str) -> Notice:
    name, chosen = options(rest, "add")
    if not name or " " in name:
        raise BadArguments("profile save needs one name", "profile save before")
    if not state.profile.steps:
        raise UserError("nothing is timed", "`profile 100` first")
    saved = saved_of(state.measured())
    if "add" in chosen and _is_saved(state, name):
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


def _compare(state: ProfileState, rest: str) -> View:
    names = rest.split()
    if len(names) != 2:
        raise BadArguments("profile compare needs two names", "profile compare before after")
    return profile_views.comparison(
        (names[0], names[1]), compare_profiles(*(_saved(state, n) for n in names))
    )


def _saved(state: ProfileState, name: str) -> Saved:
    if name in state.saved:
        return state.saved[name]
    if name.endswith(".json"):
        return load(Path(os.path.expanduser(name)))
    known = ", ".join(state.saved) or "none is"
    raise UserError(f"no profile is saved as {name!r}", f"saved: {known}")


def _no_more(rest: str, usage: str) -> None:
    if rest:
        raise BadArguments(f"{rest!r} is too much", usage)


_PARTS: dict[str, Callable[[ProfileState, str], View]] = {
    "on": _on,
    "off": _off,
    "report": _report,
    "advice": _advice,
    "ops": _ops,
    "save": _save,
    "compare": _compare,
}
