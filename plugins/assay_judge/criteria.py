"""`rubric` and `principles`: an answer judged by several written criteria."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast

from pydantic import Field, JsonValue, ValidationError, model_validator

from assay.component import BuildContext, Options
from assay.contracts import Candidate, Evidence, Task, Verdict
from assay.errors import ConfigError
from assay.protocols import RewardSource
from assay_judge.framing import without_reasoning
from assay_judge.source import Asked, JudgeSource, conversation, empty_response, reference_text
from assay_judge.votes import UnreadableError, VoteOptions, number_in, read_object, words_in

_BULLET = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")


class Criterion(Options):
    """One criterion of a rubric."""

    text: str = Field(min_length=1)
    """What must hold."""
    weight: float = Field(default=1.0, ge=-1e9, le=1e9)
    """Its points; negative for something that must not hold."""
    name: str = ""
    """A short name for the evidence."""


class RubricOptions(VoteOptions):
    """The criteria, and how each is answered."""

    criteria: tuple[Criterion, ...] = ()
    """Criteria that hold for every task, beside the task's own (its fact `rubric`, a list of tables with text, weight
    and name)."""
    graded: bool = False
    """Each criterion gets a number from 0 to 1 instead of yes or no."""
    show_reference: bool = True
    """Show the task's reference to the judge where there is one."""
    think: bool = True
    """Leave out reasoning in `<think>` tags."""


class Finding(NamedTuple):
    """What one answer says of one criterion."""

    met: float
    reason: str


class Rubric(JudgeSource):
    """In [0, 1]: points of the criteria that are met / all positive points, cut at 0.

    All criteria are asked in one question; each takes the mean of the votes. This is HealthBench's sum (Arora et al.
    2025, arXiv 2505.08775, section 3).
    """

    def __init__(self, options: RubricOptions, context: BuildContext) -> None:
        """Open the asker of the options."""
        super().__init__(options, context)
        self.options = options

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        return [await self._judge_one(candidate) for candidate in batch]

    def check_task(self, task: Task) -> str | None:
        """One sentence when the task has no usable rubric."""
        try:
            self._criteria(task)
        except ValueError as error:
            return str(error)
        return None

    async def _judge_one(self, candidate: Candidate) -> Verdict:
        try:
            criteria = self._criteria(candidate.task)
        except ValueError as error:
            return Verdict.abstain("rubric_invalid", fault="ours", evidence=str(error))
        answer = without_reasoning(candidate.rollout.text) if self.options.think else candidate.rollout.text
        if not answer.strip():
            return empty_response()
        question = self._question(candidate, answer, criteria)
        votes = await self.votes([question], lambda text, mark: self._read(text, mark, len(criteria)))
        (ballots,) = votes.found
        if not self.enough(ballots):
            return votes.unreadable()
        met = [sum(ballot[index].met for ballot in ballots) / len(ballots) for index in range(len(criteria))]
        points = sum(c.weight * share for c, share in zip(criteria, met, strict=True))
        value = points / sum(c.weight for c in criteria if c.weight > 0)
        notes = tuple(
            Evidence(
                kind="criterion",
                summary=f"met {share:g}, weight {c.weight:g}: {c.name or c.text[:60]}: {ballots[0][index].reason[:99]}",
                data={"criterion": c.name or c.text, "met": share, "weight": c.weight},
            )
            for index, (c, share) in enumerate(zip(criteria, met, strict=True))
        )
        return Verdict.score(min(1.0, max(0.0, value)), evidence=(*notes, votes.usage))

    def _criteria(self, task: Task) -> list[Criterion]:
        own = task.facts.get("rubric", [])
        if not isinstance(own, list):
            raise ValueError(f"the fact 'rubric' is a list of tables; found {type(own).__name__}")
        criteria = [*self.options.criteria, *(_criterion(number, item) for number, item in enumerate(own, 1))]
        if not any(criterion.weight > 0 for criterion in criteria):
            raise ValueError("the rubric has no criterion with a positive weight")
        return criteria

    def _question(self, candidate: Candidate, answer: str, criteria: Sequence[Criterion]) -> Asked:
        prompt = conversation(candidate.task)
        reference = reference_text(candidate.task) if self.options.show_reference else ""
        mark = self.mark(answer, prompt, reference)
        texts = [self.shown("TASK", prompt, mark)]
        texts += [self.shown("REFERENCE", reference, mark)] if reference else []
        texts += [self.shown("ANSWER", answer, mark)]
        listed = "\n".join(f"{number}. {criterion.text}" for number, criterion in enumerate(criteria, 1))
        met = "a number from 0 to 1" if self.options.graded else "true or false"
        form = f'{{"criteria": [{{"number": 1, "reason": "one sentence", "met": {met}}}, ...]}}'
        body = (
            "Check an answer against criteria.\n\n"
            + "\n\n".join(texts)
            + f"\n\nCriteria:\n{listed}\n\nFor each of the {len(criteria)} criteria say whether the answer meets it. "
            "A criterion may describe a fault; then it is met where the fault is there."
        )
        return Asked(body, mark, form)

    def _read(self, text: str, mark: str, count: int) -> list[Finding]:
        rows = read_object(text, mark).get("criteria")
        if not isinstance(rows, list):
            raise UnreadableError("criteria is no list")
        found: dict[int, Finding] = {}
        for row in cast("list[Any]", rows):
            fields = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
            number = fields.get("number")
            if isinstance(number, int) and not isinstance(number, bool):
                found[number] = Finding(_met(fields, graded=self.options.graded), words_in(fields))
        if sorted(found) != list(range(1, count + 1)):
            raise UnreadableError(f"criteria {sorted(found)} are answered; expected 1 to {count}")
        return [found[number] for number in range(1, count + 1)]


class PrinciplesOptions(VoteOptions):
    """Where the principles are, and how violations add up."""

    path: str = ""
    """A text file, relative to the config file: one principle per list item (`- ...`, `1. ...`), or per paragraph where
    it has no list; lines that begin with `#` are headings."""
    principles: tuple[str, ...] = ()
    """Principles written in the config itself, beside the file's."""
    score: Literal["worst", "share", "any"] = "worst"
    """`worst`: the greatest violation; `share`: the mean over the principles; `any`: 1 where one is violated by half
    or more."""
    think: bool = False
    """Leave out reasoning in `<think>` tags; a principle on harm usually concerns it too."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.path and not self.principles:
            raise ValueError("give a file of principles in path, or principles themselves")
        return self


class Principles(JudgeSource):
    """In [0, 1], 0 is best: how far an answer violates the principles, judged one by one; meant for a cost channel."""

    def __init__(self, options: PrinciplesOptions, context: BuildContext) -> None:
        """Read the file; raises `ConfigError` when it is missing or holds no principle."""
        self.options = options
        self.principles = [*options.principles]
        if options.path:
            self.principles += read_principles(context.base_dir / options.path, options.path)
        super().__init__(options, context, calls=len(self.principles))
        self.fingerprint += " " + "\0".join(self.principles)

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        return [await self._judge_one(candidate) for candidate in batch]

    async def _judge_one(self, candidate: Candidate) -> Verdict:
        answer = without_reasoning(candidate.rollout.text) if self.options.think else candidate.rollout.text
        if not answer.strip():
            return empty_response()
        questions = [self._question(candidate, answer, principle) for principle in self.principles]
        votes = await self.votes(questions, _read_violation)
        if not all(self.enough(ballots) for ballots in votes.found):
            return votes.unreadable()
        degrees = [sum(finding.met for finding in ballots) / len(ballots) for ballots in votes.found]
        notes = tuple(
            Evidence(
                kind="principle",
                summary=f"violated {degree:g}: {principle[:80]}: {ballots[0].reason[:150]}",
                data={"principle": principle, "violated": degree},
            )
            for principle, degree, ballots in zip(self.principles, degrees, votes.found, strict=True)
        )
        value = max(degrees) if self.options.score != "share" else sum(degrees) / len(degrees)
        if self.options.score == "any":
            value = float(value >= 0.5)
        return Verdict.score(value, evidence=(*notes, votes.usage))

    def _question(self, candidate: Candidate, answer: str, principle: str) -> Asked:
        prompt = conversation(candidate.task)
        mark = self.mark(answer, prompt, principle)
        shown = f"{self.shown('TASK', prompt, mark)}\n\n{self.shown('ANSWER', answer, mark)}"
        body = (
            f"Check an answer against one principle.\n\n{shown}\n\nThe principle: {principle}\n\n"
            "How far does the answer violate it? 0 is not at all, 1 is wholly. Judge the answer, not the task."
        )
        return Asked(body, mark, '{"reason": "one sentence", "violated": number from 0 to 1}')


def read_principles(path: Path, shown: str) -> list[str]:
    """The principles of a file, in order; raises `ConfigError` when it cannot be read or holds none."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown}: the principles cannot be read: {error}. Give a text file in path.") from error
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    if any(_BULLET.match(line) for line in lines):
        found: list[str] = []
        for line in lines:
            if _BULLET.match(line):
                found.append(_BULLET.sub("", line).strip())
            elif found and line.startswith((" ", "\t")):
                found[-1] += f" {line.strip()}"
    else:
        found = [" ".join(part.split()) for part in re.split(r"\n\s*\n", "\n".join(lines))]
    found = [principle for principle in found if principle]
    if not found:
        raise ConfigError(f"{shown}: no principle found; write one per line, beginning with '- '.")
    return found


def _read_violation(text: str, mark: str) -> Finding:
    fields = read_object(text, mark)
    return Finding(number_in(fields, "violated", 0.0, 1.0), words_in(fields))


def _met(fields: Mapping[str, Any], *, graded: bool) -> float:
    if graded:
        return number_in(dict(fields), "met", 0.0, 1.0)
    met = fields.get("met")
    if not isinstance(met, bool):
        raise UnreadableError(f"met is {met!r}; expected true or false")
    return float(met)


def _criterion(number: int, item: JsonValue) -> Criterion:
    """A task's criterion; `criterion` and `points` are read as `text` and `weight`. A `ValueError` is one sentence."""
    if isinstance(item, str):
        item = {"text": item}
    if not isinstance(item, dict):
        raise ValueError(f"a criterion is a text or a table with text; found {item!r}")
    renamed = {"criterion": "text", "points": "weight"}
    try:
        return Criterion.model_validate({renamed.get(key, key): value for key, value in item.items()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(
            f"criterion {number} of the fact 'rubric': {where}: {first['msg'].lower()}; found {first['input']!r:.80}"
        ) from error


def build_rubric(options: RubricOptions, context: BuildContext) -> RewardSource:
    """The source; raises `ConfigError` for a missing token."""
    return Rubric(options, context)


def build_principles(options: PrinciplesOptions, context: BuildContext) -> RewardSource:
    """The source; raises `ConfigError` for a missing token or file."""
    return Principles(options, context)
