"""Reward models as reward sources: batches go to a thread, so that a forward never holds up the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from assay.contracts import Candidate, Evidence, Limits, StepScore, Verdict
from assay_prms.aggregate import Credit, aggregate, credit
from assay_prms.render import conversation

if TYPE_CHECKING:
    from pydantic import JsonValue

    from assay_prms.scoring import Response, Scores
    from assay_prms.spec import ScorerSpec

log = logging.getLogger(__name__)

CREDIT_TEMPERATURE = 0.1
FLOOR = -20.0
"""Least score of a raw model: far below any that training gives, and no such number that it alone decides a batch."""


class Judging(Protocol):
    """What gives scores; `Scorer`, a scripted one in tests."""

    @property
    def spec(self) -> ScorerSpec:
        """How to read its numbers."""
        ...

    def score(self, responses: Sequence[Response]) -> list[Scores]:
        """Scores in order; may take long."""
        ...


class RewardModelSource:
    """Step scores with spans, and their aggregate; abstains on truncated, empty and unreadable responses.

    Raw scores have no lowest value, but a response that cannot be judged by its own doing must be worth something: they
    are cut at `floor`, which the panel gives to such a response unless the entry's `on_candidate_fault` says otherwise.

    With `credit` other than `none` the steps carry what each is paid and the value is 0, so that what the optimizer
    adds up is the credit and nothing twice; the aggregate is then in the evidence.
    """

    def __init__(
        self,
        scorer: Judging,
        *,
        credit: Credit = "none",
        floor: float = FLOOR,
        max_batch: int = 64,
        timeout_s: float = 300.0,
        device: str | None = None,
        fingerprint: str = "",
        version: int = 0,
    ) -> None:
        """A source over `scorer`."""
        self.scorer = scorer
        self.credit: Credit = credit
        self.fingerprint = fingerprint
        self.version = version
        self.floor = floor if scorer.spec.is_raw else 0.0
        low, high = max(scorer.spec.value_range[0], self.floor), scorer.spec.value_range[1]
        if credit != "none":
            low, high = min(low, -1.0), max(high, 1.0)
        if credit == "sum":
            log.warning('credit = "sum" pays for every good step, so padding with good steps pays; "min" does not')
        self.limits = Limits(
            max_batch=max_batch, max_wait_s=0.02, concurrency=2, timeout_s=timeout_s, value_range=(low, high),
            memory_mib=None, device=device,
        )  # fmt: skip
        self._busy = asyncio.Lock()

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order; a score that is not finite raises, so that the core writes failed."""
        from assay_prms.scoring import Response

        ready = [index for index, candidate in enumerate(batch) if not candidate.rollout.truncated]
        responses = [Response(conversation(batch[index]), batch[index].rollout.text) for index in ready]
        async with self._busy:
            scores = await asyncio.to_thread(self.scorer.score, responses)
        found = [Verdict.abstain("truncated", evidence="the response was cut off before its end")] * len(batch)
        for index, one in zip(ready, scores, strict=True):
            found[index] = self.verdict(one)
        return found

    def verdict(self, scores: Scores) -> Verdict:
        """What the scores come to."""
        if scores.reason is not None:
            return Verdict.abstain(scores.reason[:200], fault=scores.fault)
        if not scores.values or len(scores.values) != len(scores.spans):
            return Verdict.abstain(f"{len(scores.values)} scores for {len(scores.spans)} steps", fault="ours")
        spec = self.scorer.spec
        scores = scores._replace(values=tuple(max(value, self.floor) for value in scores.values))
        whole = max(aggregate(scores.values, spec.aggregation), self.floor)
        evidence = self._evidence(scores, whole)
        if self.credit == "none":
            steps = zip(scores.spans, scores.values, strict=True)
            return Verdict.score(
                whole, steps=tuple(StepScore(span=span, value=value) for span, value in steps), evidence=evidence
            )
        signed = list(scores.values) if spec.is_raw else [2 * value - 1 for value in scores.values]
        parts = credit(signed, self.credit, temperature=CREDIT_TEMPERATURE)
        paid = tuple(StepScore(span=span, value=part) for span, part in zip(scores.spans, parts, strict=True))
        return Verdict.score(0.0, steps=paid, credit=True, evidence=evidence)

    def _evidence(self, scores: Scores, whole: float) -> tuple[Evidence, ...]:
        spec = self.scorer.spec
        lowest = min(range(len(scores.values)), key=lambda index: scores.values[index])
        summary = f"{spec.aggregation} of {len(scores.values)} steps {whole:.3f}; lowest is step {lowest + 1}"
        data: dict[str, JsonValue] = {
            "aggregate": whole,
            "version": self.version,
            "first_below_threshold": None,
            "threshold": spec.threshold,
        }
        if spec.threshold is not None:
            data["first_below_threshold"] = next(
                (index for index, value in enumerate(scores.values) if value < spec.threshold), None
            )
        return (Evidence(kind="reward_model", summary=summary, data=data),)

    async def aclose(self) -> None:
        """Nothing to close."""
