"""Trackers get what is recorded, the run does not notice, and no tracker can hold it up or end it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from layerstep.errors import UserError
from layerstep.registry import all_sinks
from layerstep.sinks.outbox import FAILURES, Outbox
from layerstep.sinks.sink import Embedding, Histogram, Sink
from zoo import (
    console_on,
    differences,
    entry_named,
    global_state,
    hook_count,
    loop,
    play,
    seed,
    taps_on,
)

STEPS = 6


class Memory(Sink):
    """Keeps what it is handed."""

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[int, float]]] = {}
        self.histograms: dict[str, list[tuple[int, Histogram]]] = {}
        self.embeddings: dict[str, Embedding] = {}
        self.figures: list[str] = []
        self.graphs: list[Any] = []
        self.findings: list[str] = []
        self.files: dict[str, str] = {}
        self.threads: set[int] = set()
        self.is_open = self.is_closed = False

    def open(self) -> None:
        self.is_open = True

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.threads.add(threading.get_ident())
        for name, value in values.items():
            self.values.setdefault(name, []).append((step, value))

    def histogram(self, name: str, histogram: Histogram, step: int) -> None:
        self.histograms.setdefault(name, []).append((step, histogram))

    def graph(self, graph: Any) -> None:
        self.graphs.append(graph)

    def embedding(self, name: str, embedding: Embedding, step: int) -> None:
        self.embeddings[name] = embedding

    def figure(self, name: str, plot: Any, step: int) -> None:
        self.figures.append(name)

    def finding(self, finding: Any) -> None:
        self.findings.append(finding.rule)

    def artifact(self, path: Path) -> None:
        self.files[path.name] = path.read_text(encoding="utf-8")

    def close(self) -> None:
        self.is_closed = True


def model_of() -> nn.Module:
    seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def train(model: nn.Module, *, steps: int = STEPS, clear: bool = True) -> list[torch.Tensor]:
    seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        if clear:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def fed(lines: list[str], sink: Sink, **options: Any) -> tuple[list[torch.Tensor], Any, nn.Module]:
    model = model_of()
    console, seen = console_on(model, [*lines, "continue"], sinks=[sink])
    with console:
        losses = train(model, **options)
    assert seen.bugs == []
    return losses, seen, model


def test_recordings_and_gradients_arrive_whole() -> None:
    sink = Memory()
    bare = train(model_of())
    losses, _, _ = fed(["record 0 --tensors", "grad record --updates"], sink)
    assert all(map(torch.equal, bare, losses)), "the run is the same"
    assert sink.is_open and sink.is_closed
    assert sink.threads and threading.get_ident() not in sink.threads
    for name in ("output_mean/0", "output_std/0", "gradient_norm/0", "gradient_norm/2", "update_ratio/2"):
        assert [step for step, _ in sink.values[name]] == list(range(1, STEPS + 1)), name
    assert [step for step, _ in sink.histograms["output/0"]] == list(range(1, STEPS + 1))
    assert all(sum(found.counts) == 48 for _, found in sink.histograms["output/0"])
    points = sink.embeddings["0"]
    assert len(points.rows) == len(points.labels) == 8 and len(points.rows[0]) == 6
    assert points.labels[3] == "[3]"


def test_the_numbers_are_those_that_the_recorder_measured() -> None:
    sink, model = Memory(), model_of()
    norms = []

    def keep(gradient: torch.Tensor) -> None:
        norms.append(float(gradient.norm()))

    model[2].weight.register_hook(keep)
    model[2].bias.requires_grad_(False)
    console, _ = console_on(model, ["grad record", "continue"], sinks=[sink])
    with console:
        train(model)
    assert [value for _, value in sink.values["gradient_norm/2"]] == pytest.approx(norms)


def test_the_doctor_hands_on_steps_findings_and_its_page() -> None:
    sink = Memory()
    fed(["doctor on"], sink, steps=30, clear=False)
    assert [step for step, _ in sink.values["loss"]][:3] == [1, 2, 3]
    assert {"total_gradient_norm", "learning_rate", "samples"} <= set(sink.values)
    assert "stale-gradients" in sink.findings
    assert "stale-gradients" in sink.files["findings.json"] and "<h1>doctor" in sink.files["doctor.html"]
    assert sink.values["health"][0][1] < 100


def test_times_plots_the_graph_and_files_are_handed_on(tmp_path: Path) -> None:
    sink = Memory()
    lines = ["profile 3", "tbreak 2", "continue", "hist out", f"export {tmp_path}/out.csv", "graph"]
    fed(lines, sink)
    assert "profile_step_ms" in sink.values and "time_ms/0" in sink.values
    assert "traceEvents" in sink.files["profile.trace.json"]
    assert sink.figures[0].startswith("hist out") and "out.csv" in sink.files
    assert [call.path for call in sink.graphs[0].calls][1:] == ["0", "1", "2"] and len(sink.graphs) == 1


def test_a_second_attachment_opens_the_sink_again() -> None:
    class Counting(Memory):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def open(self) -> None:
            self.calls.append("open")

        def close(self) -> None:
            self.calls.append("close")

    sink, model = Counting(), model_of()
    console, seen = console_on(model, [], sinks=[sink])
    console.execute("record 0")
    for _ in range(2):
        console.attach().attach()
        model(torch.ones(1, 4))
        console.detach()
        console.detach()
    assert sink.calls == ["open", "close"] * 2 and seen.bugs == []
    assert len(sink.values["output_mean/0"]) == 2
    assert " ".join(seen.text.split()).count("1 record is in Counting") == 2


def test_without_a_training_the_steps_are_forwards() -> None:
    sink, model = Memory(), model_of()
    console, _ = console_on(model, ["record 0", "continue"], sinks=[sink])
    with console, torch.no_grad():
        for _ in range(4):
            model(torch.ones(1, 4))
    assert [step for step, _ in sink.values["output_mean/0"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["mlp", "gpt2", "streams"])
def test_a_run_is_the_same_with_and_without(name: str) -> None:
    entry = entry_named(name)
    bare = play(entry, "train")
    before, threads = global_state(), threading.active_count()
    seed(0)
    model = entry.build()
    seed(1)
    console, seen = console_on(model, ["record * --tensors", "doctor on", "continue"], sinks=[Memory()])
    with console:
        state = loop(entry, model, "train")
    assert differences(bare.state, state) == [] and seen.bugs == []
    assert not taps_on(model) and hook_count(model) == hook_count(bare.model)
    assert global_state() == before and threading.active_count() == threads


class Dead(Memory):
    def open(self) -> None:
        raise ConnectionRefusedError("no server is there")


class Failing(Memory):
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        raise ValueError("not that one\nnor this")


@pytest.mark.parametrize(("kind", "words"), [(Dead, "no server is there"), (Failing, "not that one")])
def test_a_tracker_that_fails_is_told_once_and_the_run_goes_on(kind: type[Memory], words: str) -> None:
    bare = train(model_of())
    losses, seen, _ = fed(["record 0", "grad record"], kind())
    assert all(map(torch.equal, bare, losses))
    text = " ".join(seen.text.split())
    assert text.count(words) == 1 and "nor this" not in text, text


def test_a_tracker_that_never_answers_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outbox.close, "__kwdefaults__", {"patience": 0.2, "longest": 1.0})
    hangs = threading.Event()

    class Hanging(Memory):
        def scalars(self, values: Mapping[str, float], step: int) -> None:
            hangs.wait()

    try:
        losses, seen, _ = fed(["record 0"], Hanging())
        assert len(losses) == STEPS and "does not answer" in " ".join(seen.text.split())
    finally:
        hangs.set()


def test_the_queue_is_bounded_and_says_what_is_lost() -> None:
    goes_on = threading.Event()

    class Slow(Memory):
        def scalars(self, values: Mapping[str, float], step: int) -> None:
            goes_on.wait()
            super().scalars(values, step)

    sink = Slow()
    box = Outbox("slow", sink, room=3)
    for step in range(20):
        box.put(lambda each, step=step: each.scalars({"a": 1.0}, step))  # type: ignore[misc]
    assert box.dropped >= 16
    goes_on.set()
    assert f"slow was slower than the run: {box.dropped} records are lost" in box.close()
    assert len(sink.values["a"]) == 20 - box.dropped and sink.is_closed


def test_a_tracker_is_given_up_after_some_failures() -> None:
    calls = []

    class Counting(Memory):
        def scalars(self, values: Mapping[str, float], step: int) -> None:
            calls.append(step)
            raise OSError("gone")

    box = Outbox("counting", Counting())
    for step in range(20):
        box.put(lambda each, step=step: each.scalars({}, step))  # type: ignore[misc]
    assert "gone" in box.close()
    assert len(calls) == FAILURES


def test_nothing_recorded_says_so() -> None:
    _, seen, _ = fed([], Memory())
    assert "nothing was recorded for Memory" in " ".join(seen.text.split())


def test_wrong_names_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"tensorboard", "mlflow", "wandb"} <= set(all_sinks())
    for wanted, words in {
        "tensorbord=a": "did you mean tensorboard|there are",
        "tensorboard": "tensorboard needs a place; tensorboard=DIR",
        "mlflow=folder": "takes the address of a server",
    }.items():
        with pytest.raises(UserError) as raised:
            console_on(model_of(), [], sinks=[wanted])[0].attach()
        assert any(each in str(raised.value) for each in words.split("|")), str(raised.value)
    for name, package in (("tensorboard=a", "tensorboard.compat.proto"), ("wandb", "wandb")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match="pip install 'layerstep"):
            console_on(model_of(), [], sinks=[name])[0].attach()
