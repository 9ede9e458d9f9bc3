"""What is run: a program with a fault planted in its text, or a healthy program."""

from __future__ import annotations

import importlib
import itertools
import linecache
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["DEVELOPED", "HELD_OUT", "PROGRAMS", "Case", "Fault", "Healthy", "Outcome", "Train", "planted"]

FOLDER = Path(__file__).parent / "programs"
DEVELOPED = (
    "mlp",
    "cnn",
    "gpt",
    "lstm",
    "regression",
    "autoencoder",
    "trainer",
    "convnext",
    "seq2seq",
    "tabular",
    "gnn",
    "vit",
    "speech",
    "recommender",
    "wavenet",
)
"""Rules were written, or mended, with these programs and their faults in sight."""
HELD_OUT = (
    "segmentation",
    "bert",
    "gan",
    "diffusion",
    "agent",
    "contrastive",
)
"""Written after the rules by an author who had not seen them. No rule is tuned on these."""
PROGRAMS = DEVELOPED + HELD_OUT

Outcome = tuple[list[float], Any]
"""What a training returns: its losses, and a module, an optimizer's tensors, or a tuple of such."""
Train = Callable[..., Outcome]
"""Called with `seed` and `steps`."""

_numbers = itertools.count()
_folder: list[Any] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault: what is changed in a program, and what a doctor should say of it."""

    name: str
    program: str
    edits: Sequence[tuple[str, str]]
    """Pairs of old and new text. The old text occurs once in the program."""
    rules: tuple[str, ...]
    """The names of rules that are right."""
    lines: tuple[str, ...] = ()
    """The source lines that are right, without their indentation."""
    names: tuple[str, ...] = ()
    """Patterns of the parameters and modules that are right; `@` is the whole model."""
    steps: int | None = None
    """More or fewer steps than the program has by itself."""
    may_raise: bool = False
    """Whether the fault ends the run with an exception of its own."""

    @property
    def is_held_out(self) -> bool:
        return self.program in HELD_OUT

    def load(self) -> Train:
        text = _changed(self.name, self.program, self.edits)
        present = {line.strip() for line in text.splitlines()}
        if missing := [line for line in self.lines if line not in present]:
            raise ValueError(f"{self.name}: no such line in the planted program: {missing}")
        return planted(self.program, text).main


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """A healthy training, and how far its loss falls."""

    name: str
    train: Train | None = None
    program: str = ""
    """One of the programs that faults are planted in, if it is one."""
    edits: Sequence[tuple[str, str]] = ()
    """What is changed in the program, as in a fault. What comes of it is as sound as the program."""
    falls_to: float = 0.7
    """The mean of the last tenth of the losses, over the mean of the first three, is below this."""
    seeds: int = 1
    steps: int | None = None
    fresh: bool = False
    """Whether it was written with the held-out programs."""

    @property
    def is_held_out(self) -> bool:
        return self.fresh or self.program in HELD_OUT

    def load(self) -> Train:
        if self.train is not None:
            return self.train
        if self.edits:
            return planted(self.program, _changed(self.name, self.program, self.edits)).main
        return importlib.import_module(f"benchmarks.diagnosis.programs.{self.program}").main


Case = Fault | Healthy


def _changed(case: str, program: str, edits: Sequence[tuple[str, str]]) -> str:
    """The text of a program after these edits."""
    text = (FOLDER / f"{program}.py").read_text(encoding="utf-8")
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{case}: {old!r} occurs {text.count(old)} times in {program}.py")
        text = text.replace(old, new)
    return text


def planted(name: str, text: str) -> ModuleType:
    """A program of this text, in a file of its own so that its lines can be shown."""
    if not _folder:
        _folder.append(tempfile.TemporaryDirectory(prefix="diagnosis-"))
    number = next(_numbers)
    path = Path(_folder[0].name) / f"{name}_{number}.py"
    path.write_text(text, encoding="utf-8")
    module = ModuleType(f"{name}_{number}")
    module.__file__ = str(path)
    linecache.checkcache(str(path))
    sys.modules[module.__name__] = module  # as an import would do; pickle looks there
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module
