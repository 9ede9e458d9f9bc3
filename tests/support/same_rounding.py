"""Kernels that round alike on every x86 processor, for golden screens and generated pages.

Otherwise they hold on one kind of machine only: a mean of -5.59e-9 on one is -3.73e-9 on another. Torch, MKL
and oneDNN read these variables when torch is imported.
"""

from __future__ import annotations

__all__ = ["SAME_ROUNDING"]

SAME_ROUNDING = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
