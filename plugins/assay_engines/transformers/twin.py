"""The policy as the decoder computes with it: the same tensors in modules of their own, packed where that helps.

The trainer may switch its own module to train mode or to gradient checkpointing while rows are decoded; an update in
place is seen by both. A packed copy of the weights is there only while it is of use: it is renewed in place when the
weights have changed, and given back when an update of them begins while nothing is decoded.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' models are only partly annotated.

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from assay_engines.transformers.packed import PackedLinear, Watch, can_pack, pack
from assay_engines.transformers.prefill import Network

if TYPE_CHECKING:
    from assay.training.model import PolicyModel


class Twin:
    """A network over a policy's own tensors."""

    def __init__(self, policy: PolicyModel, *, packed: bool, rows: int) -> None:
        """The twin of `policy.model` as it is now; with `packed`, laid out for about `rows` rows where that helps."""
        model = _second(policy.model)
        self.network = Network(model, policy.device, dtype=policy.model.dtype)
        self._watch = Watch(policy.model)
        self._layers: list[PackedLinear] = pack(model, rows=rows) if packed and can_pack(model) else []
        self._arranged = False

    def fits(self, policy: PolicyModel) -> bool:
        """Whether these are still the tensors of `policy`; a model or adapter put in since needs a new twin."""
        return not self._watch.replaced(policy.model)

    @property
    def stale(self) -> bool:
        """Whether the weights were written to since the last `renew`."""
        return self._watch.changed

    def renew(self) -> None:
        """Arrange the weights as they are now, one layer after the other."""
        if self._arranged and not self.stale:
            return
        self._watch.settle()
        with torch.no_grad():
            for layer in self._layers:
                layer.arrange()
        self._arranged = True

    def rest(self) -> None:
        """Give the copy of the weights back until the next `renew`."""
        for layer in self._layers:
            layer.drop()
        self._arranged = False


def _second(model: Any) -> Any:
    """A second module over the very same parameter tensors, in eval mode."""
    # Of a model wrapped for an adapter this is the base model, in which the adapter's layers stand.
    unwrapped = getattr(model, "get_base_model", None)
    model = model if unwrapped is None else unwrapped()
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    second = copy.deepcopy(model, shared)
    for module in second.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.gradient_checkpointing = False
    return second.eval()
