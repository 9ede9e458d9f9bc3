"""The names of arguments: by the schema, by the Python signature, by the aten operator of the same name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from layerstep.calls.operations import Functions, Kernels, matches, name_of, plain_name, writes
from layerstep.ops.signatures import named_arguments

X = torch.ones(2, 3)
W = torch.ones(3, 3)


def seen_by(mode: type, run: Callable[[], Any]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Name and named arguments of each op; a tensor is its shape."""
    found = []

    def around(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named = named_arguments(func, args, kwargs)
        found.append((name_of(func), [(n, tuple(v.shape) if isinstance(v, Tensor) else v) for n, v in named]))
        return func(*args, **kwargs)

    with mode(around):
        run()
    return found


CASES: list[tuple[str, Callable[[], Any], list[tuple[str, Any]]]] = [
    ("matmul", lambda: X @ W, [("self", (2, 3)), ("other", (3, 3))]),
    ("div", lambda: 2 / X, [("self", (2, 3)), ("other", 2)]),
    ("sub", lambda: 1 - X, [("self", (2, 3)), ("other", 1)]),
    ("view", lambda: X.view(3, 2), [("self", (2, 3)), ("size", [3, 2])]),
    ("view", lambda: X.view((3, 2)), [("self", (2, 3)), ("size", (3, 2))]),
    ("permute", lambda: X.permute(1, 0), [("self", (2, 3)), ("dims", [1, 0])]),
    ("softmax", lambda: X.softmax(-1), [("self", (2, 3)), ("dim", -1)]),
    ("softmax", lambda: torch.softmax(X, dim=0), [("self", (2, 3)), ("dim", 0)]),
    ("F.linear", lambda: F.linear(X, W), [("input", (2, 3)), ("weight", (3, 3))]),
    ("mean", lambda: X.mean(dim=-1, keepdim=True), [("self", (2, 3)), ("dim", -1), ("keepdim", True)]),
    ("ones", lambda: torch.ones(2, 3, dtype=torch.bool), [("size", [2, 3]), ("dtype", torch.bool)]),
    ("to", lambda: X.to(torch.float64), [("self", (2, 3)), ("dtype", torch.float64)]),
    ("getitem", lambda: X[0], [("self", (2, 3)), ("index", 0)]),
    ("add", lambda: torch.add(input=X, other=1), [("self", (2, 3)), ("other", 1)]),
    ("transpose", lambda: X.transpose(0, 1), [("self", (2, 3)), ("dim0", 0), ("dim1", 1)]),
    ("float", lambda: X.float(), [("self", (2, 3))]),
    ("einsum", lambda: torch.einsum("ij->ji", X), [("0", "ij->ji"), ("1", (2, 3))]),
]


@pytest.mark.parametrize(
    ("name", "run", "expected"), CASES, ids=[str(i) + case[0] for i, case in enumerate(CASES)]
)
def test_functions_have_the_names_that_their_users_know(
    name: str, run: Callable[[], Any], expected: list[tuple[str, Any]]
) -> None:
    assert seen_by(Functions, run) == [(name, expected)]


def test_functions_in_python_have_their_own() -> None:
    ((name, named),) = seen_by(Functions, lambda: F.layer_norm(X, (3,), eps=1e-3))
    assert name == "F.layer_norm"
    assert dict(named)["normalized_shape"] == (3,) and dict(named)["eps"] == 1e-3
    ((_, pooled),) = seen_by(Functions, lambda: F.max_pool2d(X[None, None], 2))[-1:]
    assert [key for key, _ in pooled[:2]] == ["self", "kernel_size"]


def test_kernels_have_those_of_their_schema() -> None:
    found = seen_by(Kernels, lambda: F.linear(X, W, W[0]))
    assert found[-1] == ("aten.addmm", [("self", (3,)), ("mat1", (2, 3)), ("mat2", (3, 3))])


def test_an_unknown_function_has_numbers() -> None:
    assert named_arguments(print, (X,), {"key": 1}) == [("0", X), ("key", 1)]


@pytest.mark.parametrize(
    ("pattern", "name", "does"),
    [
        ("softmax", "F.softmax", True),
        ("softmax", "log_softmax", False),
        ("*softmax*", "F.log_softmax", True),
        ("add", "add_", True),
        ("add_", "add", True),
        ("softmax", "aten._softmax", False),
        ("aten.softmax", "aten._softmax", True),
        ("aten._softmax", "aten._softmax", True),
        ("aten.*", "aten.mm", True),
        ("matmul", "matmul", True),
        ("*", "F.gelu", True),
        ("*", "aten.mm", True),
    ],
)
def test_the_name_of_a_point_is_held_to_the_last_part(pattern: str, name: str, does: bool) -> None:
    assert matches(pattern, name) is does


def test_plain_names_and_writes() -> None:
    assert [plain_name(n) for n in ("F.softmax", "nn.init.uniform_", "aten._softmax")] == [
        "softmax",
        "uniform",
        "aten.softmax",
    ]
    assert (
        writes(torch.Tensor.add_)
        and writes(torch.ops.aten.relu_.default)
        and writes(torch.Tensor.__setitem__)
    )
    assert not (
        writes(torch.Tensor.add) or writes(torch.ops.aten.relu.default) or writes(torch.Tensor.__eq__)
    )
