"""The session: silent points explained, bugs that do not hurt, lines from other threads, names of models."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import layerstep
from layerstep import DebugConsole
from layerstep.engine.discovery import Discovery, name_of
from layerstep.engine.messages import Message
from layerstep.frontends.completion import complete
from layerstep.render.screen import to_text
from layerstep.views import Notice
from play import play


class Recorded:
    """A console with a script, and all that it said."""

    def __init__(self, model: nn.Module, *lines: str) -> None:
        self.console = DebugConsole(model, commands=lines, output=io.StringIO())
        self.messages: list[Message] = []
        self.console.session.listen(self.messages.append)

    def run(self, *args: Any) -> Any:
        return self.console.run(*args)

    def text(self, kind: str = "") -> str:
        shown = [to_text(m.view, width=200) for m in self.messages if not kind or m.kind == kind]
        return "\n".join(text for text in shown if text)

    @property
    def stops(self) -> list[str]:
        return [text.split()[0] for m in self.messages if m.kind == "stop" for text in [to_text(m.view)]]

    def ask(self, line: str) -> str:
        view = self.console.execute(line)
        assert view is not None
        return to_text(view, width=200)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


class Parent(nn.Module):
    """One child called as it should be, and three in ways that hooks cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.called = nn.Linear(4, 4)
        self.direct = nn.Linear(4, 4)
        self.read = nn.Linear(4, 4)
        self.items = nn.ModuleList([nn.Linear(4, 4)])
        self.attention = nn.MultiheadAttention(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.direct.forward(self.called(x))
        x = nn.functional.linear(x, self.read.weight)
        for item in self.items:
            x = item(x)
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("direct", "calls direct.forward(…), past the hooks"),
        ("read", "uses read.weight itself"),
        ("items", "ModuleList has no forward of its own"),
        ("attention.out_proj", "reads the weights of out_proj"),
    ],
)
def test_a_point_that_cannot_fire_says_why(path: str, reason: str) -> None:
    recorded = Recorded(Parent(), f"break {path}", "continue")
    recorded.run(torch.randn(2, 4))
    assert recorded.stops == []
    assert reason in recorded.text("notice")
    assert reason in recorded.ask(f"why-not {path}")
    assert reason in recorded.ask("info breaks")


def test_a_point_that_can_fire_is_not_slandered() -> None:
    recorded = Recorded(Parent(), "break called", "continue")
    recorded.run(torch.randn(2, 4))
    assert recorded.stops == ["called"]
    assert "nothing keeps called" in recorded.ask("why-not called")


def test_a_scripted_module_is_one_stop() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model = nn.Sequential(scripted, nn.Linear(4, 2))
    recorded = Recorded(model, "step", "step", "detach")
    recorded.run(torch.randn(2, 4))
    assert recorded.stops == ["0", "1"]
    assert "runs as one call" in recorded.ask("why-not 0.0")


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize(("setting", "stops"), [("off", 1), ("on", 2)])
def test_recomputation_stops_only_if_asked(setting: str, stops: int) -> None:
    model = Checkpointed()
    recorded = Recorded(model, f"config recompute {setting}", "break inner.0", *["continue"] * 3)
    with recorded.console:
        model(torch.randn(2, 4, requires_grad=True)).sum().backward()
    assert recorded.stops == ["inner.0"] * stops


def test_an_empty_line_repeats_a_step_and_nothing_else() -> None:
    recorded = Recorded(mlp(), "break 0", "continue", "step", "", "where", "", "detach")
    recorded.run(torch.randn(2, 4))
    assert recorded.stops == ["0", "1", "2"]


def test_a_bug_of_ours_detaches_and_lets_the_run_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    recorded = Recorded(model, "break 1", "continue")
    monkeypatch.setattr(recorded.console.session.decision, "ask", lambda *_: 1 / 0)
    x = torch.randn(2, 4)
    assert torch.equal(recorded.run(x), model(x))
    assert recorded.text("notice").count("a bug in layerstep: ZeroDivisionError") == 1
    assert not any(module._forward_hooks for module in model.modules())


def test_a_bug_in_a_command_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from layerstep import registry

    command = registry.find_command("where")
    assert command is not None
    broken = registry.Command("where", lambda *_: 1 / 0, "look", command.forms)
    monkeypatch.setitem(registry._commands, "where", broken)
    recorded = Recorded(mlp(), "break 0", "continue", "where", "print name", "detach")
    recorded.run(torch.randn(2, 4))
    assert "a bug in layerstep, in 'where'" in recorded.text("answer")
    assert "$1  0" in recorded.text("answer")


def test_a_front_end_that_fails_does_not_hang_the_run() -> None:
    model = mlp()
    recorded = Recorded(model, "break 0", "continue")

    class Broken:
        has_keyboard = True

        def paused(self) -> None:
            threading.Thread(
                target=lambda: recorded.console.session.prompt.give_up(RuntimeError("no screen"))
            ).start()

        def resumed(self) -> None: ...

    recorded.console.session.prompt.frontend = Broken()
    recorded.run(torch.randn(2, 4))
    assert "the prompt failed: RuntimeError: no screen" in recorded.text("notice")


class Remote:
    """A front end that hands in lines from a thread of its own."""

    def __init__(self, console: DebugConsole, *lines: str) -> None:
        self.console, self.lines = console, list(lines)
        self.answers: list[str] = []
        self.threads: set[int] = set()

    has_keyboard = True

    def paused(self) -> None:
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        while self.lines:
            line = self.lines.pop(0)
            view = self.console.submit(line).result(timeout=100)
            if view is None:
                return
            self.answers.append(to_text(view))

    def resumed(self) -> None: ...


def test_lines_from_another_thread_run_in_the_paused_one() -> None:
    model = mlp()
    console = DebugConsole(model, output=io.StringIO())
    console.breakpoint("1")
    remote = Remote(console, "__import__('threading').get_ident()", "torch.is_grad_enabled()", "continue")
    console.session.prompt.frontend = remote
    with torch.no_grad():
        console.run(torch.randn(2, 4))
    remote.thread.join()
    assert remote.answers == [f"$1  {threading.get_ident()}", "$2  False"]


def test_execute_answers_without_a_pause() -> None:
    console = DebugConsole(mlp(), output=io.StringIO())
    view = console.execute("break 1")
    assert isinstance(view, Notice) and view.level == "good"
    view = console.execute("continue")
    assert isinstance(view, Notice) and view.level == "error"
    view = console.execute("where")
    assert isinstance(view, Notice) and "nothing has stopped" in view.text


def test_finish_out_of_a_module_that_began_unseen() -> None:
    """As after Ctrl-C: the enclosing calls run without hooks, so the next boundary after them ends it."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), nn.Linear(4, 2))
    recorded = Recorded(model)
    session = recorded.console.session

    class Interrupting(nn.Tanh):
        def forward(self, x: Tensor) -> Tensor:
            session.standstill.interrupted()
            return super().forward(x)

    model[0][1] = Interrupting()
    with recorded.console:
        session.prompt.script.extend(["step", "finish", "detach"])
        model(torch.randn(2, 4))
    assert recorded.stops == ["0.2", "0.2", "1"]


def test_a_condition_sees_the_caller_and_the_forward() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            for turn in range(5):
                x = self.inner(x) + turn
            return x

    condition = "turn == 3 and forward == 1"
    recorded = Recorded(Model(), f"break inner if {condition}", "continue", "print turn", "continue")
    recorded.run(torch.randn(2, 4))
    assert recorded.stops == ["inner"]
    assert "$1  3" in recorded.text("answer")


def test_a_shared_module_is_known_by_the_path_that_called_it() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.b(x)

    recorded = Recorded(Model(), "break b", "continue", "print name", "continue")
    recorded.run(torch.randn(2, 4))
    assert recorded.stops == ["b"]


def test_nothing_armed_installs_nothing() -> None:
    model = mlp()
    with layerstep.attach(model, output=io.StringIO()) as console:
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        number = console.breakpoint("1")
        assert model[1]._forward_hooks and model._forward_hooks and not model[0]._forward_hooks
        console.execute(f"disable {number}")
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_layerstep_0_is_inert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSTEP", "0")
    model = mlp()
    recorded = Recorded(model, "break 1", "continue")
    recorded.run(torch.randn(2, 4))
    layerstep.set_trace()
    assert recorded.messages == []


def test_a_console_wants_a_model() -> None:
    with pytest.raises(layerstep.UserError, match="not function"):
        DebugConsole(lambda x: x)  # type: ignore[arg-type]


def test_discovery_names_models_as_the_script_does() -> None:
    found: list[tuple[str, str]] = []

    def arrived(module: nn.Module, frame: Any, is_new: bool) -> None:
        if is_new:
            found.append((name_of(module, frame), type(module).__name__))

    class Trainer:
        def __init__(self) -> None:
            self.critic = mlp()

        def step(self, x: Tensor) -> None:
            self.critic(x)

    discovery = Discovery(arrived)
    discovery.start()
    try:
        x = torch.randn(2, 4)
        policy = mlp()
        policy(x)
        policy(x)
        Trainer().step(x)
        whole = nn.ModuleDict({"encoder": mlp()})
        whole["encoder"](x)
        [mlp()][0](x)
    finally:
        discovery.stop()
    assert found == [
        ("policy", "Sequential"),
        ("critic", "Sequential"),
        ("whole", "ModuleDict"),
        ("Sequential", "Sequential"),
    ]


def test_completion() -> None:
    model = nn.ModuleDict({"encoder": nn.Sequential(mlp(), mlp()), "head": nn.Linear(2, 2)})
    console = DebugConsole(model, output=io.StringIO())
    session = console.session

    def texts(line: str) -> list[str]:
        return [candidate.text for candidate in complete(session, line)]

    assert texts("bre") == ["break"]
    assert texts("break enc")[:1] == ["encoder"]  # functions of the tests may follow
    assert texts("break encoder.") == ["encoder.0", "encoder.1"]
    assert texts("break 1.2")[:1] == ["1.2"]
    assert texts("break type:Li") == ["type:Linear"]
    assert texts("break head en") == ["enter"]
    assert texts("break enc12")[0] == "encoder.1.2"
    assert texts("info m") == ["models"]
    assert texts("config rec") == ["recompute"]
    assert "inspect" in texts("help ins")
    assert "head.weight" in texts("print head.we")
    console.breakpoint("head")
    assert texts("delete ") == ["1"]
    assert texts("nosuch command") == []


def test_set_trace_pauses_in_a_forward_and_steps_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            mine = self.first(x)
            layerstep.set_trace()
            return self.second(mine)

    recorded = Recorded(Model(), "continue", "print mine.shape", "where", "step", "print name", "detach")
    recorded.run(torch.randn(2, 4))
    assert "$1  torch.Size([2, 4])" in recorded.text("answer")
    assert "second" in recorded.stops


def test_discovery_finds_the_model_around_a_call_that_torch_does_not_see() -> None:
    """As in GPyTorch: only a small part deep inside is called through torch, by a helper of another part."""
    found: list[tuple[str, nn.Module]] = []

    def arrived(module: nn.Module, frame: Any, is_new: bool) -> None:
        found.append((name_of(module, frame), module))

    class Kernel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positive = nn.Softplus()

        def scale(self) -> Tensor:
            return self.positive(torch.zeros(1))

    class Process(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = Kernel()

        def __call__(this, x: Tensor) -> Tensor:
            return this.forward(x)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.kernel.scale()

    discovery = Discovery(arrived)
    discovery.start()
    try:
        process = Process()
        process(torch.ones(2))
    finally:
        discovery.stop()
    assert found == [("process", process)]


def test_discovery_goes_through_what_replaced_call_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    before = nn.Module.__call__

    def theirs(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(type(self).__name__)
        return before(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", theirs)
    discovery = Discovery(lambda *_: None)
    discovery.start()
    mlp()(torch.randn(2, 4))
    discovery.stop()
    assert seen == ["Sequential", "Linear", "ReLU", "Linear"]
    assert nn.Module.__call__ is theirs


def test_a_tree_counts_a_tied_parameter_once_and_ends_in_a_cycle() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    model["again"] = model
    console = DebugConsole(model, output=io.StringIO())
    view = console.execute("tree 1")
    assert view is not None
    assert to_text(view).splitlines()[0].endswith("4")


def test_a_keyword_of_python_is_no_short_command() -> None:
    recorded = Recorded(mlp(), "break 0", "continue", "big = 3", "del big", "big", "continue")
    recorded.run(torch.randn(2, 4))
    assert "no command or name 'big'" in recorded.text("answer")


def test_a_wrapper_that_a_library_makes_for_each_call_is_seen_through(tmp_path: Path) -> None:
    """As an ODE solver does: the model was found anew in each training step, under a name of the library."""
    package = tmp_path / "site-packages" / "solving.py"
    package.parent.mkdir()
    package.write_text(
        dedent("""\
            from torch import nn

            class Wrapper(nn.Module):
                def __init__(self, wrapped):
                    super().__init__()
                    self.wrapped = wrapped

                def forward(self, x):
                    return self.wrapped(x)

            def solve(wrapped, x):
                wrapper = Wrapper(Wrapper(wrapped))
                return wrapper(wrapper(x))
        """)
    )
    program = tmp_path / "prog.py"
    program.write_text(
        dedent(f"""\
            import sys
            sys.path.insert(0, {str(package.parent)!r})
            from solving import solve
            from torch import nn, ones

            flow = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
            for _ in range(4):
                solve(flow, ones(1, 2))
        """)
    )
    lines = ["break type:Tanh", "ignore 1 6", "continue", "where", "info models", "continue"]
    screen, _ = play(program, lines, width=200)
    assert screen.count("found ") == 2 and "found Sequential (flow), 3 modules" in screen
    assert "\n1  done  Tanh  forward 5  break 1" in screen, "the calls of the last three rounds are counted"
