"""Settings: where they come from, and how a wrong one is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from layerstep.config import Config, is_disabled, load_config
from layerstep.errors import BadArguments


def test_defaults_then_file_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_config() == Config()
    Path(os.environ["LAYERSTEP_CONFIG"]).write_text("max_lines = 50\nrecompute = true\n")
    monkeypatch.setenv("LAYERSTEP_MAX_LINES", "60")
    config = load_config()
    assert config.max_lines == 60 and config.recompute is True


def test_nothing_is_read_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.toml", ".layerstep.toml", ".layersteprc", "layerstep.toml"):
        (tmp_path / name).write_text("max_lines = 1\n")
    monkeypatch.chdir(tmp_path)
    assert load_config() == Config()


@pytest.mark.parametrize("text", ["max_lines = 'many'", "nosuch = 1", "max_lines = ", "max_lines = 0"])
def test_a_wrong_file_is_one_clear_line(text: str) -> None:
    Path(os.environ["LAYERSTEP_CONFIG"]).write_text(text)
    with pytest.raises(BadArguments) as caught:
        load_config()
    assert "\n" not in str(caught.value)


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(BadArguments, match="did you mean max_lines"):
        Config().with_value("max_line", "3")


def test_only_0_disables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_disabled()
    monkeypatch.setenv("LAYERSTEP", "1")
    assert not is_disabled()
    monkeypatch.setenv("LAYERSTEP", "0")
    assert is_disabled()


def test_a_setting_of_words_takes_only_those() -> None:
    assert Config().with_value("theme", "Light").theme == "light"
    with pytest.raises(BadArguments, match="theme is auto, light, dark or plain, not 'pink'"):
        Config().with_value("theme", "pink")
