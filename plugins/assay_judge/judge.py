"""`judge`: a model grades one answer, on a scale, by a template."""

import math
import re
from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from assay.component import BuildContext
from assay.contracts import Candidate, Evidence, Verdict
from assay.protocols import RewardSource
from assay_judge.framing import without_reasoning
from assay_judge.source import Asked, JudgeSource, conversation, empty_response, reference_text
from assay_judge.votes import Ballot, VoteOptions, combined, number_in, read_object, words_in

TEMPLATE = """\
Grade an answer.

{prompt}

{reference}

{answer}

{question}
The grade is a number from {low} (worst) to {high} (best)."""
_FIELD = re.compile(r"\{(prompt|reference|answer|question|low|high)\}")


class JudgeOptions(VoteOptions):
    """What the judge is asked, and on which scale it grades."""

    question: str = "Is the answer correct, complete and to the point? If a reference is given, it is right."
    """What the grade is about."""
    template: str = TEMPLATE
    """The user's message; `{prompt}`, `{reference}` and `{answer}` become framed texts, `{question}`, `{low}` and
    `{high}` what the options say. The demand for JSON with a key is added after it."""
    low: float = 0.0
    """Worst grade."""
    high: float = 10.0
    """Best grade; a grade g gives the value (g - low) / (high - low)."""
    show_reference: bool = True
    """Show the task's reference to the judge where there is one."""
    think: bool = Field(default=True)
    """Leave out reasoning in `<think>` tags."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if "{answer}" not in self.template:
            raise ValueError("the template has no {answer}, so the judge would not see it")
        if not 0 < self.high - self.low < math.inf:
            raise ValueError(f"the scale ends before it starts, or is too long: low {self.low:g}, high {self.high:g}")
        return self


class Judge(JudgeSource):
    """In [0, 1]: the grade that the votes agree on; evidence holds every vote, and what it took."""

    def __init__(self, options: JudgeOptions, context: BuildContext) -> None:
        """Open the asker of the options."""
        super().__init__(options, context)
        self.options = options

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        return [await self._judge_one(candidate) for candidate in batch]

    async def _judge_one(self, candidate: Candidate) -> Verdict:
        options = self.options
        answer = without_reasoning(candidate.rollout.text) if options.think else candidate.rollout.text
        if not answer.strip():
            return empty_response()
        votes = await self.votes([self._question(candidate, answer)], self._read)
        (ballots,) = votes.found
        if not self.enough(ballots):
            return votes.unreadable()
        grade = combined([ballot.grade for ballot in ballots], options.combine)
        value = (grade - options.low) / (options.high - options.low)
        notes = tuple(
            Evidence(
                kind="judge",
                summary=f"grade {ballot.grade:g} of {options.high:g}: {ballot.reason[:200]}",
                data={"grade": ballot.grade, "reason": ballot.reason},
            )
            for ballot in ballots
        )
        agreement = sum(ballot.grade == ballots[0].grade for ballot in ballots) / len(ballots)
        return Verdict.score(min(1.0, max(0.0, value)), evidence=(*notes, votes.usage), confidence=agreement)

    def _question(self, candidate: Candidate, answer: str) -> Asked:
        options = self.options
        prompt, reference = conversation(candidate.task), reference_text(candidate.task)
        mark = self.mark(answer, prompt, reference)
        shown_reference = options.show_reference and reference
        fields = {
            "prompt": self.shown("TASK", prompt, mark),
            "reference": self.shown("REFERENCE", reference, mark) if shown_reference else "",
            "answer": self.shown("ANSWER", answer, mark),
            "question": options.question,
            "low": f"{options.low:g}",
            "high": f"{options.high:g}",
        }
        # One pass, so that a brace inside a text is never taken for a field.
        body = _FIELD.sub(lambda match: fields[match[1]], options.template)
        return Asked(body, mark, '{"reason": "one or two sentences", "grade": number}')

    def _read(self, text: str, mark: str) -> Ballot:
        fields = read_object(text, mark)
        return Ballot(number_in(fields, "grade", self.options.low, self.options.high), words_in(fields))


def build_judge(options: JudgeOptions, context: BuildContext) -> RewardSource:
    """The source; raises `ConfigError` for a missing token."""
    return Judge(options, context)
