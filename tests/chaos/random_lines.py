"""Random lines for the prompt: every command of the registry, with paths and names of the program in them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from torch import nn

from layerstep.registry import command_names, find_command

__all__ = ["Typist"]

RESUMES = (
    "step",
    "next",
    "finish",
    "continue",
    "step op",
    "stepi",
    "stepi 3",
    "into",
    "until {path}",
    "until step 1",
    "continue 2",
    "step 3",
)

FIRST = (
    "break **",
    "break ** enter",
    "break {path}",
    "break {path} enter",
    "break ** backward",
    "break type:Linear if out.std() > 0",
    "break op:*",
    "tbreak {path}",
    "catch nonfinite",
    "catch nan forward",
    "catch exception",
    "record **",
    "watch --stop {param}",
    "log ** '{{name}} {{out.shape}}'",
)

LOOKS = (
    "out",
    "inp",
    "mod",
    "model",
    "out.shape if hasattr(out, 'shape') else type(out)",
    # A part of the program may keep what it has seen in a list, and a layer may write into its input: such a
    # call changes the run on purpose.
    "mod(inp) if type(mod).__module__.startswith('torch.nn') and not [*mod.children()]"
    " and not getattr(mod, 'inplace', False) else mod",
    "model.training",
    "torch.randn(3).sum()",
    "__import__('random').random()",
    "[p.norm() for p in model.parameters()]",
    "$1",
    "out[0]",
    "1/0",
    "name, step",
    "{path}.weight",
    "{path}.output",
    "inspect {path}",
    "stats {path}.weight",
    "compare out inp[0]",
    "info breaks",
    "perturbed?",
    "delete",
    "disable",
    "enable",
)

NONSENSE = (
    "",
    " ",
    "brek 0",
    "break",
    "break **.**.**.nothing",
    "stats --sort nothing",
    "stats ((((",
    "inspect \x1b[2J",
    "print 'an open quote",
    "condition 1",
    "ignore 1 -1",
    "delete 99",
    "heatmap out 0 0",
    "export nothing",
    "compare",
    "x" * 300,
    "é𝄞\u202e",
)

LEAVES_THE_RUN = {"quit", "detach", "continue", "source", "alias", "transcript", "config"}
"""Not typed at random: they end the session, or change what later lines mean."""

CHANGES_THE_RUN = {"set", "edit", "ablate", "scale", "steer", "skip", "patch", "redo", "restore"}
"""Not typed either: they give other bits on purpose."""

_DEMO_PATH = re.compile(r"\b(?:blocks(?:\.[\w*]+)*|head)\b")


class Typist:
    """Types lines that a seed chooses."""

    def __init__(self, seed: int, model: nn.Module) -> None:
        self._draw = random.Random(seed)
        self._paths = [path for path, _ in model.named_modules() if path]
        self._parameters = [name for name, _ in model.named_parameters()]
        self._examples = [
            example
            for name in sorted(command_names())
            if (command := find_command(name, prefix=False)) is not None
            and command.name == name
            and name not in LEAVES_THE_RUN | CHANGES_THE_RUN
            for example in command.examples
        ]

    def first(self) -> list[str]:
        """What is armed before the run."""
        return [self._filled(self._draw.choice(FIRST)) for _ in range(self._draw.randint(1, 2))]

    def lines(self, most: int) -> Iterator[str]:
        """At most so many lines; then the run goes on alone."""
        for _ in range(most):
            kind = self._draw.random()
            if kind < 0.35:
                yield self._filled(self._draw.choice(RESUMES))
            elif kind < 0.5:
                yield self._filled(self._draw.choice(LOOKS))
            elif kind < 0.55:
                yield self._draw.choice(NONSENSE)
            elif kind < 0.58:
                yield self._filled(self._draw.choice(FIRST))
            else:
                example = self._draw.choice(self._examples)
                yield from _DEMO_PATH.sub(lambda match: self._path(), example).split("\n")
        yield self._draw.choice(("detach", "continue", "continue"))

    def _filled(self, template: str) -> str:
        return template.replace("{path}", self._path()).replace(
            "{param}", self._draw.choice(self._parameters)
        )

    def _path(self) -> str:
        return self._draw.choice(self._paths)
