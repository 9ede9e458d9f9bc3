"""One head of an attention: its slice of what the output projection is given.

To replace that slice gives the same bits as to replace the head in the result of
`scaled_dot_product_attention`, for GPT-2 and for grouped queries, where several heads share keys.
"""

from __future__ import annotations

from torch import Tensor, nn

from layerstep.edits.acting import Occasion
from layerstep.edits.values import Value
from layerstep.errors import UserError
from layerstep.module_paths.models import Models

__all__ = ["head_slice", "of_head", "projection_of"]

_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "proj", "wo", "dense", "out_lin", "to_out.0", "output.dense")
_HEADS = ("num_heads", "n_heads", "num_attention_heads", "n_head", "heads", "nhead")


def projection_of(models: Models, path: str) -> tuple[str, int]:
    """The path of the output projection of an attention, and the number of its heads."""
    path, attention = models.find(path)
    if isinstance(attention, nn.MultiheadAttention):
        raise UserError(
            f"{path} is an nn.MultiheadAttention, which never calls its out_proj: its heads cannot be edited"
        )
    name = next((name for name in _PROJECTIONS if _child(attention, name) is not None), "")
    if not name:
        raise UserError(
            f"{path} has no output projection of a known name", f"known are {', '.join(_PROJECTIONS)}"
        )
    heads = _heads_of(attention)
    if not heads:
        raise UserError(f"{path} does not say how many heads it has", f"as one of {', '.join(_HEADS)}")
    return f"{path}.{name}", heads


def _child(module: nn.Module, name: str) -> nn.Module | None:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, nn.Module) else None


def _heads_of(attention: nn.Module) -> int:
    for holder in (attention, getattr(attention, "config", None)):
        for name in _HEADS:
            count = getattr(holder, name, None)
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return count
    return 0


def head_slice(value: Tensor, head: int, heads: int) -> slice:
    """The features of one head in the input of the projection."""
    width = value.shape[-1]
    if width % heads:
        raise UserError(f"{width} features cannot be parted into {heads} heads")
    if not 0 <= head < heads:
        raise UserError(f"no head {head}", f"there are heads 0 to {heads - 1}")
    each = width // heads
    return slice(head * each, (head + 1) * each)


def of_head(value: Value, head: int, heads: int) -> Value:
    """A value for one head only, in the input of the projection; the others stay."""

    def replaced(old: Tensor, occasion: Occasion) -> Tensor:
        part = head_slice(old, head, heads)
        new = old.clone()
        new[..., part] = value(old[..., part], occasion)
        return new

    return replaced
