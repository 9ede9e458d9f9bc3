"""Devices: the processor here, and in a process of its own an accelerator that torch takes for one."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import psutil
import pytest
import torch

import quick_python
from layerstep.memory.devices import Device, accelerators, devices, processor
from layerstep.memory.views import device_lines
from layerstep.views import Text

STAND_IN = """
    import json, sys
    from dataclasses import asdict
    import torch
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

    class Module(_DummyBackendModule):
        {functions}

    _setup_privateuseone_for_python_backend("toy", backend_module=Module())
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "toy"
    from layerstep.memory.devices import devices
    from layerstep.memory.views import device_lines
    found = devices()
    texts = [view.text for _, view in device_lines(found)]
    fragmentation = [device.fragmentation for device in found]
    print(json.dumps([[asdict(device) for device in found], texts, fragmentation]))
"""
FUNCTIONS = """
        def memory_allocated(self, index): return 600
        def max_memory_allocated(self, index): return 750
        def memory_reserved(self, index): return 1000
        def max_memory_reserved(self, index): return 1000
        def mem_get_info(self, index): return (3000, 8000)
        def memory_stats(self, index):
            return {"num_alloc_retries": 2, "num_ooms": 1, "inactive_split_bytes.all.current": 120}
"""


def on_a_stand_in(functions: str) -> list[Any]:
    """What is said of a device that a Python backend brings along."""
    script = textwrap.dedent(STAND_IN).replace(
        "{functions}", textwrap.dedent(functions).strip().replace("\n", "\n    ")
    )
    done = quick_python.run(["-c", script])
    assert done.returncode == 0, done.stderr
    answer: list[Any] = json.loads(done.stdout)
    return answer


def test_the_processor_tells_of_this_process() -> None:
    before = psutil.Process().memory_info().rss
    held = torch.ones(64 << 20)  # 256 MB, written, so that it is resident; less may lie in freed memory
    found = processor()
    assert found.used is not None and found.used >= before + 0.9 * held.nbytes
    assert found.peak is None or found.peak >= found.used
    assert found.total == psutil.virtual_memory().total
    assert found.reserved is None and found.utilisation is None


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_an_accelerator_there_is_none() -> None:
    assert accelerators() == []
    assert [device.name for device in devices()] == ["cpu"]


def test_an_accelerator_is_asked_by_its_own_functions() -> None:
    found, texts, fragmentation = on_a_stand_in(FUNCTIONS)
    toy = found[1]
    assert toy["name"] == "toy:0"
    figures = {name: toy[name] for name in ("used", "peak", "reserved", "peak_reserved", "free", "total")}
    assert figures == {
        "used": 600,
        "peak": 750,
        "reserved": 1000,
        "peak_reserved": 1000,
        "free": 3000,
        "total": 8000,
    }
    assert fragmentation[1] == pytest.approx(0.25)
    assert toy["allocator"] == {"retries": 2, "out of memory": 1, "bytes in split blocks": 120}
    line = next(text for text in texts if text.startswith("tensors have"))
    assert "600 B" in line and "at most 750 B" in line and "25% of the reserved was unused" in line
    assert "2 retries" in line and "120 B in split blocks" in line


def test_what_an_accelerator_does_not_tell_is_said_to_be_unknown() -> None:
    found, texts, fragmentation = on_a_stand_in("pass")
    toy = found[1]
    assert toy["used"] is None and toy["total"] is None and fragmentation[1] is None
    assert any("used: toy does not tell" in word for word in toy["unknown"])
    assert any(text.startswith("unknown: ") for text in texts)


def test_an_accelerator_that_fails_is_no_reason_to_fail() -> None:
    found, _, _ = on_a_stand_in("def memory_allocated(self, index): raise AssertionError('not initialised')")
    assert found[1]["used"] is None


def test_a_line_says_only_what_is_known() -> None:
    ((label, view),) = device_lines([Device("toy:0", used=10)])
    assert label == "toy:0" and view == Text("tensors have 10 B")
