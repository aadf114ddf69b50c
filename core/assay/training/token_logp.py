"""Log-probs and entropies of chosen tokens from hidden states, without the (tokens x vocabulary) matrix.

The output head is applied to a chunk of tokens at a time; each chunk's logits live only until its log-probs and
entropies are known, and the backward pass computes them again. Statistics are float32 whatever the weights are.

    z = cap * tanh(s * (W h + b) / cap) / temperature        (cap and s only where the model has them)
    logp(y) = z_y - logsumexp(z)                  d logp(y) / d z_j = [j = y] - p_j
    H = logsumexp(z) - sum_j p_j z_j              d H / d z_j       = -p_j (log p_j + H)
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_TOKENS = 128
"""Tokens per chunk: a head of 50,000 words then needs 25 MB of float32 logits at a time."""


@dataclass(frozen=True)
class Head:
    """A model's output head as numbers."""

    weight: Tensor
    """(V, H)."""
    bias: Tensor | None = None
    """(V,)."""
    scale: float = 1.0
    """What the logits are multiplied with (Cohere, Granite)."""
    softcap: float | None = None
    """Bound of `cap * tanh(z / cap)` (Gemma 2)."""
    float32: bool = False
    """Multiply in float32 even where the weights are narrower."""

    @classmethod
    def of(cls, model: Any, *, float32: bool = False) -> Head:
        """The head of a transformers causal language model."""
        config, layer = model.config, model.get_output_embeddings()
        scale = getattr(config, "logit_scale", None) or 1.0
        scale /= getattr(config, "logits_scaling", None) or 1.0
        softcap = getattr(config, "final_logit_softcapping", None)
        return cls(layer.weight, getattr(layer, "bias", None), scale, softcap, float32)

    def logits(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """(n, V) float32 logits divided by the temperature (n,); differentiable, and as large as it says."""
        z = self._product(hidden) * self.scale
        if self.softcap is not None:
            z = self.softcap * torch.tanh(z / self.softcap)
        return z / temperature[:, None]

    def fill(self, z: Tensor, hidden: Tensor, temperature: Tensor) -> Tensor:
        """The same into a part of the buffer `z` where the head is plain and float32, else into a new tensor."""
        plain = self.bias is None and self.softcap is None and hidden.dtype == self.weight.dtype == torch.float32
        if not plain:
            return self.logits(hidden, temperature)
        # Scaling H numbers instead of V; exact where both are 1.
        return torch.mm(hidden * (self.scale / temperature[:, None]), self.weight.t(), out=z[: len(hidden)])

    def _product(self, hidden: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if self.float32:
            hidden, weight = hidden.float(), weight.float()
            bias = None if bias is None else bias.float()
        return torch.nn.functional.linear(hidden.to(weight.dtype), weight, bias).float()


class TokenLogp(NamedTuple):
    """What one call gives for n tokens."""

    logp: Tensor
    """(n,) float32."""
    entropy: Tensor
    """(n,) float32, in nats."""


def token_logp(
    head: Head,
    hidden: Tensor,
    targets: Tensor,
    temperature: Tensor,
    *,
    entropy_grad: bool = False,
    chunk_tokens: int = CHUNK_TOKENS,
) -> TokenLogp:
    """Log-probs of `targets` and entropies, from logits divided by `temperature`.

    Args:
        head: the output head; gradients reach its weight and bias where they ask for them.
        hidden: (n, H) hidden states that predict the targets.
        targets: (n,) token ids.
        temperature: (n,) float32, above 0.
        entropy_grad: whether the entropy carries a graph.
        chunk_tokens: tokens whose logits exist at the same time.
    """
    logp, entropy = _TokenLogp.apply(
        hidden, head.weight, head.bias, targets, temperature.float(), head, entropy_grad, chunk_tokens
    )
    return TokenLogp(logp, entropy)


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: Tensor,
        head: Head,
        entropy_grad: bool,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        logp, entropy, normaliser = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3))
        z_buffer, p_buffer = _buffer(hidden, weight, chunk_tokens), _buffer(hidden, weight, chunk_tokens)
        for rows in _chunks(len(hidden), chunk_tokens):
            z = head.fill(z_buffer, hidden[rows], temperature[rows])
            top = z.amax(dim=1, keepdim=True)
            z.sub_(top)
            p = torch.exp(z, out=p_buffer[: len(z)])
            total = p.sum(dim=1)
            log_total = total.log()
            logp[rows] = z.gather(1, targets[rows, None]).squeeze(1) - log_total
            mean = torch.bmm(p[:, None, :], z[:, :, None]).reshape(len(z)) / total
            entropy[rows] = log_total - mean
            normaliser[rows] = log_total + top.squeeze(1)
        ctx.save_for_backward(hidden, weight, bias, targets, temperature, normaliser, entropy)
        ctx.head, ctx.entropy_grad, ctx.chunk_tokens = head, entropy_grad, chunk_tokens
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        hidden, weight, bias, targets, temperature, normaliser, entropy = ctx.saved_tensors
        head = Head(weight, bias, ctx.head.scale, ctx.head.softcap, ctx.head.float32)
        grad_logp = torch.zeros_like(normaliser) if grads[0] is None else grads[0]
        grad_entropy = grads[1] if ctx.entropy_grad else None
        wide = torch.float32 if head.float32 else weight.dtype
        grad_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        # Tokens that the loss does not pull (no advantage, clipped, masked) need no second product.
        pulled = grad_logp != 0 if grad_entropy is None else (grad_logp != 0) | (grad_entropy != 0)
        at = pulled.nonzero().squeeze(1)
        buffer = _buffer(hidden, weight, ctx.chunk_tokens)
        for rows in at.split(ctx.chunk_tokens):
            z = head.fill(buffer, hidden[rows], temperature[rows])
            bend = None if head.softcap is None else 1 - (z * (temperature[rows, None] / head.softcap)) ** 2
            z.sub_(normaliser[rows, None])
            # d z / d (W h) = scale / temperature, here already inside the factors.
            factor = head.scale / temperature[rows, None]
            pull = grad_logp[rows, None] * factor
            if grad_entropy is None:
                delta = z.exp_().mul_(-pull)
            else:
                p = z.exp()
                slope = z.add_(entropy[rows, None]).mul_(grad_entropy[rows, None] * factor).add_(pull)
                delta = p.mul_(slope).neg_()
            delta.scatter_add_(1, targets[rows, None], pull)
            if bend is not None:
                delta.mul_(bend)
            if grad_bias is not None:
                grad_bias += delta.sum(dim=0)
            delta = delta.to(wide)
            if grad_hidden is not None:
                grad_hidden[rows] = (delta @ weight.to(wide)).to(hidden.dtype)
            if grad_weight is not None:
                grad_weight.addmm_(delta.t(), hidden[rows].to(wide))
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        if bias is not None and grad_bias is not None:
            grad_bias = grad_bias.to(bias.dtype) if ctx.needs_input_grad[2] else None
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None


def _buffer(hidden: Tensor, weight: Tensor, chunk_tokens: int) -> Tensor:
    return hidden.new_empty((min(len(hidden), chunk_tokens), weight.shape[0]), dtype=torch.float32)


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
