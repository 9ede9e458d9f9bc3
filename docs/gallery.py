"""The gallery: real sessions, cut into a picture for each command, and figures that `export` wrote."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from layerstep.frontends.output import PROMPT
from layerstep.render.screen import make_console
from play import play, script_named

__all__ = ["FIGURES", "SCENES", "figure", "page", "picture", "screen", "screen_as_svg"]

WIDTH = 88
UNWELL = Path(__file__).parent.parent / "examples" / "unwell.py"
ABOUT = """\
What the commands that look at tensors show. The lines were typed into real sessions with two scripts: the one
of `layerstep demo`, whose third batch gives `nan`, and `examples/unwell.py`, a classifier with three faults.
[How to use them](../how-to/inspecting.md) · [every command](commands.md)

"""
ABOUT_FIGURES = """\
## Figures

`export FILE.svg` wrote these. Each is one file without scripts or external fonts, for light and dark pages.

"""


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture: its name, what it is about, and the lines typed in it."""

    name: str
    words: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sitting:
    """A session with a script: scenes, and lines between them that are typed and not shown."""

    script: Path
    steps: tuple[Scene | str, ...]


SITTINGS = (
    Sitting(
        script_named("demo"),
        (
            "break ** if out.isnan().any()",
            "continue",
            Scene("stats", "Everything about one tensor, and where its first bad value is.", ("stats out",)),
            Scene("anomalies", "What is odd in all tensors in view.", ("anomalies",)),
            Scene("heatmap", "Two dimensions as a picture; ✗ is not finite.", ("heatmap out[1]",)),
            "export nan.svg",
        ),
    ),
    Sitting(
        script_named("demo"),
        (
            "break blocks.1.attn",
            "continue",
            Scene(
                "table",
                "The parameters of a block, by their spread.",
                ("stats blocks.1 --params --sort std",),
            ),
            Scene(
                "inspect",
                "Strides, storage and autograd of a tensor, and a corner of its values.",
                ("inspect out[0, :2]",),
            ),
            Scene("hist", "The histogram and the percentiles.", ("hist out",)),
            "export histogram.svg",
            Scene("top", "The largest and smallest values, and where they are.", ("top out 3",)),
            Scene("attention", "What a head looks at, checked against the run.", ("attention --head 1",)),
            "export head.svg",
            Scene(
                "compare",
                "How one tensor became the other.",
                ("w = head.weight.detach()", "compare w w.bfloat16().float()"),
            ),
            Scene(
                "keep",
                "A tensor in a file, and a file compared with a tensor.",
                ("save-tensor out out.safetensors", "compare out out.safetensors"),
            ),
            Scene("export", "What was shown last, as a file.", ("hist head.weight", "export weights.csv")),
        ),
    ),
    Sitting(
        UNWELL,
        (
            "record ** --tensors",
            "break head if forward in (1, 5)",
            "continue",
            Scene("weights", "The parameters, and the initialisations that they fit.", ("weights",)),
            "continue",
            Scene("activations", "The layers that were passed: dead units, saturation.", ("activations",)),
            Scene("record", "What is recorded of each layer.", ("record",)),
            Scene("history", "How the output of a layer changed over the forwards.", ("history middle",)),
            Scene(
                "before", "An output and that of the forward before.", ("compare middle.output, middle@-1",)
            ),
            Scene("leaks", "Outputs that outlived their forward, and what holds them.", ("leaks",)),
        ),
    ),
)
SCENES = {step.name: step for sitting in SITTINGS for step in sitting.steps if isinstance(step, Scene)}
FIGURES = {"histogram": "hist out", "head": "attention --head 1", "nan": "heatmap out[1]"}
"""Their names, and what was shown when `export` was typed."""


def page() -> str:
    """All pictures, one below the other."""
    out = ["# Gallery\n\n", ABOUT]
    for scene in SCENES.values():
        typed = ", ".join(f"`{line}`" for line in scene.lines)
        out.append(f"## {typed}\n\n{scene.words}\n\n![{scene.words}](../assets/gallery/{scene.name}.svg)\n\n")
    out.append(ABOUT_FIGURES)
    out += [f"![{shown}](../assets/gallery/figure-{name}.svg)\n\n" for name, shown in FIGURES.items()]
    return "".join(out).rstrip() + "\n"


def screen(name: str) -> str:
    """The screen of a scene, with its colours."""
    return next(screens[name] for screens, _ in map(_played, SITTINGS) if name in screens)


def picture(name: str) -> str:
    """The screen of a scene as an SVG."""
    return screen_as_svg(screen(name), unique=name)


def figure(name: str) -> str:
    """The file that `export` wrote."""
    return next(files[name] for _, files in map(_played, SITTINGS) if name in files)


@functools.cache
def _played(sitting: Sitting) -> tuple[dict[str, str], dict[str, str]]:
    """The screens of its scenes, and the figures that it wrote."""
    lines = [line for step in sitting.steps for line in ((step,) if isinstance(step, str) else step.lines)]
    console = make_console(io.StringIO(), width=WIDTH, colour=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        text, _ = play(sitting.script, [*lines, "quit"], console=console, keep_colour=True)
        files = {path.stem: path.read_text(encoding="utf-8") for path in Path(folder).glob("*.svg")}
    answers = iter(_answers(text, [*lines, "quit"]))
    screens = {}
    for step in sitting.steps:
        shown = [next(answers) for _ in ((step,) if isinstance(step, str) else step.lines)]
        if isinstance(step, Scene):
            screens[step.name] = "\n".join(shown)
    return screens, files


def _answers(shown: str, typed: list[str]) -> list[str]:
    """The screen, cut before each line that was typed."""
    answers: list[list[str]] = [[]]
    for line in shown.splitlines():
        waiting = len(answers) - 1
        if waiting < len(typed) and Text.from_ansi(line).plain == PROMPT + typed[waiting]:
            answers.append([])
        answers[-1].append(line)
    return ["\n".join(lines).rstrip() for lines in answers[1:]]


def screen_as_svg(shown: str, *, unique: str, title: str = "") -> str:
    """A screen with its colours as an SVG without fonts from elsewhere."""
    console = Console(
        file=io.StringIO(), width=WIDTH, record=True, force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(shown))
    svg = console.export_svg(title=title, unique_id=unique)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "monospace").rstrip() + "\n"
