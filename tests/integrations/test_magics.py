"""The magics in a real kernel: the notebook of the examples, other cells below it, and a person who types."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from layerstep import DebugConsole
from layerstep.render.interactive_html import MOST_NODES, to_interactive_html
from layerstep.views import Column, Figure, Group, Node, Table, Text, Tree

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "notebook.ipynb"
MORE = {
    "bits": """
import layerstep
def trained(run):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 2))
    run(net)
    return [*net.state_dict().values(), torch.get_rng_state()]
def loop(net):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        net(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
bare = trained(loop)
""",
    "attached": "%%layerstep break type:Linear; continue; stats out; continue\nwith_it = trained(loop)",
    "equal": "print(all(map(torch.equal, bare, with_it)))",
    "silent": "%%layerstep break model.0 if step > 99; continue\nmodel(x).shape",
    "no input": "%%layerstep tbreak 0\nprint('went on', tuple(model(x).shape))",
    "points": "%layerstep info breaks",
    "wrong": "%%layerstep contineu 3 4\nprint('ran')",
    "wrong line": "%layerstep break nosuch",
    "crash": "%%layerstep\nmodel(torch.ones(1, 5))",
    "after": "from layerstep import api\nprint(api._current, nn.Module.__call__.__module__)",
    "quit": "%%layerstep tbreak 0; continue; quit\nmodel(x); print('not here')",
    "view": "view = layerstep.DebugConsole(model).execute('tree')",
    "view again": "view",
    "nothing": "%%layerstep\n2 + 2;",
    "unload": "%unload_ext layerstep\nprint('layerstep' in get_ipython().magics_manager.magics['cell'])",
}


@pytest.fixture(scope="module")
def outputs() -> Iterator[dict[str, Any]]:
    book = nbformat.read(EXAMPLE, as_version=4)
    example = len(book.cells)
    book.cells += [nbformat.v4.new_code_cell(cell) for cell in MORE.values()]
    client = nbclient.NotebookClient(book, timeout=250, allow_errors=True)
    client.create_kernel_manager()
    client.km.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client.execute()
    found = {cell.source: cell.outputs for cell in book.cells[:example] if cell.cell_type == "code"}
    yield found | {name: cell.outputs for name, cell in zip(MORE, book.cells[example:], strict=True)}


def text_of(output: list[Any]) -> str:
    """What a reader without HTML sees."""
    return "\n".join(each.get("text") or each.get("data", {}).get("text/plain", "") for each in output)


def errors_of(output: list[Any]) -> list[Any]:
    return [each for each in output if each.output_type == "error"]


def test_the_example_finds_the_layer(outputs: dict[str, Any]) -> None:
    example = {source: output for source, output in outputs.items() if source not in MORE}
    assert not [error for output in example.values() for error in errors_of(output)]
    why = text_of(
        next(output for source, output in example.items() if "catch nonfinite; continue; why" in source)
    )
    assert "born in" in why and "log" in why and "percentiles" in why
    *_, last = example.values()
    assert "tensor(True)" in text_of(last)


def test_a_cell_under_the_debugger_computes_the_same(outputs: dict[str, Any]) -> None:
    assert "percentiles" in text_of(outputs["attached"])
    assert text_of(outputs["equal"]).strip() == "True"


def test_a_point_that_never_fired_says_so(outputs: dict[str, Any]) -> None:
    assert "the condition never held" in text_of(outputs["silent"])


def test_without_input_a_stop_goes_on(outputs: dict[str, Any]) -> None:
    text = text_of(outputs["no input"])
    assert "takes no input, so the run goes on" in text and "0  done  Linear" in text
    assert "went on (4, 3)" in text and not errors_of(outputs["no input"])


def test_points_of_a_cell_end_with_it(outputs: dict[str, Any]) -> None:
    assert "Linear" not in text_of(outputs["points"]) and "nonfinite" not in text_of(outputs["points"])


def test_wrong_lines_are_one_line(outputs: dict[str, Any]) -> None:
    text = text_of(outputs["wrong"])
    assert "did you mean continue" in text and "ran" not in text.splitlines()
    assert "no module 'nosuch'" in text_of(outputs["wrong line"])
    assert not errors_of(outputs["wrong"]) and not errors_of(outputs["wrong line"])


def test_an_exception_is_explained_and_passed_on(outputs: dict[str, Any]) -> None:
    (error,) = errors_of(outputs["crash"])
    assert error.ename == "RuntimeError"
    assert "integrations/notebook.py" not in "".join(error.traceback)
    assert "Linear(6→16) got [1, 5]" in text_of(outputs["crash"])
    assert text_of(outputs["after"]).split() == ["None", "torch.nn.modules.module"]


def test_quit_ends_the_cell(outputs: dict[str, Any]) -> None:
    text = text_of(outputs["quit"])
    assert "quit: the cell ends here" in text and "not here" not in text and not errors_of(outputs["quit"])


def test_a_view_is_shown_once_in_its_cell_and_whole_in_another(outputs: dict[str, Any]) -> None:
    assert text_of(outputs["view"]).count("Distance") == 1
    (again,) = outputs["view again"]
    assert "<details open>" in again.data["text/html"] and "Distance" in again.data["text/plain"]


def test_a_semicolon_hides_the_value_and_unload_removes_the_magics(outputs: dict[str, Any]) -> None:
    assert "4" not in text_of(outputs["nothing"])
    assert text_of(outputs["unload"]).strip() == "False"


def test_a_person_types_at_a_stop() -> None:
    """The kernel asks by `input()`, and takes what is typed."""
    typed, asked, shown = iter(["where", "continue"]), [], []
    manager = jupyter_client.KernelManager()
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()

    def answer(message: Any) -> None:
        asked.append(message["content"]["prompt"])
        client.input(next(typed))

    def show(message: Any) -> None:
        data = message["content"].get("data", {})
        shown.append(data.get("text/plain", "") or message["content"].get("text", ""))

    try:
        client.wait_for_ready(timeout=250)
        for code in (
            "import torch; model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())",
            "%load_ext layerstep",
            "%layerstep break 1",
            "%%layerstep\nprint(tuple(model(torch.ones(1, 2)).shape))",
        ):
            client.execute_interactive(
                code, allow_stdin=True, stdin_hook=answer, output_hook=show, timeout=250
            )
    except queue.Empty:
        pytest.fail(f"the cell never ended; asked {asked}, shown {shown[-3:]}")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert asked == ["(layerstep) "] * 2
    assert any("Sequential  running" in each for each in shown) and "(1, 2)\n" in shown


def test_trees_fold_and_tables_sort() -> None:
    tree = DebugConsole(nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Sequential(nn.ReLU())))).execute(
        "tree"
    )
    assert isinstance(tree, Tree)
    page = to_interactive_html(tree)
    assert page.count("<details open>") == 2 and page.count("<details>") == 1
    assert page.count('class="leaf"') == 2
    table = Table(
        (Column("name", "path"), Column("bytes", right=True)),
        (("a<b", Figure("1 KiB", 1024.0, "B")), ("c", Figure("900 B", 900.0, "B")), ("d", "-")),
        title="sizes",
        note="all",
    )
    page = to_interactive_html(Group((table, Text("and text"))))
    assert 'data-v="1024.0"' in page and 'data-v="900.0"' in page and 'data-v="-Infinity"' in page
    assert "a&lt;b" in page and "sizes" in page and "all" in page and "and text" in page
    assert "1 more rows" in to_interactive_html(table, most=2)


def test_a_huge_tree_is_not_drawn_node_by_node() -> None:
    root = Node("model", children=tuple(Node(str(number)) for number in range(MOST_NODES)))
    assert "<details" not in to_interactive_html(Tree(root))


def test_plots_are_drawings_that_leave_the_page_alone() -> None:
    plot = DebugConsole(nn.Linear(1, 1)).execute("hist torch.arange(9.)")
    assert plot is not None
    page = to_interactive_html(plot)
    assert "<svg" in page and "prefers-color-scheme" not in page
    style = page[page.index("<style>") + 7 : page.index("</style>")]
    assert style.strip().startswith(".layerstep-plot {") and style.strip().endswith("}")


def test_nothing_in_a_fragment_is_loaded_from_elsewhere() -> None:
    model = nn.Linear(2, 2)
    view = DebugConsole(model).execute("stats --params")
    assert view is not None and torch.is_grad_enabled()
    page = to_interactive_html(view)
    assert "src=" not in page and "href=" not in page and "url(" not in page
