"""The pytest plugin: `pytest --layerstep` explains failing tests, and four fixtures check models.

pytest loads this file in every run of an environment that has layerstep. It imports neither torch nor the
debugger, and without the option it adds no hook to a test.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from layerstep.api import DebugConsole
    from layerstep.integrations.checks import Cost
    from layerstep.nonfinite.detection import Detection

__all__ = ["assert_bit_equal", "cost_of", "layerstep_console", "no_nonfinite"]

MOST_TOLD = 3
FOUND: pytest.StashKey[Detection] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "show the module stack, the shapes and the likely cause where a model makes a test fail"
    parser.getgroup("layerstep", "layerstep: a debugger for PyTorch").addoption(
        "--layerstep", action="store_true", help=text
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("layerstep"):
        config.pluginmanager.register(_Explaining(), "layerstep-explaining")


class _Explaining:
    """Adds a section to the report of a test that failed."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None and "torch" in sys.modules:
            from layerstep.integrations.checks import explain_failure

            try:
                text = explain_failure(call.excinfo.value)
            except Exception as error:  # a bug of ours: the report itself must come
                text = f"a bug in layerstep: {type(error).__name__}: {error}"
            if text:
                report.sections.append(("layerstep", text))
        return report


class _Failing:
    """Fails the tests with `no_nonfinite` that made a NaN or an Inf."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        try:
            result = yield
        except Exception:
            if text := _told(item):
                item.add_report_section("call", "no_nonfinite", text)
            raise
        if text := _told(item):
            pytest.fail(text, pytrace=False)
        return result


def _told(item: pytest.Item) -> str:
    found = item.stash[FOUND].findings if FOUND in item.stash else []
    lines = [f"{each}" + (f", in {each.layer}" if each.layer else "") for each in found[:MOST_TOLD]]
    lines += [f"{len(found) - MOST_TOLD} more"] if len(found) > MOST_TOLD else []
    return "\n".join(lines)


@pytest.fixture
def layerstep_console() -> Iterator[Callable[..., DebugConsole]]:
    """Attach a debugger to a model until the test ends: `console = layerstep_console(model, commands=[…])`.

    The options are those of `layerstep.DebugConsole`.
    """
    from layerstep.api import attach

    made: list[DebugConsole] = []

    def make(model: Any, **options: Any) -> DebugConsole:
        made.append(attach(model, **options))
        return made[-1]

    yield make
    for console in reversed(made):
        console.detach()
        console.session.close()


@pytest.fixture
def no_nonfinite(request: pytest.FixtureRequest) -> Iterator[Detection]:
    """Fail the test if a model, its loss or its backward makes a NaN or Inf; names the operation and line."""
    from layerstep.api import anomaly_detection

    plugins = request.config.pluginmanager
    if not plugins.has_plugin("layerstep-failing"):
        plugins.register(_Failing(), "layerstep-failing")
    with anomaly_detection() as found:
        request.node.stash[FOUND] = found
        yield found


@pytest.fixture
def assert_bit_equal() -> Callable[[Any, Any], None]:
    """Assert that two results have the same bits: tensors, modules, numbers, and containers of these."""
    from layerstep.integrations.checks import difference_of

    def check(a: Any, b: Any) -> None:
        __tracebackhide__ = True
        if difference := difference_of(a, b):
            raise AssertionError(f"not bit-equal: {difference}")

    return check


@pytest.fixture
def cost_of() -> Callable[..., Cost]:
    """Count what a call costs: `cost_of(model, x).flops`, `.backward_flops`, `.parameters`, `.bytes`."""
    from layerstep.integrations.checks import cost_of

    return cost_of
