from __future__ import annotations

import inspect
import re
from dataclasses import fields

from layerstep.arguments import Given, Rest, Word
from layerstep.config import Config
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Column, Notice, Table, View

__all__ = ["setting_help"]


def setting_help() -> dict[str, str]:
    """The comment below each setting in the source, by name."""
    source = inspect.getsource(Config)
    return dict(re.findall(r'^    (\w+): .*\n    """(.*)"""', source, re.MULTILINE))


@command(
    "config",
    group="self",
    args=(
        Word("NAME", optional=True, completes="setting"),
        Rest("VALUE", optional=True, completes="setting"),
    ),
    examples=("config", "config recompute on"),
    at_once=True,
)
def config(session: Session, given: Given) -> View:
    """List the settings, or change one for this session.

    To keep a setting, write it into `config.toml` in your configuration directory, or set `LAYERSTEP_NAME` in
    the environment.
    """
    name = given.name
    if given.value:
        session.run.config = session.run.config.with_value(name, given.value)
        session.run.results.budget = session.run.seen_calls.budget = session.run.config.keep_bytes
        return Notice(f"{name} is {_shown(getattr(session.run.config, name))}", level="good")
    words = setting_help()
    chosen = [field.name for field in fields(Config) if not name or field.name == name]
    if not chosen:
        session.run.config.with_value(name, "")  # raises, with what is near
    rows = tuple((key, _shown(getattr(session.run.config, key)), words.get(key, "")) for key in chosen)
    return Table((Column("setting", "key"), Column("value", right=True), Column("")), rows)


def _shown(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
