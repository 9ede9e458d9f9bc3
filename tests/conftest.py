"""Every test has a configuration and a history of its own, and must leave torch as it found it.

The modules of `support` are importable for every test: `play`, `zoo`.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest_plugins = ["own_process", "pytester"]
collect_ignore = [] if os.environ.get("LAYERSTEP_TEST_APPS") else ["apps"]  # see `make test-apps`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the golden transcripts")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A parameter that says of itself that it is `long` makes its test so, as most models of the zoo do."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec and any(getattr(value, "long", False) is True for value in callspec.params.values()):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> None:
    """A shell makes a program ignore SIGINT if `&` follows it. Programs that tests start would inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _enough_time() -> None:
    from enough_time import give_enough_time

    give_enough_time()


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders. `mktemp` would list all earlier ones to number the next: 10 ms after 6,000."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_files(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = next(_homes)
    folder.mkdir()
    monkeypatch.setenv("LAYERSTEP_CONFIG", str(folder / "config.toml"))
    monkeypatch.setenv("LAYERSTEP_STATE", str(folder / "state"))
    for name in ("LAYERSTEP", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _only_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of other tests in this process are no part of a program that a test plays."""
    from layerstep.source_lines import places

    real = places._program_modules

    def program_modules() -> list[ModuleType]:
        return [module for module in real() if not _is_of_tests(places._file_of(module))]

    monkeypatch.setattr(places, "_program_modules", program_modules)


def _is_of_tests(file: str) -> bool:
    path = Path(file)
    return path.name.startswith(("test_", "conftest")) or path.parent.name == "support"


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    import copyreg
    from collections import OrderedDict

    import torch
    from torch import nn
    from torch.nn.modules import module

    def replaced() -> tuple[object, ...]:
        scripting = torch.jit._recursive.create_script_module
        autocast, ordered = torch.set_autocast_enabled, copyreg.dispatch_table.get(OrderedDict)
        return nn.Module.__call__, nn.Module._call_impl, scripting, ordered, autocast

    before = replaced()
    yield
    assert replaced() == before
    assert not module._global_forward_hooks and not module._global_forward_pre_hooks


@pytest.fixture(scope="module", autouse=True)
def _few_objects() -> None:
    """Puts aside what was there before this file: a million objects of torch, pytest and other tests.

    With them a collection takes 0.5 s and a search of all objects 0.2 s. Both leave out what is frozen.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def only_their_own(_few_objects: None) -> None:
    """A census goes through the objects of the tests alone."""
    import torch

    torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports dynamo
    gc.collect()
    gc.freeze()
