"""`back` in models that are hard to leave and to begin again; where it is refused; what it leaves."""

from __future__ import annotations

import contextlib
import gc
import io
import random
import re
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from layerstep.engine.restart import PassedCalls
from layerstep.errors import Quit
from layerstep.rewind import snapshot
from layerstep.rewind.running_forward import RunningForward
from layerstep.rewind.snapshot import Snapshot
from layerstep.rewind.weights import KeptWeights, WeightWriters
from zoo import console_on, hook_count, taps_on

SIDE: list[int] = []


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.linear(x))


class Model(nn.Module):
    """Calls its part the way that a function says."""

    def __init__(self, how: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.inner = Inner()
        self.how = how
        self.register_buffer("seen", torch.zeros(4))
        self.calls: list[int] = []
        self.cache: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(len(self.calls))
        return self.how(self, self.norm(self.first(x)))


def plain(model: Model, x: Tensor) -> Tensor:
    return model.inner(x)


def except_exception(model: Model, x: Tensor) -> Tensor:
    try:
        return model.inner(x)
    except Exception:
        return x


def except_all(model: Model, x: Tensor) -> Tensor:
    try:
        return model.inner(x)
    except:  # noqa: E722
        return x * 0


def raises_another(model: Model, x: Tensor) -> Tensor:
    try:
        return model.inner(x)
    except BaseException as error:
        raise ValueError("another") from error


def with_finally(model: Model, x: Tensor) -> Tensor:
    try:
        return model.inner(x)
    finally:
        model.first(x)


def generator(model: Model, x: Tensor) -> Tensor:
    def made() -> Any:
        yield model.inner(x)

    return next(made())


def in_inference_mode(model: Model, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return model.inner(x).clone() * 1


def without_gradient(model: Model, x: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return model.inner(x).float()


def under_vmap(model: Model, x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: model.inner.linear(row))(x)


def recomputed(model: Model, x: Tensor) -> Tensor:
    return checkpoint(model.inner, x, use_reentrant=True)


def custom_function(model: Model, x: Tensor) -> Tensor:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return model.inner(value).detach()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    return Function.apply(x)


def in_place(model: Model, x: Tensor) -> Tensor:
    model.cache["last"] = x.detach().clone()
    model.seen.add_(x.detach().sum(0))
    model.inner.drop.calls = getattr(model.inner.drop, "calls", 0) + 1  # on a layer of torch
    assert model.inner.drop.calls == len(model.calls)
    return model.inner(x.mul_(2))


def writes_weights(model: Model, x: Tensor) -> Tensor:
    """As momentum encoders and clamps do, with writes that torch counts and with others."""
    with torch.no_grad():
        model.inner.linear.bias.clamp_(-0.1, 0.1)
    model.inner.linear.weight.data.mul_(0.9)
    model.first.weight.data = model.first.weight.data * 0.9
    return model.inner(x)


def exchanges_weights(model: Model, x: Tensor) -> Tensor:
    """Torch does not give back the weights of a layer that it was told of twice."""
    tied = nn.Sequential(model.first, model.inner, model.first)
    weights = {name: weight.detach() * 0.9 for name, weight in tied.named_parameters()}
    return torch.func.functional_call(tied, weights, (x,))


def in_turn(model: Model, x: Tensor) -> Tensor:
    return model.inner(model.inner(x))


class Held:
    """An object of the program with state of all kinds, some under names that modules use, too."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.seen: set[int] = set()
        self.queue: deque[int] = deque()
        self.table: OrderedDict[str, list[int]] = OrderedDict(inside=[])
        self.pair: tuple[list[int], int] = ([], 0)
        self._parameters: dict[int, int] = {}
        self._buffers: list[Tensor] = [torch.zeros(1)]
        self.count = 0

    def grow(self) -> None:
        self.items.append(1)
        self.seen.add(len(self.seen))
        self.queue.append(1)
        self.table["inside"].append(1)
        self.pair[0].append(1)
        self._parameters[len(self._parameters)] = 1
        self._buffers[0].data.add_(1)
        self.count += 1

    def counts(self) -> set[int]:
        held = (self.items, self.seen, self.queue, self.table["inside"], self.pair[0], self._parameters)
        return {*map(len, held), int(self._buffers[0]), self.count}


def holds_state(model: Model, x: Tensor) -> Tensor:
    """As caches and counters do; numbers from all streams, with the second ones of normal pairs."""
    if not hasattr(model.inner, "held"):
        model.inner.held = Held()
    model.inner.held.grow()
    assert model.inner.held.counts() == {len(model.calls)}
    if len(model.calls) == 2:
        model.inner.register_buffer("late", torch.ones(1))
        model.inner.own = nn.Parameter(torch.ones(1), requires_grad=False)
    return model.inner(x) * (1 + random.gauss() + np.random.normal())


HOWS = [
    plain,
    except_exception,
    except_all,
    raises_another,
    with_finally,
    generator,
    in_inference_mode,
    without_gradient,
    under_vmap,
    recomputed,
    custom_function,
    in_place,
    writes_weights,
    exchanges_weights,
    holds_state,
]


def run(how: Callable[[Model, Tensor], Tensor], lines: list[str] | None) -> tuple[dict[str, Any], str, Model]:
    """Two training steps; the state at their end, and what was on the screen."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    SIDE.clear()
    model, x = Model(how), torch.randn(6, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    console, seen = console_on(model, lines or [])
    with console if lines else contextlib.nullcontext():
        for _ in range(2):
            output = model(x)
            if output.requires_grad:
                optimizer.zero_grad()
                output.square().mean().backward()
                optimizer.step()
    state = {**model.state_dict(), "input": x, "output": output, "stream": torch.get_rng_state()}
    return {**state, "calls": torch.tensor(model.calls)}, seen.text, model


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


GO = ["break inner.linear", "continue", "back", "step", "back 3", "next", "restart", "continue", "back first"]


@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.__name__)
def test_a_run_ends_as_without_back(how: Callable[[Model, Tensor], Tensor]) -> None:
    bare, _, _ = run(how, None)
    state, text, model = run(how, [*GO, "delete", "continue"])
    check_same(bare, state)
    assert text.count("came back to the same bits") == 3 and "not the same" not in text
    assert "✗" not in text and not taps_on(model) and not hook_count(model)


def test_back_knows_its_place_after_hits_that_were_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are so many calls that they are counted on the way."""
    monkeypatch.setattr(PassedCalls, "MOST", 1)
    bare, _, _ = run(in_turn, None)
    state, text, _ = run(in_turn, ["break **", "ignore 1 6", "continue", "back", "delete", "continue"])
    check_same(bare, state)
    stop, _, after = text.partition("came back to the same bits: 7 of 7 outputs")
    assert "inner.drop  done" in stop and "inner.drop  entered" in after and "✗" not in text


@pytest.mark.parametrize("line", ["inner.linear.weight.data.zero_()", "set inner.linear.weight = 0"])
@pytest.mark.parametrize("how", [plain, writes_weights], ids=lambda how: how.__name__)
def test_what_the_user_writes_into_weights_stays(how: Callable[[Model, Tensor], Tensor], line: str) -> None:
    lines = ["tbreak first", "continue", line, "restart", "p int(inner.linear.weight.count_nonzero())"]
    _, text, _ = run(how, [*lines, "continue"])
    assert re.search(r"\$\d  0\n", text.partition("begun again")[2])


def test_weights_without_room_for_copies_are_not_written_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "COPY_BYTES", 300)
    bare, _, _ = run(writes_weights, None)
    state, text, _ = run(writes_weights, ["break inner.linear", "continue", "back", "delete", "continue"])
    check_same(bare, state)
    assert "a weight of 64 bytes was written, and no copy was taken of it" in " ".join(text.split())


@pytest.mark.parametrize(("how", "copies"), [(plain, [True, False]), (writes_weights, [True, True])])
def test_weights_are_copied_again_only_if_the_first_forward_wrote_them(
    how: Callable[[Model, Tensor], Tensor], copies: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []
    keep = WeightWriters.keep

    def noted(self: WeightWriters, module: nn.Module, *, room: int) -> KeptWeights | None:
        weights = keep(self, module, room=room)
        kept.append(weights is not None)
        return weights

    monkeypatch.setattr(WeightWriters, "keep", noted)
    run(how, ["break inner", "continue", "continue", "continue"])
    assert kept == copies


def test_a_tensor_of_inference_mode_is_put_back() -> None:
    """Torch writes it in that mode alone."""

    def counts(model: Model, x: Tensor) -> Tensor:
        with torch.inference_mode():
            model.cache["count"].add_(1)
        return model.inner(x)

    model = Model(counts)
    with torch.inference_mode():
        model.cache["count"] = torch.zeros(1)
    console, seen = console_on(model, ["break inner", "continue", "back", "restart", "delete", "continue"])
    with console:
        model(torch.randn(6, 4))
    assert not seen.bugs and float(model.cache["count"]) == 1


def test_it_says_what_has_not_come_back_to_the_same_bits() -> None:
    def counts(model: Model, x: Tensor) -> Tensor:
        SIDE.append(1)
        y = x.clone()
        y[1, 2] += len(SIDE)
        return model.inner.linear(y)

    _, text, _ = run(counts, ["break inner.linear", "continue", "back 4", "delete", "continue"])
    assert "not the same bits: inner.linear, first at [1, 0]; 1 of 2 outputs differ" in " ".join(text.split())


def test_prints_are_not_shown_again_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(model: Model, x: Tensor) -> Tensor:
        print("one\ntwo")
        with contextlib.redirect_stdout(io.StringIO()):
            return model.inner(x)

    stdout = sys.stdout
    _, text, _ = run(prints, ["break inner.linear", "continue", "back", "delete", "continue"])
    assert sys.stdout is stdout
    assert capsys.readouterr().out.split() == ["one", "two"] * 2
    assert "2 printed lines not shown again" in " ".join(text.split())


def twice(model: Model, x: Tensor) -> Tensor:
    for _ in range(2):
        x = model.inner(x) * 2
    return x


def test_back_path_goes_to_the_last_call_before_here() -> None:
    lines = ["break inner", "ignore 1 1", "continue", "p out.sum()", "back inner", "p out.sum()"]
    _, text, _ = run(twice, [*lines, "back inner enter", "back first", "delete", "continue"])
    stops = [line for line in text.splitlines() if "forward 1" in line]
    words = [" ".join(line.split()[:2]) for line in stops]
    assert words == ["inner done", "inner done", "inner entered", "first done"]
    assert len({line for line in text.splitlines() if "f32[] cpu  =" in line}) == 2


@pytest.mark.parametrize("is_training", [True, False])
def test_back_from_a_line_goes_to_the_entry_of_the_module(is_training: bool) -> None:
    line = Inner.forward.__code__.co_firstlineno + 1
    lines = [f"break {__file__}:{line}", "continue", "continue", "back", "delete", "continue"]
    with torch.set_grad_enabled(is_training):
        bare, _, _ = run(twice, None)
        state, text, _ = run(twice, lines)
    check_same(bare, state)
    came = text.split("(layerstep) back")[1]
    assert "inner  entered" in came
    assert ("several times alike" in came) is not is_training  # without gradients nothing counts


def test_back_from_an_op_and_from_a_write() -> None:
    bare, _, _ = run(plain, None)
    lines = ["break first", "continue", "step op", "back", "watch --stop model.norm.running_mean", "continue"]
    state, text, _ = run(plain, [*lines, "back", "delete", "continue"])
    check_same(bare, state)
    first, second = text.split("(layerstep) back")[1:]
    assert "entered" in first and "norm  entered" in second and "changed since" not in second


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["break first backward", "continue", "back"], "this is the backward pass; `replay`"),
        (["break Model enter", "continue", "back"], "this is the beginning of the forward"),
        (["back off", "break first", "continue", "back"], "nothing was kept at the entry"),
        (["break first", "continue", "back nosuch"], "no module"),
        (["break first", "continue", "back 0"], "back 0 is here"),
        (["break first enter", "continue", "back", "back inner"], "the beginning of the forward"),
        (["break norm", "continue", "back 1", "back inner"], "inner was not called before here"),
        (["back"], "nothing has stopped yet"),
        (["restart"], "cannot start the program again"),
    ],
)
def test_where_it_cannot_be_one_line_says_so(lines: list[str], answer: str) -> None:
    bare, _, _ = run(plain, None)
    state, text, _ = run(plain, [*lines, "delete", "continue"])
    check_same(bare, state)
    assert answer in " ".join(text.split())


def test_a_path_that_is_still_to_come_leaves_the_run_where_it_was() -> None:
    bare, _, _ = run(plain, None)
    state, text, _ = run(plain, ["break norm", "continue", "back inner", "delete", "continue"])
    check_same(bare, state)
    came = text.split("(layerstep) back inner")[1]
    assert "did not come to a call of inner before here" in came and "norm  done" in came


def test_an_input_that_autograd_has_noted_is_not_put_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = torch.randn(2, 4, requires_grad=True) * 1
    console, seen = console_on(model, ["break 1", "continue", "back", "continue"])
    with console:
        model(x)
    words = " ".join(seen.text.split())
    assert "cannot begin again: an input that has a gradient was written in place" in words


def test_hooks_of_the_program_that_have_the_result() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model.register_forward_hook(lambda module, args, output: output * 2)
    x = torch.randn(2, 4)
    expected = model(x)
    lines = ["break Sequential", "break 0", "continue", "back", "continue", "continue", "back", "continue"]
    console, seen = console_on(model, lines)
    with console:
        assert torch.equal(model(x), expected)
    assert "came back to the same bits" in seen.text and "hooks of yours have got its result" in seen.text


class Lost(Exception):
    pass


@pytest.mark.parametrize("end", ["quit", "detach", "raises"])
def test_nothing_is_left_at_the_end(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def may_raise(model: Model, x: Tensor) -> Tensor:
        x = model.inner(x)
        if end == "raises":
            raise Lost
        return x

    kept: list[weakref.ref[Snapshot]] = []
    init = Snapshot.__init__

    def noted(self: Snapshot, *args: Any) -> None:
        init(self, *args)
        kept.append(weakref.ref(self))

    monkeypatch.setattr(Snapshot, "__init__", noted)
    model, stdout = Model(may_raise), sys.stdout
    console, _ = console_on(model, ["break inner.linear", "continue", "back", end])
    with contextlib.suppress(Quit, Lost), console:
        model(torch.randn(6, 4))
    gc.collect()
    assert kept and all(one() is None for one in kept)
    assert not hook_count(model) and not taps_on(model) and "forward" not in vars(model)
    assert not console.session.run.followers and not console.session.run.evaluating_threads
    assert sys.stdout is stdout and nn.Module.__call__ is nn.Module._wrapped_call_impl


def test_a_snapshot_lives_no_longer_than_its_forward() -> None:
    model = Model(plain)
    console, seen = console_on(
        model, ["break inner.linear", "continue", "info cost", "back", *["continue"] * 4]
    )
    x = torch.randn(6, 4)
    gc.disable()  # so that a cycle of references shows
    try:
        with console:
            model(x)
            assert not console.session.run.followers
            assert not [one for one in gc.get_objects() if isinstance(one, Snapshot | RunningForward)]
            model(x)
    finally:
        gc.enable()
    assert "at the entry of each forward" in " ".join(seen.text.split())


def test_taps_of_the_backward_pass_follow_the_second_run() -> None:
    bare, _, _ = run(plain, None)
    lines = [
        "break first backward",
        "break inner",
        "continue",
        "back 5",
        "delete 2",
        "continue",
        "p grad_out.sum()",
    ]
    state, text, _ = run(plain, [*lines, "delete", "continue"])
    check_same(bare, state)
    assert "first  backward done" in text and "f32[] cpu  =" in text


def test_edits_act_again_in_the_second_run() -> None:
    """The same call is edited in each run, and its bits are the same."""
    lines = ["edit inner.linear out*2 call 2", "break inner.drop", "ignore 2 1", "continue", "back 7", "next"]
    edited, _, _ = run(twice, ["edit inner.linear out*2 call 2", "continue"])
    state, text, _ = run(twice, [*lines, "back first", "delete 2", "continue"])
    check_same(edited, state)
    assert text.count("came back to the same bits") == 2 and "not the same" not in text
