"""Verdicts after a written critique: K critiques are drawn, and the score is the mean over the readable ones.

In memory the same model writes and judges, and each critique counts with its p(yes). Through an engine only texts come
back, so each readable critique counts 1 or 0. A critique without a readable verdict is no vote; none readable abstains.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay.contracts import Candidate, Evidence, Limits, Message, RolloutRequest, Sampling, Span, Task, Verdict
from assay_prms.aggregate import aggregate
from assay_prms.generative import critique_prompt, verdict_of
from assay_prms.render import conversation
from assay_prms.scoring import TOKEN_BUDGET, Response, Scorer, Scores
from assay_prms.spec import ScorerSpec

if TYPE_CHECKING:
    from assay.protocols import RolloutEngine
    from assay.training.model import PolicyModel
    from assay_prms.heads import ScoreHead

BATCH = 16
"""Critiques that are drawn at once."""


class CritiqueScorer(Scorer):
    """Critiques from the model itself, each judged by p(yes) behind its last question."""

    def score(self, responses: Sequence[Response]) -> list[Scores]:
        """One number per response, or the reason why none of its critiques could be read."""
        spec, found = self.spec, list[Scores]()
        for response in responses:
            if not response.text.strip():
                found.append(Scores((), (), "empty_response"))
                continue
            prompt = self.encode.prompt(critique_prompt(response.prompt, response.text, spec.instruction))
            if self.longest is not None and len(prompt) + spec.critique_tokens > self.longest:
                found.append(Scores((), (), f"too long: {len(prompt):,} tokens and a critique"))
                continue
            cut = [text for text in self._critiques(prompt, response.text) if spec.question in text]
            asked = [text[: text.rfind(spec.question) + len(spec.question)] for text in cut]
            if not asked:
                reason = f"judge_unreadable: none of {spec.critiques} critiques came to a verdict"
                found.append(Scores((), (), reason, "ours"))
                continue
            chances = self.word_chances([(*prompt, *self.encode.ids(text)) for text in asked])
            span = Span(start=0, end=len(response.text.rstrip()))
            found.append(Scores((span,), (aggregate(chances, "mean"),)))
        return found

    def _critiques(self, prompt: tuple[int, ...], text: str) -> list[str]:
        """K sampled critiques, the same for the same response."""
        import torch

        spec, model = self.spec, self.policy.model
        ends = sorted(self.policy.end_ids)
        ids = torch.tensor([prompt], device=next(model.parameters()).device)
        drawn: list[str] = []
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed_of(text))
            for _ in itertools.takewhile(lambda _: len(drawn) < spec.critiques, itertools.count()):
                count = min(BATCH, spec.critiques - len(drawn))
                made = model.generate(
                    ids.expand(count, -1), attention_mask=torch.ones_like(ids).expand(count, -1), do_sample=True,
                    temperature=spec.critique_temperature, top_k=0, top_p=1.0, max_new_tokens=spec.critique_tokens,
                    eos_token_id=ends, pad_token_id=self.policy.pad_id,
                )  # fmt: skip
                tails = made[:, len(prompt) :].tolist()
                drawn.extend(self.policy.tokenizer.decode(tail, skip_special_tokens=True) for tail in tails)
        return drawn


def scorer_of(
    policy: PolicyModel,
    spec: ScorerSpec,
    *,
    head: ScoreHead | None = None,
    reference: PolicyModel | None = None,
    token_budget: int = TOKEN_BUDGET,
) -> Scorer:
    """The scorer that a description asks for; see `Scorer`."""
    made = CritiqueScorer if spec.kind == "critique" else Scorer
    return made(policy, spec, head=head, reference=reference, token_budget=token_budget)


class EngineVerifier:
    """A reward source that asks an engine for critiques and reads their last word."""

    def __init__(self, engine: RolloutEngine, spec: ScorerSpec, *, timeout_s: float, name: str) -> None:
        """A source over `engine`, which is closed with it."""
        self.engine = engine
        self.spec = spec
        self.fingerprint = name
        self.limits = Limits(
            max_batch=8, max_wait_s=0.02, concurrency=4, timeout_s=timeout_s, memory_mib=None, deterministic=False
        )
        self._asked = itertools.count()

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate; all critiques of the batch are asked for at once."""
        spec = self.spec
        requests: list[RolloutRequest] = []
        owner: dict[str, int] = {}
        for index, candidate in enumerate(batch):
            text = candidate.rollout.text
            if candidate.rollout.truncated or not text.strip():
                continue
            asked = critique_prompt(conversation(candidate), text, spec.instruction)
            task = Task(id=f"verify-{next(self._asked)}", messages=(Message(role="user", content=asked),))
            for vote in range(spec.critiques):
                sampling = Sampling(
                    temperature=spec.critique_temperature,
                    max_new_tokens=spec.critique_tokens,
                    seed=seed_of(text) + vote,
                )
                requests.append(RolloutRequest(id=f"{task.id}-{vote}", task=task, group_id=task.id, sampling=sampling))
                owner[requests[-1].id] = index
        votes: list[list[bool]] = [[] for _ in batch]
        async for rollout in self.engine.generate(requests):
            critique, said = verdict_of(rollout.text, spec.question, spec.yes, spec.no)
            if critique is not None:
                votes[owner[rollout.id]].append(said)
        return [self._verdict(candidate, found) for candidate, found in zip(batch, votes, strict=True)]

    def _verdict(self, candidate: Candidate, votes: Sequence[bool]) -> Verdict:
        if candidate.rollout.truncated:
            return Verdict.abstain("truncated", evidence="the response was cut off before its end")
        if not candidate.rollout.text.strip():
            return Verdict.abstain("empty_response")
        asked = self.spec.critiques
        if not votes:
            return Verdict.abstain("judge_unreadable", fault="ours", evidence=f"none of {asked} critiques was readable")
        share = sum(votes) / len(votes)
        note = Evidence(kind="judge", summary=f"{sum(votes)} of {len(votes)} readable critiques (of {asked}) say yes")
        return Verdict.score(share, evidence=note, confidence=max(share, 1 - share))

    async def aclose(self) -> None:
        """Close the engine."""
        await self.engine.aclose()


def seed_of(text: str) -> int:
    """A seed that is the same for the same response."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()) >> 1
