"""Crashes: the stop where a module raises, what is said of it, and that the exception stays the user's."""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import layerstep
from crash_cases import CASES, Case
from layerstep import DebugConsole, Quit, UserError
from layerstep._torch.modes import is_on_stack
from layerstep.assembly import assemble
from layerstep.config import Config
from layerstep.crashes.catching import Crashes
from layerstep.crashes.explain import explaining
from layerstep.crashes.explain.dtypes import move
from layerstep.crashes.explain.explaining import explain, explain_facts
from layerstep.crashes.explain.facts import Facts
from layerstep.crashes.traceback_calls import crash_of, is_control_flow
from layerstep.frontends.output import Screen
from layerstep.frontends.plain import Plain
from layerstep.module_paths.models import Models
from layerstep.render.screen import make_console, to_text
from zoo import console_on, global_state, hook_count

HERE = "test_crashes.py"


class Block(nn.Module):
    def __init__(self, wrong: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(8 if wrong else 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x).relu()
        return x + self.fc2(hidden)


class Net(nn.Module):
    def __init__(self, wrong: bool = True) -> None:
        super().__init__()
        self.first = Block(wrong=False)
        self.second = Block(wrong)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Careful(nn.Module):
    """A model that deals with the exceptions of its own parts."""

    def __init__(self) -> None:
        super().__init__()
        self.risky = Block()
        self.safe = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.risky(x)
        except RuntimeError:
            return self.safe(x)


@pytest.fixture(autouse=True)
def nothing_of_the_process_changes() -> Iterator[None]:
    before = global_state()
    yield
    assert global_state() == before


def raised(run: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        run()
    return caught.value


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


class Found:
    """A session that finds models as they are called, as `layerstep run` has one, with lines to take."""

    def __init__(self, *lines: str, config: Config | None = None, asked: bool = True) -> None:
        self.session = assemble(config or Config())
        self.console = make_console(io.StringIO(), width=100, colour=False)
        screen = Screen(self.session, self.console.file, console=self.console)
        self.session.listen(screen)
        if asked:
            self.session.prompt.frontend = Plain(self.session, screen, io.StringIO("\n".join(lines) + "\n"))
        else:
            self.session.prompt.script.extend(lines)

    @property
    def text(self) -> str:
        return self.console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    def __enter__(self) -> Found:
        self.session.attach(discover=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.session.detach()


# -- explanations ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "_attempted", lambda explainer, facts, found: explainer(facts, found))
    case: Case = CASES[name]
    explanation = explain(crash_of(raised(case.run), Models()))
    assert "\n" not in explanation.cause and "\n" not in explanation.fix
    assert [words for words in case.cause if words not in explanation.cause] == []
    assert [words for words in case.fix if words not in explanation.fix] == []


def test_there_are_at_least_thirty_families() -> None:
    assert len(CASES) >= 60


def test_an_explanation_shows_what_went_in_and_what_is_there() -> None:
    explanation = explain(crash_of(raised(CASES["linear_last_dimension"].run), Models()))
    assert explanation.got == (("input", "f32[2, 64, 512]"),)
    assert explanation.has == (("weight", "f32[3072, 768]"), ("bias", "f32[3072]"))


def test_an_explainer_that_fails_leaves_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(nn.Linear):
        @property
        def in_features(self) -> int:  # type: ignore[override]
            raise ValueError("not now")

        @in_features.setter
        def in_features(self, value: int) -> None:
            pass

    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)")
    facts = Facts(error, Odd(2, 2), "odd", args=(torch.ones(1, 2),))
    assert "mat1 and mat2 shapes cannot be multiplied" in explain_facts(facts).cause


def test_messages_of_an_accelerator_need_none() -> None:
    found = RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    )
    assert "cpu and cuda:0" in explain_facts(Facts(found, text="a + b")).cause
    assert "cuda:0" in move("x", torch.device("cpu"), against="weight", there=torch.device("cuda:0"))
    late = explain_facts(Facts(RuntimeError("CUDA error: device-side assert triggered")))
    assert "CUDA_LAUNCH_BLOCKING=1" in late.fix


def test_out_of_memory_says_what_is_alive() -> None:
    held = nn.Linear(3000, 1000)
    error = raised(CASES["out_of_memory"].run)
    details = "\n".join(explain(crash_of(error, Models())).details)
    assert "parameters: " in details and "alive: f32[1000, 3000], 12.0 MB" in details
    del held


def test_a_wrapped_exception_is_explained_where_the_module_is() -> None:
    def train() -> None:
        try:
            Net()(torch.ones(2, 8))
        except RuntimeError as error:
            raise ValueError("training failed") from error

    crash = crash_of(raised(train), Models())
    assert "Linear(8→8) got [2, 16]" in explain(crash).cause


def test_what_the_compiler_raises_is_read_out_of_its_message() -> None:
    message = (
        "RuntimeError when making fake tensor call\n  Explanation: Dynamo failed to run FX node with "
        "fake tensors: "
        "call_function <built-in function linear>(*(FakeTensor(..., size=(2, 4)), Parameter(FakeTensor(..., "
        "size=(3, 3), requires_grad=True))), **{}): got RuntimeError('a and b must have same "
        "reduction dim, but "
        'got [2, 4] X [3, 3].\')\n\nfrom user code:\n   File "net.py", line 5, in forward\n'
        "    return self.fc(x)\n"
    )
    cause = explain_facts(Facts(RuntimeError(message))).cause
    assert cause.startswith("compiled linear of [2, 4], [3, 3], in return self.fc(x): a and b must have same")


def test_an_exception_of_no_module_that_nobody_knows_gets_no_note() -> None:
    output = io.StringIO()
    console = DebugConsole(Net(), input=io.StringIO("where\n"), output=output)
    with pytest.raises(KeyError) as caught, console:
        raise KeyError("a file of the data")
    assert notes(caught.value) == [] and output.getvalue() == ""


def test_a_call_over_several_lines_is_read() -> None:
    def join() -> Tensor:
        one, other = torch.ones(2, 3), torch.ones(4, 5)
        return torch.cat(
            [
                one,
                other,
            ],
            dim=0,
        )

    assert "tensor 1 is [4, 5]" in explain(crash_of(raised(join), Models())).cause


def test_nothing_is_run_again_for_an_explanation() -> None:
    calls = []

    def once(x: Tensor) -> Tensor:
        calls.append(x)
        return x

    def run() -> Tensor:
        return once(torch.ones(2, 3)) @ once(torch.ones(2, 3))

    explain(crash_of(raised(run), Models()))
    assert len(calls) == 2


# -- the stop ----------------------------------------------------------------------------------


def test_the_stop_is_at_the_module_that_raised_before_the_handler() -> None:
    with Found("where", "hidden.shape", "continue") as found:
        error = raised(lambda: Net()(torch.ones(2, 8)))
        seen = found.text
    assert "✗ Linear(8→8) got [2, 16]: last dimension is 16, weight wants 8" in seen
    assert "second.fc2  raised RuntimeError  Linear  forward 1" in seen
    assert "on the way there" in seen and "here  " in seen and "hidden f32[2, 16]" in seen
    assert "torch.Size([2, 16])" in seen, "the variables of the failing line are at hand"
    assert "→ 0  second.fc2  Linear  raised" in seen and "1  second  Block  running" in seen
    assert isinstance(error, RuntimeError)


def test_list_and_up_know_the_line_that_raised() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            try:
                twice = x * 2
                return twice @ x  # the failing line
            finally:
                x = x + 0

    model = nn.Sequential(Own())
    with Found("list", "twice.shape", "up", "continue") as found:
        raised(lambda: model(torch.ones(2, 3)))
    assert "→" in found.text
    arrow = next(line for line in found.text.splitlines() if line.startswith("→") and "failing" in line)
    assert "return twice @ x" in arrow
    assert "torch.Size([2, 3])" in found.text


def test_the_exception_is_the_same_object_with_a_note() -> None:
    mine = RuntimeError("mine", 7)

    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise mine

    with Found(asked=False):
        error = raised(lambda: Raises()(torch.ones(1)))
    assert error is mine and error.args == ("mine", 7) and type(error) is RuntimeError
    assert len(notes(error)) == 1 and notes(error)[0].startswith("layerstep: in ")


def test_a_training_loop_that_handles_the_exception_stops_and_goes_on() -> None:
    torch.manual_seed(0)
    good, bad = Net(wrong=False), Net()
    handled, results = [], []
    with Found("continue", "continue") as found:
        for step in range(3):
            try:
                results.append((bad if step == 1 else good)(torch.ones(2, 8)))
            except RuntimeError as error:
                handled.append(str(error))
    assert handled == ["mat1 and mat2 shapes cannot be multiplied (2x16 and 8x8)"]
    assert len(results) == 2 and found.text.count("raised RuntimeError") == 1


def test_a_second_crash_in_the_handler_of_the_first_stops_too() -> None:
    bad = Net()

    def run() -> None:
        try:
            bad(torch.ones(2, 8))
        except RuntimeError:
            bad(torch.ones(5, 8))

    with Found("continue", "continue") as found:
        error = raised(run)
    assert "got [2, 16]" in found.text and "got [5, 16]" in found.text
    assert len(notes(error)) == 1 and "got [5, 16]" in notes(error)[0]


def test_step_goes_on_in_the_next_forward() -> None:
    good, bad = Net(wrong=False), Net()
    with Found("step", "continue") as found:
        raised(lambda: bad(torch.ones(2, 8)))
        good(torch.ones(2, 8))
    assert "first.fc1  done" in found.text


def test_quit_at_a_crash_leaves() -> None:
    with Found("quit"), pytest.raises(Quit):
        Net()(torch.ones(2, 8))


def test_nobody_is_asked_where_the_setting_is_off() -> None:
    with Found("where", config=Config(catch_exceptions=False)) as found:
        error = raised(lambda: Net()(torch.ones(2, 8)))
    assert "raised" not in found.text
    assert len(notes(error)) == 1, "the note is there all the same"


def shown_frames(error: BaseException) -> list[tuple[str, str, int]]:
    frames, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, code.co_name, trace.tb_lineno))
        trace = trace.tb_next
    return frames[2:]


def test_the_traceback_is_that_of_the_bare_run() -> None:
    bare = raised(lambda: Net()(torch.ones(2, 8)))
    with Found(asked=False):
        error = raised(lambda: Net()(torch.ones(2, 8)))
    assert shown_frames(error) == shown_frames(bare)
    printed = ["".join(traceback.format_exception(one)).partition("RuntimeError")[0] for one in (bare, error)]
    assert printed[0].count("^") == printed[1].count("^")


@pytest.mark.parametrize(
    "error", [StopIteration(), GeneratorExit(), KeyboardInterrupt(), SystemExit(), Quit()]
)
def test_control_flow_never_stops(error: BaseException) -> None:
    assert is_control_flow(error)


def test_the_early_end_of_a_recomputation_never_stops() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block(wrong=False)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, x, use_reentrant=False)  # type: ignore[no-any-return]

    model = Checkpointed()
    console, seen = console_on(model, ["catch exception in **"])
    with console:
        model(torch.ones(2, 8, requires_grad=True)).sum().backward()
    assert "raised" not in seen.text


def test_a_model_is_free_to_handle_what_it_raises() -> None:
    with Found("where") as found:
        Careful()(torch.ones(2, 8))
    assert "raised" not in found.text


def test_an_exception_at_the_prompt_is_no_crash() -> None:
    with Found("mod(torch.ones(1))", "continue") as found:
        raised(lambda: Net()(torch.ones(2, 8)))
    assert found.text.count("raised RuntimeError") == 1


# -- catch exception ---------------------------------------------------------------------------


def test_catch_in_where_stops_at_the_raise_though_the_model_handles_it() -> None:
    model = Careful()
    console, seen = console_on(model, ["catch exception in risky", "continue", "where", "continue"])
    with console:
        out = model(torch.ones(2, 8))
    assert "risky.fc2  raised RuntimeError  Linear  forward 1  catch 1" in seen.text
    assert "2  Careful  Careful  running" in seen.text
    assert out.shape == (2, 8) and hook_count(model) == 0


def test_a_module_that_is_half_made_is_no_bug_of_ours() -> None:
    with Found("where", "tree", "continue") as found:
        raised(CASES["no_init"].run)
    assert (
        "was made without nn.Module's own __init__" in found.text and "a bug in layerstep" not in found.text
    )


def test_catch_by_type() -> None:
    with Found("catch exception KeyError", "continue", config=Config(catch_exceptions=False)) as found:
        found.session.start(ask=True)
        raised(lambda: Net()(torch.ones(2, 8)))
    assert "raised" not in found.text
    with Found("catch exception Exception", "continue", config=Config(catch_exceptions=False)) as found:
        found.session.start(ask=True)
        raised(lambda: Net()(torch.ones(2, 8)))
    assert "raised RuntimeError" in found.text and found.session.standstill.caught == [
        "exception in second.fc2"
    ]


def test_catch_without_where_in_a_library_taps_the_root_only() -> None:
    model = Net()
    console, seen = console_on(model, ["catch exception", "info cost", "continue", "where", "continue"])
    with console:
        assert len(console.session.installation.taps) == 2 and console.session.installation.taps.modules == 1
        with pytest.raises(RuntimeError) as caught:  # the handler is inside of the block
            model(torch.ones(2, 8))
    assert "raised RuntimeError" in seen.text and len(notes(caught.value)) == 1
    assert hook_count(model) == 0


def test_a_module_called_while_an_exception_is_handled_does_not_stop() -> None:
    class Silent(nn.Module):
        def forward(self, x: Tensor) -> None:
            return None

    model = Silent()
    console, seen = console_on(model, ["catch exception in **", "continue"])
    with console:
        try:
            raise RuntimeError("another")
        except RuntimeError:
            model(torch.ones(1))
    assert "raised" not in seen.text


@pytest.mark.parametrize(
    "line, said",
    [
        ("catch exception in", "in needs WHERE"),
        ("catch exception ValueError KeyError", "is too much"),
        ("catch exception in nosuch", "no module 'nosuch'"),
    ],
)
def test_wrong_use_is_one_line(line: str, said: str) -> None:
    console, _ = console_on(Net(), [])
    view = console.execute(line)
    assert view is not None and said in to_text(view)


def test_writes_are_noted_and_named_with_their_line() -> None:
    model = nn.Linear(3, 3)
    console, _ = console_on(model, ["catch exception"])

    def step() -> None:
        hidden = model(torch.ones(2, 3)).sigmoid()
        hidden += 1  # the guilty line
        hidden.sum().backward()

    with pytest.raises(RuntimeError) as caught, console:
        step()
    note = notes(caught.value)[0]
    assert "written in place once since, by add_ at" in note
    assert f"{HERE}:" in note and "hidden += 1  # the guilty line" in note
    assert not is_on_stack(console.session.instruments.get(Crashes).ledger)


def test_a_write_through_a_view_and_an_in_place_activation_are_found() -> None:
    console, _ = console_on(nn.Linear(1, 1), ["catch exception"])

    def through_view() -> None:
        y = torch.ones(2, 3, requires_grad=True).exp()
        y[0].zero_()
        y.sum().backward()

    def activation() -> None:
        y = torch.ones(2, 3, requires_grad=True).exp()
        F.relu(y, inplace=True)
        y.sum().backward()

    for run, op in ((through_view, "by zero_ at"), (activation, "by F.relu at")):
        with pytest.raises(RuntimeError) as caught, console:
            run()
        assert op in notes(caught.value)[0]


# -- the library -------------------------------------------------------------------------------


def test_an_exception_that_leaves_the_block_is_noted_without_a_hook() -> None:
    model = Net()
    console, seen = console_on(model, [])
    with pytest.raises(RuntimeError) as caught, console:
        assert hook_count(model) == 0
        model(torch.ones(2, 8))
    assert notes(caught.value) == [
        "layerstep: in second.fc2 (Linear): Linear(8→8) got [2, 16]: last dimension is 16, weight wants 8\n"
        f"  at {HERE}:{Block.forward.__code__.co_firstlineno + 2}  return x + self.fc2(hidden)\n"
        "  try: nn.Linear(16, 8), or give it what has 8 features"
    ]
    assert "raised" not in seen.text


def test_somebody_who_can_be_asked_is_asked_as_the_block_is_left() -> None:
    output = io.StringIO()
    console = DebugConsole(Net(), input=io.StringIO("where\ncontinue\n"), output=output)
    with pytest.raises(RuntimeError):
        console.run(torch.ones(2, 8))
    assert "second.fc2  raised RuntimeError" in output.getvalue()
    assert "1  second  Block  running" in output.getvalue()


def test_pm_looks_at_the_exception_that_is_handled() -> None:
    output = io.StringIO()
    try:
        Net()(torch.ones(2, 8))
    except RuntimeError:
        layerstep.pm(commands=["where", "inp.shape", "up", "stats inp", "list", "continue"], output=output)
    text = output.getvalue()
    assert "second.fc2  raised RuntimeError  Linear" in text and "torch.Size([2, 16])" in text
    assert "return x + self.fc2(hidden)" in text and "✗ a bug" not in text
    assert "test_pm_looks" not in text.partition("where")[0], "the outermost call is the last"


def test_pm_takes_an_exception_and_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    error = raised(lambda: Net()(torch.ones(2, 8)))
    output = io.StringIO()
    layerstep.pm(error, output=output)
    assert "✗ Linear(8→8) got [2, 16]" in output.getvalue(), "nobody to ask: the explanation is printed"
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    again = io.StringIO()
    layerstep.pm(output=again, commands=["quit"])
    assert "raised RuntimeError" in again.getvalue(), "and quit ends it without ending the process"


def test_pm_without_an_exception_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    with pytest.raises(UserError, match="there is no exception to look at"):
        layerstep.pm()


def test_pm_outside_of_modules_sees_the_line() -> None:
    def loss_of(logits: Tensor) -> Tensor:
        targets = torch.tensor([7, 0])
        return F.cross_entropy(logits, targets)

    output = io.StringIO()
    error = raised(lambda: loss_of(torch.ones(2, 5)))
    layerstep.pm(error, commands=["targets", "list", "where"], output=output)
    text = output.getvalue()
    assert "class 7 at [0]" in text and "i64[2]" in text
    assert "return F.cross_entropy(logits, targets)" in text and "✗ a bug" not in text


# -- nothing is disturbed ----------------------------------------------------------------------


def run_with_failures(model: nn.Module, failing: nn.Module) -> list[Tensor]:
    """Training that meets an exception in every second step; everything that it computes."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(4):
        x = torch.randn(2, 8)
        try:
            out = (failing if step % 2 else model)(F.dropout(x, 0.5))
        except RuntimeError:
            continue
        optimizer.zero_grad()
        out.square().sum().backward()
        optimizer.step()
        seen.append(out.detach().clone())
    return [*seen, *(p.detach().clone() for p in model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize("explicit", [False, True])
def test_a_run_with_crashes_is_bit_equal(explicit: bool) -> None:
    def models() -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(0)
        return Net(wrong=False), Net()

    bare = run_with_failures(*models())
    lines = ["where", "hidden.mean()", "torch.rand(3)", "continue"] * 2
    under, failing = models()
    with Found(*(["catch exception", "continue"] if explicit else []), *lines) as found:
        if explicit:
            found.session.start(ask=True)
        debugged = run_with_failures(under, failing)
    assert found.text.count("raised RuntimeError") == 2
    assert len(bare) == len(debugged)
    assert all(torch.equal(one, other) for one, other in zip(bare, debugged, strict=True))
    assert hook_count(under) == hook_count(failing) == 0


def test_nothing_of_a_crash_is_kept_alive() -> None:
    model = Net()
    with Found("where", "hidden", "inspect hidden", "continue"):
        x = torch.ones(2, 8)
        alive = weakref.ref(x)
        with contextlib.suppress(RuntimeError):
            model(x)
        del x
        gc.collect()
        assert alive() is None


def test_a_detach_inside_of_an_operation_leaves_no_mode() -> None:
    """There the mode that notes in-place writes is off the stack, and torch puts it back."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    lines = ["catch exception", "break op:aten.relu", "continue", "detach"]
    console = DebugConsole(model, commands=lines, output=io.StringIO())
    with console:
        model(torch.ones(2, 4))
        torch.softmax(torch.ones(2), dim=0)
        assert torch._C._len_torch_function_stack() == 0
