"""MLflow: a run on a tracking server, by its REST interface. It needs no package."""

from __future__ import annotations

import base64
import json
import math
import mimetypes
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerstep.errors import UserError
from layerstep.registry import sink
from layerstep.sinks.sink import Embedding, Sink

if TYPE_CHECKING:
    from layerstep.doctor.finding import Finding
    from layerstep.graph.model_graph import ModelGraph
    from layerstep.views import Plot

__all__ = ["Mlflow"]

TIMEOUT = 10.0
BATCH = 500
"""Metrics in one request; a server takes 1,000."""
_ARTIFACTS = "mlflow-artifacts:"


@sink("mlflow", takes="URI")
class Mlflow(Sink):
    """Makes a run on the tracking server at URI, in the experiment MLFLOW_EXPERIMENT_NAME or `layerstep`.

    MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, are sent as MLflow does.
    Histograms are left out: MLflow has no view of them.
    """

    def __init__(self, where: str) -> None:
        if not where.startswith(("http://", "https://")):
            hint = "`mlflow server` starts one, at http://127.0.0.1:5000"
            raise UserError(f"--mlflow takes the address of a server, not {where!r}", hint)
        self._root = where.rstrip("/")
        self._headers = _authorization()
        self._run = self._artifacts = ""
        self._metrics: list[dict[str, Any]] = []

    def open(self) -> None:
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or "layerstep")
        wanted = {"experiment_id": experiment, "start_time": _now(), "run_name": self.program or "python"}
        made = self._post("runs/create", wanted)["run"]["info"]
        self._run, self._artifacts = made["run_id"], made["artifact_uri"]

    def _experiment(self, name: str) -> str:
        try:
            query = urllib.parse.urlencode({"experiment_name": name})
            found = self._ask("GET", f"api/2.0/mlflow/experiments/get-by-name?{query}")
            return str(found["experiment"]["experiment_id"])
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
        return str(self._post("experiments/create", {"name": name})["experiment_id"])

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        now = _now()
        self._metrics += [
            {"key": _key(name), "value": _number(value), "timestamp": now, "step": step}
            for name, value in values.items()
        ]
        if len(self._metrics) >= BATCH:
            self.flush()

    def flush(self) -> None:
        while self._metrics:
            self._post("runs/log-batch", {"run_id": self._run, "metrics": self._metrics[:BATCH]})
            del self._metrics[:BATCH]

    def finding(self, finding: Finding) -> None:
        tag = {"key": f"finding.{finding.code}.{finding.rule}", "value": f"{finding.text}; {finding.steps}"}
        self._post("runs/set-tag", {"run_id": self._run, **tag})

    def figure(self, name: str, plot: Plot, step: int) -> None:
        from layerstep.render.svg import to_svg

        self._upload(f"figures/{_key(name).replace('/', '_')}-{step}.svg", to_svg(plot).encode())

    def graph(self, graph: ModelGraph) -> None:
        from layerstep.graph.picture import picture_of
        from layerstep.graph.svg import to_svg

        self._upload("model.graph.json", graph.to_json().encode())
        self._upload("model.svg", to_svg(picture_of(graph)).encode())

    def embedding(self, name: str, embedding: Embedding, step: int) -> None:
        pairs = zip(embedding.labels, embedding.rows, strict=True)
        lines = ("\t".join((label, *map(repr, row))) for label, row in pairs)
        self._upload(f"embeddings/{_key(name).replace('/', '_')}-{step}.tsv", "\n".join(lines).encode())

    def artifact(self, path: Path) -> None:
        self._upload(path.name, path.read_bytes())

    def close(self) -> None:
        self._post("runs/update", {"run_id": self._run, "status": "FINISHED", "end_time": _now()})

    def _upload(self, name: str, data: bytes) -> None:
        if not self._artifacts.startswith(_ARTIFACTS):
            where = self._artifacts.partition(":")[0]
            raise ValueError(f"the server keeps its files at {where}:, where only its own clients write")
        folder = urllib.parse.urlparse(self._artifacts).path.strip("/")
        place = urllib.parse.quote(f"{folder}/{name}")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        self._ask("PUT", f"api/2.0/mlflow-artifacts/artifacts/{place}", data, kind)

    def _post(self, name: str, data: dict[str, Any]) -> Any:
        return self._ask("POST", f"api/2.0/mlflow/{name}", json.dumps(data).encode(), "application/json")

    def _ask(self, method: str, place: str, data: bytes | None = None, kind: str = "") -> Any:
        headers = {**self._headers, **({"Content-Type": kind} if kind else {})}
        request = urllib.request.Request(f"{self._root}/{place}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.loads(answer.read() or b"{}")


def _authorization() -> dict[str, str]:
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "PASSWORD"))
    if user and password:
        both = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {both}"}
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _key(name: str) -> str:
    """MLflow takes letters, digits and a few signs, and 250 characters."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


def _number(value: float) -> float | str:
    """Numbers that JSON has no form for, as protocol buffers write them."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _now() -> int:
    return int(time.time() * 1000)
