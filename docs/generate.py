"""Write what can be derived: references, gallery, the picture in the README, the screens in pages.

    python docs/generate.py

A test fails while a page on disk is not what this makes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tests" / "support")]

from same_rounding import SAME_ROUNDING  # noqa: E402

if __name__ == "__main__":
    os.environ.update(SAME_ROUNDING)  # before torch is imported

# isort: split
import architecture  # noqa: E402
import gallery  # noqa: E402
import planted  # noqa: E402

import layerstep  # noqa: E402
from layerstep import views  # noqa: E402
from layerstep.commands.config_ import setting_help  # noqa: E402
from layerstep.config import Config  # noqa: E402
from layerstep.frontends.output import PROMPT  # noqa: E402
from layerstep.graph import model_graph  # noqa: E402
from layerstep.reference import commands_of, rules_of  # noqa: E402
from layerstep.registry import GROUPS  # noqa: E402
from layerstep.render.json import LAYOUT, VERSION  # noqa: E402
from layerstep.render.screen import make_console  # noqa: E402
from play import play, script_named  # noqa: E402

GENERATED = "<!-- made by docs/generate.py; edit what it reads instead -->\n\n"
TITLES = {
    "run": "Run",
    "stop": "Stop",
    "look": "Look",
    "change": "Change",
    "train": "Train",
    "cost": "Cost",
    "keep": "Keep",
    "self": "The debugger itself",
}
ABOUT_COMMANDS = """\
A unique prefix of a command is enough. An empty line repeats the last step. Any line that is not a command is
Python in the paused frame; `!` before a line forces Python.

"""
ABOUT_RULES = """\
`layerstep doctor train.py` asks these rules about a training. `info` is a note: a healthy program may do it
on purpose. A note that explains a warning or worse becomes as severe as that. `explain RULE` shows the same
text at the prompt.

"""
ABOUT_JSON = f"""\
`layerstep run --json FILE` writes one object on each line; `-` is stdout.

- `layerstep` is the version of the format, now {VERSION}. It grows when a field changes its meaning or goes.
- `kind` is `stop`, `answer`, `log` or `notice`.
- `line` is the typed line that was answered.
- `view` is one of the views below.

Numbers that JSON cannot hold are the strings `"nan"`, `"inf"` and `"-inf"`.

A stop also has `stop`, with its `number`, the `path` and the class (`module`) of the module, the `phase`
(`enter`, `exit`, `backward`, …), the number of its `forward` and of the training `step`, the `thread`, the
number of the `point`, the `reason`, the class of an `exception`, and the `file` and `line` of the code that
runs.

The `columns` of a table have a `name`, a `type` (`number` or `text`) and a `unit` (`B`, `%` or none). Its
`rows` hold numbers in full precision, not rounded as on the screen, and null for an empty cell. A `text` that
shows one number also has it as `value`, with its `unit`.

```json
{{"layerstep": {VERSION}, "kind": "answer", "line": "p name", "view": {{"view": "fields", …}}}}
```

"""
ABOUT_GRAPH = f"""\
## The graph of a model

`export model.graph.json` writes one object: the fields of `ModelGraph` below, and `layerstep_graph`, the
version of this format, now {model_graph.FORMAT}. Each object in it has the fields of its class, under the
same names. Calls and operations are named by their `index`, which is also their place in the list.

- The `role` of an operation is `op`; `input` or `output` of the model; `pass` for a module that returns what
  it was given; `unseen` for a module whose operations torch does not show.
- Its `call` is the innermost module call that it ran in, -1 for inputs and outputs.
- The `parent` of a call is the call that it ran in, -1 for the model. From `start` up to and without `end`
  are the operations that ran in it. Its `number` counts the calls of the module, from 1. `parameters` counts
  those of the module and all below it, a tied one once.
- `value` is the figure that `by` names: `grad`, `time` in seconds, `bytes`, or `dead`, a share of 1.
- The `sources` of a flow are the operations that made what is in the tensor: several after a write in place.

`ModelGraph.from_json` in `layerstep.graph.model_graph` reads it back.

"""
ABOUT_SETTINGS = """\
A setting comes from these places; a later one wins:

1. the default;
2. `config.toml` in your configuration directory, or the file that `LAYERSTEP_CONFIG` names;
3. the environment variable `LAYERSTEP_NAME`, where NAME is the setting in capitals;
4. `config NAME VALUE` at the prompt.

Files in the working directory are never read. `LAYERSTEP=0` switches all of layerstep off. The history of
typed lines is in your state directory, or in the one that `LAYERSTEP_STATE` names. Only you can read it.

| setting | default | |
| --- | --- | --- |
"""
PICTURE = (
    "break ** if out.isnan().any()",
    "continue",
    "where",
    "list blocks.1.norm1",
    "print [block.norm1.eps for block in model.blocks]",
    "perturbed?",
)


def commands() -> str:
    """The command reference."""
    sections = (f"## {TITLES[group]}\n\n{commands_of(group)}" for group in GROUPS)
    return "".join([GENERATED, "# Commands\n\n", ABOUT_COMMANDS, *sections]).rstrip() + "\n"


def rules() -> str:
    """The rules of the doctor."""
    return "".join([GENERATED, "# Rules of the doctor\n\n", ABOUT_RULES, rules_of()]).rstrip() + "\n"


def library() -> str:
    """The public names with their signatures and docstrings."""
    out = [GENERATED, "# Library\n\n"]
    for name in layerstep.__all__:
        value = getattr(layerstep, name)
        if not callable(value):
            continue
        is_error = inspect.isclass(value) and issubclass(value, BaseException)
        out.append(f"## `{name}{'' if is_error else _signature(value)}`\n\n{_doc(value)}\n\n")
        if inspect.isclass(value) and not is_error:
            for method_name, method in inspect.getmembers(value, inspect.isfunction):
                if not method_name.startswith("_"):
                    out.append(f"### `.{method_name}{_signature(method)}`\n\n{_doc(method)}\n\n")
    return "".join(out).rstrip() + "\n"


def _signature(value: Callable[..., object]) -> str:
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))
    return re.sub(r"\(self(, )?", "(", text)


def _doc(value: object) -> str:
    text = inspect.getdoc(value) or ""
    return re.sub(r"\n\n((?: {4}.*\n?)+)", lambda m: f"\n\n```python\n{inspect.cleandoc(m[1])}\n```\n", text)


def json_views() -> str:
    """What `--json` writes."""
    out = [GENERATED, "# JSON\n\n"]
    out.append(ABOUT_JSON)
    for name in views.__all__:
        kind = getattr(views, name)
        if dataclasses.is_dataclass(kind):
            out.append(f"## `{name.lower()}`\n\n{_doc(kind)}\n\n| field | type |\n| --- | --- |\n")
            for field in dataclasses.fields(kind):
                if field.name in LAYOUT.get(kind, ()):
                    continue
                out.append(f"| `{field.name}` | `{str(field.type).replace('|', '∣')}` |\n")
            out.append("\n")
    out.append(ABOUT_GRAPH)
    for name in model_graph.__all__:
        kind = getattr(model_graph, name)
        if dataclasses.is_dataclass(kind):
            out.append(f"### `{name}`\n\n{_doc(kind)}\n\n| field | type |\n| --- | --- |\n")
            out += [
                f"| `{field.name}` | `{str(field.type).replace('|', '∣')}` |\n"
                for field in dataclasses.fields(kind)
            ]
            out.append("\n")
    return "".join(out).rstrip() + "\n"


def settings() -> str:
    """The settings and where they come from."""
    out = [GENERATED, "# Settings\n\n"]
    out.append(ABOUT_SETTINGS)
    words = setting_help()
    for field in dataclasses.fields(Config):
        default = (
            {True: "on", False: "off"}.get(field.default, field.default)
            if isinstance(field.default, bool)
            else field.default
        )
        out.append(f"| `{field.name}` | {default} | {words[field.name]} |\n")
    return "".join(out)


def picture() -> str:
    """A real session on a screen: what `play` shows."""
    console = make_console(io.StringIO(), width=gallery.WIDTH, colour=True)
    play(script_named("demo"), PICTURE, console=console)
    shown: str = console.file.getvalue().rstrip()  # type: ignore[attr-defined]
    return gallery.screen_as_svg(shown, unique="layerstep", title="layerstep run script.py")


PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/rules.md": rules,
    "reference/library.md": library,
    "reference/json.md": json_views,
    "reference/settings.md": settings,
    "reference/gallery.md": lambda: GENERATED + gallery.page(),
    "explanation/planted.md": lambda: GENERATED + planted.page(),
    "assets/session.svg": picture,
    **{f"assets/gallery/{name}.svg": functools.partial(gallery.picture, name) for name in gallery.SCENES},
    **{
        f"assets/gallery/figure-{name}.svg": functools.partial(gallery.figure, name)
        for name in gallery.FIGURES
    },
}


BLOCK = re.compile(
    r"<!-- (?P<kind>transcript|answer|architecture): (?P<what>.+) -->\n(?s:.*?)<!-- end of (?P=kind) -->"
)


def with_blocks(page: str) -> str:
    """A page whose marked blocks are written anew: golden screens, and what is read from the source.

    They are written out, so that a reader of the file on a code host sees them.
    """

    def written(match: re.Match[str]) -> str:
        kind, what = match["kind"], match["what"]
        return f"<!-- {kind}: {what} -->\n{BLOCKS[kind](what)}\n<!-- end of {kind} -->"

    return BLOCK.sub(written, page)


def screen_of(file: str) -> str:
    """A golden screen without its first line, which says how to play it."""
    return (ROOT / file).read_text().partition("\n")[2].strip("\n")


def answer_in(what: str) -> str:
    """`FILE: LINE`: the last time that this line is typed on a golden screen, with its answer."""
    file, _, line = what.partition(": ")
    turns = re.split(rf"^(?={re.escape(PROMPT)})", screen_of(file), flags=re.MULTILINE)
    return [turn for turn in turns if turn.startswith(f"{PROMPT}{line}\n")][-1].rstrip("\n")


BLOCKS: dict[str, Callable[[str], str]] = {
    "transcript": lambda what: f"```text\n{screen_of(what)}\n```",
    "answer": lambda what: f"```text\n{answer_in(what)}\n```",
    "architecture": lambda what: architecture.PARTS[what](),
}


def pages_with_blocks() -> list[Path]:
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if BLOCK.search(path.read_text())]


def main() -> None:
    for path in pages_with_blocks():
        path.write_text(with_blocks(path.read_text()))
    for name, make in PAGES.items():
        path = ROOT / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make())


if __name__ == "__main__":
    main()
