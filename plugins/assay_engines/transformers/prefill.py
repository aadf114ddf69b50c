"""Prompts to key-value blocks: each distinct prompt is computed once, and what all prompts begin with once for all.

The longest common beginning of the prompts at hand (system text, solved examples, template) stays resident until the
weights change; after that each prompt costs only what is its own.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' models are only partly annotated.

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay_engines.transformers.cache import Block, PrefillCache

Ids = tuple[int, ...]
WORTHWHILE_PREFIX = 16


@dataclass
class Prompt:
    """A prefilled prompt."""

    block: Block
    logits: Tensor
    """(V,) logits of the token after the prompt."""


class Network:
    """A causal language model as one call: ids, positions, mask and cache to the logits of each row's last place."""

    def __init__(self, model: Any, device: torch.device, *, dtype: torch.dtype) -> None:
        """Wrap `model`, whose states have the type `dtype`."""
        self.model = model
        self.device = device
        names = inspect.signature(type(model).forward).parameters
        self.cache_argument = "cache" if "cache" in names else "past_key_values"
        self.layers = int(model.config.get_text_config().num_hidden_layers)
        self.dtype = dtype

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """(N, V) logits after the last of `ids` (N, S); `mask` is (N, 1, S, W) true where a query may look."""
        blocked = torch.zeros(mask.shape, dtype=self.dtype, device=self.device)
        blocked.masked_fill_(~mask, torch.finfo(self.dtype).min)
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=blocked,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: cache},
        )
        return output.logits[:, -1]


def common_prefix(texts: Sequence[Ids]) -> int:
    """How many ids all `texts` begin with."""
    first, last = min(texts), max(texts)
    for place, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return place
    return min(len(first), len(last))


class Prefiller:
    """Prefills prompts in batches and remembers what they share."""

    def __init__(self, network: Network, *, max_tokens: int) -> None:
        """`max_tokens` bounds the new positions of one forward, padding included (one prompt always goes)."""
        self.network = network
        self.max_tokens = max_tokens
        self.prefix_ids: Ids = ()
        self.prefix: Block | None = None

    def forget(self) -> None:
        """Drop the resident prefix; called when the weights change."""
        self.prefix_ids, self.prefix = (), None

    def run(self, queue: Sequence[Ids]) -> list[Prompt]:
        """The first of the distinct prompts in `queue`, prefilled: as many as fit one forward, at least one.

        The rest of the queue only helps to see what all prompts begin with.
        """
        self._settle_prefix(queue)
        start = len(self.prefix_ids)
        own = [ids[start:] for ids in queue]
        own = own[: self._affordable([len(ids) for ids in own])]
        widest = max(len(ids) for ids in own)
        paddings = [widest - len(ids) for ids in own]
        cache, logits = self._forward(own, paddings, widest, self.prefix)
        return [Prompt(cache.block(row, paddings[row]), logits[row].clone()) for row in range(len(own))]

    def _affordable(self, lengths: Sequence[int]) -> int:
        widest = 0
        for count, length in enumerate(lengths, start=1):
            widest = max(widest, length)
            if count > 1 and count * widest > self.max_tokens:
                return count - 1
        return len(lengths)

    def _reach(self, prompts: Sequence[Ids]) -> int:
        """Length of the beginning that need not be computed per prompt."""
        reach = common_prefix([self.prefix_ids, *prompts]) if self.prefix_ids else 0
        return reach if reach == len(self.prefix_ids) else 0

    def _settle_prefix(self, prompts: Sequence[Ids]) -> None:
        shared = min(common_prefix(prompts), min(len(ids) for ids in prompts) - 1)
        reach = min(self._reach(prompts), min(len(ids) for ids in prompts) - 1)
        if reach == len(self.prefix_ids) and (len(prompts) == 1 or shared < reach + WORTHWHILE_PREFIX):
            return
        self.forget()
        if len(prompts) > 1 and shared >= WORTHWHILE_PREFIX:
            ids = prompts[0][:shared]
            cache, _ = self._forward([ids], [0], shared, None)
            self.prefix_ids, self.prefix = ids, cache.block(0, 0)

    def _forward(
        self, own: Sequence[Ids], paddings: Sequence[int], widest: int, prefix: Block | None
    ) -> tuple[PrefillCache, Tensor]:
        """Run the new ids of each text, padded on the left so that every row ends at the same place."""
        device = self.network.device
        start = prefix.length if prefix else 0
        ids = torch.tensor([[0] * pad + list(text) for pad, text in zip(paddings, own, strict=True)], device=device)
        pads = torch.tensor(paddings, device=device)
        place = torch.arange(widest, device=device)
        positions = (start + place[None] - pads[:, None]).clamp(min=0)
        causal = place[:, None] >= place[None]
        real = place[None] >= pads[:, None]
        # A padded query looks at itself alone: a row without any key would be not-a-number and spoil its neighbours.
        alone = torch.eye(widest, dtype=torch.bool, device=device)
        mask = (causal[None] & real[:, None, :]) | alone[None]
        if start:
            mask = torch.cat([torch.ones(len(own), widest, start, dtype=torch.bool, device=device), mask], dim=2)
        cache = PrefillCache(self.network.layers, len(own), widest, prefix)
        return cache, self.network(ids, positions, mask[:, None], cache)
