"""What comes out of the layers in a step that is looked at, and which units have never answered."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from layerstep.doctor.facts import ActivationFacts, InputFacts
from layerstep.doctor.measuring import input_facts, is_readable
from layerstep.tensors.containers import tensors_of

__all__ = ["Activity"]

MOST_UNITS = 1 << 16
FLAT = 0.99
"""A tanh beyond ±0.99 or a sigmoid beyond 0.01 and 0.99 passes almost no gradient."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS)
_FED = (*_LAYERS, nn.RNNBase)
_BOUNDED = (nn.Tanh, nn.Sigmoid)
_RECTIFIERS = (nn.ReLU, nn.ReLU6)


class Activity:
    """Follows units over the steps that are looked at."""

    def __init__(self) -> None:
        self._ever: dict[str, Tensor] = {}
        """Of each layer: the units that gave more than zero at least once."""
        self._seen: dict[str, int] = {}
        self._facts: list[ActivationFacts] = []
        self._inputs: dict[str, InputFacts] = {}
        self._given: list[tuple[Tensor, int]] = []
        """The first row of each input of the model, and how many elements it has."""
        self._layers: dict[int, str] = {}
        """The last layer that was called, by the number of its outputs."""

    def model_called(self, args: Any, kwargs: Any) -> None:
        """A model begins: a few numbers of what it is given, to know them again."""
        self._given = [
            (t.detach().reshape(-1, t.shape[-1])[0].clone(), t.numel())
            for t in tensors_of((args, kwargs))
            if t.ndim >= 2 and t.shape[-1] > 1 and _is_data(t)
        ]

    def take_inputs(self) -> tuple[InputFacts, ...]:
        """What layers got that are fed with data, since it was taken last."""
        taken, self._inputs = tuple(self._inputs.values()), {}
        return taken

    def take(self) -> tuple[ActivationFacts, ...]:
        """What was seen since it was taken last."""
        taken, self._facts = tuple(self._facts), []
        self._layers.clear()
        return taken

    def note(self, path: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A leaf module was called."""
        made = next(iter(tensors_of(output, 2)), None)
        is_followed = made is not None and made.is_floating_point() and is_readable(made)
        if made is not None and is_followed:
            self._facts.append(self._fact(path, module, made))
        given = next(iter(tensors_of(args, 2)), None)
        if isinstance(module, _FED) and given is not None and _is_data(given):
            self._inputs[path] = input_facts(path, given, deep=True)
        elif isinstance(module, _FED) and given is not None:
            part = self._data_in(given)
            if part is not None:
                self._inputs[path] = input_facts(path, part, deep=True)
        if not isinstance(module, _FED) or given is None or not given.is_floating_point():
            return
        if is_followed:
            self._facts[-1] = replace(self._facts[-1], given=_root_mean_square(given))
        if not isinstance(module, _LAYERS):
            return
        if given.requires_grad and is_readable(given):
            self._note_input(path, module, given.detach())
        if made is not None and not made.is_nested and made.ndim:
            self._layers[made.shape[_unit_dimension(made, isinstance(module, _CONVOLUTIONS))]] = path

    def _data_in(self, given: Tensor) -> Tensor | None:
        """The columns of a model's input in what a layer gets: embeddings are often put next to them."""
        if not given.is_floating_point() or given.ndim < 2 or not is_readable(given):
            return None
        values, width = given.detach(), given.shape[-1]
        first = values.reshape(-1, width)[0]
        for row, size in self._given:
            if len(row) >= width or size // len(row) != values.numel() // width or not bool(row.any()):
                continue
            places = (first.unfold(0, len(row), 1) == row.to(first.dtype)).all(dim=1).nonzero()
            if len(places):
                return values[..., int(places[0]) : int(places[0]) + len(row)]
        return None

    def _fact(self, path: str, module: nn.Module, made: Tensor) -> ActivationFacts:
        values = made.detach()
        units = _unit_dimension(values, isinstance(module, _CONVOLUTIONS))
        count = values.shape[units] if values.ndim else 1
        mean, std = _mean_and_std(values)
        silent = dead = 0
        if isinstance(module, _RECTIFIERS):
            silent, dead = self._follow(path, values, units)
        return ActivationFacts(
            path,
            type(module).__name__,
            samples=values.numel() // max(count, 1),
            mean=mean,
            std=std,
            size=float(values.abs().mean()),
            units=count,
            silent=silent,
            dead=dead,
            seen=self._seen.get(path, 0),
            saturated=_flat_share(module, values),
            layer=self._layers.get(count, "") if isinstance(module, _RECTIFIERS) else "",
            nonfinite=0 if math.isfinite(mean) else int((~torch.isfinite(values)).sum()),
        )

    def _note_input(self, path: str, module: nn.Module, given: Tensor) -> None:
        """A layer whose input is never negative follows a ReLU, be it a module or a function."""
        units = _unit_dimension(given, isinstance(module, _CONVOLUTIONS))
        key = f"{path}.input"
        low, high = (float(end) for end in given.aminmax())
        self._note_bounded(key, module, given, (low, high))
        if low < 0:
            self._ever.pop(key, None)
            self._seen[key] = -(1 << 60)  # it is no ReLU: never count it again
            return
        if self._seen.get(key, 0) < 0 or (high <= 1 and low >= 0 and not bool((given == 0).any())):
            return  # a sigmoid or a softmax
        silent, dead = self._follow(key, given, units)
        mean, std = _mean_and_std(given)
        count = given.shape[units]
        self._facts.append(
            ActivationFacts(
                key,
                f"input of {type(module).__name__}",
                samples=given.numel() // max(count, 1),
                mean=mean,
                std=std,
                size=mean,
                units=count,
                silent=silent,
                dead=dead,
                seen=self._seen.get(key, 0),
                layer=self._layers.get(count, ""),
            )
        )

    def _note_bounded(self, key: str, module: nn.Module, given: Tensor, ends: tuple[float, float]) -> None:
        """A layer whose input fills -1 to 1, or 0 to 1, follows a tanh or a sigmoid, be it a function."""
        low, high = ends
        is_tanh = -1 <= low < -0.5 and 0.5 < high <= 1
        is_sigmoid = 0 < low < 0.25 and 0.75 < high <= 1
        if not is_tanh and not is_sigmoid:
            return
        flat = given.abs() > FLAT if is_tanh else (given - 0.5).abs() > FLAT - 0.5
        is_code = bool(((given == low) | (given == high) | (given == 0)).all())  # rounded on purpose
        mean, std = _mean_and_std(given)
        self._facts.append(
            ActivationFacts(
                key,
                "tanh" if is_tanh else "sigmoid",
                samples=len(given),
                mean=mean,
                std=std,
                size=float(given.abs().mean()),
                units=0,
                silent=0,
                dead=0,
                seen=0,
                saturated=0.0 if is_code else float(flat.float().mean()),
            )
        )

    def _follow(self, key: str, values: Tensor, units: int) -> tuple[int, int]:
        """How many units were silent in this batch, and how many in all so far."""
        count = values.shape[units] if values.ndim else 0
        if not count or count > MOST_UNITS or values.ndim < 2:
            return 0, 0
        others = [dim for dim in range(values.ndim) if dim != units % values.ndim]
        active = values.amax(dim=others) > 0
        ever = self._ever.get(key)
        ever = active if ever is None or ever.shape != active.shape else ever | active
        self._ever[key] = ever
        self._seen[key] = self._seen.get(key, 0) + values.numel() // count
        return int((~active).sum()), int((~ever).sum())


def _unit_dimension(values: Tensor, is_convolution: bool) -> int:
    """Channels of images are the second dimension; features of everything else the last."""
    return 1 if values.ndim >= 4 or (is_convolution and values.ndim >= 3) else max(values.ndim - 1, 0)


def _mean_and_std(values: Tensor) -> tuple[float, float]:
    """`torch.std_mean` takes 4 ns an element on a CPU, this 0.2."""
    wide = values.float()
    mean = float(wide.mean())
    std = float(torch.linalg.vector_norm(wide - mean)) / math.sqrt(max(wide.numel(), 1))
    if math.isfinite(mean) and not math.isfinite(std):  # the squares overflow beyond 1e19
        std = float(torch.std(wide.double(), correction=0))
    return mean, std


def _is_data(given: Tensor) -> bool:
    return given.is_floating_point() and not given.requires_grad and is_readable(given)


def _root_mean_square(given: Tensor) -> float:
    if not given.is_floating_point() or not is_readable(given):
        return 0.0
    return float(given.detach().float().square().mean().sqrt())


def _flat_share(module: nn.Module, values: Tensor) -> float:
    if not isinstance(module, _BOUNDED):
        return 0.0
    flat = values.abs() > FLAT if isinstance(module, nn.Tanh) else (values - 0.5).abs() > FLAT - 0.5
    return float(flat.float().mean())
