"""Commands that stop after some seconds and show what they have: on a busy machine that would be less."""

from __future__ import annotations

from importlib import import_module

LIMITS = {
    "commands.leaks": "SECONDS",
    "commands.shadow": "SECONDS",
    "commands.stability": "SECONDS",
    "crashes.catching": "MOST_SECONDS",
    "doctor.trial": "SECONDS",
    "gradients.check": "SECONDS",
    "graph.svg": "SECONDS",
    "memory.leaks": "SECONDS",
    "precision.checker": "SECONDS",
}


def give_enough_time() -> None:
    for name, limit in LIMITS.items():
        module = import_module(f"layerstep.{name}")
        assert hasattr(module, limit)
        setattr(module, limit, 1000.0)
