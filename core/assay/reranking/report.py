"""The report of `assay rerank`: every scorer and aggregation on the same pools, majority always beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.reports.best_of import Aggregate, BestOf, best_of
from assay.reranking.judged import JudgedPools, Scorer, Scores


@dataclass(frozen=True, repr=False)
class Reranked:
    """What the scorers are worth on the pools."""

    judged: JudgedPools
    found: Mapping[str, Mapping[Aggregate, BestOf]]
    """Scorer to aggregation to its figures; an aggregation without step scores is left out."""

    def __repr__(self) -> str:
        """How much was ranked, and by what."""
        size = f"{len(self.judged.pools):,} problems, {len(self.judged.responses):,} responses"
        return f"Reranked({size}, by {', '.join(self.found)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "problems": len(self.judged.pools),
            "responses": len(self.judged.responses),
            "verdict": self.judged.verdict,
            "unjudged": dict(self.judged.unjudged),
            "scorers": {
                name: {how: figures.to_dict() for how, figures in rows.items()} for name, rows in self.found.items()
            },
        }


async def rerank(
    judged: JudgedPools,
    scorers: Mapping[str, Scorer],
    *,
    sizes: Sequence[int],
    aggregates: Sequence[Aggregate] = ("value",),
    seed: int = 0,
) -> Reranked:
    """The figures of every scorer for every aggregation.

    Args:
        judged: the pools.
        scorers: by name, asked one after the other.
        sizes: n of best-of-n.
        aggregates: how step scores become one; `value` is the source's own.
        seed: of resamples and of the subsets of votes.
    """
    found: dict[str, dict[Aggregate, BestOf]] = {}
    for name, score in scorers.items():
        scores = await score(judged.responses)
        rows: dict[Aggregate, BestOf] = {
            how: best_of(judged.samples(scores, how), sizes, seed=seed)
            for how in dict.fromkeys(aggregates)
            if how == "value" or _has_steps(scores)
        }
        # A source without step scores has no other aggregate than its own value.
        found[name] = rows or {"value": best_of(judged.samples(scores, "value"), sizes, seed=seed)}
    return Reranked(judged, found)


def _has_steps(scores: Sequence[Scores]) -> bool:
    return any(score.steps for score in scores)
