"""Cases of a reward source: golds that must be accepted, cheats that must not, and inputs nobody can judge."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, ValidationError

from assay.component import BuildContext, Component
from assay.contracts import Candidate, Contract, Fault, Message, Rollout, Task, Turn, Verdict
from assay.errors import ConfigError
from assay.protocols import RewardSource


class UpperBound(Contract):
    """The verdict is a score of at most so much, or no score at all: for cheats against a graded source."""

    at_most: float
    or_masked: bool = False
    """Whether an abstention by our fault is as good: a judge that cannot be read decides nothing, for or against."""


class LowerBound(Contract):
    """The verdict is a score of at least so much: for golds of a graded source, and for faults that it must count."""

    at_least: float
    or_masked: bool = False
    """Whether an abstention by our fault is as good."""


Expectation = Literal["accept", "reject", "abstain"] | float | UpperBound | LowerBound


class Case(Contract):
    """One answer to one task, and what a source must say of it."""

    text: str
    """The response."""
    expect: Expectation
    """`accept`: the highest value; `reject`: the lowest value, or an abstention that is the candidate's doing;
    `abstain`: no score; a number: that value; `{"at_most": x}`: at most x, or no score; `{"at_least": x}`:
    at least x. Bounds with `"or_masked": true` also take an abstention that is our fault."""
    reference: JsonValue = None
    """The gold answer."""
    facts: dict[str, JsonValue] = Field(default_factory=dict)
    """What else the task tells the verifier."""
    prompt: str = "?"
    """What the policy was asked."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the source for this case, above those of the suite."""
    kind: str = ""
    """A short name of the attack or of the form, for the report."""
    reason: str | None = None
    """For an abstention: the reason that must be given."""
    fault: Fault | None = None
    """For an abstention: whose doing it must be."""

    @property
    def task(self) -> Task:
        """The case's task."""
        return Task(
            id="case",
            messages=(Message(role="user", content=self.prompt),),
            reference=self.reference,
            facts=self.facts,
        )


def read_cases(path: Path) -> list[Case]:
    """The cases of a JSONL file, one a line.

    Raises:
        ConfigError: the file is missing or empty, or a line is no case; the line is named.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the cases cannot be read: {error}. Give a JSONL file of cases.") from error
    cases: list[Case] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("//"):
            continue
        try:
            cases.append(Case.model_validate(json.loads(line)))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{path}:{number}: {where}: {first['msg']}. A case needs 'text' and 'expect'.") from error
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: not JSON: {error}. Write one JSON object a line.") from error
    if not cases:
        raise ConfigError(f"{path}: no cases; found no line with a JSON object. Add golds and cheats, one a line.")
    return cases


def candidate(task: Task, text: str, *, token_ids: Sequence[int] | None = None) -> Candidate:
    """A candidate with one response of one turn."""
    ids = None if token_ids is None else tuple(token_ids)
    turn = Turn(text=text, token_ids=ids)
    rollout = Rollout(id="case", task_id=task.id, group_id="case", turns=(turn,))
    return Candidate(task=task, rollout=rollout)


def judge_text(
    component: Component[Any, RewardSource],
    text: str,
    *,
    reference: JsonValue = None,
    facts: Mapping[str, JsonValue] | None = None,
    prompt: str = "?",
    token_ids: Sequence[int] | None = None,
    options: Mapping[str, Any] | None = None,
    context: BuildContext | None = None,
) -> Verdict:
    """The verdict of a component on one text, judged in this process without a guard: for tests of a verifier."""
    source = component.build(component.config(**(options or {})), context or BuildContext())
    messages = (Message(role="user", content=prompt),)
    task = Task(id="case", messages=messages, reference=reference, facts=dict(facts or {}))

    async def judge() -> Verdict:
        try:
            (verdict,) = await source.judge([candidate(task, text, token_ids=token_ids)])
            return verdict
        finally:
            await source.aclose()

    return asyncio.run(judge())
