"""`memory`: what is known at once, what a measured step adds, snapshots, and the words of the command."""

from __future__ import annotations

import io
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from layerstep import DebugConsole
from layerstep.memory.forecast import forecast
from layerstep.memory.ledger import MemoryLedger
from layerstep.memory.meter import meter_of
from layerstep.memory.now import look
from layerstep.memory.step import MeasuredStep, Peak, Savings
from layerstep.render.screen import to_text
from layerstep.tensors.autograd_graph import walk

BATCH, IN, HIDDEN = 16, 8, 32


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(IN, HIDDEN)
        self.last = nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


PARAMETERS = {"first": 4 * (IN * HIDDEN + HIDDEN), "last": 4 * (HIDDEN * 2 + 2)}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int = BATCH) -> None:
    loss = model(torch.randn(batch, IN)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(*lines: str, steps: int = 3) -> tuple[DebugConsole, Net]:
    torch.manual_seed(0)
    model = Net()
    console = DebugConsole(model, commands=list(lines), output=io.StringIO())
    with console:
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            step(model, optimizer)
    console.session.kept_by_the_test = optimizer
    return console, model


def say(console: DebugConsole, line: str, width: int = 120) -> str:
    return to_text(console.execute(line), width=width)  # type: ignore[arg-type]


def test_what_needs_no_measuring() -> None:
    console, _ = train()
    now = look(console.session)
    assert now.kinds["parameters"] == PARAMETERS
    assert now.kinds["gradients"] == PARAMETERS
    counts = {
        path: size * 2 + 2 * 4 for path, size in PARAMETERS.items()
    }  # two moments, and a count a tensor
    assert now.kinds["optimizer state"] == counts
    text = say(console, "memory")
    assert "`memory 1` measures the next step" in text and "this process has" in text


def test_shared_parameters_count_once() -> None:
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    model[1].weight = model[0].weight
    console = DebugConsole(model, output=io.StringIO())
    assert look(console.session).total("parameters") == 4 * (16 + 4 + 4)


def test_a_measured_step_has_what_autograd_saved() -> None:
    console, _ = train("memory on")
    measured = meter_of(console.session).steps[-1]
    assert measured.label == "step 3" and measured.batch == BATCH
    hidden, out = 4 * BATCH * HIDDEN, 4 * BATCH * 2
    assert measured.saved.by_path["Net"] == hidden, "the result of tanh, which `last` saved as well"
    assert measured.saved.by_path[""] == out, "what square() saved, outside of modules"
    assert measured.saved.apart["inputs"] == 4 * BATCH * IN
    assert measured.saved.apart["parameters"] == 4 * HIDDEN * 2, "the weight of the last layer, for its input"
    assert not measured.is_cut and not measured.saved.opaque


@pytest.mark.parametrize("way", ["backward", "grad", "edge"])
def test_all_that_a_sum_of_losses_saved_is_seen(way: str) -> None:
    """The node of a sum runs no operation, so the first one of the backward is in one of its branches."""
    left, right = nn.Linear(IN, HIDDEN), nn.Linear(IN, 2 * HIDDEN)
    model = nn.ModuleDict({"left": left, "right": right})
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters)
    console = DebugConsole(model, commands=["memory on"], output=io.StringIO())
    with console:
        for _ in range(3):
            x = torch.randn(BATCH, IN)
            loss = left(x).square().sum() + right(x).square().sum()
            if way == "backward":
                loss.backward()
            elif way == "grad":
                torch.autograd.grad(loss, parameters)
            else:
                torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss), torch.ones(()))
            optimizer.step()
    saved = [step.saved.bytes for step in meter_of(console.session).steps]
    assert saved == [4 * BATCH * (HIDDEN + 2 * HIDDEN) + 4 * BATCH * IN] * 3, saved


def test_what_a_layer_saves_that_writes_in_place_is_its_own() -> None:
    model = nn.Sequential(nn.Linear(IN, HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, 2))
    console = DebugConsole(model, commands=["memory on"], output=io.StringIO())
    with console:
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            step(model, optimizer)
    for measured in meter_of(console.session).steps:
        assert measured.saved.by_path == {"1": 4 * BATCH * HIDDEN, "": 4 * BATCH * 2}


def test_the_peak_is_the_sum_of_what_was_alive() -> None:
    console, _ = train("memory on")
    for measured in meter_of(console.session).steps:
        for peak in (measured.peak, measured.in_optimizer):
            assert sum(peak.kinds.values()) == peak.bytes
        assert max(measured.course) == measured.highest.bytes
        assert sum(measured.highest.temporary.values()) == measured.highest.kinds.get("temporary", 0)
    first, second = list(meter_of(console.session).steps)[:2]
    assert "optimizer state" not in first.peak.kinds and second.peak.kinds["optimizer state"] > 0
    loss, counts = 4, 4 * 4
    assert first.after == 4 * sum(PARAMETERS.values()) + counts + loss


def test_the_temporary_of_a_layer_is_its_own() -> None:
    class Wasteful(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            big = x.detach().repeat(1, 1000)
            return x + big.sum() * 0

    model = nn.Sequential(nn.Linear(IN, IN), Wasteful(), nn.Linear(IN, 2))
    console = DebugConsole(model, commands=["memory on"], output=io.StringIO())
    with console:
        model(torch.randn(BATCH, IN)).sum().backward()
    (measured,) = meter_of(console.session).steps
    assert measured.label == "forward 1"
    assert measured.highest.path == "1" and measured.highest.part == "forward"
    assert measured.highest.temporary["1"] >= 4 * BATCH * IN * 1000


def test_the_line_of_the_peak_is_named() -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                scale = x.repeat(1, 1000).abs().max()  # the peak
            return x / scale

    model = nn.Sequential(nn.Linear(IN, IN), Wide(), nn.Linear(IN, 2))
    console = DebugConsole(model, commands=["memory on"], output=io.StringIO())
    with console:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model, optimizer)
    source = Path(__file__).read_text().splitlines()
    number = next(at for at, text in enumerate(source, 1) if text.endswith("# the peak"))
    assert [each.highest.line for each in meter_of(console.session).steps] == [
        f"{Path(__file__).name}:{number}"
    ] * 3
    assert f"in the forward of 1, at {Path(__file__).name}:{number}" in say(console, "memory")


def test_a_peak_in_a_backward_has_no_line() -> None:
    console, _ = train("memory on")
    for measured in meter_of(console.session).steps:
        assert measured.peak.part == "backward" and not measured.peak.line


@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_of_a_compiled_model_it_is_said_what_is_not_seen() -> None:
    model = torch.compile(Net(), backend="aot_eager")
    console = DebugConsole(model, output=io.StringIO())
    with console:
        say(console, "memory 1")
        model(torch.randn(BATCH, IN)).square().mean().backward()
    (measured,) = meter_of(console.session).steps
    assert measured.batch == BATCH and measured.saved.apart["inputs"] == 4 * BATCH * IN
    assert measured.saved.by_path["Net"] == 4 * BATCH * HIDDEN, "what tanh has made, for both"
    assert "not seen" in say(console, "memory") and "compiled code" in say(console, "memory")


def test_inputs_deep_inside_are_inputs() -> None:
    class Deep(Net):
        def forward(self, x: dict[str, list[tuple[Tensor]]]) -> Tensor:
            return super().forward(x["batch"][0][0])

    model = Deep()
    console = DebugConsole(model, commands=["memory on"], output=io.StringIO())
    with console:
        model({"batch": [(torch.randn(BATCH, IN),)]}).sum().backward()
    assert meter_of(console.session).steps[-1].saved.apart["inputs"] == 4 * BATCH * IN


def test_parameters_inside_of_a_scripted_module_count() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4))))
    console = DebugConsole(model, output=io.StringIO())
    assert look(console.session).kinds["parameters"] == {"0": 80, "1": 80}


def test_a_count_of_steps_ends_by_itself() -> None:
    console, _ = train("memory 2", steps=4)
    meter = meter_of(console.session)
    assert [each.label for each in meter.steps] == ["step 1", "step 2"] and not meter.is_on


def test_gradient_accumulation_is_one_step() -> None:
    model = Net()
    console = DebugConsole(model, commands=["memory on"], output=io.StringIO())
    with console:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer)
        for _ in range(3):
            model(torch.randn(BATCH, IN)).sum().backward()
        optimizer.step()
    assert [each.label for each in meter_of(console.session).steps] == ["step 1", "step 2"]


def test_a_forward_without_gradients_saves_nothing() -> None:
    model = Net()
    console = DebugConsole(model, commands=["memory on"], output=io.StringIO())
    with console, torch.no_grad():
        model(torch.randn(BATCH, IN))
        model(torch.randn(BATCH, IN))
    measured = list(meter_of(console.session).steps)
    assert [each.label for each in measured] == ["forward 1", "forward 2"]
    assert all(not each.saved.nodes for each in measured)
    assert "nothing: no graph was made" in say(console, "memory")


def test_a_thread_is_measured_too() -> None:
    model = Net()
    console = DebugConsole(model, commands=["memory on"], output=io.StringIO())
    with console:
        worker = threading.Thread(target=lambda: model(torch.randn(BATCH, IN)).sum().backward())
        worker.start()
        worker.join()
    (measured,) = meter_of(console.session).steps
    assert measured.saved.by_path["Net"] == 4 * BATCH * HIDDEN


def test_screens() -> None:
    console, _ = train("memory on")
    whole = say(console, "memory")
    for word in ("parameters", "gradients", "optimizer", "saved", "autograd held", "batch 32", "assumed"):
        assert word in whole
    inside = say(console, "memory first")
    assert "first" in inside and "last" not in inside
    assert "backward from" in say(console, "memory timeline")
    assert "no accelerator is here" in say(console, "memory devices") or torch.accelerator.is_available()
    assert "there is no snapshot 'a'" in say(console, "memory diff a")
    assert "3 steps are kept" in say(console, "memory off") or "not being measured" in say(
        console, "memory off"
    )


@pytest.mark.parametrize(
    "line, answer",
    [
        ("memory 0", "is no number of steps"),
        ("memory on now", "too much"),
        ("memory snapshot", "needs a name"),
        ("memory diff", "memory diff needs A"),
        ("memory nosuch", "no module 'nosuch'"),
        ("memory timeline", "no step is measured"),
    ],
)
def test_wrong_use(line: str, answer: str) -> None:
    assert answer in say(DebugConsole(Net(), output=io.StringIO()), line)


def test_the_difference_of_two_snapshots() -> None:
    model = Net()
    console = DebugConsole(model, output=io.StringIO())
    with console:
        say(console, "memory snapshot loaded")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step(model, optimizer)
        say(console, "memory snapshot trained")
        text = say(console, "memory diff loaded trained")
    rows = [line.split() for line in text.splitlines()]
    assert ["first", "gradients", "-", "1.2", "kB", "+1.2", "kB"] in rows
    assert ["first", "optimizer", "state", "-", "1.2", "kB", "+1.2", "kB"] in rows
    assert not any(row[:2] == ["first", "parameters"] for row in rows)


def test_info_cost_says_what_is_installed() -> None:
    console = DebugConsole(Net(), output=io.StringIO())
    with console:
        assert "notes what tensors are given memory" not in say(console, "info cost")
        say(console, "memory on")
        assert "notes what tensors are given memory" in say(console, "info cost")


def test_the_ledger_knows_when_memory_is_freed() -> None:
    ledger = MemoryLedger()
    ledger.begin()
    one, two = torch.ones(4), torch.ones(8)
    for tensor in (one, two):
        ledger.add(tensor, tensor.untyped_storage()._cdata, path="a", part="forward")
    view = one[:2]
    del one
    assert ledger.live == 48, "a view keeps its memory"
    del view
    assert ledger.live == 32
    three = torch.ones(1)
    ledger.add(three, three.untyped_storage()._cdata, path="b", part="backward")
    assert ledger.tops[False].bytes == 48 and ledger.tops[False].path == "a"
    assert [piece.bytes for piece, _ in ledger.alive_after(ledger.tops[False].at)] == [16, 32]
    assert ledger.course() == [0, 16, 48, 32, 36]
    ledger.begin()
    assert ledger.live == 36 and ledger.course() == [36]


def test_a_graph_is_walked_without_unpacking() -> None:
    unpacked = []

    def unpack(packed: tuple[Tensor]) -> Tensor:
        unpacked.append(packed)
        return packed[0]

    x = torch.ones(10, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (tensor.clone(),), unpack):
        y = x.exp()
    graph = walk([y.grad_fn])
    assert graph.bytes == 40 and graph.nodes == 2 and not unpacked
    y.sum().backward()
    assert unpacked and walk([y.grad_fn]).bytes == 0, "a backward lets go of it"


def test_a_forecast_says_what_it_rests_on() -> None:
    def measured(batch: int, kinds: dict[str, int]) -> MeasuredStep:
        peak = Peak(sum(kinds.values()), "a", "forward", kinds)
        return MeasuredStep(f"step {batch}", batch, peak, Peak(), Savings(), 0)

    one = measured(4, {"parameters": 100, "saved": 40, "temporary": 8, "inputs": 2})
    expected = forecast([one])
    assert expected is not None and expected.bytes == 200 and expected.batch == 8
    assert expected.fixed == 100 and expected.scaling == 50 and "assumed" in expected.basis
    two = measured(8, {"parameters": 100, "saved": 60, "temporary": 8, "inputs": 2})
    fitted = forecast([one, two])
    assert fitted is not None and fitted.bytes == 170 + 8 * 5 and "4, 8" in fitted.basis
    assert forecast([]) is None
