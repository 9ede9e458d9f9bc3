"""Where our own imports come from: never the folder of the script or the working directory.

A script's folder is the first place that Python looks in. A file there called `rich.py` or `xml.py` is the
program's own: its `import rich` must find that file, and ours must find the library. So while our code runs,
the folder is out of `sys.path`, and the modules of such names are exchanged for ours. Without such files
nothing is ever exchanged.
"""

from __future__ import annotations

import contextlib
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, distributions
from types import ModuleType

__all__ = ["installed_entry_points", "our_imports", "start_in", "their_imports"]

_LIBRARIES = (
    *("layerstep", "rich", "prompt_toolkit", "pygments", "platformdirs", "plotext", "psutil", "safetensors"),
    *("markdown_it", "mdurl", "matplotlib", "PIL", "contourpy", "cycler", "kiwisolver", "fontTools"),
    *("packaging", "pyparsing", "dateutil", "six", "wcwidth"),
)
"""What we import, and what that imports."""
_AT_START = {"os", "io", "abc", "codecs", "encodings", "stat", "posixpath", "ntpath", "genericpath", "site"}
"""What Python has loaded before any script: a script's own file of that name is never found."""


class _Names:
    """The modules that both the script's folder and we have, and who has them in `sys.modules` now."""

    def __init__(self) -> None:
        self.folder = ""
        self.names: frozenset[str] = frozenset()
        self.away: dict[str, ModuleType] = {}
        """The modules of the other side."""
        self.is_ours = False
        self.lock = threading.RLock()

    def exchange(self) -> None:
        here = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in self.names}
        for name in here:
            del sys.modules[name]
        sys.modules.update(self.away)
        self.away = here
        self.is_ours = not self.is_ours
        if self.is_ours:
            with contextlib.suppress(ValueError):
                sys.path.remove(self.folder)
        else:
            sys.path.insert(0, self.folder)

    @contextlib.contextmanager
    def as_ours(self, wanted: bool) -> Iterator[None]:
        if not self.names or self.is_ours == wanted:
            yield
            return
        with self.lock:
            self.exchange()
        try:
            yield
        finally:
            with self.lock:
                if self.is_ours == wanted:
                    self.exchange()


_shared = _Names()


def our_imports() -> contextlib.AbstractContextManager[None]:
    """Meanwhile imports find our libraries, whatever lies in the script's folder."""
    return _shared.as_ours(True)


def their_imports() -> contextlib.AbstractContextManager[None]:
    """Meanwhile imports find what the program's would: for a line of the user's at the prompt."""
    return _shared.as_ours(False)


def start_in(folder: str) -> None:
    """Make a folder the first that Python looks in, as it does for a script; set aside what we loaded."""
    if sys.flags.safe_path:
        return
    _shared.folder, _shared.names, _shared.away, _shared.is_ours = folder, _names_in(folder), {}, True
    del sys.path[0]
    _shared.exchange()


def _names_in(folder: str) -> frozenset[str]:
    """The names of libraries that a bare `import` would find in this folder."""
    try:
        stems = {entry.partition(".")[0] for entry in os.listdir(folder)}
    except OSError:
        return frozenset()
    known = ((sys.stdlib_module_names | set(_LIBRARIES)) & stems) - set(sys.builtin_module_names) - _AT_START
    specs = {name: PathFinder.find_spec(name, [folder]) for name in known}
    # A folder without `__init__.py` has no origin, and gives way to a library of its name.
    return frozenset(name for name, spec in specs.items() if spec is not None and spec.origin is not None)


def installed_entry_points(group: str) -> list[tuple[EntryPoint, str]]:
    """The entry points of installed distributions, with the names of those.

    A directory like `x.egg-info` in the working directory is no installation, though Python takes it for one.
    """
    folders = [*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    found: dict[tuple[str, str], tuple[EntryPoint, str]] = {}
    for distribution in distributions(path=list(dict.fromkeys(folders))):
        for point in distribution.entry_points:
            if point.group == group:
                found.setdefault((point.name, point.value), (point, distribution.metadata["Name"] or "?"))
    return list(found.values())
