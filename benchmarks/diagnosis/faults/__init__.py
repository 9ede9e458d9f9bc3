"""The planted faults, a file for each program. Each is a change of a few lines of its text."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.diagnosis.cases import PROGRAMS, Fault
from benchmarks.diagnosis.faults import (
    agent,
    autoencoder,
    bert,
    cnn,
    contrastive,
    convnext,
    diffusion,
    gan,
    gnn,
    gpt,
    lstm,
    mlp,
    recommender,
    regression,
    segmentation,
    seq2seq,
    speech,
    tabular,
    trainer,
    vit,
    wavenet,
)

__all__ = ["all_faults"]

_FILES = {
    "mlp": mlp,
    "cnn": cnn,
    "gpt": gpt,
    "lstm": lstm,
    "regression": regression,
    "autoencoder": autoencoder,
    "trainer": trainer,
    "convnext": convnext,
    "seq2seq": seq2seq,
    "tabular": tabular,
    "gnn": gnn,
    "vit": vit,
    "speech": speech,
    "recommender": recommender,
    "wavenet": wavenet,
    "contrastive": contrastive,
    "agent": agent,
    "diffusion": diffusion,
    "gan": gan,
    "bert": bert,
    "segmentation": segmentation,
}


def all_faults() -> Iterator[Fault]:
    """Program by program."""
    for program in PROGRAMS:
        yield from _FILES[program].FAULTS
