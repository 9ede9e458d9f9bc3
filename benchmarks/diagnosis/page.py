"""The tables of what was judged, for the screen and for the page in docs/."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.diagnosis.cases import DEVELOPED, HELD_OUT, PROGRAMS
from benchmarks.diagnosis.judging import Judged
from benchmarks.diagnosis.published import PRESETS
from benchmarks.tables import machine, table

__all__ = ["PAGE", "page", "row", "summary"]

PAGE = Path(__file__).parent.parent.parent / "docs" / "explanation" / "diagnosis.md"
OFTEN = 0.3
"""A preset that alarms in a larger share of the steps alarms often."""
PARTS = ((False, "development"), (True, "held out"))


def row(one: Judged) -> str:
    """One run, as it is shown while the benchmark runs."""
    trouble = "" if one.is_bit_equal else "  NOT BIT-EQUAL"
    trouble += f"  {one.notices[0]}" if one.notices else ""
    trouble += "  has not learned" if one.has_learned is False else ""
    if one.kind == "healthy":
        said = "silent" if not one.warnings else f"ALARM: {', '.join(_warned(one))}"
        return f"{one.case[:62]:62}  {one.seed}  {said}{trouble}"
    said = "right" if one.is_right and one.is_localised else "right, elsewhere" if one.is_right else "wrong"
    if not one.first:
        said = "silent"
    also = " (among the others)" if one.is_among and not one.is_right else ""
    return f"{one.case[:62]:62}  {one.seed}  {said:16}  {one.first} {one.place}{also}{trouble}"


def _warned(one: Judged) -> list[str]:
    return [each["rule"] for each in one.findings if each["severity"] != "info"]


def _share(runs: Sequence[Judged], holds: Callable[[Judged], bool]) -> str:
    count = sum(map(holds, runs))
    return f"{count} of {len(runs)} ({count / len(runs):.0%})" if runs else "none"


def _split(results: Iterable[Judged], kind: str, held_out: bool | None = None) -> list[Judged]:
    return [one for one in results if one.kind == kind and (held_out is None or one.is_held_out is held_out)]


def _is_done(one: Judged) -> bool:
    return one.is_right and one.is_localised


def fault_table(results: Sequence[Judged]) -> str:
    """How many faults were named and localised, in each part."""
    rows = []
    for level in _levels(results):
        for held_out, name in PARTS:
            runs = _split((one for one in results if one.level == level), "fault", held_out)
            rows.append(
                (
                    f"{name}, {level}",
                    _share(runs, _is_done),
                    _share(runs, lambda one: one.is_right),
                    _share(runs, lambda one: one.is_among),
                    _share(runs, lambda one: not one.first),
                )
            )
    head = (
        "faulty runs",
        "right cause first, and where",
        "right cause first",
        "right cause at all",
        "silent",
    )
    return table(head, rows)


def healthy_table(results: Sequence[Judged]) -> str:
    """How many healthy runs heard a warning, in each part."""
    rows = []
    for level in _levels(results):
        for held_out, name in PARTS:
            runs = _split((one for one in results if one.level == level), "healthy", held_out)
            rows.append(
                (
                    f"{name}, {level}",
                    str(len(runs)),
                    str(sum(one.warnings > 0 for one in runs)),
                    str(sum(one.warnings for one in runs)),
                )
            )
    return table(("healthy runs", "runs", "with a warning or worse", "such findings"), rows)


def published_table(results: Sequence[Judged]) -> str:
    """What published thresholds and `detect_anomaly` say of the same runs."""
    results = [one for one in results if one.published]
    kinds = _split(results, "fault"), _split(results, "healthy")
    rows = [
        (
            "layerstep, warning or worse",
            *(_share(runs, lambda one: one.warnings > 0) for runs in kinds),
            "",
            "",
        )
    ]
    for name in PRESETS:
        cells = [
            _share(runs, lambda one, name=name, least=least: one.published.get(name, 0) > least)  # type: ignore[misc]
            for least in (0, OFTEN)
            for runs in kinds
        ]
        rows.append((name, *cells))
    rows.append(
        ("`detect_anomaly` raises", *(_share(runs, lambda one: one.anomaly) for runs in kinds), "", "")
    )
    return table(("alarm", "faulty runs", "healthy runs", "faulty, often", "healthy, often"), rows)


def cases_table(results: Sequence[Judged], program: str) -> str:
    """Each fault of a program: what was said first."""
    rows = []
    runs = [one for one in results if one.kind == "fault" and one.program == program]
    for case in dict.fromkeys(one.case for one in runs):
        mine = [one for one in runs if one.case == case]
        said = Counter(one.first or "silent" for one in mine)
        rows.append(
            (
                case.partition(": ")[2],
                " or ".join(f"`{rule}`" for rule in mine[0].expected),
                ", ".join(
                    f"`{rule}`" + (f" ×{n}" if len(mine) > 1 else "") for rule, n in said.most_common()
                ),
                f"{sum(map(_is_done, mine))} of {len(mine)}",
            )
        )
    return table(("fault", "right", "said first", "right and localised"), rows)


def healthy_list(results: Sequence[Judged]) -> str:
    """The healthy trainings, with what was said of them."""
    rows = []
    runs = _split(results, "healthy")
    for case in dict.fromkeys(one.case for one in runs):
        mine = [one for one in runs if one.case == case]
        warned = sorted({rule for one in mine for rule in _warned(one)})
        notes = sorted({each["rule"] for one in mine for each in one.findings} - set(warned))
        rows.append(
            (
                case,
                "held out" if mine[0].is_held_out else "development",
                ", ".join(warned) or "silent",
                ", ".join(notes),
            )
        )
    return table(("training", "part", "warnings", "notes"), rows)


def checks(results: Sequence[Judged]) -> str:
    """What else must hold of each run."""
    differing = sorted({one.case for one in results if not one.is_bit_equal})
    idle = sorted({one.case for one in results if one.has_learned is False})
    troubled = sorted({note for one in results for note in one.notices})
    asked = [one for one in results if one.has_learned is not None]
    lines = [
        f"Losses, parameters and buffers with the doctor equal those without, bit by bit, in "
        f"{_share(results, lambda one: bool(one.is_bit_equal))} runs.",
        f"Healthy runs whose loss falls as far as it should: "
        f"{_share(asked, lambda one: bool(one.has_learned)) if asked else 'not asked in quick runs'}.",
    ]
    lines += [f"Not bit-equal: {', '.join(differing)}."] if differing else []
    lines += [f"Have not learned: {', '.join(idle)}."] if idle else []
    lines += [f"The doctor failed: {'; '.join(troubled[:10])}."] if troubled else []
    return "\n".join(f"- {line}" for line in lines)


def summary(results: Sequence[Judged]) -> str:
    """What the screen shows at the end."""
    parts = [fault_table(results), healthy_table(results)]
    parts += [published_table(results)] if any(one.published for one in results) else []
    parts += [checks(results)]
    return "\n\n".join(["", *parts, ""])


def _levels(results: Sequence[Judged]) -> list[str]:
    return list(dict.fromkeys(one.level for one in results))


def page(results: Sequence[Judged]) -> str:
    """The page of the documentation."""
    faults = {one.case for one in results if one.kind == "fault"}
    healthy = {one.case for one in results if one.kind == "healthy"}
    seeds = len({one.seed for one in results if one.kind == "fault"})
    return _PAGE.format(
        note="" if any(one.published for one in results) else _QUICK,
        faults=len(faults),
        healthy=len(healthy),
        programs=len(PROGRAMS),
        seeds=seeds,
        developed=", ".join(DEVELOPED),
        held_out=", ".join(HELD_OUT),
        fault_table=fault_table(results),
        healthy_table=healthy_table(results),
        presets="\n".join(f"- **{name}**: {rule}." for name, rule in PRESETS.items()),
        published=published_table(results)
        if any(one.published for one in results)
        else "Not asked in quick runs.",
        checks=checks(results),
        cases="\n\n".join(f"### {name}\n\n{cases_table(results, name)}" for name in PROGRAMS),
        healthy_list=healthy_list(results),
        machine=machine(),
        versions=table(("", "version"), [("Python", platform.python_version()), *_versions()]),
    )


def _versions() -> Iterable[tuple[str, str]]:
    for package in ("torch", "layerstep", "transformers", "accelerate"):
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            yield package, "not installed"


_QUICK = """
**These numbers are of a quick run**: one seed, 70 % of the steps, bare and under the doctor only. Whether
healthy runs learn and what other alarms say was not asked.
"""

_PAGE = """\
<!-- Written by `python -m benchmarks.diagnosis`; do not edit. -->
# How often the doctor is right

{faults} faults are planted in {programs} training programs, and {healthy} healthy trainings are run.
This page is generated: `pip install -e '.[bench]'`, then `python -m benchmarks.diagnosis` runs all of it
again and writes it anew.
{note}
## What is run, and how

The {programs} programs are in `benchmarks/diagnosis/programs/`: ordinary training loops of 150 to 300 steps.
A fault changes a few lines of the text of a program (`benchmarks/diagnosis/faults/`). It says which rules are
right, and which source lines, parameters or modules are the right place. A fault runs with {seeds} seeds.

- **right cause first**: the first finding is of a right rule.
- **and where**: that finding names a right line, a right module, or parameters most of which are right.
- **silent**: there is no finding, not even a note.

There are two parts, and they are reported apart:

- **development**: the programs {developed},
  their faults, and the older healthy trainings. Some of these were held out before. Results of all of them
  were looked at while rules were written or mended, so that none says how the rules do on faults that they
  were not made for.
- **held out**: the programs {held_out}, their faults, and the healthy trainings
  that are marked so. They were written after the rules, by someone who had not seen the rules and knew
  their names, one line on each, the titles of the older healthy trainings, and of the older faults one file,
  for its format. The doctor was not run on them while they were written.

Each run takes place twice: bare and under the doctor. All that both leave behind is compared bit by bit; the
{programs} programs as they are run for 200 steps or more. Runs with the first seed take place once more, with
`torch.autograd.detect_anomaly` and published thresholds (at the level extreme only). A healthy training
counts only if its loss falls as far as its case says.

## Faults

{fault_table}

## Healthy runs

{healthy_table}

{checks}

## Other alarms on the same runs

A threshold says that something is odd. It names no cause, so only alarms can be compared, on the runs with
the first seed. *Often*: in more than 30 % of the steps.

{presets}

{published}

## Each fault

{cases}

## Each healthy training

{healthy_list}

## Machine

{machine}, one thread.

{versions}
"""
