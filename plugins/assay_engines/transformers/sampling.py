"""One token per row from logits, and its log-prob under the distribution that it was really drawn from.

A token is drawn by inverting the cumulative distribution at one uniform number of the request's own generator, so the
tokens of a request depend on its seed and its logits alone, never on its neighbours in the batch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Tensor.tolist is not annotated.

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from assay.contracts import Sampling

NUCLEUS_CANDIDATES = 1024


class Drawn(NamedTuple):
    """One token per row."""

    tokens: list[int]
    logprobs: list[float]
    """Natural log-probs of the tokens: of softmax(logits / temperature), renormalised over the nucleus where top-p is
    below 1; of softmax(logits) for greedy rows."""


def uniforms(seed: int) -> np.random.Generator:
    """The generator of one request's uniform numbers."""
    return np.random.default_rng(seed % 2**64)


def draw(logits: Tensor, sampling: Sequence[Sampling], generators: Sequence[np.random.Generator]) -> Drawn:
    """One token for each row of `logits` (N, V); advances the generator of each row that is not greedy by one number.

    Log-softmax and cumulative sums are float32.
    """
    temperatures = torch.tensor([row.temperature or 1.0 for row in sampling], device=logits.device)
    scaled = logits.float() / temperatures[:, None] if any(t.temperature != 1.0 for t in sampling) else logits.float()
    logp = scaled - scaled.logsumexp(-1, keepdim=True)
    greedy = torch.tensor([row.temperature == 0.0 for row in sampling], device=logits.device)
    points = [
        0.0 if row.temperature == 0.0 else generator.random()
        for row, generator in zip(sampling, generators, strict=True)
    ]
    tokens = logp.argmax(-1) if bool(greedy.any()) else torch.zeros_like(logp[:, 0], dtype=torch.long)
    if not bool(greedy.all()):
        sampled = _invert(logp.exp(), torch.tensor(points, dtype=torch.float32, device=logits.device))
        tokens = torch.where(greedy, tokens, sampled)
    chosen = logp.gather(-1, tokens[:, None])[:, 0]
    picked: list[int] = tokens.tolist()
    logprobs: list[float] = chosen.tolist()
    for index, row in enumerate(sampling):
        if row.top_p < 1.0 and row.temperature > 0.0:
            picked[index], logprobs[index] = _from_nucleus(logp[index], row.top_p, points[index])
    return Drawn(picked, logprobs)


def nucleus(logp: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest likeliest tokens whose mass reaches `top_p`, likeliest first: their ids and renormalised log-probs.

    `logp` is (V,). The token that crosses the bound belongs to the nucleus (Holtzman et al. 2019, arXiv 1904.09751).
    """
    few = min(NUCLEUS_CANDIDATES, len(logp))
    values, ids = logp.topk(few)
    if float(values.exp().sum()) < top_p:
        values, ids = logp.sort(descending=True, stable=True)
    mass = values.exp().cumsum(0)
    size = min(int((mass < top_p).sum()) + 1, len(values))
    kept = values[:size]
    return ids[:size], kept - kept.logsumexp(0)


def _from_nucleus(logp: Tensor, top_p: float, point: float) -> tuple[int, float]:
    ids, kept = nucleus(logp, top_p)
    place = int(_invert(kept.exp()[None], torch.tensor([point], dtype=torch.float32, device=logp.device))[0])
    return int(ids[place]), float(kept[place])


def _invert(probabilities: Tensor, points: Tensor) -> Tensor:
    """(N,) the first token whose cumulative mass exceeds its row's point of the whole mass; never one of zero mass."""
    mass = probabilities.cumsum(-1)
    found = torch.searchsorted(mass, (points * mass[:, -1])[:, None], right=True)[:, 0]
    found = found.clamp(max=probabilities.shape[-1] - 1)
    # Rounding can leave a point at the very end of the mass, behind the last token that has any.
    empty = probabilities.gather(-1, found[:, None])[:, 0] <= 0
    return torch.where(empty, probabilities.argmax(-1), found) if bool(empty.any()) else found
