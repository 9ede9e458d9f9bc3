"""Tensors in files: .npy, .safetensors, and weights that `torch.save` wrote. Runs no pickle."""

from __future__ import annotations

import difflib
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerstep._torch import below_everything, is_lazy_clone
from layerstep._torch.tensors import as_numpy
from layerstep.errors import BadArguments, UserError, first_line
from layerstep.files import replacing
from layerstep.tensors.format import human_bytes
from layerstep.tensors.kinds import open_values
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import dtype_name

__all__ = ["FileReference", "read_tensors", "write_tensors"]

_REFERENCE = re.compile(r"""(["']?)(?P<file>.+?\.(?:npy|safetensors|pth?))(?::(?P<key>[^\s:]+))?\1""")

MOST_EXPANDED = 1 << 30

_DENSE = {
    "sparse": "to_dense()",
    "mkldnn": "to_dense()",
    "quantized": "dequantize()",
    "dtensor": "full_tensor()",
}


class FileReference:
    """`weights.safetensors:head.weight`: a file and, if it holds several tensors, the name of one."""

    def __init__(self, text: str, path: Path, key: str) -> None:
        self.text = text
        self.path = path
        self.key = key

    @classmethod
    def parse(cls, text: str) -> FileReference | None:
        """None for text that does not name a file. A name with spaces must be in quotes."""
        match = _REFERENCE.fullmatch(text)
        if match is None or (not match[1] and re.search(r"\s", text)):
            return None
        return cls(text, Path(os.path.expanduser(match["file"])), match["key"] or "")


def read_tensors(reference: FileReference) -> Any:
    """The tensor that is named; a dictionary if there are several and none is named."""
    readers: dict[str, Callable[[Path], Any]] = {
        ".npy": _read_npy,
        ".safetensors": _read_safetensors,
        ".pt": _read_pt,
        ".pth": _read_pt,
    }
    try:
        with observing():
            value = readers[reference.path.suffix](reference.path)
    except OSError as error:
        raise UserError(f"cannot read {reference.path}", error.strerror or "") from None
    except Exception as error:  # a damaged file can cause any error
        reason = first_line(error)[:120]
        raise UserError(f"cannot read {reference.path}", reason or type(error).__name__) from None
    if reference.key:
        return _entry(value, reference.key, reference.path)
    return next(iter(value.values())) if isinstance(value, Mapping) and len(value) == 1 else value


def _read_npy(path: Path) -> torch.Tensor:
    array = np.load(path, mmap_mode="r", allow_pickle=False)  # it checks the shape
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of arrays")
    if array.dtype.kind == "V":
        raise ValueError(f"numpy has no such dtype: {array.dtype}; bf16 is for .safetensors")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path, device="cpu")


def _read_pt(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > path.stat().st_size:  # torch writes it uncompressed
            raise ValueError(f"it is compressed, and would take {human_bytes(size)}")
    return torch.load(path, map_location="cpu", weights_only=True)


def _entry(value: Any, key: str, path: Path) -> Any:
    """The entry `key`, or the entry that its segments lead to through nested dictionaries."""
    here, left = value, key
    while left:
        if not isinstance(here, Mapping):
            raise UserError(f"no {key} in {path}", "" if here is not value else "it holds a single tensor")
        names = [str(name) for name in here]
        head = max(
            (name for name in names if left == name or left.startswith(name + ".")), key=len, default=""
        )
        if not head:
            near = difflib.get_close_matches(left, names, n=3, cutoff=0.5)
            shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
            raise UserError(f"no {key} in {path}", "" if near else f"there are {shown}", suggestions=near)
        here = next(child for name, child in here.items() if str(name) == head)
        left = left[len(head) + 1 :]
    return here


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write to .npy (one tensor) or .safetensors; what cannot be written is a `UserError` in one line."""
    if path.suffix not in (".npy", ".safetensors"):
        raise BadArguments(f"{path.suffix or 'no suffix'} is no format for this", ".safetensors or .npy")
    with below_everything():
        plain = {name: _plain(name, tensor) for name, tensor in tensors.items()}
        if path.suffix == ".npy":
            _replace(path, _npy_writer(plain))
        else:
            _replace(path, _safetensors_writer(plain))


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The values on the CPU, detached and contiguous. This may be the run's own memory."""
    values = open_values(tensor)
    if values.parts is None:
        raise UserError(f"{name} has no values to write", values.note)
    if values.layout:
        method = next((call for kind, call in _DENSE.items() if values.layout.startswith(kind)), "unbind()")
        raise UserError(f"{name} is {values.layout}; only dense tensors are written", f"try {name}.{method}")
    _check_size(name, values.parts[0][0])
    try:
        plain = values.parts[0][0].resolve_conj().resolve_neg().cpu().contiguous()
    except RuntimeError as error:  # a dtype without a kernel for it, or no memory
        raise UserError(f"{name} cannot be copied to write it", first_line(error)[:120]) from None
    return plain.clone() if is_lazy_clone(plain) else plain  # asking for its address would copy it in the run


def _check_size(name: str, tensor: torch.Tensor) -> None:
    """An expanded tensor is written in full, which may be more than the memory."""
    size = tensor.numel() * tensor.element_size()
    if size > MOST_EXPANDED and size > tensor.untyped_storage().nbytes():
        raise UserError(f"{name} is expanded: in a file it would be {human_bytes(size)}", "index it first")


def _npy_writer(tensors: Mapping[str, torch.Tensor]) -> Callable[[Path], None]:
    if len(tensors) != 1:
        raise UserError(f"an .npy file holds one array, and these are {len(tensors)}", "write .safetensors")
    ((name, tensor),) = tensors.items()
    try:
        array = as_numpy(tensor)
    except (TypeError, RuntimeError):
        raise UserError(
            f"{name} is {dtype_name(tensor.dtype)}, which numpy does not have",
            "write .safetensors, or a `.float()`",
        ) from None

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    return write


def _safetensors_writer(tensors: Mapping[str, torch.Tensor]) -> Callable[[Path], None]:
    from safetensors.torch import save_file

    def write(path: Path) -> None:
        apart: dict[str, torch.Tensor] = {}
        seen: set[int] = set()
        for name, tensor in tensors.items():
            storage = tensor.untyped_storage()
            size = tensor.numel() * tensor.element_size()
            is_shared = storage.data_ptr() in seen or storage.nbytes() != size
            seen.add(storage.data_ptr())
            apart[name] = tensor.clone() if is_shared else tensor  # the format refuses shared memory
        save_file(apart, path, metadata={"format": "pt"})

    return write


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    try:
        with replacing(path) as new:
            write(new)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"cannot write {path}", first_line(error)[:120]) from None
