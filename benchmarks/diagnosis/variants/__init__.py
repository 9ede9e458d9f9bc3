"""Sound changes of the held-out programs, a file for each program. What comes of them is healthy."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.diagnosis.cases import Healthy
from benchmarks.diagnosis.variants import agent, bert, contrastive, diffusion, gan, segmentation

__all__ = ["all_variants"]

_FILES = (segmentation, bert, gan, diffusion, agent, contrastive)


def all_variants() -> Iterator[Healthy]:
    """Program by program."""
    for file in _FILES:
        yield from file.VARIANTS
