"""Each tracker reads what it was handed: TensorBoard's reader, an MLflow server, the reader of W&B."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MLFLOW = ROOT / ".venv-mlflow" / "bin" / "mlflow"
PROGRAM = """
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    loss = F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
    loss.backward()
    optimizer.step()
print(f"{loss.item():.9f} {torch.rand(1).item():.9f}")
"""
LINES = (
    *("record 0 --tensors", "grad record", "doctor on", "tbreak 2", "continue", "hist out", "graph"),
    *("export out.csv", "continue"),
)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    return file


def run(program: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    typed = [word for line in LINES for word in ("-e", line)]
    command = [sys.executable, "-m", "layerstep", "run", "--batch", *options, *typed, str(program)]
    given = {**os.environ, **environment}
    bare = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    done = subprocess.run(command, cwd=program.parent, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout, "the run is the same"
    return done


def test_tensorboard_reads_it(program: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(program, "--tensorboard", str(tmp_path / "runs"))
    read = EventAccumulator(
        str(tmp_path / "runs"), size_guidance={"scalars": 0, "histograms": 0, "images": 0}
    )
    read.Reload()
    tags = read.Tags()
    assert {"loss", "output_mean/0", "gradient_norm/2"} <= set(tags["scalars"])
    assert [event.step for event in read.Scalars("output_mean/0")] == list(range(1, 13))
    assert [event.step for event in read.Scalars("gradient_norm/2")] == list(range(1, 13))
    histogram = read.Histograms("output/0")[0].histogram_value
    assert sum(histogram.bucket) == histogram.num == 48 and histogram.bucket_limit[-1] == histogram.max
    (image,) = (tag for tag in tags["images"] if tag.startswith("hist out"))
    assert read.Images(image)[0].encoded_image_string.startswith(b"\x89PNG")
    nodes = {node.name: node for node in read.Graph().node}
    assert len(nodes) == len(read.Graph().node), "names are unique"
    assert all(name in nodes for node in nodes.values() for name in node.input)
    assert any(name.startswith("Sequential/2/F.linear") for name in nodes)
    assert any(tag.startswith("findings/") for tag in tags["tensors"])
    config = (tmp_path / "runs" / "projector_config.pbtxt").read_text()
    folder = tmp_path / "runs" / config.split('tensor_path: "')[1].split('"')[0]
    rows = [list(map(float, line.split("\t"))) for line in folder.read_text().splitlines()]
    assert len(rows) == 8 and len(rows[0]) == 6
    assert (tmp_path / "runs" / "out.csv").read_text() == (tmp_path / "out.csv").read_text()


def test_wandb_reads_it_offline(program: Path, tmp_path: Path) -> None:
    run(program, "--wandb", WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    wandb = Path(sys.executable).with_name("wandb")
    read = subprocess.run([wandb, "leet", "inspect", "--json", file], capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    records = [json.loads(line) for line in read.stdout.splitlines()]
    assert {"history", "summary", "artifact", "exit"} <= {record["type"] for record in records}
    seen: dict[str, list[Any]] = {}
    for record in records:
        items = record.get("history", {}).get("item", {})
        for name, value in items.items():
            seen.setdefault(name, []).append((items.get("training_step", 0), value))
    assert [step for step, _ in seen["gradient_norm/2"]] == list(range(1, 13))
    assert len(seen["loss"]) > 3 and all(value > 0 for _, value in seen["loss"])
    assert sum(seen["output/0.values"][0][1]) == 48
    assert any(name.startswith("figures/hist out") for name in seen) and "graph.path" in seen


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    root = "http://127.0.0.1:5079"
    options = ["--host", "127.0.0.1", "--port", "5079", "--workers", "1"]
    options += ["--backend-store-uri", f"sqlite:///{folder}/db", "--artifacts-destination", str(folder / "a")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [MLFLOW, "server", *options], stdout=log, stderr=log, start_new_session=True
        )
        try:
            for _ in range(200):
                if _is_up(root):
                    break
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.5)
            yield root
        finally:
            os.killpg(process.pid, 15)
            process.wait(30)


def _is_up(root: str) -> bool:
    try:
        with urllib.request.urlopen(f"{root}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def ask(root: str, place: str, data: dict[str, Any] | None = None) -> Any:
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(
        f"{root}/api/2.0/mlflow/{place}", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.xdist_group("mlflow")
def test_an_mlflow_server_takes_it(program: Path, server: str) -> None:
    run(program, "--mlflow", server, MLFLOW_EXPERIMENT_NAME="tried")
    found = ask(server, "experiments/get-by-name?experiment_name=tried")["experiment"]["experiment_id"]
    (made,) = ask(server, "runs/search", {"experiment_ids": [found]})["runs"]
    info, data = made["info"], made["data"]
    assert info["status"] == "FINISHED" and info["run_name"] == "train.py"
    assert {"loss", "output_mean/0", "gradient_norm/2"} <= {metric["key"] for metric in data["metrics"]}
    assert any(tag["key"].startswith("finding.") for tag in data["tags"])
    query = urllib.parse.urlencode({"run_id": info["run_id"], "metric_key": "gradient_norm/2"})
    history = ask(server, f"metrics/get-history?{query}")["metrics"]
    assert sorted(int(metric.get("step", 0)) for metric in history) == list(range(1, 13))
    listed = ask(server, f"artifacts/list?run_id={info['run_id']}")["files"]
    assert {"out.csv", "model.graph.json", "model.svg", "doctor.html", "figures"} <= {
        f["path"] for f in listed
    }


def test_a_server_that_is_not_there_is_one_line(program: Path) -> None:
    done = run(program, "--mlflow", "http://127.0.0.1:9")
    lines = " ".join(done.stderr.split())
    assert lines.count("mlflow: ") == 1 and "Connection refused" in lines
