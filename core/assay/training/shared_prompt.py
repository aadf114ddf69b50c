"""One prompt, many responses, one flat row: the layout, and the attention that reads it.

A pack holds each distinct prompt once, followed by all responses: `[prompt 0, prompt 1, ..., response 0, response 1,
...]`. Every layer except attention sees a plain sequence of tokens without padding; attention runs prompts among
themselves and each response against its own prompt and itself, so that no response sees another and the cost is that
of separate rows. Position ids count from the start of the prompt, as they would in a row of its own.

Guaranteed: the hidden states equal those of separate rows up to rounding. Not guaranteed: models whose attention does
not go through transformers' attention interface with keyword arguments (sliding windows, linear attention, state
spaces); `forward.supports_shared_prompt` tells, by trying.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

ATTENTION = "assay_shared_prompt"
"""Name under which the attention is known to transformers; without a layout it is the library's own SDPA."""


@dataclass(frozen=True)
class Segment:
    """How flat tokens and a padded (rows, width) block map onto each other."""

    rows: int
    width: int
    pad: Tensor | None
    """(rows * width,) flat index of every padded place (0 where there is no token); None where nothing is padded."""
    flat: Tensor | None
    """(tokens,) padded place of every flat token; None where nothing is padded."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Segment:
        """The segment of rows with these lengths (at least one row), stored one after the other."""
        width = max(lengths)
        if min(lengths) == width:
            return cls(len(lengths), width, None, None)
        counts = torch.tensor(lengths)
        inside = torch.arange(width)[None, :] < counts[:, None]
        flat = inside.reshape(-1).nonzero().squeeze(1)
        pad = torch.zeros(inside.numel(), dtype=torch.long)
        pad[flat] = torch.arange(len(flat))
        return cls(len(lengths), width, pad.to(device), flat.to(device))

    def to_padded(self, tokens: Tensor) -> Tensor:
        """(tokens, heads, D) to (rows, width, heads, D); padded places hold a copy of the first token."""
        padded = tokens if self.pad is None else _reindex(tokens, self.pad, self.flat)
        return padded.reshape(self.rows, self.width, *tokens.shape[1:])

    def to_flat(self, padded: Tensor) -> Tensor:
        """(rows, width, heads, D) to (tokens, heads, D)."""
        places = padded.reshape(self.rows * self.width, *padded.shape[2:])
        return places if self.flat is None else places.index_select(0, self.flat)


@dataclass(frozen=True)
class SharedPrompts:
    """The layout of one pack; built once, read by every layer."""

    prompt_tokens: int
    """Flat tokens that belong to prompts; the responses' follow them."""
    prompts: Segment
    responses: Segment | None
    """None where no response has a token to be read (single-token responses)."""
    prompt_of: Tensor
    """(responses,) which prompt each response continues."""
    mask: Tensor | None
    """(responses or 1, 1, width, prompt width + width) float: 0 where a query may look, -inf where it may not."""

    @classmethod
    def of(
        cls,
        prompt_lengths: Sequence[int],
        response_lengths: Sequence[int],
        prompt_of: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> SharedPrompts:
        """The layout of prompts (each at least one token) and of responses (each at least one token; may be none)."""
        prompts = Segment.of(prompt_lengths, device)
        owner = torch.tensor(prompt_of, dtype=torch.long)
        responses, mask = None, None
        if response_lengths:
            responses = Segment.of(response_lengths, device)
            lengths = torch.tensor(prompt_lengths)[owner]
            if int(lengths.min()) == int(lengths.max()) == prompts.width:
                lengths = lengths[:1]
            width = responses.width
            seen_prompt = (torch.arange(prompts.width)[None, :] < lengths[:, None])[:, None, None, :]
            seen_prompt = seen_prompt.expand(-1, 1, width, -1)
            seen_self = torch.ones(width, width, dtype=torch.bool).tril().expand(len(lengths), 1, -1, -1)
            seen = torch.cat([seen_prompt, seen_self], dim=-1)
            mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf")).to(device)
        return cls(sum(prompt_lengths), prompts, responses, owner.to(device), mask)


def shared_prompt_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    shared_prompts: SharedPrompts | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one pack: (1, heads, tokens, D) to (1, tokens, heads, D); the library's SDPA without a layout."""
    if shared_prompts is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    layout, count = shared_prompts, shared_prompts.prompt_tokens
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if q.is_cuda and q.shape[1] != k.shape[1]:
        # With a mask, CUDA's grouped attention falls back to the kernel that keeps the whole score matrix.
        k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
    prompt_q, prompt_k, prompt_v = (layout.prompts.to_padded(tensor[:count]) for tensor in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    # Prompts are padded on the right, so that plain causal attention keeps real tokens away from padding.
    done = scaled_dot_product_attention(
        prompt_q.transpose(1, 2),
        prompt_k.transpose(1, 2),
        prompt_v.transpose(1, 2),
        is_causal=True,
        scale=scaling,
        enable_gqa=grouped,
    )
    outputs = [layout.prompts.to_flat(done.transpose(1, 2))]
    if layout.responses is not None:
        own_q, own_k, own_v = (layout.responses.to_padded(tensor[count:]) for tensor in (q, k, v))
        done = scaled_dot_product_attention(
            own_q.transpose(1, 2),
            torch.cat([prompt_k.index_select(0, layout.prompt_of), own_k], dim=1).transpose(1, 2),
            torch.cat([prompt_v.index_select(0, layout.prompt_of), own_v], dim=1).transpose(1, 2),
            attn_mask=layout.mask,
            scale=scaling,
            enable_gqa=grouped,
        )
        outputs.append(layout.responses.to_flat(done.transpose(1, 2)))
    return torch.cat(outputs).unsqueeze(0), None


def install(model: Any) -> None:
    """Let `model` use the shared-prompt attention; without a layout it computes exactly what SDPA does."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(ATTENTION, shared_prompt_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    if model.config._attn_implementation != ATTENTION:
        model.set_attn_implementation(ATTENTION)


class _Reindex(torch.autograd.Function):
    """Gather whose backward is a gather too: `pad` visits every flat token exactly once, at `flat`.

    The generic backward adds row by row, which on a CPU costs more than the attention itself. Gradients of padded
    places are dropped: nothing reads those places.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, tokens: Tensor, pad: Tensor, flat: Tensor) -> Tensor:
        ctx.save_for_backward(flat)
        return tokens.index_select(0, pad)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (flat,) = ctx.saved_tensors
        return grads[0].index_select(0, flat), None, None


def _reindex(tokens: Tensor, pad: Tensor, flat: Tensor | None) -> Tensor:
    result: Tensor = _Reindex.apply(tokens, pad, flat)  # pyright: ignore[reportAssignmentType]  # torch leaves apply untyped
    return result
