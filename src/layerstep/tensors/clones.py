"""A copy of one tensor that takes no more memory than the tensor itself."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from layerstep._torch.guards import functions_off
from layerstep._torch.tensors import is_whole

__all__ = ["clone_of", "has_same_bits", "is_freed", "write_back"]


def clone_of(tensor: Tensor) -> Tensor:
    """A copy that takes no more than the original: what is expanded stays so.

    A `ValueError` where torch would read memory that is not there.
    """
    plain = tensor.detach()
    if is_whole(plain):  # as most are: the questions below take longer than a small copy
        return plain.clone()
    if is_freed(plain):
        raise ValueError("its storage is freed")
    if plain.is_quantized and plain.is_neg():  # lost its quantizer (torch 2.13)
        raise ValueError("a negated view of a quantized tensor has no scale")
    if plain.layout is not torch.strided or plain.is_nested or plain.is_quantized or 0 not in plain.stride():
        return plain.clone()
    once = tuple(slice(None if step else 1) for step in plain.stride())
    return plain[once].clone().expand(plain.shape)


def write_back(tensor: Tensor, copy: Tensor) -> None:
    """Give a tensor the values that it had when it was copied.

    Torch writes a tensor of inference mode only in that mode, and none where several elements lie in one
    place, as in an expanded dimension.
    """
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    once = tuple(slice(None if step else 1) for step in (tensor.stride() if is_plain else ()))
    with torch.inference_mode() if tensor.is_inference() else contextlib.nullcontext():
        tensor.data[once].copy_(copy[once])


def has_same_bits(tensor: Tensor, copy: Tensor) -> bool:
    """Is a copy still what the tensor is? 0 is not -0 here, and NaN is NaN. What is freed has no values.

    Kinds whose values do not lie in one memory are compared by numbers.
    """
    if is_freed(tensor):
        return True
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return torch.equal(tensor, copy)
    one, other = (
        plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
        for plain in (each.detach().resolve_conj().resolve_neg().contiguous() for each in (tensor, copy))
    )
    return torch.equal(one, other)


def is_freed(tensor: Tensor) -> bool:
    """Is there less memory behind a tensor than its shape asks for? To read it is a segmentation fault."""
    try:
        with functions_off():
            if is_lazy(tensor) or not tensor.numel() or tensor.is_nested:
                return False
            last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
            return tensor.untyped_storage().nbytes() < needed
    except (RuntimeError, NotImplementedError):  # sparse ones and wrappers keep their memory elsewhere
        return False
