"""`python -m benchmarks.editing`: an edit at one module, and a sweep over all layers, beside other ways."""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import Spread, quiet
from benchmarks.models import Case, all_cases
from benchmarks.report import PAGE, with_range, write_section
from benchmarks.tables import machine, table
from benchmarks.variants import BARE, BARE_AGAIN, Run, Variant, attached, check_clean, new_session, say
from layerstep.engine.messages import Message
from layerstep.views import Group, Table

HEADING = "## Edits"
LENS_BARE = "TransformerLens, no edit"
RUNS = 5
"""Forwards of one sample."""


@contextlib.contextmanager
def _by_hook(case: Case) -> Iterator[Run]:
    handle = case.model.get_submodule(case.path).register_forward_hook(lambda module, given, out: out * 0)
    try:
        yield case.run
    finally:
        handle.remove()


@contextlib.contextmanager
def _by_line(case: Case, *, line: str) -> Iterator[Run]:
    session = new_session()
    session.add_model(case.model)
    with attached(session, discover=False):
        say(session, line.format(path=case.path))
        yield case.run


@contextlib.contextmanager
def _by_nnsight(case: Case) -> Iterator[Run]:
    from nnsight import NNsight

    model = NNsight(copy.deepcopy(case.model))  # a copy: its wrappers stay on the modules
    edited = model.get(case.path)

    def run() -> Any:
        with model.trace(case.input):
            edited.output = edited.output * 0
            found = model.output.save()
        return found

    yield run


@contextlib.contextmanager
def _by_lens(case: Case, *, is_edited: bool) -> Iterator[Run]:
    from transformer_lens.model_bridge.sources import (  # type: ignore[import-not-found]
        build_bridge_from_module,
    )

    copied: Any = copy.deepcopy(case.model)  # it replaces the modules by its own
    model = build_bridge_from_module(copied, type(copied).__name__, hf_config=copied.config)

    def zero(value: Tensor, hook: Any) -> Tensor:
        return value * 0

    hooks = [("blocks.1.hook_mlp_out", zero)]
    yield lambda: model.run_with_hooks(case.input, fwd_hooks=hooks) if is_edited else model(case.input)


EDITS = (
    BARE,
    BARE_AGAIN,
    Variant("forward hook by hand", _by_hook),
    Variant("`edit PATH out * 0`", partial(_by_line, line="edit {path} out * 0")),
    Variant("`ablate PATH`", partial(_by_line, line="ablate {path}")),
    Variant("nnsight", _by_nnsight, needs="nnsight"),
    Variant(LENS_BARE, partial(_by_lens, is_edited=False), needs="transformer_lens"),
    Variant("TransformerLens", partial(_by_lens, is_edited=True), needs="transformer_lens"),
)


def _sample(variant: Variant, case: Case) -> float:
    """Seconds of a forward, in processor time of the thread."""
    with variant.open(case) as run:
        run()
        began = time.thread_time()
        for _ in range(RUNS):
            run()
        return (time.thread_time() - began) / RUNS


def _logits(found: Any) -> Tensor:
    tensor: Tensor = getattr(found, "logits", found)
    return tensor


def measure_edits(case: Case, rounds: int) -> dict[str, list[float]]:
    """All variants once a round, in a new order each round; the ratios to the bare forward."""
    present = [variant for variant in EDITS if not variant.is_missing]
    wanted: Tensor | None = None
    for variant in present[2:]:
        with variant.open(case) as run:
            found = _logits(run())
        wanted = found if wanted is None else wanted
        is_edited = variant.name != LENS_BARE
        assert not is_edited or torch.allclose(found, wanted, atol=1e-5), variant.name
    ratios: dict[str, list[float]] = {variant.name: [] for variant in present}
    order = random.Random(0)
    for _ in range(rounds):
        order.shuffle(present)
        seconds = {variant.name: _sample(variant, case) for variant in present}
        for name, value in seconds.items():
            ratios[name].append(value / seconds[BARE.name])
    return ratios


# --- a sweep: each layer's output from another input, and what that does to a number ---


def _first(output: Any) -> Tensor:
    tensor: Tensor = output[0] if isinstance(output, tuple) else output
    return tensor


def _keep_in(kept: dict[str, Tensor], path: str) -> Callable[..., None]:
    def keep(module: nn.Module, given: Any, output: Any) -> None:
        kept[path] = _first(output).clone()

    return keep


def _put(value: Tensor) -> Callable[..., Any]:
    return lambda module, given, output: (value, *output[1:]) if isinstance(output, tuple) else value


def _by_loop(case: Case, other: Tensor, paths: Sequence[str]) -> list[float]:
    """As people write it."""
    kept: dict[str, Tensor] = {}
    modules = {path: case.model.get_submodule(path) for path in paths}
    handles = [module.register_forward_hook(_keep_in(kept, path)) for path, module in modules.items()]
    case.model(other)
    for handle in handles:
        handle.remove()
    found = []
    for path in (each for each in paths if each in kept):  # not all are called
        handle = modules[path].register_forward_hook(_put(kept[path]))
        found.append(float(_logits(case.run())[0, -1].max()))
        handle.remove()
    return found


def _by_command(case: Case, other: Tensor, pattern: str) -> tuple[float, list[float]]:
    """Seconds of `patch --sweep` at a stop, and the numbers that it shows. The line finds `other` here."""
    session = new_session()
    shown: list[Table] = []

    def hear(message: Message) -> None:
        views = message.view.views if isinstance(message.view, Group) else (message.view,)
        shown.extend(view for view in views if isinstance(view, Table))

    session.listen(hear)
    line = f"patch --sweep {pattern} from input other metric out.logits[0, -1].max()"
    with attached(session, discover=True):
        case.run()
        say(session, "break lm_head")
        seconds = []
        for lines in ([], [line]):
            session.prompt.script.extend([*lines, "disable 1", "continue"])
            began = time.thread_time()
            case.run()
            seconds.append(time.thread_time() - began)
            say(session, "enable 1")
    return seconds[1] - seconds[0], [float(row[1]) for row in shown[-1].rows if row[1]]


def measure_sweeps(case: Case, rounds: int) -> list[tuple[str, int, list[float], list[float]]]:
    """For the blocks, and for all modules in them: seconds by the loop and by the command."""
    other = torch.randint(1000, case.input.shape, generator=torch.Generator().manual_seed(1))
    names = [name for name, _ in case.model.named_modules()]
    blocks = [name for name in names if name.startswith("transformer.h.") and name.count(".") == 2]
    inside = [name for name in names if name.startswith("transformer.h.")]
    found = []
    for title, pattern, paths in (
        ("the blocks", "transformer.h.*", blocks),
        ("all modules in them", "transformer.h.**", inside),
    ):
        loops, commands = [], []
        for _ in range(rounds):
            began = time.thread_time()
            wanted = _by_loop(case, other, paths)
            loops.append(time.thread_time() - began)
            seconds, numbers = _by_command(case, other, pattern)
            commands.append(seconds)
            rounded = [float(f"{value:.4g}") for value in wanted]
            assert numbers == rounded[: len(numbers)], "the loop and the command find different numbers"
        found.append((title, len(wanted), loops, commands))
    return found


# --- the page ---


def section(edits: dict[str, list[float]], sweeps: Sequence[Any], load: tuple[float, float]) -> str:
    """The tables, for the page."""
    rows = []
    for variant in EDITS:
        shown = with_range(Spread.of(edits[variant.name]), 2) if variant.name in edits else "not installed"
        rows.append((variant.name, shown))
    one = table(("", "CPU time, × bare"), rows)
    swept = [
        (
            f"{title}, {count} runs",
            f"{Spread.of(loops).median * 1e3:.0f}",
            f"{Spread.of(commands).median * 1e3:.0f}",
            with_range(Spread.of(c / loop for c, loop in zip(commands, loops, strict=True)), 2),
        )
        for title, count, loops, commands in sweeps
    ]
    two = table(("", "loop by hand, ms", "`patch --sweep`, ms", "ratio"), swept)
    rounds = len(edits[BARE.name])
    last = (
        f"{machine()}. {_versions()}. Rounds: {rounds}. The load average was {load[0]:.1f} to {load[1]:.1f}."
    )
    return f"{_WORDS}\n\n{one}\n\n{_SWEEPS}\n\n{two}\n\n{last}\n"


def _versions() -> str:
    found = []
    for package in ("torch", "nnsight", "transformer-lens"):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)


_WORDS = f"""\
{HEADING}

The output of one MLP of a GPT-2 (4 layers of 256, 64 tokens) is replaced by zeros in each forward. All ways
have the same result. TransformerLens replaces the modules of the model by its own, which compute the
attention in another way; so there is a row without an edit, too. Processor time of the thread; medians, and
in brackets the range of the middle half. `python -m benchmarks.editing --write` measures this part alone,
with TransformerLens if it is installed."""

_SWEEPS = """\
A sweep puts the output that each layer has for another input in its place, one layer after the other, and
takes a number of the result. The loop by hand keeps the outputs by hooks, and then runs a forward for each
layer with one hook. `patch --sweep` does the same at a stop, on copies and with all state put back. Both
find the same numbers."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.editing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help=f"put the section into {PAGE.name}")
    options = parser.parse_args()
    quiet()
    case = all_cases()[0]
    begin = os.getloadavg()[0]
    with torch.no_grad():
        edits = measure_edits(case, options.rounds)
        check_clean(case.model)
        sweeps = measure_sweeps(case, max(3, options.rounds // 3))
    check_clean(case.model)
    text = section(edits, sweeps, (begin, os.getloadavg()[0]))
    print(text)
    if options.write:
        write_section(text)


if __name__ == "__main__":
    main()
