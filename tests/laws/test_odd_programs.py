"""Programs of odd kinds: the run goes on as without a debugger, and no line says that we have a bug."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from layerstep._torch.persistent_mode import PersistentMode
from layerstep.calls.operations import user_frame
from layerstep.module_paths.by_module import ByModule
from layerstep.profile.slow_lines import program_frame
from layerstep.tensors.finite import not_finite
from zoo import console_on

ARMED = (
    "catch shape **",
    "catch dtype **",
    "catch nonfinite",
    "catch nan in **",
    "catch exception in **",
    "doctor on extreme",
    "profile on",
    "memory on",
    "record ** --tensors",
    "break **",
)
ASKED = ("info breaks", "why-not **", "tree", "where", "inspect mod", "ops", "again", "model.training")


class Around(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner if inner is not None else nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class NoComparison(Around):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = nn.Module.__hash__


class AlwaysEqual(Around):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class NoTruth(Around):
    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Falsy(Around):
    def __len__(self) -> int:
        return 0


class OwnNames(Around):
    """Its arguments have the names that a wrapper would give its own."""

    def forward(self, **given: Any) -> Tensor:
        return self.inner(given["module"])


class CallsOwnNames(Around):
    def __init__(self) -> None:
        super().__init__(OwnNames())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(module=x, args=1, kwargs=2, forward=3, fn=4, input=5)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, dtype=torch.cfloat)

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(self.inner(torch.complex(x, x))).sum(-1)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = torch.nested.as_nested_tensor([row[None] for row in x])
        return x + torch.nested.to_padded_tensor(self.inner(rows), 0.0).mean()


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.inner = nn.LazyLinear(4)
        self.norm = nn.LazyBatchNorm1d()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.inner(self.before(x)))


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")


class RaisesNoText(Around):
    """Its part raises at each call but the first."""

    def __init__(self) -> None:
        super().__init__(_RaisesLater())

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except NoText:
            return x


class _RaisesLater(Around):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            raise NoText
        return self.inner(x)


ODD: tuple[Callable[[], nn.Module], ...] = (
    NoComparison,
    AlwaysEqual,
    NoTruth,
    Falsy,
    CallsOwnNames,
    Complex,
    Nested,
    Lazy,
    RaisesNoText,
)


def _trained(model: nn.Module, run: Callable[[], Any]) -> list[Tensor]:
    """The losses of some steps, then all state."""
    torch.manual_seed(1)
    losses: list[Tensor] = []

    def train() -> None:
        for _ in range(3):
            loss = model(torch.randn(3, 4)).square().mean()
            if loss.requires_grad:
                loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.1 * parameter.grad
            losses.append(loss.detach())

    with run():
        train()
    return [*losses, *(each.detach() for each in model.state_dict().values()), torch.get_rng_state()]


def _made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), kind(), nn.Linear(4, 4))


class _Bare:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


@pytest.mark.parametrize("armed", ARMED)
@pytest.mark.parametrize("kind", ODD)
def test_an_odd_module_runs_as_without_a_debugger(kind: Callable[[], nn.Module], armed: str) -> None:
    bare = _trained(_made(kind), _Bare)
    model = _made(kind)
    asked = [line for _ in range(4) for line in (*ASKED, "step")]
    console, seen = console_on(model, [armed, "continue", *asked, "delete", "continue"])
    seen_now = _trained(model, lambda: console)
    assert all(torch.equal(one, other) for one, other in zip(bare, seen_now, strict=True))
    assert not seen.bugs
    assert "a bug in layerstep" not in seen.text


@pytest.mark.parametrize("line", ["ops 1", "flops", "attention 1", "stability **", "again"])
def test_a_rerun_does_not_make_the_weights_of_a_lazy_layer(line: str) -> None:
    model = _made(Lazy)
    console, seen = console_on(model, ["break 1.before", "continue", "up", line, "delete", "continue"])
    with console:
        model(torch.randn(3, 4))
    assert "a lazy layer in it has no weights yet" in seen.text.replace("\n", " ")
    assert not seen.bugs


class Copies(nn.Module):
    """Copies a layer in its forward. A stop at an op of the copying sees a module without its tables."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return copy.deepcopy(self.inner)(x)


def test_a_line_at_an_op_in_a_copy_of_a_module_is_answered() -> None:
    model = nn.Sequential(Copies())
    console, seen = console_on(
        model, ["break op:*", "continue", *["out.shape", "perturbed?", "continue"] * 12, "delete", "continue"]
    )
    with console:
        model(torch.ones(2, 4))
    assert not seen.bugs
    assert "a bug in layerstep" not in seen.text


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
@pytest.mark.parametrize("line", ["watch --stop 0.weight", "memory on", "catch nonfinite --every-op"])
def test_an_optimizer_that_works_on_lists_counts_its_writes(line: str, kind: Any) -> None:
    """Autograd refuses a graph whose weights were written since; it asks that count."""

    def versions(lines: list[str] | None) -> list[int]:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = kind(model.parameters(), 0.1, foreach=True)
        console: Any = console_on(model, lines)[0] if lines is not None else _Bare()
        with console:
            for _ in range(2):
                model(torch.ones(2, 4)).mean().backward()
                optimizer.step()
        return [parameter._version for parameter in model.parameters()]

    assert versions([line, *["continue"] * 9]) == versions(None)


class Curvature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.vmap(torch.func.hessian(lambda row: self.inner(row).tanh().sum()))(x).mean()


@pytest.mark.parametrize("armed", ["memory 2", "watch --stop 0.weight"])
def test_a_session_that_ends_in_a_backward_pass_leaves_no_key_on(armed: str) -> None:
    """In anomaly mode a node of a second derivative set the keys back, on without a mode: torch asserted."""
    model = _made(Curvature)
    console, seen = console_on(model, [armed, "break 2 backward", "continue", "detach"])
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True), console:
        warnings.simplefilter("ignore")
        for _ in range(2):
            model(torch.randn(2, 4)).mean().backward()
    assert not torch._C._len_torch_dispatch_stack()
    assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)
    assert not seen.bugs


class Sealed(torch.Tensor):
    """A wrapper that does not say what it wraps: it has a size and no memory."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Sealed:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    def __init__(self, inner: Tensor) -> None: ...

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        opened = torch.utils._pytree.tree_map_only(Sealed, lambda each: each.inner, (args, kwargs or {}))
        made = func(*opened[0], **opened[1])
        return torch.utils._pytree.tree_map_only(Tensor, Sealed, made)


def test_a_weight_without_memory_of_its_own_cannot_be_watched_and_that_is_said() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].weight = nn.Parameter(Sealed(model[0].weight.detach()), requires_grad=False)
    console, seen = console_on(model, ["watch --stop 0.weight", "continue"])
    with console:
        model(torch.ones(2, 4))
    assert not seen.bugs
    assert "a bug in layerstep" not in seen.text


def test_code_whose_constants_have_no_hash_is_told_from_ours() -> None:
    """Dynamo makes such code."""
    made = compile("frame = sys._getframe()", "made.py", "exec")
    odd = made.replace(co_consts=(*made.co_consts, {}))
    names: dict[str, Any] = {"sys": sys}
    exec(odd, names)
    with pytest.raises(TypeError):
        hash(odd)
    assert user_frame(names["frame"]) is names["frame"]
    assert program_frame(names["frame"]) is names["frame"]


def test_a_value_of_a_module_is_found_by_identity_and_goes_with_it() -> None:
    values: ByModule[int] = ByModule()
    one, other = AlwaysEqual(), AlwaysEqual()
    values.put(one, 1)
    assert (values.get(one), values.get(other)) == (1, None)
    values.put(one, 2)
    assert values.get(one) == 2
    del one
    assert not values._values


def test_a_mode_is_not_popped_in_a_handler_in_a_backward_pass() -> None:
    class Mode(PersistentMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            try:
                return func(*args, **kwargs)
            finally:
                self.pop_after_handler(kwargs, sys._getframe(1))

    depths: list[int] = []
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y.register_hook(lambda gradient: depths.append((gradient * 1, torch._C._len_torch_dispatch_stack())[1]))
    mode = Mode()
    loss = y.sum()
    assert mode.push_below()
    loss.backward(torch.ones(()))
    assert depths[-1:] in ([1], [0])
    torch.ones(1).add(1)
    assert not torch._C._len_torch_dispatch_stack()


@pytest.mark.parametrize("value", [complex(1, float("nan")), complex(float("inf"), 1), complex(1, 1)])
def test_both_parts_of_complex_numbers_are_checked_and_nothing_is_warned_of(value: complex) -> None:
    tensors = [torch.ones(3), torch.full((2, 2), value), torch.full((2,), value).conj()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not_finite(tensors) == ([] if value == complex(1, 1) else [1, 2])


class _Functions(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class _Kernels(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "lines",
    [
        ["break **", *["continue"] * 40],
        ["break ** enter", "continue", *["stepi"] * 15, *["continue"] * 40],
        ["break **", "continue", *["step op"] * 15, *["continue"] * 40],
        ["break ** backward", *["continue"] * 40],
        ["watch --stop 1.weight", *["continue"] * 9],
        ["break 1", "continue", "lockstep 0 1 --input inp"],
        *(
            ["break 1", "continue", line]
            for line in (
                "flops",
                "stability 1",
                "again",
                "shadow 1",
                "grad check 1",
                "architecture",
                "probe eval-twice",
                "whatif out * 2",
                "sweep out * 0, out * 2",
                "why out",
            )
        ),
        *(
            [line, "continue"]
            for line in (
                "catch nonfinite",
                "catch nonfinite --every-op",
                "catch shape **",
                "memory on",
                "leaks on",
                "profile on",
                "doctor on extreme",
                "record ** --tensors",
                "grad record --updates",
            )
        ),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", [_Functions, _Kernels])
@pytest.mark.parametrize("way", ["one kernel", "training"])
def test_a_mode_of_the_users_sees_what_it_sees_in_the_bare_run(way: str, kind: Any, lines: list[str]) -> None:
    """A mode that prints or counts what the model does would otherwise print and count what we do."""

    def seen(lines: list[str] | None) -> list[str]:
        torch.manual_seed(0)
        first = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        model = nn.Sequential(first if way == "one kernel" else nn.Linear(8, 8), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        console: Any = console_on(model, lines)[0] if lines is not None else _Bare()
        mode = kind()
        with console:
            for _ in range(3):
                with mode, torch.set_grad_enabled(way == "training"):
                    loss = model(torch.ones(2, 3, 8)).mean()
                    if loss.requires_grad:
                        loss.backward()
                        optimizer.step()
                        optimizer.zero_grad()
        return mode.seen

    seen(lines)  # self-tests at the first use are no part of it
    assert seen(lines) == seen(None)


def test_the_doctor_leaves_an_encoder_layer_its_kernel() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 8)).eval()
    console, _ = console_on(model, ["doctor on extreme", "continue"])
    with console, torch.no_grad(), torch.profiler.profile() as profiled:
        model(torch.ones(2, 3, 8))
    assert "aten::_transformer_encoder_layer_fwd" in {each.key for each in profiled.key_averages()}


def test_operations_are_counted_where_a_weight_was_made_in_inference_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with torch.inference_mode():
        model[0].weight.data = model[0].weight.data.clone()
    console, seen = console_on(model, ["break 0", "continue", "flops", "delete", "continue"])
    with console:
        model(torch.ones(2, 4))
    assert not seen.bugs and "forward" in seen.text


class _Tangent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        value, tangent = torch.func.jvp(self.norm, (x,), (torch.ones_like(x),))
        return value + tangent


@pytest.mark.parametrize(
    "line",
    [
        "flops",
        "architecture",
        "stability **",
        "ops Sequential",
        "attention Sequential",
        "grad check Sequential",
        "model(torch.ones(2, 4))",
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_a_model_that_uses_jvp_runs_again_at_a_kernel(line: str, inference: bool) -> None:
    """Its zero tensors have no memory. Kernels read it where torch does not heed the bit that says so."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), _Tangent())
    x = torch.randn(2, 4)
    with torch.inference_mode(inference):
        expected = model(x)
        console, seen = console_on(model, ["break 1 enter", "continue", "stepi", line, "delete", "continue"])
        assert torch.equal(console.run(x), expected)
    assert not seen.bugs
