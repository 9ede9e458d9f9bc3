"""A real kernel without input: nothing hangs, nothing raises, and the answers of a cell are one output."""

from __future__ import annotations

import sys
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.filterwarnings("ignore")

MODEL = """
import torch, layerstep
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
x = torch.randn(2, 4)
"""
CELLS = (
    MODEL,
    "layerstep.set_trace(); print('went on')",
    "console = layerstep.DebugConsole(model); console.breakpoint('0'); print(tuple(console.run(x).shape))",
    "lines = ['break 1', 'continue', 'stats out', 'tree', 'detach']\n"
    "layerstep.DebugConsole(model, commands=lines).run(x).shape",
    "console.execute('stats model[0].weight')",
)


@pytest.fixture(scope="module")
def outputs() -> list[list[Any]]:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    book.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "python"}
    client = nbclient.NotebookClient(book, timeout=250, allow_errors=True)
    client.create_kernel_manager()
    client.km.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client.execute()
    return [cell.outputs for cell in book.cells]


def html_of(output: list[Any]) -> list[str]:
    return [each.data["text/html"] for each in output if "text/html" in each.get("data", {})]


def test_no_cell_fails(outputs: list[list[Any]]) -> None:
    assert not [each for output in outputs for each in output if each.output_type == "error"]


@pytest.mark.parametrize(("cell", "printed"), [(1, "went on"), (2, "(2, 4)")])
def test_without_input_a_stop_says_so_and_the_run_goes_on(
    outputs: list[list[Any]], cell: int, printed: str
) -> None:
    (page,) = html_of(outputs[cell])
    assert "takes no input, so the run goes on" in page and "Traceback" not in page
    assert printed in "".join(each.get("text", "") for each in outputs[cell])


def test_the_answers_of_a_cell_are_one_output(outputs: list[list[Any]]) -> None:
    (page,) = html_of(outputs[3])
    assert "percentiles" in page and "ReLU" in page and "stats out" in page


def test_a_result_is_one_line_and_its_view_is_shown_once(outputs: list[list[Any]]) -> None:
    (page,) = html_of(outputs[4])
    assert page.count("percentiles") == 1
    (result,) = [each for each in outputs[4] if each.output_type == "execute_result"]
    assert "\\n" not in result.data["text/plain"] and len(result.data["text/plain"]) < 90
