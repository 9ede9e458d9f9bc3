"""Kernels that round alike on every x86 processor, for golden screens and generated pages.

Otherwise they hold on one kind of machine only: a mean of -5.59e-9 on one is -3.73e-9 on another. Torch, MKL
and oneDNN read this when torch is imported, so import this module first.
"""

from __future__ import annotations

import os

os.environ.update(ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE", ONEDNN_MAX_CPU_ISA="SSE41")
