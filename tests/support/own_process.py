"""Files of tests marked `own_process` run in a process that runs nothing else.

Their reports come back, each under the name of its test.

What counts every tensor of the process would count those that other tests have left. And golden screens need
kernels that round alike on every processor (`rounds_alike=True`), while tests that compare bits need those
that users have.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from same_rounding import SAME_ROUNDING

MARKER = "own_process"
REPORTS = "LAYERSTEP_TEST_REPORTS"
"""Set in that process: the file that takes the reports, a line of JSON each."""


def pytest_configure(config: pytest.Config) -> None:
    if REPORTS in os.environ:
        config.pluginmanager.register(_Writer(config, Path(os.environ[REPORTS])))


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker(MARKER):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))  # one worker starts the process
            if REPORTS not in os.environ:
                item.add_marker(pytest.mark.timeout(0), append=False)  # the first waits for the whole file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """xdist 3.8 writes groups into names that pytest 9.2 does not read, so that they have no effect.

    Each worker then started the process of a file, and ran all its tests.
    """
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group_of(config.rootpath / nodeid.partition("::")[0]) or super()._split_scope(nodeid)

    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


@functools.cache
def _group_of(file: Path) -> str:
    """The group of all tests of a file, if it has one."""
    marks = file.read_text().partition("pytestmark = ")[2].partition("\n\n")[0]
    if f"mark.{MARKER}" in marks:
        return str(file)
    found = re.search(r'mark\.xdist_group\("(\w+)"\)', marks)
    return found[1] if found else ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    marker = item.get_closest_marker(MARKER)
    if REPORTS in os.environ or marker is None:
        return None
    name = item.nodeid.partition("@")[0] if "xdist_group" in item.keywords else item.nodeid
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    rounds_alike = marker.kwargs.get("rounds_alike", False)
    reports, output = _run(item.path, item.config, rounds_alike)
    for data in reports.get(name, ()):
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        report.nodeid = item.nodeid
        item.ihook.pytest_runtest_logreport(report=report)
    if name not in reports:
        lost = pytest.TestReport(item.nodeid, item.location, {}, "failed", output, "call")
        item.ihook.pytest_runtest_logreport(report=lost)
    item.session._setupstate.teardown_exact(nextitem)  # what the test before has left up for this one
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@functools.cache
def _run(file: Path, config: pytest.Config, rounds_alike: bool) -> tuple[dict[str, list[Any]], str]:
    """What each test of the file has reported, by its name; and the end of what pytest has printed."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "reports")
        options = ["-q", "-p", "no:cacheprovider", "-n", "0", "-o", "addopts=", "--strict-markers"]
        options += ["-m", config.option.markexpr, "-k", config.option.keyword]
        options += ["--update"] * config.option.update
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, str(file)],
            capture_output=True,
            text=True,
            cwd=config.rootpath,
            env={**os.environ, **(SAME_ROUNDING if rounds_alike else {}), REPORTS: str(written)},
            check=False,
        )
        found = defaultdict(list)
        for line in written.read_text().splitlines() if written.exists() else ():
            data = json.loads(line)
            found[data["nodeid"]].append(data)
        return dict(found), done.stdout[-4000:] + done.stderr[-4000:]


class _Writer:
    def __init__(self, config: pytest.Config, file: Path) -> None:
        self._config, self._file = config, file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._file.open("a") as file:
            file.write(json.dumps(data) + "\n")
