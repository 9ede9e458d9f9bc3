"""layerstep: a debugger for PyTorch models. Importing it patches nothing and opens nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerstep.api import DebugConsole, attach, set_trace
    from layerstep.errors import LayerstepError, Quit, UserError
    from layerstep.gradients import GradientDebugger, GradientFlow
    from layerstep.inspector import TensorInspector, TensorReport, compare, inspect

__version__ = "0.1.0"
__all__ = [
    "DebugConsole",
    "GradientDebugger",
    "GradientFlow",
    "LayerstepError",
    "Quit",
    "TensorInspector",
    "TensorReport",
    "UserError",
    "__version__",
    "attach",
    "compare",
    "inspect",
    "set_trace",
]

_HOME = {
    "DebugConsole": "layerstep.api",
    "attach": "layerstep.api",
    "set_trace": "layerstep.api",
    "LayerstepError": "layerstep.errors",
    "Quit": "layerstep.errors",
    "UserError": "layerstep.errors",
    "GradientDebugger": "layerstep.gradients",
    "GradientFlow": "layerstep.gradients",
    "TensorInspector": "layerstep.inspector",
    "TensorReport": "layerstep.inspector",
    "compare": "layerstep.inspector",
    "inspect": "layerstep.inspector",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for: `import layerstep` stays cheap."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'layerstep' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
