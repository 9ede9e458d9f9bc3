"""layerstep: a debugger for PyTorch models. Importing it patches nothing and opens nothing.

Except where the user asks for it: with `LAYERSTEP_LISTEN=1`, a program that imports it can be attached to.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerstep.api import DebugConsole, anomaly_detection, attach, listen, lockstep, pm, set_trace
    from layerstep.automation.alerts import Alert, CallbackSink, JsonLinesSink, LoggingSink, WebhookSink
    from layerstep.automation.hook import AlertSeverity, HookAction, HookBuilder, HookContext, HookTrigger
    from layerstep.errors import LayerstepError, Quit, UserError
    from layerstep.gradients.debugger import GradientDebugger, GradientFlow
    from layerstep.inspector import TensorInspector, TensorReport, compare, inspect
    from layerstep.lockstepping.result import Lockstep
    from layerstep.memory.profiler import MemoryProfiler, MemoryReport, memory_tracking
    from layerstep.nonfinite.detection import Anomaly, Detection
    from layerstep.precision.checker import StabilityChecker, StabilityIssue
    from layerstep.profile.profiler import Profiler, profiling
    from layerstep.sessions.config import DebugConfig
    from layerstep.sessions.diagnostics import ModelDiagnostics, ModelPerformanceMetrics
    from layerstep.sessions.diffusion import DiffusionModelDebugger
    from layerstep.sessions.pytorch import (
        PyTorchDebugger,
        create_pytorch_debugger,
        debug_context,
        debug_training_session,
    )
    from layerstep.sessions.report import Report
    from layerstep.sessions.session import DebugSession, debug_session
    from layerstep.sessions.training import TrainingDebugger

__version__ = "0.1.0"
__all__ = [
    "Alert",
    "AlertSeverity",
    "Anomaly",
    "CallbackSink",
    "DebugConfig",
    "DebugConsole",
    "DebugSession",
    "Detection",
    "DiffusionModelDebugger",
    "GradientDebugger",
    "GradientFlow",
    "HookAction",
    "HookBuilder",
    "HookContext",
    "HookTrigger",
    "JsonLinesSink",
    "LayerstepError",
    "Lockstep",
    "LoggingSink",
    "MemoryProfiler",
    "MemoryReport",
    "ModelDiagnostics",
    "ModelPerformanceMetrics",
    "Profiler",
    "PyTorchDebugger",
    "Quit",
    "Report",
    "StabilityChecker",
    "StabilityIssue",
    "TensorInspector",
    "TensorReport",
    "TrainingDebugger",
    "UserError",
    "WebhookSink",
    "__version__",
    "anomaly_detection",
    "attach",
    "compare",
    "create_pytorch_debugger",
    "debug_context",
    "debug_session",
    "debug_training_session",
    "inspect",
    "listen",
    "lockstep",
    "memory_tracking",
    "pm",
    "profiling",
    "set_trace",
]

_HOME = {
    "AlertSeverity": "layerstep.automation.hook",
    "HookAction": "layerstep.automation.hook",
    "HookBuilder": "layerstep.automation.hook",
    "HookContext": "layerstep.automation.hook",
    "HookTrigger": "layerstep.automation.hook",
    "Alert": "layerstep.automation.alerts",
    "CallbackSink": "layerstep.automation.alerts",
    "JsonLinesSink": "layerstep.automation.alerts",
    "LoggingSink": "layerstep.automation.alerts",
    "WebhookSink": "layerstep.automation.alerts",
    "DebugConfig": "layerstep.sessions.config",
    "DebugSession": "layerstep.sessions.session",
    "debug_session": "layerstep.sessions.session",
    "ModelDiagnostics": "layerstep.sessions.diagnostics",
    "ModelPerformanceMetrics": "layerstep.sessions.diagnostics",
    "Report": "layerstep.sessions.report",
    "PyTorchDebugger": "layerstep.sessions.pytorch",
    "create_pytorch_debugger": "layerstep.sessions.pytorch",
    "debug_context": "layerstep.sessions.pytorch",
    "debug_training_session": "layerstep.sessions.pytorch",
    "TrainingDebugger": "layerstep.sessions.training",
    "DiffusionModelDebugger": "layerstep.sessions.diffusion",
    "DebugConsole": "layerstep.api",
    "attach": "layerstep.api",
    "listen": "layerstep.api",
    "lockstep": "layerstep.api",
    "Lockstep": "layerstep.lockstepping.result",
    "pm": "layerstep.api",
    "set_trace": "layerstep.api",
    "Anomaly": "layerstep.nonfinite.detection",
    "Detection": "layerstep.nonfinite.detection",
    "anomaly_detection": "layerstep.api",
    "LayerstepError": "layerstep.errors",
    "Quit": "layerstep.errors",
    "UserError": "layerstep.errors",
    "GradientDebugger": "layerstep.gradients.debugger",
    "GradientFlow": "layerstep.gradients.debugger",
    "TensorInspector": "layerstep.inspector",
    "TensorReport": "layerstep.inspector",
    "compare": "layerstep.inspector",
    "inspect": "layerstep.inspector",
    "MemoryProfiler": "layerstep.memory.profiler",
    "MemoryReport": "layerstep.memory.profiler",
    "memory_tracking": "layerstep.memory.profiler",
    "Profiler": "layerstep.profile.profiler",
    "profiling": "layerstep.profile.profiler",
    "StabilityChecker": "layerstep.precision.checker",
    "StabilityIssue": "layerstep.precision.checker",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for: `import layerstep` stays cheap."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'layerstep' has no attribute {name!r}")
    import gc
    import importlib

    was_on = gc.isenabled()
    gc.disable()  # a full collection is due about then, and looks through all objects of torch: 50 ms
    try:
        return getattr(importlib.import_module(home), name)
    finally:
        if was_on:
            gc.enable()


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext layerstep`: the magics `%layerstep` and `%%layerstep`."""
    import importlib

    importlib.import_module("layerstep.integrations.notebook").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext layerstep`: removes them."""
    import importlib

    importlib.import_module("layerstep.integrations.notebook").unload(shell)


def __dir__() -> list[str]:
    return __all__


def _is_our_own_command() -> bool:
    """Is this process `layerstep …`? It listens if its options say so; `layerstep attach` never does."""
    words = sys.orig_argv
    by_module = ("-m", "layerstep") in itertools.pairwise(words)
    return by_module or os.path.basename(sys.argv[0] if sys.argv else "") == "layerstep"


if os.environ.get("LAYERSTEP_LISTEN") == "1" and not _is_our_own_command():
    __getattr__("listen")()
