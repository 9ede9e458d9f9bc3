"""Encoder layers with a fused kernel: what the run gets is the kernel's, also while they are tapped.

`nn.TransformerEncoderLayer` in eval mode without gradients runs as one kernel that calls none of the modules
inside it, and any hook on or in the layer makes it take the plain path, whose last digits differ. So, while
a layer is tapped, each of its calls runs a stand-in for its `forward`: the kernel computes the result, and
the plain path runs as well, for points inside the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from layerstep._torch import function_modes, hook_tables, hooks_hidden, is_tracing
from layerstep._torch.encoders import KINDS
from layerstep._torch.tensors import is_tensor

__all__ = ["FusedForward", "has_kernel", "with_kernels"]


def has_kernel(module: nn.Module) -> bool:
    """Is this a layer that may run as one kernel? A forward of the program's own may call torch's."""
    return isinstance(module, nn.TransformerEncoderLayer)


def with_kernels(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules of those kinds; the attention of a layer goes with its layer."""
    found = list(modules)
    inside = {
        id(part) for each in found if isinstance(each, nn.TransformerEncoderLayer) for part in each.children()
    }
    return [module for module in found if isinstance(module, KINDS) and id(module) not in inside]


class FusedForward:
    """Stands in for the `forward` of a layer in one call, while taps are on or in it.

    A call that has begun ends as it began even if the debugger detaches meanwhile. `is_tap` tells our hooks
    from the user's: with one of theirs the layer takes the plain path anyway. So it does where a hook of ours
    inside it does more than look: what is edited there is to reach the result. `run_plain` runs the plain
    path as well, undisturbing.
    """

    __slots__ = ("_forward", "_is_tap", "_module", "_only_looks", "_run_plain")

    def __init__(
        self,
        module: nn.Module,
        forward: Callable[..., Any],
        *,
        is_tap: Callable[[Any], bool],
        only_looks: Callable[[Any], bool],
        run_plain: Callable[[nn.Module, Callable[[], Any]], None],
    ) -> None:
        self._module = module
        self._forward = forward
        self._is_tap = is_tap
        self._only_looks = only_looks
        self._run_plain = run_plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self._forward
        if not self._is_fused(args, kwargs):
            return forward(*args, **kwargs)
        with hooks_hidden(self._module):
            result = forward(*args, **kwargs)
        inside = list(self._module.modules())[1:]
        if any(hooks for module in inside for hooks in hook_tables(module).values()):
            self._run_plain(self._module, lambda: forward(*args, **kwargs))
        return result

    def _is_fused(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Would the bare layer, as far as it depends on more than torch's own checks, run as one kernel?"""
        if self._module.training or is_tracing() or function_modes():
            return False
        if torch.is_grad_enabled():
            values = (*self._module.parameters(), *args, *kwargs.values())
            if any(is_tensor(value) and value.requires_grad for value in values):
                return False
        own = [hook for table in hook_tables(self._module).values() for hook in table.values()]
        inside = [
            hook
            for module in list(self._module.modules())[1:]
            for table in hook_tables(module).values()
            for hook in table.values()
        ]
        return all(map(self._is_tap, own)) and all(map(self._only_looks, inside))
