"""TensorBoard: event files in a folder, written with its own protocol buffers."""

from __future__ import annotations

import io
import re
import shutil
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerstep.files import replacing
from layerstep.registry import sink
from layerstep.sinks.sink import Embedding, Histogram, Sink

if TYPE_CHECKING:
    from layerstep.doctor.finding import Finding
    from layerstep.graph.model_graph import ModelGraph
    from layerstep.views import Plot

__all__ = ["TensorBoard"]


@sink("tensorboard", takes="DIR", extra="tensorboard")
class TensorBoard(Sink):
    """Writes event files that `tensorboard --logdir DIR` shows.

    torch's `SummaryWriter` is not used: it imports TensorFlow where that is installed, and traces the model
    once more for its graph.
    """

    def __init__(self, where: str) -> None:
        import matplotlib.figure  # noqa: F401 - draws the figures
        from tensorboard.compat.proto import event_pb2, graph_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = Path(where).expanduser()
        self._make_writer = EventFileWriter
        self._event, self._graph_def = event_pb2.Event, graph_pb2.GraphDef
        self._summary, self._tensor = summary_pb2, tensor_pb2.TensorProto
        self._string = types_pb2.DT_STRING
        self._writer: Any = None
        self._embeddings: list[str] = []

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = self._make_writer(str(self._folder), flush_secs=5)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        make = self._summary.Summary.Value
        self._add([make(tag=name, simple_value=value) for name, value in values.items()], step)

    def histogram(self, name: str, histogram: Histogram, step: int) -> None:
        counts, edges = histogram.counts, histogram.edges
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        found = self._summary.HistogramProto(
            min=edges[0],
            max=edges[-1],
            num=sum(counts),
            sum=sum(n * at for n, at in zip(counts, middles, strict=True)),
            sum_squares=sum(n * at * at for n, at in zip(counts, middles, strict=True)),
            bucket_limit=edges[1:],
            bucket=counts,
        )
        self._add([self._summary.Summary.Value(tag=name, histo=found)], step)

    def figure(self, name: str, plot: Plot, step: int) -> None:
        from layerstep.exports.figure import figures_of, saved

        (figure,) = figures_of(plot)
        file = io.BytesIO()
        saved(figure, file, "png")
        width, height = (int(size * figure.dpi) for size in figure.get_size_inches())
        image = self._summary.Summary.Image(
            width=width, height=height, colorspace=4, encoded_image_string=file.getvalue()
        )
        self._add([self._summary.Summary.Value(tag=name, image=image)], step)

    def finding(self, finding: Finding) -> None:
        lines = [finding.text, f"*where* {finding.where}", *(f"- {advice}" for advice in finding.advice)]
        text = self._tensor(dtype=self._string, string_val=["\n\n".join(lines).encode()])
        text.tensor_shape.dim.add(size=1)
        as_text = self._summary.SummaryMetadata.PluginData(plugin_name="text")
        metadata = self._summary.SummaryMetadata(plugin_data=as_text)
        tag = f"findings/{finding.code} {finding.rule}"
        self._add([self._summary.Summary.Value(tag=tag, metadata=metadata, tensor=text)], finding.first_step)

    def graph(self, graph: ModelGraph) -> None:
        made = self._graph_def()
        made.versions.producer = 22
        names = _node_names(graph)
        for op in graph.operations:
            node = made.node.add(name=names[op.index], op=op.name if op.role == "op" else op.role)
            node.input.extend(dict.fromkeys(names[s] for flow in op.reads for s in flow.sources))
            shapes = node.attr["_output_shapes"].list
            for tensor in op.outputs:
                shape = shapes.shape.add()
                for size in tensor.shape:
                    shape.dim.add(size=size)
            if op.line:
                node.attr["line"].s = op.line.encode()
        self._writer.add_event(self._event(wall_time=time.time(), graph_def=made.SerializeToString()))

    def embedding(self, name: str, embedding: Embedding, step: int) -> None:
        plain = re.sub(r"[^\w.-]", "_", name)
        folder = self._folder / "embeddings" / f"{plain}-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        rows = ("\t".join(map(repr, row)) for row in embedding.rows)
        (folder / "tensors.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        labels = (" ".join(label.split()) for label in embedding.labels)
        (folder / "metadata.tsv").write_text("\n".join(labels) + "\n", encoding="utf-8")
        here = folder.relative_to(self._folder).as_posix()
        self._embeddings.append(
            f'embeddings {{\n  tensor_name: "{name} {step}"\n'
            f'  tensor_path: "{here}/tensors.tsv"\n  metadata_path: "{here}/metadata.tsv"\n}}\n'
        )
        with replacing(self._folder / "projector_config.pbtxt") as new:
            new.write_text("".join(self._embeddings), encoding="utf-8")

    def artifact(self, path: Path) -> None:
        if path.resolve().parent != self._folder.resolve():
            shutil.copy(path, self._folder / path.name)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _add(self, values: list[Any], step: int) -> None:
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))


def _node_names(graph: ModelGraph) -> list[str]:
    """A name for each operation; TensorBoard folds what is before each slash."""
    names = []
    for op in graph.operations:
        call = graph.calls[op.call] if op.call >= 0 else None
        scope = (
            graph.model if call is None or not call.path else f"{graph.model}/{call.path}".replace(".", "/")
        )
        again = f"_call{call.number}" if call is not None and call.number > 1 else ""
        names.append(re.sub(r"[^\w./-]", "_", f"{scope}{again}/{op.name}_{op.index}"))
    return names
