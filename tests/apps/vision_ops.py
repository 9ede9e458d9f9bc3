"""Makes torchvision importable with a CPU build of torch.

Its wheel brings compiled operators that need CUDA libraries; without them the import ends at the two that it
describes to torch. The models in use here call none of them, so declaring their signatures is enough.
"""

from __future__ import annotations

import contextlib

import torch

with contextlib.suppress(RuntimeError):  # a torchvision that fits this torch brings them
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define(
        "qnms(Tensor dets, Tensor scores, float iou_threshold, float dets_scale, int dets_zero_point)"
        " -> Tensor"
    )
