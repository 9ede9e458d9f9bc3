"""Hooks: when they act, what they do, what they cost when they fail, and where alerts go."""

from __future__ import annotations

import http.server
import io
import json
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from layerstep import (
    Alert,
    AlertSeverity,
    CallbackSink,
    DebugConsole,
    DebugSession,
    HookAction,
    HookBuilder,
    HookContext,
    HookTrigger,
    JsonLinesSink,
    LoggingSink,
    UserError,
    WebhookSink,
    debug_session,
)
from layerstep.automation import running
from layerstep.automation.hook import Hook
from layerstep.render.screen import to_text
from play import Clock


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def train(
    model: nn.Module,
    steps: int = 6,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scale: Callable[[int], float] = lambda step: 1.0,
) -> list[float]:
    torch.manual_seed(1)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(1, steps + 1):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), x[:, :3].argmax(dim=1)) * scale(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def built(trigger: HookTrigger, *actions: HookAction, patterns: tuple[str, ...] = ()) -> Hook:
    builder = HookBuilder("mine").trigger(trigger).layer_patterns(patterns)
    for action in actions:
        builder.action(action)
    return builder.build()


def session_of(model: nn.Module, screen: io.StringIO | None = None) -> DebugSession:
    return debug_session(
        model,
        output=screen or io.StringIO(),
        enable_tensor_inspection=False,
        enable_gradient_debugging=False,
        enable_model_diagnostics=False,
    )


def steps_of(trigger: HookTrigger, **training: Any) -> list[int]:
    """The steps at which a hook with this trigger acts."""
    model, seen = network(), []
    session = session_of(model)
    session.hooks.register_hook(
        built(trigger, HookAction.callback(lambda context: seen.append(context.step)))
    )
    with session:
        train(model, **training)
    return seen


@pytest.mark.parametrize(
    ("trigger", "steps"),
    [
        (HookTrigger.every_n_steps(2), [2, 4, 6]),
        (HookTrigger.once(), [1]),
        (HookTrigger.step_range(2, 4), [2, 3, 4]),
        (HookTrigger.expression("step > 4 and loss > 0 and lr == 0.05"), [5, 6]),
        (HookTrigger.memory(above_mb=1.0), [1, 2, 3, 4, 5, 6]),
        (HookTrigger.memory(above_mb=1e9), []),
        (HookTrigger.loss(above=50), [6]),
        (HookTrigger.loss(below=1e-6), []),
        (HookTrigger.gradient_norm(above=50), [6]),
        (HookTrigger.not_finite(), []),
    ],
)
def test_triggers_at_steps(trigger: HookTrigger, steps: list[int]) -> None:
    assert steps_of(trigger, scale=lambda step: 1000.0 if step == 6 else 1.0) == steps


def test_what_is_not_finite_is_seen() -> None:
    seen = steps_of(HookTrigger.not_finite(), scale=lambda step: float("nan") if step == 5 else 1.0)
    assert seen == [5, 6]  # the weights of the sixth are NaN


@pytest.mark.parametrize("trigger", [HookTrigger.every_forward(), HookTrigger.every_backward()])
def test_triggers_at_layers(trigger: HookTrigger) -> None:
    model, seen = network(), []

    def note(context: HookContext) -> None:
        seen.append((context.step, context.layer, tuple(_first(context.value).shape)))

    session = session_of(model)
    session.hooks.register_hook(built(trigger, HookAction.callback(note), patterns=("type:Linear",)))
    with session:
        train(model, 2)
    layers = [(1, "0", (16, 16)), (1, "2", (16, 3)), (2, "0", (16, 16)), (2, "2", (16, 3))]
    assert sorted(seen) == layers
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def _first(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else next(v for v in value if v is not None)


def test_a_hook_acts_no_more_often_than_it_may() -> None:
    model = network()
    session = session_of(model)
    few = (
        HookBuilder("few")
        .trigger(HookTrigger.every_forward())
        .action(HookAction.inspect())
        .layer_patterns(["2"])
        .max_executions(3)
        .build()
    )
    once = built(HookTrigger.once("forward"), HookAction.record(), patterns=("2",))
    session.hooks.register_hook(few)
    session.hooks.register_hook(once)
    with session:
        train(model)
    assert (few.executions, once.executions) == (3, 1)
    assert len(session.tensor_inspector) == 3
    assert once.results[0]["layer"] == "2" and once.results[0]["nonfinite"] == 0


def test_gradients_are_tracked_for_the_layers_named() -> None:
    model = network()
    session = session_of(model)
    session.hooks.register_hook(
        built(HookTrigger.every_n_steps(1), HookAction.track_gradients(), patterns=("2",))
    )
    with session:
        train(model, 3)
    frames = session.gradient_debugger.flow.frames
    assert [[layer.name for layer in frame.layers] for frame in frames] == [["2.bias", "2.weight"]] * 3


def test_snapshots_can_be_loaded(tmp_path: Path) -> None:
    model = network()
    session = session_of(model)
    session.hooks.register_hook(built(HookTrigger.every_n_steps(2), HookAction.snapshot(tmp_path)))
    session.hooks.register_hook(
        built(HookTrigger.once("forward"), HookAction.snapshot(tmp_path), patterns=("0",))
    )
    with session:
        train(model, 2)
    state = torch.load(tmp_path / "step-2.pt")
    network().load_state_dict(state["models"]["Sequential"])
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.05
    assert torch.load(tmp_path / "step-1-0.pt")["value"].shape == (16, 16)


def test_a_hook_that_raises_is_disabled_and_the_run_goes_on() -> None:
    plain, model, screen = train(network()), network(), io.StringIO()
    session = session_of(model, screen)

    def fails(context: HookContext) -> None:
        raise ValueError("no such thing")

    at_step = built(HookTrigger.every_n_steps(1), HookAction.callback(fails))
    at_layer = built(HookTrigger.every_forward(), HookAction.callback(fails), patterns=("0",))
    for hook in (at_step, at_layer):
        session.hooks.register_hook(hook)
    with session:
        assert train(model) == plain
    for hook in (at_step, at_layer):
        assert (hook.executions, hook.errors, hook.enabled) == (1, 1, False)
    assert "raised and is disabled: ValueError: no such thing" in screen.getvalue().replace("\n", " ")


def test_hooks_that_only_look_change_nothing(tmp_path: Path) -> None:
    bare, model = network(), network()
    plain = train(bare)
    session = session_of(model)
    for trigger in (HookTrigger.every_forward(), HookTrigger.every_backward(), HookTrigger.every_n_steps(1)):
        actions = (
            HookAction.inspect(),
            HookAction.track_gradients(),
            HookAction.record(),
            HookAction.snapshot(tmp_path),
            HookAction.alert("seen", "info"),
        )
        session.hooks.register_hook(built(trigger, *actions))
    with session:
        assert train(model) == plain
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), model.parameters(), strict=True))


def test_hooks_are_removed_and_enabled_by_number() -> None:
    model, seen = network(), []
    session = session_of(model)
    number = session.hooks.register_hook(
        built(HookTrigger.every_n_steps(1), HookAction.callback(lambda context: seen.append(context.step)))
    )
    session.hooks.enable_hook(number, False)
    with session:
        train(model, 2)
        assert seen == []
        session.hooks.enable_hook(number)
        train(model, 2)
        assert len(seen) == 2
        session.hooks.remove_hook(number)
        train(model, 2)
    assert len(seen) == 2
    with pytest.raises(UserError):
        session.hooks.remove_hook(number)


@pytest.mark.parametrize(
    "build",
    [
        lambda: HookBuilder("x").action(HookAction.inspect()).build(),
        lambda: HookBuilder("x").trigger(HookTrigger.once()).build(),
        lambda: HookBuilder("x").max_executions(0),
        lambda: built(HookTrigger.every_forward(), HookAction.clip(1.0)),
        lambda: HookTrigger.every_n_steps(0),
        lambda: HookTrigger.loss(),
        lambda: HookTrigger.expression("open('x')"),
        lambda: HookAction.clip(0),
        lambda: HookAction.lower_learning_rate(2.0),
    ],
)
def test_a_wrong_hook_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(UserError):
        build()


def test_pause_stops_at_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    model, screen, clock = network(), io.StringIO(), Clock()
    monkeypatch.setattr(running, "time", SimpleNamespace(perf_counter=lambda: clock() / 1e9))
    monkeypatch.setattr(time, "sleep", clock.sleep)
    lines = ["continue", "p step", "hooks", "__import__('time').sleep(0.5)", "continue"]
    console = DebugConsole(model, commands=lines, output=screen)
    hook = built(HookTrigger.step_range(2, 2), HookAction.pause())
    console.hooks.register_hook(hook)
    with console:
        train(model, 3)
    assert "hook mine" in screen.getvalue() and "optimizer.step()" in screen.getvalue()
    assert hook.executions == 1 and not hook.error
    assert hook.seconds < 0.4  # without the time at the prompt


def test_pause_at_a_layer_stops_there() -> None:
    model, screen = network(), io.StringIO()
    console = DebugConsole(model, commands=["continue", "p name", "continue"], output=screen)
    console.hooks.register_hook(built(HookTrigger.once("forward"), HookAction.pause(), patterns=("2",)))
    with console:
        train(model, 3)
    assert screen.getvalue().count("2  done  Linear") == 1


@pytest.mark.parametrize("trigger", [HookTrigger.every_forward(), HookTrigger.every_n_steps(1)])
def test_without_a_terminal_a_pause_is_refused_and_the_session_goes_on(trigger: HookTrigger) -> None:
    model, screen, seen = network(), io.StringIO(), []
    session = session_of(model, screen)
    act = HookAction.callback(lambda context: seen.append(context.step))
    session.hooks.register_hook(built(trigger, HookAction.pause(), act, patterns=("0",)))
    with session:
        train(model, 3)
    assert seen == [1, 2, 3]
    assert "the hook mine cannot pause: there is no terminal to ask at" in screen.getvalue()


@pytest.mark.parametrize("action", [HookAction.inspect(), HookAction.replace_nonfinite()])
def test_a_layer_that_is_not_there_is_refused_and_leaves_nothing(action: HookAction) -> None:
    session = session_of(network())
    with pytest.raises(UserError, match=r"nothing matches encoder\.\*"):
        session.hooks.register_hook(built(HookTrigger.every_forward(), action, patterns=("0", "encoder.*")))
    assert list(session.hooks) == [] and list(session.hooks._session.points) == []


@pytest.mark.parametrize(
    ("trigger", "pattern", "reason"),
    [
        (HookTrigger.every_forward(), "encoder.*", "no layer fits encoder.*"),
        (HookTrigger.every_backward(), "0", "0 had no backward pass"),
    ],
)
def test_a_hook_on_layers_that_never_acted_says_why(trigger: HookTrigger, pattern: str, reason: str) -> None:
    model, screen = network(), io.StringIO()
    session = DebugSession(output=screen)  # it finds its models later
    session.hooks.register_hook(built(trigger, HookAction.inspect(), patterns=(pattern,)))
    with session:
        model(torch.randn(2, 8))
    assert f"a hook never acted: mine: {reason}" in screen.getvalue()


def test_commands_list_hooks_alerts_and_the_level() -> None:
    model = network()
    console = DebugConsole(model, output=io.StringIO())
    hooks = console.hooks
    hooks.register_hook(built(HookTrigger.every_n_steps(1), HookAction.alert("high"), HookAction.clip(1.0)))
    with console:
        train(model, 3)
    text = to_text(console.execute("hooks"), width=120)  # type: ignore[arg-type]
    assert "every step" in text and "! clip" in text
    alerts = to_text(console.execute("alerts"), width=120)  # type: ignore[arg-type]
    assert "high" in alerts and "1-3" in alerts
    console.execute("level extreme")
    console.execute("doctor on")
    assert "25%" in to_text(console.execute("level"))  # type: ignore[arg-type]


# --- alerts ---


def test_an_alert_that_lasts_is_sent_once_and_counted() -> None:
    model, sent = network(), []
    session = session_of(model)
    trigger = HookTrigger.expression("2 <= step <= 4 or step == 6")
    session.hooks.register_hook(built(trigger, HookAction.alert("odd", "critical")))
    session.hooks.alerts.add_sink(CallbackSink(sent.append))
    with session:
        train(model)
    assert [each.step for each in sent] == [2, 6]
    kept = session.hooks.alerts.kept
    assert [(each.step, each.last_step, each.count) for each in kept] == [(2, 4, 3), (6, 6, 1)]
    assert kept[0].severity is AlertSeverity.CRITICAL
    assert session.stop().summary()["alerts"] == 2


def test_sinks_write_and_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, screen = network(), io.StringIO()
    session = session_of(model, screen)
    session.hooks.register_hook(built(HookTrigger.step_range(3, 4), HookAction.alert("look here")))
    session.hooks.alerts.add_sink(JsonLinesSink(tmp_path / "new" / "alerts.jsonl"))
    session.hooks.alerts.add_sink(LoggingSink(logging.getLogger("mine")))
    with session, caplog.at_level(logging.INFO, "mine"):
        train(model)
    (line,) = (tmp_path / "new" / "alerts.jsonl").read_text().splitlines()
    assert json.loads(line)["message"] == "look here"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "mine: look here, step 3" in screen.getvalue()


def test_a_sink_that_raises_is_taken_off() -> None:
    model, seen = network(), []
    session = session_of(model)
    alerts = session.hooks.alerts
    alerts.add_sink(CallbackSink(lambda alert: 1 / 0))
    alerts.add_sink(CallbackSink(seen.append))
    session.hooks.register_hook(built(HookTrigger.every_n_steps(3), HookAction.alert("x")))
    with session:
        train(model)
    assert len(seen) == 2 and len(alerts.sinks) == 1 and "ZeroDivisionError" in alerts.broken[0]


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", got
    server.shutdown()
    server.server_close()


def alert(step: int) -> Alert:
    return Alert("mine", AlertSeverity.INFO, "x", step)


def test_a_webhook_posts_alerts(endpoint: tuple[str, list[Any]]) -> None:
    url, got = endpoint
    sink = WebhookSink(url)
    for step in (1, 5):
        sink.send(alert(step))
    sink.close(200)
    assert [each["step"] for each in got] == [1, 5] and sink.sent == 2


def test_a_webhook_with_a_full_queue_ends_when_the_last_alert_is_sent(
    endpoint: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = endpoint
    begun, go_on = threading.Event(), threading.Event()
    real = urllib.request.urlopen

    def slow(*args: Any, **kwargs: Any) -> Any:
        begun.set()
        go_on.wait(100)
        return real(*args, **kwargs)

    monkeypatch.setattr(urllib.request, "urlopen", slow)
    sink = WebhookSink(url, most=1)
    sink.send(alert(1))
    assert begun.wait(100)
    sink.send(alert(2))
    closing = threading.Thread(target=sink.close, args=(1000,), daemon=True)
    closing.start()
    closing.join(0.2)  # the end of the queue does not fit in yet
    go_on.set()
    closing.join(100)
    assert not closing.is_alive() and [each["step"] for each in got] == [1, 2]


def test_a_dead_endpoint_costs_nothing() -> None:
    sink = WebhookSink("http://127.0.0.1:1/", most=5)
    begun = time.perf_counter()
    for step in range(10_000):
        sink.send(alert(step))
    assert time.perf_counter() - begun < 60
    sink.close(200)
    assert sink.sent == 0 and sink.dropped > 0 and sink.failed > 0
    with pytest.raises(UserError):
        WebhookSink("file:///etc/passwd")


def test_an_endpoint_that_never_answers_costs_the_run_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        model = network()
        session = session_of(model)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        session.hooks.alerts.add_sink(WebhookSink(url, timeout=200, most=2))
        session.hooks.register_hook(
            built(HookTrigger.expression("step % 2 == 0"), HookAction.alert("again and again"))
        )
        begun = time.perf_counter()
        with session:
            train(model, 20)
        assert time.perf_counter() - begun < 100  # it waits for 200 s for an answer
        (sink,) = session.hooks.alerts.sinks
        assert isinstance(sink, WebhookSink) and sink.sent == 0
        assert sink.dropped in (7, 8)  # of 10; one is on its way, if the thread came to run soon enough


def test_findings_of_the_doctor_are_alerts_too() -> None:
    model, seen = network(), []
    session = debug_session(model, output=io.StringIO())
    session.hooks.alerts.add_sink(CallbackSink(seen.append))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with session:
        for _ in range(20):  # no zero_grad
            F.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,))).backward()
            optimizer.step()
    assert "stale-gradients" in [each.source for each in seen]


def test_nothing_is_left_in_torch() -> None:
    before = torch.autograd.backward
    model = network()
    session = debug_session(model, output=io.StringIO())
    session.hooks.register_hook(built(HookTrigger.loss(above=1e9), HookAction.alert("x")))
    with session:
        assert torch.autograd.backward is not before
        train(model, 2)
    assert torch.autograd.backward is before
