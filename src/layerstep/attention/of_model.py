"""The attention of a whole model: every attention of one forward, layer by layer, with its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.attention.capture import Attention, AttentionWatcher
from layerstep.engine.instrument import Instrument
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import rerun
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import tensors_in

__all__ = ["AttentionGroup", "GivenTokens", "attention_of_model"]


class GivenTokens(Instrument):
    """The tokens that `attention --tokens` was given last."""

    def __init__(self, session: Session) -> None:
        self.tokens: list[str] = []


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Attentions of one kind and size: those of an encoder, of a decoder, or between the two."""

    name: str
    layers: tuple[str, ...]
    """The path of each."""
    weights: tuple[Tensor, ...]
    """Of each layer: [heads, queries, keys], of one batch element."""
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    left_out: int
    """Tokens that are there and not shown."""


def attention_of_model(
    session: Session, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, most: int
) -> list[AttentionGroup]:
    """Run a model again on copies; the weights of its first batch element, of at most `most` tokens."""
    watcher = AttentionWatcher(batch=0)
    rerun(session, module, args=args, kwargs=kwargs, progress=CallProgress.DURING, watcher=watcher)
    if not watcher.found:
        if watcher.too_large:
            shape = " × ".join(map(str, watcher.too_large[0]))
            raise UserError(f"the weights are too many: {shape}", "run it on fewer tokens")
        unseen = "it is seen in torch's own functions only: not in compiled, scripted or other kernels"
        raise UserError("no attention was seen in this model", unseen)
    alike: dict[tuple[bool, int, int], list[Attention]] = {}
    for seen in watcher.found:
        alike.setdefault((seen.is_cross, *seen.weights.shape[-2:]), []).append(seen)
    given = session.instruments.get(GivenTokens).tokens
    with observing():
        tokens = given or _token_ids(args, kwargs)
        return [_group(session, found, tokens, most) for found in alike.values()]


def _group(session: Session, found: list[Attention], tokens: list[str], most: int) -> AttentionGroup:
    queries, keys = found[0].weights.shape[-2:]
    paths = [session.run.models.path_of(seen.module) if seen.module is not None else "" for seen in found]
    # As in BertViz the name is what tells the attentions of one model apart.
    name = "cross" if found[0].is_cross else "self"
    return AttentionGroup(
        f"{name}, {queries} × {keys}",
        tuple(path or "the model" for path in paths),
        tuple(seen.weights[0, :, :most, :most].float().cpu() for seen in found),
        _labels(tokens, queries)[:most],
        _labels([] if found[0].is_cross else tokens, keys)[:most],
        max(0, queries - most, keys - most),
    )


def _labels(tokens: list[str], count: int) -> tuple[str, ...]:
    """The tokens if they fit; the last ones, if these are the queries after a cache; else their places."""
    return tuple(tokens[-count:]) if len(tokens) >= count else tuple(map(str, range(count)))


def _token_ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The ids of the first batch element, if the model was given any."""
    named = [kwargs["input_ids"]] if is_tensor(kwargs.get("input_ids")) else []
    given = [*named, *(tensor for _, tensor in tensors_in((args, kwargs), most=4))]
    ids = next((t for t in given if t.dtype in (torch.int64, torch.int32) and t.dim() in (1, 2)), None)
    if ids is None:
        return []
    return [str(token) for token in (ids[0] if ids.dim() == 2 else ids).cpu().tolist()]
