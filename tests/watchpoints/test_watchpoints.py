"""Watchpoints: every way to write a tensor is found at its op and line, nothing is disturbed or left."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from layerstep import DebugConsole
from layerstep.config import Config
from layerstep.engine.messages import Message
from layerstep.errors import Quit
from layerstep.render.json import to_line
from layerstep.render.screen import to_text
from layerstep.views import Fields
from layerstep.watchpoints.watchpoint import change_between
from layerstep.watchpoints.watchpoints import Watchpoints
from play import play, script_named
from zoo import ZOO, Entry, console_on, differences, hook_count, taps_on
from zoo import play as play_entry

HERE = Path(__file__).name


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.norm(self.stem(x))))


@pytest.fixture(autouse=True)
def _no_mode_is_left() -> Iterator[None]:
    yield
    assert _get_current_dispatch_mode_stack() == []


class Watched:
    """A console on a net, with watchpoints and all that was said."""

    def __init__(self, *texts: str, model: nn.Module | None = None, lines: tuple[str, ...] = ()) -> None:
        torch.manual_seed(0)
        self.model = model if model is not None else Net()
        begin = [f"watch --stop {text}" for text in texts]
        commands = [*begin, "continue", *lines, *["continue"] * 50]
        self.console = DebugConsole(self.model, commands=commands, output=io.StringIO())
        self.messages: list[Message] = []
        self.console.session.listen(self.messages.append)

    def __enter__(self) -> Watched:
        self.console.attach()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.console.__exit__(*exc)

    @property
    def stops(self) -> list[str]:
        return [to_text(m.view, width=200) for m in self.messages if m.kind == "stop"]

    def said(self, kind: str = "notice") -> str:
        return "\n".join(to_text(m.view, width=200) for m in self.messages if m.kind == kind)

    def ask(self, line: str) -> str:
        view = self.console.execute(line)
        assert view is not None
        return to_text(view, width=200)


def line_of(function: Callable[..., Any], text: str) -> str:
    """`test_watchpoints.py:41` for the line of a function that has a text in it."""
    lines, first = inspect.getsourcelines(function)
    return f"{HERE}:{first + next(i for i, line in enumerate(lines) if text in line)}"


def backward(model: nn.Module) -> None:
    model(torch.randn(4, 6)).square().sum().backward()


def by_adamw(model: Net) -> None:
    torch.optim.AdamW(model.parameters(), foreach=True).step()


def by_sgd(model: Net) -> None:
    torch.optim.SGD(model.parameters(), lr=0.1, foreach=False).step()


def by_fused(model: Net) -> None:
    torch.optim.Adam(model.parameters(), fused=True).step()


def by_data(model: Net) -> None:
    model.head.weight.data.mul_(2)


def by_view(model: Net) -> None:
    with torch.no_grad():
        model.head.weight.view(-1)[3:5].zero_()


def by_loading(model: Net) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def by_copy(model: Net) -> None:
    with torch.no_grad():
        model.head.weight.copy_(torch.ones(2, 8))


def by_init(model: Net) -> None:
    nn.init.zeros_(model.head.weight)


def by_out(model: Net) -> None:
    torch.add(torch.ones(2, 8), 1, out=model.head.weight.data)


def by_lerp(model: Net) -> None:
    torch._foreach_lerp_([torch.ones(3), model.head.weight.data], [torch.ones(3), torch.ones(2, 8)], 0.5)


WAYS = [
    (by_adamw, ["aten._foreach_mul_", "aten._foreach_addcdiv_"], ".step()", "AdamW.step()"),
    (by_sgd, ["aten.add_"], ".step()", "SGD.step()"),
    (by_fused, ["aten._fused_adam_"], ".step()", "Adam.step()"),
    (by_data, ["aten.mul_"], ".data.mul_", ""),
    (by_view, ["aten.zero_"], ".view(-1)", ""),
    (by_loading, ["aten.copy_"], "load_state_dict", ""),
    (by_copy, ["aten.copy_"], ".copy_(", ""),
    (by_init, ["aten.zero_"], "nn.init", ""),
    (by_out, ["aten.add"], "out=", ""),
    (by_lerp, ["aten._foreach_lerp_"], "_foreach_lerp_", ""),
]


@pytest.mark.parametrize(("way", "ops", "text", "doer"), WAYS, ids=[way[0].__name__ for way in WAYS])
def test_each_way_to_write_a_weight_is_named(
    way: Callable[[Net], None], ops: list[str], text: str, doer: str
) -> None:
    watched = Watched("head.weight")
    assert isinstance(watched.model, Net)
    backward(watched.model)
    with watched:
        way(watched.model)
    stops = watched.stops
    assert [stop.splitlines()[0].split()[:3] for stop in stops] == [
        ["head.weight", "written", op] for op in ops
    ]
    for stop in stops:
        assert f"{line_of(way, text)}  " in stop, stop
        assert doer in stop
        assert "before" in stop and "after" in stop and "max |Δ|" in stop


def test_the_values_before_and_after_and_what_changed() -> None:
    watched = Watched("head.weight", lines=("head.weight[0, 3].item()", "head.weight.requires_grad"))
    assert isinstance(watched.model, Net)
    with torch.no_grad():
        watched.model.head.weight.fill_(1.0)
    with watched, torch.no_grad():
        watched.model.head.weight[0, 3] = 5.0
    (stop,) = watched.stops
    assert "μ 1 σ 0 " in stop.splitlines()[1] and "[1, 5]" in stop.splitlines()[2]
    assert "1 of 16 elements, max |Δ| 4 at [0, 3]: 1 → 5" in stop
    assert "5.0" in watched.said("answer"), "expressions see the tensor after the write"
    assert "True" in watched.said("answer")


def test_a_view_of_another_part_is_no_write() -> None:
    flat = torch.zeros(20)
    model = nn.Linear(5, 2, bias=False)
    model.weight = nn.Parameter(flat[10:].view(2, 5))
    watched = Watched("model.weight", "model.weight[:, 1]", model=model)
    with watched:
        flat[:10].fill_(7)
        flat.view(2, 10)[1, ::5] = 3  # columns 0 of both rows of the weight
    assert len(watched.stops) == 1 and watched.stops[0].startswith("Linear.weight  written")
    with watched:
        flat.add_(1)
    assert [stop.split()[0] for stop in watched.stops[1:]] == ["Linear.weight", "model.weight[:,"]


def test_an_in_place_activation_is_named_with_its_module() -> None:
    watched = Watched(lines=("watch --stop out", "continue"))
    session = watched.console.session
    session.prompt.script.extendleft(["break norm"])
    with watched:
        watched.model(torch.randn(4, 6))
    written = [stop for stop in watched.stops if stop.startswith("out")]
    assert len(written) == 1
    assert "aten.relu_" in written[0] and "act (ReLU)" in written[0]
    assert "return self.head(self.act(" in written[0]


def test_batch_norm_writes_its_running_statistics() -> None:
    watched = Watched("norm.running_mean")
    with watched:
        watched.model(torch.randn(4, 6))
        with torch.inference_mode():
            watched.model(torch.randn(4, 6))
        watched.model.eval()
        watched.model(torch.randn(4, 6))
    assert [stop.split()[2] for stop in watched.stops] == ["aten.native_batch_norm", "aten.batch_norm"]
    assert all("norm (BatchNorm1d)" in stop for stop in watched.stops)


def test_a_gradient_is_given_accumulated_zeroed_and_dropped() -> None:
    watched = Watched("head.weight.grad")
    model = watched.model
    with watched:
        backward(model)
        backward(model)
        model.zero_grad(set_to_none=False)
        model.zero_grad()
        torch.ones(1)
    heads = [" ".join(stop.splitlines()[0].split()[1:3]) for stop in watched.stops]
    assert heads == ["written AccumulateGrad", "written aten.add_", "written aten.zero_", "dropped watch"]
    given, added, zeroed, dropped = watched.stops
    assert given.splitlines()[1].split() == ["before", "None"]
    assert dropped.splitlines()[2].split() == ["after", "None"]
    assert "AccumulateGrad, in the backward pass" in added
    assert line_of(backward, ".backward()") in given and line_of(backward, ".backward()") in added
    assert "set_to_none=False" in zeroed
    assert "torch.ones(1)" in dropped and "by no op" in dropped


def test_a_write_in_a_backward_hook() -> None:
    watched = Watched("stem.bias")
    model = watched.model
    assert isinstance(model, Net)

    def hook(gradient: Tensor) -> None:
        model.stem.bias.data.sub_(1)

    with watched:
        out = model(torch.randn(4, 6))
        out.register_hook(hook)
        out.sum().backward()
    (stop,) = watched.stops
    assert "aten.sub_" in stop and line_of(hook, "sub_") in stop and "in the backward pass" in stop


def test_an_embedding_renormalises_its_weight_in_the_forward() -> None:
    model = nn.Sequential(nn.Embedding(4, 3, max_norm=0.1), nn.Linear(3, 2))
    watched = Watched("0.weight", model=model)
    with watched:
        model(torch.tensor([1]))
    (stop,) = watched.stops
    assert "0.weight  written  aten.embedding_renorm_" in stop and "0 (Embedding)" in stop
    assert "3 of 12 elements" in stop


def test_a_sparse_gradient_says_that_it_cannot_be_watched() -> None:
    model = nn.Sequential(nn.Embedding(4, 3, sparse=True), nn.Linear(3, 2))
    watched = Watched("0.weight.grad", "1.weight.grad", model=model)
    with watched:
        for _ in range(2):
            model(torch.tensor([1])).sum().backward()
    assert "watch 1 at 0.weight.grad ends; its gradient is sparse" in watched.said()
    assert [stop.split()[0] for stop in watched.stops] == ["1.weight.grad"] * 2


def test_a_lazy_parameter_is_refused_until_it_has_values() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    watched = Watched(model=model)
    with watched:
        assert "is lazy and has no values yet" in watched.ask("watch --stop 0.weight")
        assert "is lazy and has no values yet" in watched.ask("watch --stop 0.weight.grad")
        model(torch.ones(2, 4))
        watched.ask("watch --stop 0.weight")
        model[0].weight.data.add_(1)
    assert len(watched.stops) == 1


def unscales(model: nn.Module) -> None:
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(torch.randn(4, 6)).square().sum()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def test_a_gradient_is_unscaled_and_clipped() -> None:
    watched = Watched("head.weight.grad")
    with watched:
        unscales(watched.model)
    _, unscaled, clipped = watched.stops
    assert "_amp_foreach_non_finite_check_and_unscale_" in unscaled
    assert line_of(unscales, "unscale_(") in unscaled
    assert line_of(unscales, "clip_grad_norm_") in clipped


def test_a_gradient_watched_from_the_middle_of_the_backward_pass() -> None:
    watched = Watched(lines=("watch --stop stem.weight.grad", "continue"))
    watched.console.session.prompt.script.extendleft(["break head backward"])
    backward(watched.model)
    with watched:
        backward(watched.model)
    assert [stop.split()[0] for stop in watched.stops] == ["head", "stem.weight.grad"]
    assert "AccumulateGrad" in watched.stops[1] and "48 of 48 elements" in watched.stops[1]


def test_what_happened_before_the_run_is_no_write() -> None:
    watched = Watched()
    assert isinstance(watched.model, Net)
    watched.ask("watch --stop head.weight")
    by_data(watched.model)
    with watched:
        watched.model(torch.randn(4, 6))
    assert watched.stops == []


def test_numpy_is_found_at_the_next_boundary_and_said_to_be_unseen() -> None:
    watched = Watched("head.weight")
    model = watched.model
    assert isinstance(model, Net)
    with watched:
        model(torch.randn(4, 6))
        model.head.weight.detach().numpy()[1, 2] = 9.0
        model(torch.randn(4, 6))
    (stop,) = watched.stops
    assert stop.startswith("head.weight  changed unseen") and "numpy" in stop
    assert "1 of 16 elements" in stop and "at [1, 2]" in stop
    assert "between  the forward at" in stop


def test_numpy_is_found_before_the_op_that_writes_next() -> None:
    watched = Watched("head.weight")
    assert isinstance(watched.model, Net)
    with watched:
        watched.model.head.weight.detach().numpy()[1, 2] = 9.0
        by_data(watched.model)
    assert ["unseen" in stop for stop in watched.stops] == [True, False]
    assert "1 of 16 elements" in watched.stops[0] and "16 of 16" in watched.stops[1]


def test_another_thread_is_found_before_the_training_step() -> None:
    watched = Watched("head.weight")
    model = watched.model
    assert isinstance(model, Net)
    optimizer = torch.optim.SGD([model.stem.weight], lr=0.1)
    with watched:
        thread = threading.Thread(target=by_data, args=(model,))
        thread.start()
        thread.join()
        optimizer.step()
    (stop,) = watched.stops
    assert "changed unseen" in stop and "optimizer.step()" in stop


def replaces(model: Net) -> None:
    model.head.weight.data = torch.zeros(2, 8)


def by_vector(model: Net) -> None:
    nn.utils.vector_to_parameters(torch.zeros(sum(p.numel() for p in model.parameters())), model.parameters())


@pytest.mark.parametrize("way", [replaces, by_vector])
def test_replaced_memory_is_found_at_the_next_op(way: Callable[[Net], None]) -> None:
    watched = Watched("head.weight", "head.bias")
    assert isinstance(watched.model, Net)
    with watched:
        way(watched.model)
        torch.ones(1)
        watched.model.head.weight.data.add_(1)
    first, *_, last = watched.stops
    assert first.startswith("head.weight  replaced") and "by no op: `.data =`" in first
    assert f"{HERE}:" in first.partition("between")[2]
    assert "16 of 16 elements" in first
    assert last.startswith("head.weight  written  aten.add_"), "it follows"


def test_another_parameter_in_its_place_is_found_and_followed() -> None:
    watched = Watched("head.weight")
    model = watched.model
    assert isinstance(model, Net)
    state = {name: value.clone() + 1 for name, value in model.state_dict().items()}
    with watched:
        model.load_state_dict(state, assign=True)
        model(torch.randn(4, 6))
        by_data(model)
    assert [stop.split()[1] for stop in watched.stops] == ["replaced", "written"]


def test_functional_call_is_no_replacement() -> None:
    watched = Watched("head.weight")
    model = watched.model
    others = {name: value.detach().clone() for name, value in model.named_parameters()}
    with watched:
        torch.func.functional_call(model, others, (torch.randn(4, 6),))
        model(torch.randn(4, 6))
    assert watched.stops == []


def test_a_write_that_changes_nothing_is_counted() -> None:
    watched = Watched("head.weight")
    assert isinstance(watched.model, Net)
    with watched:
        watched.model.head.weight.data.mul_(1)
    assert watched.stops == []
    assert "written once, with the values that it had" in watched.said()


def test_a_watch_that_never_fired_says_so_at_the_end() -> None:
    watched = Watched("head.weight")
    with watched:
        watched.model(torch.randn(4, 6))
    assert "watch 1 at head.weight: never fired: nothing wrote it" in watched.said()


def test_a_watch_that_waits_for_nothing_says_so_at_the_end() -> None:
    lines = ["watch --stop nosuch.weight", "continue"]
    screen, _ = play(script_named("writers"), lines, width=100)
    assert "watch 1 at nosuch.weight: pending: " in screen


def test_a_tensor_that_is_gone_says_so() -> None:
    watched = Watched()
    held = [torch.zeros(3)]
    watched.console.session.run.scope["held"] = held
    with watched:
        watched.ask("watch --stop held[0]")
        held.clear()
        gc.collect()
        torch.ones(1)
        assert "nothing in Python holds its tensor" in watched.ask("watch")
    assert "ends; nothing in Python holds" in watched.said() and watched.stops == []


def test_listing_saving_unwatching_and_the_cost(tmp_path: Path) -> None:
    watched = Watched()
    session = watched.console.session
    with watched:
        assert "nothing is watched" in watched.ask("watch")
        watched.ask("watch 1 + 1")
        assert _get_current_dispatch_mode_stack() == [], "a shown expression installs nothing"
        watched.ask("watch --stop head.weight")
        assert len(_get_current_dispatch_mode_stack()) == 1
        assert "dispatch mode that looks for writes to head.weight" in watched.ask("info cost")
        assert "--stop head.weight" in watched.ask("watch")
        watched.ask(f"save {tmp_path / 'points'}")
        assert "watch --stop head.weight" in (tmp_path / "points").read_text()
        watched.ask("unwatch 2")
        assert _get_current_dispatch_mode_stack() == []
        assert "dispatch mode" not in watched.ask("info cost")
        assert not session.run.training.before and not session.run.training.after
        assert not any(module._forward_pre_hooks for module in watched.model.modules())
        by_data(watched.model)  # type: ignore[arg-type]
    assert watched.stops == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("head", "head is a module"),
        ("1 + 1", "no tensor but a int"),
        ("nosuch.weight", "nosuch"),
        ("torch.ones(2, 2).to_sparse()", "cannot be watched"),
        ("torch.ones(2, device='meta')", "cannot be watched"),
        ("", "which tensor?"),
    ],
)
def test_what_cannot_be_watched_is_one_line(text: str, reason: str) -> None:
    watched = Watched()
    with watched:
        answer = watched.ask(f"watch --stop {text}")
        assert answer.startswith("✗") and reason in answer
        assert watched.console.session.prompt.watches == {}


def test_unwatched_at_its_own_stop_leaves_the_stack_at_once() -> None:
    watched = Watched("head.weight", lines=("unwatch", "continue"))
    assert isinstance(watched.model, Net)
    with watched:
        by_data(watched.model)
        assert _get_current_dispatch_mode_stack() == []
        by_data(watched.model)
    assert len(watched.stops) == 1


def test_set_at_a_stop_it_holds_from_there() -> None:
    watched = Watched(lines=("watch --stop head.bias", "continue"))
    model = watched.model
    assert isinstance(model, Net)
    watched.console.session.prompt.script.extendleft(["break act"])
    model.head.register_forward_hook(lambda module, args, out: module.bias.data.add_(1))
    with watched:
        model(torch.randn(4, 6))
    assert [stop.split()[0] for stop in watched.stops] == ["act", "head.bias"]


class Counting(TorchDispatchMode):
    """A mode of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lines", [(), ("unwatch", "continue")])
def test_modes_of_the_user_see_the_same_and_stay_where_they_are(lines: tuple[str, ...]) -> None:
    def run(model: Net) -> tuple[int, list[Any]]:
        with Counting() as outer, Counting() as inner:
            by_data(model)
            by_data(model)
            stack = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Counting)]
            assert stack == [outer, inner]
        return outer.count, stack

    expected, _ = run(Net())
    watched = Watched("head.weight", lines=lines)
    assert isinstance(watched.model, Net)
    with watched:
        count, _ = run(watched.model)
    assert count == expected
    assert len(watched.stops) == (2 if not lines else 1)


def train(model: Net, steps: int = 4) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    for _ in range(steps):
        loss = nn.functional.dropout(model(torch.randn(8, 6)), 0.3).square().sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "state": list(model.state_dict().values()),
        "gradients": [p.grad for p in model.parameters()],
        "versions": [p._version for p in model.parameters()],
        "moments": moments,
        "random": [torch.get_rng_state()],
    }


def test_training_is_bit_equal_with_and_without() -> None:
    torch.manual_seed(0)
    bare = train(Net())
    watched = Watched("head.weight", "norm.running_var", "stem.weight.grad", "head.bias")
    watched.console.session.prompt.script.extend(["continue"] * 200)
    assert isinstance(watched.model, Net)
    with watched:
        mine = train(watched.model)
    assert len(watched.stops) > 20
    assert mine["versions"] == bare["versions"]
    for key in ("state", "gradients", "moments", "random"):
        assert all(torch.equal(one, other) for one, other in zip(mine[key], bare[key], strict=True)), key


WATCH_ALL = [
    "watch --stop next(model.parameters())",
    "watch --stop [*model.parameters()][-1]",
    "watch --stop [*model.parameters()][-1].grad",
    "watch --stop next(model.buffers())",
]


@pytest.mark.parametrize("entry, mode", [(entry, mode) for entry in ZOO for mode in entry.modes], ids=str)
def test_every_kind_of_model_is_bit_equal_with_and_without(entry: Entry, mode: str) -> None:
    lines = [*WATCH_ALL, "continue", *["continue"] * 200]
    bare, run = play_entry(entry, mode), play_entry(entry, mode, lines)
    assert differences(bare.state, run.state) == []
    assert run.seen.bugs == [] and not taps_on(run.model)
    assert hook_count(run.model) == hook_count(bare.model)
    if mode == "train" and entry.name != "lazy":  # it has no tensor to watch yet
        assert run.seen.stops, "nothing stopped, so nothing was tested"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_after_an_exception(error: type[BaseException]) -> None:
    watched = Watched("head.weight", "head.weight.grad")
    model = watched.model
    assert isinstance(model, Net)

    def fail(module: Any, args: Any, out: Any) -> None:
        by_data(model)
        raise error

    model.act.register_forward_hook(fail)
    with pytest.raises(error), watched:
        model(torch.randn(4, 6))
    assert sum(stop.startswith("head.weight  written") for stop in watched.stops) == 1
    assert "never fired" not in watched.said()
    assert not model.head.weight._post_accumulate_grad_hooks


@pytest.mark.parametrize("place", ["op", "gradient"])
def test_quit_at_a_write_unwinds_and_leaves_nothing(place: str) -> None:
    watched = Watched("head.weight" if place == "op" else "head.weight.grad", lines=("quit",))
    model = watched.model
    assert isinstance(model, Net)
    with pytest.raises(Quit), watched:
        if place == "op":
            by_data(model)
        backward(model)
    assert not model.head.weight._post_accumulate_grad_hooks
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_detach_at_a_write_lets_the_run_go_on() -> None:
    watched = Watched("head.weight", lines=("detach",))
    assert isinstance(watched.model, Net)
    watched.console.attach()
    by_data(watched.model)
    assert _get_current_dispatch_mode_stack() == []
    by_data(watched.model)
    assert len(watched.stops) == 1


def test_in_another_thread_it_holds_from_the_forward_on_and_leaves_by_itself() -> None:
    watched = Watched("head.bias")
    model = watched.model
    assert isinstance(model, Net)
    begun, go_on, stacks = threading.Event(), threading.Event(), []

    def work() -> None:
        model(torch.randn(4, 6))
        model.head.bias.data.add_(1)
        stacks.append(len(_get_current_dispatch_mode_stack()))
        begun.set()
        go_on.wait(100)
        torch.ones(1)
        stacks.append(len(_get_current_dispatch_mode_stack()))

    with watched:
        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(100)
    go_on.set()
    thread.join()
    assert len(watched.stops) == 1 and "aten.add_" in watched.stops[0]
    assert stacks == [1, 0]


def test_a_bug_of_ours_detaches_and_the_op_has_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched("head.weight")
    assert isinstance(watched.model, Net)
    before = watched.model.head.weight.detach().clone()
    monkeypatch.setattr(watched.console.session.instruments.get(Watchpoints), "_stop", lambda *_, **__: 1 / 0)
    with watched:
        by_data(watched.model)
    assert torch.equal(watched.model.head.weight, before * 2)
    assert "a bug in layerstep" in watched.said()


def test_copying_and_saving_work_meanwhile() -> None:
    watched = Watched("head.weight", "head.weight.grad")
    with watched:
        twin = copy.deepcopy(watched.model)
        again = pickle.loads(pickle.dumps(watched.model))
        torch.save(watched.model, io.BytesIO())
    assert not twin.head.weight._post_accumulate_grad_hooks
    assert torch.equal(again.head.weight, twin.head.weight)


def test_a_watch_keeps_no_tensor_alive() -> None:
    watched = Watched(lines=("watch --stop out", "continue"))
    watched.console.session.prompt.script.extendleft(["break stem"])
    outputs: list[Any] = []
    model = watched.model
    assert isinstance(model, Net)
    model.stem.register_forward_hook(lambda module, args, out: outputs.append(weakref.ref(out)))
    with watched, torch.no_grad():
        model(torch.randn(4, 6))
        gc.collect()
        assert outputs[0]() is None


def test_what_is_typed_at_a_stop_is_no_write() -> None:
    watched = Watched("head.weight", lines=("head.weight.data.zero_()", "continue"))
    assert isinstance(watched.model, Net)
    with watched:
        by_data(watched.model)
        watched.model(torch.randn(4, 6))
        watched.ask("head.weight.data.fill_(3)")
        watched.model(torch.randn(4, 6))
    assert len(watched.stops) == 1


def test_a_large_tensor_is_compared_by_a_part_and_says_so() -> None:
    model = nn.Linear(64, 64)
    watched = Watched(model=model)
    session = watched.console.session
    session.run.config = Config(keep_bytes=1024)
    with watched:
        assert "a part of its elements is compared" in watched.ask("watch --stop model.weight")
        model.weight.data.mul_(2)
        model.weight.data.view(-1)[65] = 0  # between the elements that are compared
    first, second = watched.stops
    assert "256 of 256 sampled elements" in first and "more than keep_bytes" in first
    assert "0 of 256 sampled elements" in second, "a write that cannot be judged stops, too"


def test_higher_order_ops_and_inference_run_under_it() -> None:
    watched = Watched("head.weight")
    assert isinstance(watched.model, Net)
    x = torch.ones(3)
    with watched:
        chosen = torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (x,))
        with torch.inference_mode():
            watched.model(torch.randn(4, 6))
            by_data(watched.model)
    assert torch.equal(chosen, x + 1)
    assert len(watched.stops) == 1


def test_compiled_code_is_left_compiled_and_its_writes_are_found() -> None:
    torch._dynamo.reset()
    kept = torch.zeros(3)

    def count(x: Tensor) -> Tensor:
        kept.add_(1)
        return x * 2

    compiled = torch.compile(count, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(3))
    watched = Watched()
    watched.console.session.run.scope["kept"] = kept
    with watched:
        watched.ask("watch --stop kept")
        compiled(torch.ones(3))
        torch.optim.SGD(watched.model.parameters(), lr=0.1).step()
    assert len(watched.stops) == 1 and watched.stops[0].startswith("kept")
    torch._dynamo.reset()


def test_a_stop_is_json_too() -> None:
    watched = Watched("head.weight")
    assert isinstance(watched.model, Net)
    with watched:
        by_data(watched.model)
    view = next(m.view for m in watched.messages if m.kind == "stop")
    assert isinstance(view, Fields)
    line = to_line(view, kind="stop")
    assert '"aten.mul_"' in line and '"before"' in line and '"after"' in line


def test_autograd_is_on_at_the_stop() -> None:
    watched = Watched("head.weight", lines=("(head.weight * 2).requires_grad", "continue"))
    assert isinstance(watched.model, Net)
    with watched:
        by_data(watched.model)
    assert "True" in watched.said("answer")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_changes_are_measured_in_every_dtype(dtype: torch.dtype) -> None:
    before = torch.zeros(3, 4).to(dtype)
    after = before.clone()
    after[1, 2] = 1
    change = change_between(before, after)
    assert (change.count, change.total, change.largest, change.index) == (1, 12, 1.0, (1, 2))


def test_a_change_to_nan_has_a_place_but_no_size() -> None:
    before, after = torch.zeros(4), torch.tensor([0.0, 0.0, float("nan"), 0.0])
    change = change_between(before, after)
    assert (change.count, change.largest, change.index) == (1, None, (2,))
    assert change_between(after, after.clone()).count == 0


def test_a_script_waits_for_its_model_and_names_its_writers() -> None:
    lines = ["watch --stop head.weight", *["continue"] * 9]
    screen, code = play(script_named("writers"), lines, width=100)
    assert code == 0
    assert "watch 1 is now set at head.weight" in screen
    assert screen.count("head.weight  written  aten._foreach_addcdiv_") == 2
    assert "writers.py:22  parameter.data.clamp_(-0.2, 0.2)" in screen
    assert "between  the end of AdamW.step() 2 at writers.py:34 and here" in screen


def test_dropped_in_the_backward_pass_it_leaves_with_the_next_op() -> None:
    watched = Watched("head.weight.grad", lines=("unwatch", "continue"))
    assert isinstance(watched.model, Net)
    with watched:
        backward(watched.model)
        torch.ones(1)
        assert _get_current_dispatch_mode_stack() == []
    assert not watched.model.head.weight._post_accumulate_grad_hooks
    assert len(watched.stops) == 1


def test_set_in_the_backward_pass_it_holds_from_the_training_step_on() -> None:
    watched = Watched(lines=("watch --stop head.weight", "continue"))
    watched.console.session.prompt.script.extendleft(["break stem backward"])
    assert isinstance(watched.model, Net)
    optimizer = torch.optim.SGD(watched.model.parameters(), lr=0.1)
    with watched:
        backward(watched.model)
        optimizer.step()
    assert [stop.split()[0] for stop in watched.stops] == ["stem", "head.weight"]
    assert "SGD.step()" in watched.stops[1]


def test_set_at_a_stop_between_kernels_all_modes_stay_in_sight() -> None:
    watched = Watched("head.bias", lines=("stepi", "watch --stop stem.bias", "stepi", "continue"))
    assert isinstance(watched.model, Net)
    watched.console.session.prompt.script.extendleft(["break norm"])
    watched.model.act.register_forward_hook(lambda module, args, out: by_bias(watched.model))
    with watched:
        watched.model(torch.randn(4, 6))
    written = [stop.split()[0] for stop in watched.stops if "written" in stop.splitlines()[0]]
    assert written == ["stem.bias", "head.bias"]


def by_bias(model: nn.Module) -> None:
    model.stem.bias.data.add_(1)
    model.head.bias.data.add_(1)


def test_dropped_inside_of_inference_mode_the_run_goes_on() -> None:
    model = Net().eval()
    console = DebugConsole(model, commands=["watch --stop head.weight"], output=io.StringIO())
    with console:
        model(torch.ones(2, 6))
        handle = model.act.register_forward_hook(lambda *_: console.execute("unwatch 1") and None)
        with torch.inference_mode():
            model(torch.ones(2, 6))
        handle.remove()
        model(torch.ones(2, 6)).sum().backward()
    assert model.head.weight.grad is not None


@pytest.mark.parametrize(
    ("lines", "depths"),
    [
        (["break **", "watch --stop head.weight", *["continue"] * 40], [1, 1, 1]),
        (["break norm", "watch --stop head.weight", "continue", "continue", "delete 2"], [1, 0, 0]),
    ],
    ids=["once however often the run stops", "not at all without a watch"],
)
def test_how_often_the_mode_lies_on_the_stack(lines: list[str], depths: list[int]) -> None:
    model = Net()
    console, _ = console_on(model, lines)
    with console:
        for depth in depths:
            model(torch.ones(2, 6))
            assert len(_get_current_dispatch_mode_stack()) == depth
