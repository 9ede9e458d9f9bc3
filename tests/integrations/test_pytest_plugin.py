"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from layerstep.integrations.checks import cost_of, difference_of

NET = """
import pytest
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(9, 2))
    def forward(self, x):
        return self.body(x)
"""
TESTS = (
    NET
    + """
def test_crash():
    Net()(torch.randn(2, 4))

def test_assertion():
    out = nn.Linear(4, 2)(torch.ones(3, 4))
    assert out.shape == (3, 4)

def test_without_tensors():
    assert 1 == 2

def test_skipped():
    pytest.skip("no")

@pytest.mark.xfail
def test_known_to_fail():
    Net()(torch.randn(2, 4))
"""
)
FIXTURES = (
    NET
    + """
class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)

def test_nan(no_nonfinite):
    nn.Sequential(nn.Identity(), Log())(torch.tensor([1.0, -1.0]))

def test_nan_of_the_backward(no_nonfinite):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
        def forward(self, x):
            return (self.weight * x).sqrt().sum()
    Root()(torch.ones(2)).backward()

@pytest.mark.usefixtures("no_nonfinite")
def test_finite():
    nn.Linear(4, 2)(torch.ones(3, 4)).sum().backward()

def test_nan_unasked():
    Log()(torch.tensor(-1.0))

def test_unequal(assert_bit_equal):
    assert_bit_equal(torch.zeros(2), -torch.zeros(2))

def test_equal(assert_bit_equal):
    assert_bit_equal({"a": [torch.full((2,), torch.nan)]}, {"a": [torch.full((2,), torch.nan)]})

def test_cost(cost_of):
    model, x = nn.Linear(4, 2), torch.ones(3, 4)
    assert cost_of(model, x).flops == 2 * 3 * 4 * 2

def test_console(layerstep_console, capsys):
    model = nn.Linear(4, 2)
    console = layerstep_console(model, commands=["continue", "stats out"])
    console.breakpoint("type:Linear")
    model(torch.ones(3, 4))
    assert "percentiles" in capsys.readouterr().err

def test_nothing_is_left():
    from layerstep import api
    assert api._current is None
    assert nn.Module.__call__.__module__.startswith("torch")
"""
)


def section(lines: list[str], test: str) -> str:
    """The report of one test."""
    first = next(index for index, line in enumerate(lines) if line.strip("_ ") == test)
    rest = lines[first + 1 :]
    end = next(index for index, line in enumerate(rest) if line.startswith(("____", "====")))
    return "\n".join(rest[:end])


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_a_failing_test_is_explained(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(test_it=TESTS)
    found = pytester.runpytest_subprocess("--layerstep", *options)
    found.assert_outcomes(failed=3, skipped=1, xfailed=1)
    crash = section(found.outlines, "test_crash")
    assert "Linear(9→2) got [2, 8]: last dimension is 8, weight wants 9" in crash
    assert "body.2  raised RuntimeError" in crash and "try   nn.Linear(8, 2)" in crash
    assert any(line.split() == ["Net", "Net", "f32[2,", "4]", "-"] for line in crash.splitlines())
    assert "out  f32[3, 2] cpu" in section(found.outlines, "test_assertion")
    assert "layerstep" not in section(found.outlines, "test_without_tensors")


def test_it_is_off_unless_asked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    found = pytester.runpytest_subprocess()
    found.assert_outcomes(failed=3, skipped=1, xfailed=1)
    found.stdout.no_fnmatch_line("*- layerstep -*")


def test_off_it_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_modules(request):
            assert request.config.pluginmanager.has_plugin("layerstep")
            names = ("torch", "numpy", "rich", "layerstep.api", "layerstep.engine")
            assert not [name for name in names if name in sys.modules]
            assert not request.config.pluginmanager.has_plugin("layerstep-explaining")
            assert not request.config.pluginmanager.has_plugin("layerstep-failing")
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=FIXTURES)
    found = pytester.runpytest_subprocess()
    found.assert_outcomes(passed=6, failed=3)
    nan = section(found.outlines, "test_nan")
    assert "1 nan of 2" in nan and "born in log at" in nan and "test_it.py:14, in Sequential.1" in nan
    assert "sqrt" in section(found.outlines, "test_nan_of_the_backward")
    assert "equal numbers with other bits" in section(found.outlines, "test_unequal")


def test_differences_are_named() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.load_state_dict(one.state_dict())
    assert difference_of(one, other) == ""
    with torch.no_grad():
        other.bias[1] += 1
    assert difference_of(one, other).startswith("bias: 1 of 2 elements differ, first at [1]")
    assert difference_of([1, 2], [1]) == "the values: 2 items and 1 items"
    assert difference_of({"a": 1}, {"b": 1}) == "the values: only one has 'a', 'b'"
    assert difference_of({"a": (1.5, "x")}, {"a": (1.5, "y")}) == "a[1]: 'x' and 'y'"
    assert difference_of(float("nan"), float("nan")) == "" and difference_of(0.0, -0.0)
    assert difference_of(torch.zeros(2), torch.zeros(3)) == "the values: f32[2] and f32[3]"
    assert difference_of(torch.zeros(2), torch.zeros(2).double())
    assert difference_of(torch.eye(2).to_sparse(), torch.eye(2).to_sparse()) == ""
    assert difference_of(torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse())


def test_the_cost_of_a_call_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stream = torch.get_rng_state()
    found = cost_of(model, torch.ones(3, 4))
    assert difference_of(before, dict(model.state_dict())) == ""
    assert torch.equal(stream, torch.get_rng_state())
    assert (found.flops, found.parameters, found.trainable) == (2 * 3 * 4 * 8, 56, 56)
    assert found.bytes == 4 * 56 + 2 * 4 * 8 + 8
    with torch.no_grad():
        assert cost_of(model, torch.ones(3, 4)).backward_flops == 0
