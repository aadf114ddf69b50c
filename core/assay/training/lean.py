"""Layers that keep less for the backward pass, in place of the library's own where both give the same numbers.

A gated MLP saves four tensors of the intermediate width; two of them are cheap to compute again from the other two. An
RMS norm saves its normalised input beside the input itself; one number per token does. Together that is about a third
of what a Llama keeps per token, at no extra matrix product. A module is changed only if its class has the known parts
and its own output on a probe equals ours; without gradients the module's own forward runs, as always in sampling.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

_PROBE_TOLERANCE = 1e-5


def install_lean_layers(model: Any) -> int:
    """Change the layers of `model` that can be; the number changed. A second call changes nothing."""
    changed = 0
    for module in model.modules():
        if "forward" in vars(module):
            continue
        for recognise, forward in ((_is_gated_mlp, _gated_mlp), (_is_rms_norm, _rms_norm)):
            if recognise(module) and _agrees(module, forward):
                module.forward = MethodType(forward, module)
                changed += 1
    return changed


def _is_gated_mlp(module: nn.Module) -> bool:
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = getattr(module, "act_fn", None)
    return all(type(part) is nn.Linear for part in parts) and type(activation).__name__ in ("SiLU", "SiLUActivation")


def _is_rms_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")


def _agrees(module: Any, forward: Callable[[Any, Tensor], Tensor]) -> bool:
    first = module.gate_proj.weight if hasattr(module, "gate_proj") else module.weight
    width = first.shape[-1]
    probe = torch.linspace(-2.0, 2.0, 3 * width, device=first.device, dtype=first.dtype).reshape(1, 3, width)
    with torch.enable_grad():
        mine = forward(module, probe.requires_grad_()).detach().float()
        own = module(probe).detach().float()
    tolerance = _PROBE_TOLERANCE if first.dtype == torch.float32 else 0.02
    return mine.shape == own.shape and bool((mine - own).abs().max() <= tolerance * max(1.0, float(own.abs().max())))


def _gated_mlp(self: Any, x: Tensor) -> Tensor:
    # An adapter may have replaced a projection since: then, and without gradients, the module's own forward runs.
    if not torch.is_grad_enabled() or type(self.down_proj) is not nn.Linear:
        return type(self).forward(self, x)
    down = self.down_proj
    result: Tensor = _GatedDown.apply(self.gate_proj(x), self.up_proj(x), down.weight, down.bias)  # pyright: ignore[reportAssignmentType]  # torch leaves apply untyped
    return result


def _rms_norm(self: Any, hidden_states: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return type(self).forward(self, hidden_states)
    result: Tensor = _RmsNorm.apply(hidden_states, self.weight, self.variance_epsilon)  # pyright: ignore[reportAssignmentType]  # torch leaves apply untyped
    return result


class _GatedDown(torch.autograd.Function):
    """`down(silu(gate) * up)`; keeps `gate` and `up` only."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        product = silu(gate).mul_(up)
        return linear(product, weight.to(product.dtype), None if bias is None else bias.to(product.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight = ctx.saved_tensors
        grad = grads[0]
        active = silu(gate)
        pull = grad @ weight.to(grad.dtype)
        grad_up = pull * active
        grad_gate = torch.ops.aten.silu_backward(pull.mul_(up), gate)
        flat = grad.reshape(-1, grad.shape[-1])
        grad_weight = grad_bias = None
        if ctx.needs_input_grad[2]:
            product = active.mul_(up).reshape(-1, active.shape[-1])
            grad_weight = (flat.t() @ product).to(weight.dtype)
        if ctx.needs_input_grad[3]:
            grad_bias = flat.sum(dim=0).to(weight.dtype)
        return grad_gate, grad_up, grad_weight, grad_bias


class _RmsNorm(torch.autograd.Function):
    """`weight * x / sqrt(mean(x^2) + eps)`, statistics in float32; keeps `x` and one number per token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x.float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return weight * (wide * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        grad = grads[0].float()
        unit = x.float() * scale
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * unit).reshape(-1, x.shape[-1]).sum(dim=0).to(weight.dtype)
        pull = grad * weight.float()
        along = (pull * unit).mean(dim=-1, keepdim=True)
        return pull.sub_(unit.mul_(along)).mul_(scale).to(x.dtype), grad_weight, None
