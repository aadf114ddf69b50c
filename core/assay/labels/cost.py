"""What labelling cost, beside what labelling every prefix with all completions would have cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from assay.labels.nodes import Node


class Cost(NamedTuple):
    """Tokens and completions; audits are counted apart."""

    completions: int
    decoded: int
    """Tokens that were made."""
    prefilled: int
    """Prompt tokens, once per wave of a prefix: an engine computes the prompt of a group once."""
    naive_decoded: float
    """Estimate for every prefix of the labelled solutions with all completions: tokens per character that was left to
    write, times the characters left at each prefix."""
    naive_prefilled: float
    """The same for prompt tokens, once per completion."""
    audited: int
    """Completions drawn for the audit alone."""

    @property
    def saving(self) -> float | None:
        """How many times fewer tokens were decoded; None before the first completion."""
        return self.naive_decoded / self.decoded if self.decoded else None

    def __str__(self) -> str:
        """For example `412 completions, 18,400 tokens decoded: 9.8 x fewer than naive (180,000)`."""
        saving = "" if self.saving is None else f": {self.saving:.1f} x fewer than naive ({self.naive_decoded:,.0f})"
        return f"{self.completions:,} completions, {self.decoded:,} tokens decoded{saving}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**self._asdict(), "saving": self.saving}


def cost(nodes: Iterable[tuple[Node, int]], spent: Mapping[str, int], waves: Mapping[str, int], samples: int) -> Cost:
    """The cost of distinct (node, characters left behind it), of which `spent` attempts were drawn to decide."""
    completions = decoded = prefilled = audited = 0
    drawn_left = left = prompt = 0
    count = seen = 0
    for node, behind in nodes:
        used = spent.get(node.key, 0)
        mine = [node.completions[attempt] for attempt in range(used) if attempt in node.completions]
        completions += len(mine)
        audited += len(node.completions) - len(mine)
        decoded += sum(completion.tokens for completion in mine)
        drawn_left += behind * len(mine)
        left += behind
        count += 1
        if mine:
            prompt += mine[0].prompt_tokens
            prefilled += mine[0].prompt_tokens * waves.get(node.key, 1)
            seen += 1
    per_character = decoded / drawn_left if drawn_left else 0.0
    per_prompt = prompt / seen if seen else 0.0
    return Cost(completions, decoded, prefilled, samples * left * per_character, samples * count * per_prompt, audited)
