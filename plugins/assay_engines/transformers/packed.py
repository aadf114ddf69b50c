"""Linear layers with weights laid out for a few rows: what a decode step on a CPU spends its time on.

A decode step multiplies a handful of rows by every weight of the model. torch's float32 product re-arranges the
weights in each call; oneDNN can be given them arranged once. Measured on one core of an AMD EPYC (Zen 4), SmolLM2's
four shapes, CPU time of packed over plain: 0.70 at 4 rows, 0.65 at 8 and 16, 0.76 at 32, 0.82 at 64.

The arranged weights are a copy. `Watch` says when the originals have changed, so that a copy is never stale; without a
copy a layer computes with the originals.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch.ops is not annotated.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """A linear layer whose weights oneDNN has arranged for about `rows` rows; inference only."""

    def __init__(self, linear: nn.Linear, rows: int) -> None:
        """The layer of `linear`, whose tensors stay shared; nothing is copied before `arrange`."""
        super().__init__()
        self._linear = (linear,)  # inside a tuple it is no submodule
        self._rows = rows
        self._arranged: Tensor | None = None
        self._seen = -1

    @property
    def weight(self) -> Tensor:
        """The layer's own weights: adapters around it ask for their type and device."""
        return self._linear[0].weight

    @property
    def bias(self) -> Tensor | None:
        """The layer's own bias."""
        bias: Any = self._linear[0].bias
        return bias

    @property
    def arranged(self) -> bool:
        """Whether there is a copy."""
        return self._arranged is not None

    def arrange(self) -> None:
        """Copy the weights as they are now, unless that was done already."""
        weight = self.weight
        if self._arranged is None or weight._version != self._seen:
            self._arranged = None  # the old copy goes first: there are never two
            self._arranged = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), self._rows)
            self._seen = weight._version

    def drop(self) -> None:
        """Give the copy's memory back."""
        self._arranged = None

    def forward(self, states: Tensor) -> Tensor:
        """The product of (..., in) with the weights, (..., out)."""
        if self._arranged is None:
            return self._linear[0](states)
        return torch.ops.mkldnn._linear_pointwise(states, self._arranged, self.bias, "none", [], "")


def can_pack(model: nn.Module) -> bool:
    """Whether packing works and helps here: float32 weights on a CPU, and a torch built with oneDNN."""
    plain = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in model.parameters())
    return plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pack(model: nn.Module, *, rows: int) -> list[PackedLinear]:
    """Replace every plain linear layer of `model` by a packed one; those layers."""
    made: list[PackedLinear] = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                made.append(PackedLinear(child, rows))
                setattr(parent, name, made[-1])
    return made


class Watch:
    """Notices that parameters were written to or replaced, by torch's own counters."""

    def __init__(self, model: Any) -> None:
        """Watch the parameters of `model` from now on."""
        self._model = model
        self._parameters: list[Tensor] = list(model.parameters())
        self._seen = self._count()

    def replaced(self, model: Any) -> bool:
        """Whether `model` is another one, or has other parameters than when the watch began."""
        now: list[Tensor] = list(model.parameters())
        return self._model is not model or list(map(id, now)) != list(map(id, self._parameters))

    @property
    def changed(self) -> bool:
        """Whether any parameter was written to since `settle`; writes through `.data` go unseen."""
        return self._count() != self._seen

    def settle(self) -> None:
        """Take the parameters as they are now."""
        self._seen = self._count()

    def _count(self) -> int:
        return sum(parameter._version for parameter in self._parameters)
