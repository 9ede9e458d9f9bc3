"""An exported trace, as Perfetto's own trace processor reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from layerstep.profile.call_times import StepTime
from layerstep.profile.profiling import Profile
from layerstep.profile.report import Measured, measure
from layerstep.profile.trace import chrome_trace
from trace_processor import Ask, loaded
from zoo import ZOO, Entry, console_on, feeding, loss_of, seed

pytestmark = [
    pytest.mark.trace,
    pytest.mark.xdist_group("trace"),  # one worker makes the trace and starts the processor
]

TROUBLE = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
SPANS = """
    create perfetto view spans as
    select slice.id, slice.ts, slice.dur, slice.ts + slice.dur as until, slice.name, slice.category,
           thread.name as track, extract_arg(slice.arg_set_id, 'args.own_us') as own
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
"""


class Block(nn.Module):
    """Two branches that the backward comes by in turns, and a piece that is computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.again = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        for _ in range(3):
            left, right = self.left(left) * right, self.right(right) + left
        return checkpoint(self.again, left + right, use_reentrant=False)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that is timed; one step has a stop in it, and one loses a value to a NaN."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    lines = ["break head if step == 4", "catch nan", "profile on", "continue", "continue", "continue"]
    console, seen = console_on(model, lines)
    path = tmp_path_factory.mktemp("trace") / "run.trace.json"
    with console:
        for step in range(9):
            x = torch.randn(4, 8)
            if step == 6:
                x[0, 0] = torch.nan
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if step != 6:
                optimizer.step()
        console.execute(f"export {path}")
    assert not seen.bugs
    return path


@pytest.fixture(scope="module")
def ask(trace: Path) -> Iterator[Ask]:
    with loaded(trace) as answer:
        answer(SPANS)
        yield answer


def test_nothing_is_lost_or_refused(ask: Ask, trace: Path) -> None:
    assert ask(TROUBLE) == []
    events = json.loads(trace.read_text())["traceEvents"]
    written = sorted(
        (round(1e3 * e["ts"]), round(1e3 * e["dur"]), e["name"]) for e in events if e["ph"] == "X"
    )
    read = ask("select ts, dur, name from spans where category <> 'mark' order by ts, dur, name")
    assert [(row["ts"], row["dur"], row["name"]) for row in read] == written


def test_the_tracks_have_names_in_their_order(ask: Ask) -> None:
    query = """select name from thread where name is not null
               order by extract_arg(arg_set_id, 'thread_sort_index_hint')"""
    depths = [f"depth {depth}" for depth in range(4)]
    names = [row["name"] for row in ask(query)]
    assert names == ["steps", "stops and findings", "outside the model", *depths]
    assert [row["name"].endswith(" on cpu") for row in ask("select name from process where pid = 1")] == [
        True
    ]


def test_a_call_lies_within_its_caller(ask: Ask) -> None:
    """One track a depth: what is on one lies within something on the track above, and beside its likes."""
    for depth, above in ((0, "steps"), *((depth, f"depth {depth - 1}") for depth in range(1, 4))):
        lost = f"""select name, category from spans inner_ where track = 'depth {depth}' and not exists (
                   select 1 from spans outer_ where outer_.track = '{above}'
                   and outer_.ts <= inner_.ts and inner_.until <= outer_.until)"""
        assert ask(lost) == [], depth
    overlapping = """select a.name, b.name as other from spans a join spans b using (track)
                     where a.id <> b.id and a.category <> 'mark' and a.ts < b.until and b.ts < a.until"""
    assert ask(overlapping) == []


def test_forward_and_backward_of_each_module(ask: Ask) -> None:
    steps = ask("select count() as n from spans where category = 'step'")[0]["n"]
    found = ask("select name, category, track, count() as n from spans group by 1, 2, 3")
    counts = {(row["name"], row["category"], row["track"]): row["n"] for row in found}
    assert steps >= 3
    assert counts["head", "forward", "depth 1"] >= steps
    assert counts["head", "backward", "depth 1"] >= steps
    assert counts["blocks.1.left", "forward", "depth 3"] >= 4 * steps
    assert counts["blocks.1.left", "backward", "depth 3"] >= 4 * steps, (
        "come by in turns with the other branch"
    )
    assert counts["blocks.0.again", "recomputed", "depth 0"] >= steps
    first = """select min(b.ts) > max(f.until) as after from spans b, spans f, spans step
               where step.name = 'training step 1' and b.name = 'blocks.0' and f.name = 'blocks.0'
               and b.category = 'backward' and f.category = 'forward'
               and b.ts between step.ts and step.until and f.ts between step.ts and step.until"""
    assert ask(first)[0]["after"] == 1


def test_what_is_in_a_step_sums_up_to_it(ask: Ask) -> None:
    found = ask("""
        select step.name, step.dur / 1e3 as whole,
               extract_arg(slice.arg_set_id, 'args.profiler_us') as profiler,
               (select sum(own) from spans where track like 'depth %' and ts between step.ts and step.until)
                 as calls,
               (select sum(dur) / 1e3 from spans where category = 'outside'
                and ts between step.ts and step.until) as outside
        from spans step join slice using (id) where step.category = 'step'""")
    assert len(found) >= 3
    for row in found:
        parts = row["profiler"] + row["calls"] + row["outside"]
        assert parts == pytest.approx(row["whole"], abs=0.1), row
        assert row["profiler"] < row["calls"] + row["outside"]


def test_stops_and_findings_are_marks(ask: Ask) -> None:
    marks = ask("select name, dur, ts from spans where track = 'stops and findings' order by ts")
    assert [mark["dur"] for mark in marks] == [0, 0]
    assert "head" in marks[0]["name"] and "break 1" in marks[0]["name"]
    assert "nan" in marks[1]["name"]
    stopped = f"select name from spans where category = 'step' and {marks[0]['ts']} between ts and until"
    assert ask(stopped) == [], "a step with a stop in it is left out"


def test_what_is_known_of_a_call_is_beside_it(ask: Ask) -> None:
    query = """select distinct extract_arg(slice.arg_set_id, 'args.' || key) as value from slice, (
               select 'type' as key union select 'parameters' union select 'forward_FLOP' union select 'path')
               where slice.name = 'head' and category = 'forward' order by 1"""
    assert {str(row["value"]) for row in ask(query)} == {"Linear", "18", str(2 * 4 * 8 * 2), "head"}
    rates = ask("""select value from counter join counter_track on counter.track_id = counter_track.id
                   where name = 'throughput samples/s'""")
    assert rates and all(row["value"] > 0 for row in rates)


def test_steps_that_a_device_timed_follow_each_other() -> None:
    """Its clock begins anew with each step, and is not that of the marks."""
    steps = [StepTime(begin=0, end=end, spans=[("data", 0, end)]) for end in (3000, 5000)]
    document = chrome_trace(Measured([], [], [], True, times=steps, is_host=False), [(77, "a stop")])
    spans = [event for event in document["traceEvents"] if event.get("cat") == "step"]
    assert [(span["ts"], span["dur"]) for span in spans] == [(0.0, 3.0), (3.0, 5.0)]
    assert not [event for event in document["traceEvents"] if event["ph"] == "i"]


@pytest.mark.parametrize("kind", ZOO, ids=str)
def test_spans_of_any_model_nest_and_sum_up(kind: Entry) -> None:
    """What the processor is asked above, of every kind of model, without it."""
    seed(0)
    model = kind.build().train()
    with feeding(kind, "train") as (args, kwargs):
        model(*args, **kwargs)  # lazy layers have no parameters before
        console, seen = console_on(model, ["profile 2"])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        with console:
            for _ in range(5):
                loss_of(model(*args, **kwargs)).backward()
                optimizer.step()
    assert not seen.bugs
    events = chrome_trace(measure(console.session.instruments.get(Profile)))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    steps = [span for span in spans if span["cat"] == "step"]
    assert len(steps) == 2
    for step in steps:
        inside = [span for span in spans if span is not step and is_within(span, step)]
        parts = [span["args"].get("own_us", span["dur"]) for span in inside]
        assert sum(parts) + step["args"]["profiler_us"] == pytest.approx(step["dur"], abs=0.1)
    for span in spans:
        beside = [other for other in spans if other["tid"] == span["tid"] and other is not span]
        assert not any(is_overlapping(span, other) for other in beside), span
        above = [other for other in spans if other["tid"] == span["tid"] - 1]
        assert span["tid"] <= 4 or any(is_within(span, other) for other in above), span


def is_within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(begin_of(outer) <= begin_of(inner) and end_of(inner) <= end_of(outer))


def is_overlapping(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return begin_of(one) < end_of(other) and begin_of(other) < end_of(one)


def begin_of(span: dict[str, Any]) -> int:
    return round(1e3 * span["ts"])


def end_of(span: dict[str, Any]) -> int:
    return begin_of(span) + round(1e3 * span["dur"])
