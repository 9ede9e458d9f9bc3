"""`python -m benchmarks.rewinding`: what the snapshot of `back` adds to a forward, and what `back` takes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.measure import Spread, quiet
from benchmarks.models import Case, all_cases
from benchmarks.report import PAGE, with_range, write_section
from benchmarks.tables import machine, table
from benchmarks.variants import attached, new_session, say

HEADING = "## Going back in a forward"


@dataclass(slots=True)
class RewindCosts:
    """Seconds of processor time, a value for each round."""

    case: Case
    bare: list[float] = field(default_factory=list)
    point: list[float] = field(default_factory=list)
    """With a breakpoint that never stops, and no snapshots."""
    kept: list[float] = field(default_factory=list)
    """The same with snapshots."""
    stopped: list[float] = field(default_factory=list)
    """With one stop that is left at once."""
    first_back: list[float] = field(default_factory=list)
    """With that stop and one `back` to the boundary before."""
    next_back: list[float] = field(default_factory=list)
    """With one more `back`."""

    def ratio(self, more: Sequence[float], less: Sequence[float]) -> Spread:
        """What `more` takes beyond `less`, in forwards."""
        return Spread.of((one - other) / bare for one, other, bare in zip(more, less, self.bare, strict=True))


def _seconds(run: Callable[[], object], tries: int = 3) -> float:
    """The fastest of some runs."""
    found = []
    for _ in range(tries):
        began = time.thread_time()
        run()
        found.append(time.thread_time() - began)
    return min(found)


def _with_point(case: Case, *, back: str) -> float:
    session = new_session()
    say(session, f"back {back}")
    with attached(session, discover=True):
        case.run()
        say(session, f"break {case.path} if False")
        case.run()
        return _seconds(case.run)


def _with_lines(case: Case, lines: Sequence[str]) -> float:
    """A forward that stops in its middle, where these lines are typed."""
    session = new_session()
    with attached(session, discover=True):
        case.run()
        say(session, f"break {case.path}")

        def run() -> None:
            session.prompt.script.extend([*lines, "disable 1", "continue"])
            case.run()
            say(session, "enable 1")

        run()
        return _seconds(run)


def measure_rewinding(rounds: int) -> list[RewindCosts]:
    """All variants of each model, once a round."""
    found = []
    for case in all_cases():
        costs = RewindCosts(case)
        case.run()
        for _ in range(rounds):
            costs.bare.append(_seconds(case.run))
            costs.point.append(_with_point(case, back="off"))
            costs.kept.append(_with_point(case, back="on"))
            costs.stopped.append(_with_lines(case, []))
            costs.first_back.append(_with_lines(case, ["back"]))
            costs.next_back.append(_with_lines(case, ["back", "back"]))
        found.append(costs)
    return found


def section(found: Sequence[RewindCosts]) -> str:
    """The table, for the page."""
    rows = []
    for costs in found:
        rows.append(
            (
                costs.case.name,
                f"{Spread.of(costs.bare).median * 1e3:.2f}",
                with_range(costs.ratio(costs.kept, costs.point), 3),
                with_range(costs.ratio(costs.first_back, costs.stopped), 2),
                with_range(costs.ratio(costs.next_back, costs.first_back), 2),
            )
        )
    head = ("", "forward, ms", "snapshot", "first `back`", "next `back`")
    return f"{_WORDS}\n\n{table(head, rows)}\n\n{machine()}. Rounds: {len(found[0].bare)}.\n"


_WORDS = f"""\
{HEADING}

What `back` adds, as a part of the bare forward, in CPU time of the thread. A snapshot is taken at the entry
of each forward while a point is set; here the point never stops. Then a point stops in the middle of the
model: the first `back` runs the forward to that place twice, the next one once. Its time includes the stop
itself, what it shows, and the comparison of all outputs on the way. The table shows medians, and in brackets
the range of the middle half.
`python -m benchmarks.rewinding --write` measures this part alone."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rewinding", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=f"put the section into {PAGE.name}")
    options = parser.parse_args()
    quiet()
    text = section(measure_rewinding(options.rounds))
    print(text)
    if options.write:
        write_section(text)


if __name__ == "__main__":
    main()
