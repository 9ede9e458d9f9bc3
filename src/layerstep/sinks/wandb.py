"""Weights & Biases: a run of its own, next to one that the program may have."""

from __future__ import annotations

import contextlib
import netrc
import os
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerstep.registry import sink
from layerstep.sinks.sink import Embedding, Histogram, Sink

if TYPE_CHECKING:
    from layerstep.doctor.finding import Finding
    from layerstep.graph.model_graph import ModelGraph
    from layerstep.views import Plot

__all__ = ["WeightsAndBiases"]

STEP = "training_step"
"""Each record names its step: W&B's own counter takes only steps that grow."""


@sink("wandb", extra="wandb")
class WeightsAndBiases(Sink):
    """Makes a run in the project WANDB_PROJECT or `layerstep`; offline unless a key or WANDB_MODE is there.

    `wandb sync` uploads an offline run.
    """

    def __init__(self, where: str) -> None:
        import wandb

        self._wandb: Any = wandb
        self._run: Any = None
        with contextlib.suppress(Exception):  # another version has it elsewhere
            # It waits for a random time between retries, which must not come from the program's stream.
            self._wandb.sdk.lib.retry.random = random.Random()

    def open(self) -> None:
        wandb = self._wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "layerstep",
            mode=os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline"),
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True
            ),
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, STEP: step})

    def histogram(self, name: str, histogram: Histogram, step: int) -> None:
        both = (list(histogram.counts), list(histogram.edges))
        self._run.log({name: self._wandb.Histogram(np_histogram=both), STEP: step})

    def figure(self, name: str, plot: Plot, step: int) -> None:
        from layerstep.render.svg import to_svg

        self._run.log({f"figures/{name}": self._wandb.Html(to_svg(plot), inject=False), STEP: step})

    def graph(self, graph: ModelGraph) -> None:
        from layerstep.graph.picture import picture_of
        from layerstep.graph.svg import to_svg

        self._run.log({"graph": self._wandb.Html(to_svg(picture_of(graph)), inject=False)})

    def embedding(self, name: str, embedding: Embedding, step: int) -> None:
        columns = ["label", *(str(at) for at in range(len(embedding.rows[0])))]
        pairs = zip(embedding.labels, embedding.rows, strict=True)
        table = self._wandb.Table(columns=columns, data=[[label, *row] for label, row in pairs])
        self._run.log({f"embeddings/{name}": table, STEP: step})

    def finding(self, finding: Finding) -> None:
        self._run.summary[f"finding/{finding.code} {finding.rule}"] = f"{finding.text}; {finding.steps}"

    def artifact(self, path: Path) -> None:
        name = re.sub(r"[^\w.-]", "_", path.name)
        artifact = self._wandb.Artifact(name, type="layerstep")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        self._run.finish()


def _has_key() -> bool:
    """Has the user logged in? `wandb login` writes the key into the netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False
