"""Why no operation of a module was seen."""

from __future__ import annotations

from torch import nn

from layerstep._torch import is_compiled, is_scripted
from layerstep._torch.encoders import may_be_one_kernel

__all__ = ["why_no_ops"]


def why_no_ops(module: nn.Module) -> str:
    """Why no op of a module was seen, in a few words."""
    kind = type(module).__name__
    if is_scripted(module):
        return f"{kind} is TorchScript and runs as one call"
    if is_compiled(module):
        return f"{kind} is compiled and runs as one call"
    if may_be_one_kernel(module):
        return f"{kind} in eval mode may run as one kernel; `stepi` shows what it is"
    return f"{kind} computes nothing here, or past torch's functions"
