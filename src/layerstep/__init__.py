"""layerstep: a debugger for PyTorch models. Importing it patches nothing and opens nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerstep.api import DebugConsole, attach, pm, set_trace
    from layerstep.detection import Anomaly, Detection, anomaly_detection
    from layerstep.errors import LayerstepError, Quit, UserError
    from layerstep.gradients import GradientDebugger, GradientFlow
    from layerstep.inspector import TensorInspector, TensorReport, compare, inspect
    from layerstep.memory import MemoryProfiler, MemoryReport, memory_tracking
    from layerstep.profiler import Profiler, profiling
    from layerstep.stability import StabilityChecker, StabilityIssue

__version__ = "0.1.0"
__all__ = [
    "Anomaly",
    "DebugConsole",
    "Detection",
    "GradientDebugger",
    "GradientFlow",
    "LayerstepError",
    "MemoryProfiler",
    "MemoryReport",
    "Profiler",
    "Quit",
    "StabilityChecker",
    "StabilityIssue",
    "TensorInspector",
    "TensorReport",
    "UserError",
    "__version__",
    "anomaly_detection",
    "attach",
    "compare",
    "inspect",
    "memory_tracking",
    "pm",
    "profiling",
    "set_trace",
]

_HOME = {
    "DebugConsole": "layerstep.api",
    "attach": "layerstep.api",
    "pm": "layerstep.api",
    "set_trace": "layerstep.api",
    "Anomaly": "layerstep.detection",
    "Detection": "layerstep.detection",
    "anomaly_detection": "layerstep.detection",
    "LayerstepError": "layerstep.errors",
    "Quit": "layerstep.errors",
    "UserError": "layerstep.errors",
    "GradientDebugger": "layerstep.gradients",
    "GradientFlow": "layerstep.gradients",
    "TensorInspector": "layerstep.inspector",
    "TensorReport": "layerstep.inspector",
    "compare": "layerstep.inspector",
    "inspect": "layerstep.inspector",
    "MemoryProfiler": "layerstep.memory",
    "MemoryReport": "layerstep.memory",
    "memory_tracking": "layerstep.memory",
    "Profiler": "layerstep.profiler",
    "profiling": "layerstep.profiler",
    "StabilityChecker": "layerstep.stability",
    "StabilityIssue": "layerstep.stability",
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
