"""`judge-first-error`: a model names the first wrong step of an answer that a rule found wrong."""

import statistics
from collections.abc import Sequence

from pydantic import Field

from assay.component import BuildContext
from assay.contracts import Candidate, Evidence, Span, StepScore, Verdict
from assay.protocols import RewardSource
from assay.steps import SplitterOptions, step_spans
from assay_judge.source import Asked, JudgeSource, conversation, empty_response, reference_text
from assay_judge.votes import Ballot, UnreadableError, VoteOptions, number_in, read_object, words_in

QUESTION = """\
An answer to the task ends in a wrong result. Find the first step in it that is wrong.

{task}

{reference}

{steps}

Name the number of the first wrong step, from 1 to {count}, or 0 if every step is right."""


class FirstErrorOptions(VoteOptions):
    """How an answer is cut into steps."""

    splitter: SplitterOptions = SplitterOptions()
    """Where a step ends; by default at a blank line."""
    max_steps: int = Field(default=64, ge=1)
    """An answer of more steps is not judged."""
    show_reference: bool = True
    """Show the task's reference to the judge where there is one."""


class FirstErrorJudge(JudgeSource):
    """In [0, 1): the share of steps before the first wrong one, the relative trajectory score of SGPO.

    Ask it about wrong answers, in a channel of its own that the shaper `recolour` reads (arXiv 2505.11595). Where the
    judge finds no wrong step the last one is taken for it, (n - 1) / n, since the result is wrong. Of several votes the
    median counts, the earlier step of two. Step scores are 1 before the first wrong step and 0 at it; steps after it
    have none.
    """

    def __init__(self, options: FirstErrorOptions, context: BuildContext) -> None:
        """Open the asker of the options."""
        super().__init__(options, context)
        self.options = options

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        return [await self._judge_one(candidate) for candidate in batch]

    async def _judge_one(self, candidate: Candidate) -> Verdict:
        steps = step_spans(candidate.rollout.text, self.options.splitter)
        if not steps:
            return empty_response()
        if len(steps) > self.options.max_steps:
            detail = f"the answer has {len(steps)} steps; at most {self.options.max_steps} are judged"
            return Verdict.abstain("too_many_steps", evidence=detail)
        votes = await self.votes([self._question(candidate, steps)], lambda text, mark: _read(text, mark, len(steps)))
        (ballots,) = votes.found
        if not self.enough(ballots):
            return votes.unreadable()
        first = int(statistics.median_low([ballot.grade for ballot in ballots]))
        right = len(steps) if first > len(steps) else first - 1
        notes = tuple(
            Evidence(
                kind="judge",
                summary=f"first wrong step {ballot.grade:.0f} of {len(steps)}: {ballot.reason[:200]}"
                if ballot.grade <= len(steps)
                else f"no wrong step among {len(steps)}: {ballot.reason[:200]}",
                data={"first_error": None if ballot.grade > len(steps) else int(ballot.grade) - 1},
            )
            for ballot in ballots
        )
        agreement = sum(int(ballot.grade) == first for ballot in ballots) / len(ballots)
        scores = tuple(
            StepScore(span=span, value=float(index < right)) for index, span in enumerate(steps[: right + 1])
        )
        value = min(right, len(steps) - 1) / len(steps)
        return Verdict.score(value, evidence=(*notes, votes.usage), steps=scores, confidence=agreement)

    def _question(self, candidate: Candidate, steps: Sequence[Span]) -> Asked:
        prompt, reference = conversation(candidate.task), reference_text(candidate.task)
        mark = self.mark(candidate.rollout.text, prompt, reference)
        body = QUESTION.format(
            task=self.shown("TASK", prompt, mark),
            reference=self.shown("REFERENCE", reference, mark) if self.options.show_reference and reference else "",
            steps="\n\n".join(
                self.shown(f"STEP {n}", candidate.rollout.text[step.start : step.end], mark)
                for n, step in enumerate(steps, 1)
            ),
            count=len(steps),
        )
        return Asked(body, mark, '{"reason": "one or two sentences", "first_wrong_step": number}')


def _read(text: str, mark: str, count: int) -> Ballot:
    """The vote; none wrong is `count + 1`, so that it stands behind every step."""
    fields = read_object(text, mark)
    step = number_in(fields, "first_wrong_step", 0, count)
    if step != int(step):
        raise UnreadableError(f"first_wrong_step is {step!r}; expected a whole number")
    return Ballot(step or count + 1, words_in(fields))


def build_first_error(options: FirstErrorOptions, context: BuildContext) -> RewardSource:
    """The source; raises `ConfigError` for a missing token."""
    return FirstErrorJudge(options, context)
