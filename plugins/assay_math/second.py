"""The reward source `math-verify`: another project's verdict as a second opinion, in a killable worker."""

from collections.abc import Sequence

from pydantic import Field

from assay.component import BuildContext, Options
from assay.contracts import Candidate, Evidence, Limits, ResourceLimits, Task, Verdict
from assay_math.options import MathPolicy
from assay_math.verify import BadGold, bad_gold_verdict, read_gold

TARGET = "assay_math.deep:second_opinion"


class MathVerifyOptions(Options):
    """Budgets of the second opinion."""

    wall_s: float = Field(default=5.0, gt=0)
    """Wall and CPU budget of one response, in seconds."""
    memory_mib: int = Field(default=1024, gt=0)
    """Memory that one response may add, in MiB."""
    max_chars: int = Field(default=65_536, ge=256)
    """Characters at the end of a response that are handed over."""


class MathVerifySource:
    """math-verify's parser and comparison, without its alarm-based timeouts."""

    def __init__(self, options: MathVerifyOptions, context: BuildContext) -> None:
        """A second opinion that runs in `context.workers`; without them it abstains."""
        self.options = options
        self.workers = context.workers
        self.limits = Limits(
            max_batch=1,
            concurrency=2,
            timeout_s=options.wall_s * 4 + 30,
            memory_mib=options.memory_mib,
            limit_fault="candidate",
        )

    def check_task(self, task: Task) -> str | None:
        """Why the task's gold cannot be read, in a sentence, or None when it can."""
        gold = read_gold(task.reference, MathPolicy(), task=task)
        return gold.sentence if isinstance(gold, BadGold) else None

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        return [await self._one(candidate) for candidate in batch]

    async def aclose(self) -> None:
        """Nothing to let go of."""

    async def _one(self, candidate: Candidate) -> Verdict:
        gold = read_gold(candidate.task.reference, MathPolicy(), task=candidate.task)
        if isinstance(gold, BadGold):
            return bad_gold_verdict(gold)
        if self.workers is None:
            return Verdict.abstain(
                "no_workers", fault="ours", evidence="no worker pool was given to run math-verify in"
            )
        limits = ResourceLimits(
            wall_s=self.options.wall_s * 3, cpu_s=self.options.wall_s, memory_mib=self.options.memory_mib
        )
        text = candidate.rollout.text[-self.options.max_chars :]
        answer = await self.workers.call(TARGET, {"gold": gold.answer.source, "answer": text}, limits=limits)
        if answer.status != "ok":
            reason = "limit" if answer.status != "raised" else "undecided"
            return Verdict.abstain(reason, evidence=f"{answer.status}: {answer.detail}")
        value = answer.value if isinstance(answer.value, dict) else {}
        outcome, rule = value.get("outcome"), str(value.get("rule"))
        evidence = Evidence(
            kind="answer", summary=rule, data={"answer": value.get("answer"), "gold": gold.answer.source}
        )
        if outcome in ("equal", "different"):
            return Verdict.score(1.0 if outcome == "equal" else 0.0, evidence=evidence)
        return Verdict.abstain("no_answer", fault="ours" if outcome == "bad_gold" else "candidate", evidence=evidence)
