"""How a healthy training is added: a function of `seed` and `steps` under `@healthy`."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.diagnosis.cases import Healthy, Train

__all__ = ["REGISTERED", "healthy"]

REGISTERED: list[Healthy] = []


def healthy(name: str, falls_to: float = 0.7, **options: int) -> Callable[[Train], Train]:
    """Add a training. Its loss, or whatever measure it returns, falls to this share of its beginning."""

    def add(train: Train) -> Train:
        REGISTERED.append(Healthy(name=name, train=train, falls_to=falls_to, **options))
        return train

    return add
