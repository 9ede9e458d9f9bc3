"""Settings: defaults, then the user's file, then the environment, then `config` at the prompt.

The file is TOML in the user's configuration directory. A file in the working directory is never read:
a repository must not configure a debugger by being opened.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from layerstep.errors import BadArguments

__all__ = ["Config", "config_file", "is_disabled", "load_config", "state_dir"]


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting, with its default. The comment below each is its help."""

    recompute: bool = False
    """stop also when activation checkpointing runs a forward again during backward"""
    keep_bytes: int = 256 << 20
    """how much the inputs and outputs of passed modules and $1… may hold alive"""
    max_tracked_tensors: int = 1000
    """how many copies of tensors `record --tensors` keeps"""
    track_bytes: int = 256 << 20
    """how much recordings may hold, measurements and copies of tensors together"""
    snapshot_bytes: int = 4 << 30
    """how much the copies of `snapshot` may hold, all together"""
    copy_input_bytes: int = 1 << 20
    """inputs up to this size are copied if a module may overwrite them and a point stops at its exit"""
    sample_above: int = 1 << 23
    """the line at a stop looks at no more elements of a tensor than this; `stats` looks at more"""
    attention_tokens: int = 128
    """how many tokens the page of `export attention.html` shows at most"""
    max_lines: int = 200
    """no answer is longer than this"""
    context: int = 8
    """source lines shown on either side of the arrow by `list`"""
    catch_exceptions: bool = True
    """stop where a module raises, if there is a terminal"""
    back: bool = True
    """keep the entry of each forward for `back`, while a point is set or one steps"""
    pager: bool = True
    """show long answers through $PAGER on a terminal"""
    theme: Literal["auto", "light", "dark", "plain"] = "auto"
    """colours of the screen: auto, light, dark or plain (none); auto asks COLORFGBG for the background"""

    def with_value(self, name: str, text: str) -> Config:
        """The same settings but one, given as text."""
        known = {field.name: field for field in fields(self)}
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "`config` lists them"
            raise BadArguments(f"no setting {name!r}", hint)
        return replace(self, **{name: _parse(name, getattr(self, name), text)})


def _parse(name: str, current: Any, text: str) -> Any:
    text = text.strip().lower()
    if isinstance(current, bool):
        if text in ("on", "true", "1", "yes"):
            return True
        if text in ("off", "false", "0", "no"):
            return False
        raise BadArguments(f"{name} is on or off, not {text!r}")
    if isinstance(current, str):
        words = get_args(get_type_hints(Config)[name])
        if text not in words:
            raise BadArguments(f"{name} is {', '.join(words[:-1])} or {words[-1]}, not {text!r}")
        return text
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        raise BadArguments(f"{name} is a whole number, not {text!r}") from None
    if value < 1:
        raise BadArguments(f"{name} is at least 1")
    return value


def is_disabled() -> bool:
    """`LAYERSTEP=0` makes everything inert."""
    return os.environ.get("LAYERSTEP", "") == "0"


def config_file() -> Path:
    from platformdirs import user_config_path

    return Path(os.environ.get("LAYERSTEP_CONFIG") or user_config_path("layerstep") / "config.toml")


def state_dir() -> Path:
    """Where the history of typed lines is kept."""
    from platformdirs import user_state_path

    return Path(os.environ.get("LAYERSTEP_STATE") or user_state_path("layerstep"))


def load_config() -> Config:
    """The settings of this user; a wrong one is a `BadArguments` that names its origin."""
    config = Config()
    path = config_file()
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except RecursionError:
        raise BadArguments(f"cannot read {path}: it is nested too deeply") from None
    except (OSError, ValueError) as error:  # a TOML or Unicode error is a ValueError
        raise BadArguments(f"cannot read {path}: {error}".replace("\n", " ")) from None
    for name, value in given.items():
        config = _set(config, name, _text(value), str(path))
    for field in fields(Config):
        variable = f"LAYERSTEP_{field.name.upper()}"
        if variable in os.environ:
            config = _set(config, field.name, os.environ[variable], variable)
    return config


def _text(value: object) -> str:
    try:
        return str(value)[:100]
    except ValueError:  # a number of thousands of digits
        return "such a number"


def _set(config: Config, name: str, text: str, origin: str) -> Config:
    try:
        return config.with_value(name, text)
    except BadArguments as error:
        raise BadArguments(f"{origin}: {error.message}", error.hint) from None
