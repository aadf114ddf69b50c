"""What a client sends and is told, as JSON."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from assay.contracts import (
    Fault,
    Finish,
    Judgement,
    Message,
    RewardPart,
    Rollout,
    Sampling,
    Status,
    Task,
    Turn,
    WeightSpan,
)
from assay.remote.items import task_id_of

Identifier = Annotated[str, Field(min_length=1, max_length=1024)]


class Wire(BaseModel):
    """A body or a part of one: closed to unknown fields, finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def _either(one: str, other: str) -> dict[str, JsonValue]:
    """For the description: exactly one of two fields is given."""

    def only(given: str, left_out: str) -> JsonValue:
        return {"required": [given], "properties": {given: {"not": {"type": "null"}}, left_out: {"type": "null"}}}

    return {"oneOf": [only(one, other), only(other, one)]}


class AskedTask(Wire):
    """A task as `assay.Task` writes it; `prompt` may stand for one message of the user, and the id may be left out."""

    model_config = ConfigDict(json_schema_extra=_either("prompt", "messages"))

    id: Identifier | None = None
    """Default: made of the content."""
    prompt: str | None = None
    """One message of the user; in place of `messages`."""
    messages: Annotated[tuple[Message, ...], Field(min_length=1)] | None = None
    reference: JsonValue = None
    """The gold answer."""
    facts: dict[str, JsonValue] = {}
    """Whatever else a verifier needs."""
    tags: tuple[str, ...] = ()
    """Names that the server's `when = { tag = ... }` routes by."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give prompt or messages, and not both")
        return self

    def task(self) -> Task:
        """The task."""
        messages = self.messages or (Message(role="user", content=self.prompt or ""),)
        name = self.id or task_id_of(messages, self.reference, self.facts, self.tags)
        return Task(id=name, messages=messages, reference=self.reference, facts=self.facts, tags=self.tags)


class AskedRollout(Wire):
    """A rollout as `assay.Rollout` writes it; `text` may stand for one turn, and the ids may be left out."""

    model_config = ConfigDict(json_schema_extra=_either("text", "turns"))

    id: Identifier | None = None
    task_id: Identifier | None = None
    group_id: Identifier | None = None
    text: str | None = None
    """The response; in place of `turns`."""
    turns: Annotated[tuple[Turn, ...], Field(min_length=1)] | None = None
    prompt_ids: tuple[int, ...] | None = None
    weight_versions: tuple[WeightSpan, ...] = ()
    finish: Finish = "stop"
    sampling: Sampling = Sampling()

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.text is None) == (self.turns is None):
            raise ValueError("give text or turns, and not both")
        return self

    def rollout(self, name: str, task: Task) -> Rollout:
        """The rollout of `task`, called `name` inside the server."""
        return Rollout(
            id=name,
            task_id=task.id,
            group_id=self.group_id or task.id,
            turns=self.turns or (Turn(text=self.text or ""),),
            prompt_ids=self.prompt_ids,
            weight_versions=self.weight_versions,
            finish=self.finish,
            sampling=self.sampling,
        )


class AskedItem(Wire):
    """One answer to be judged."""

    id: Identifier
    """The client's own name for it, unique within the request; comes back unchanged."""
    task: AskedTask
    rollout: AskedRollout


class ScoreRequest(Wire):
    """Answers to be judged together."""

    items: Annotated[tuple[AskedItem, ...], Field(min_length=1)]
    rewards: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Names of the server's rewards that are asked; default all."""
    deadline_s: Annotated[float, Field(gt=0)] | None = None
    """Time after which unfinished items are told as failed; at most the server's own, which is the default."""
    explain: bool = False
    """Whether every item also gets its verdicts with evidence and provenance."""

    @model_validator(mode="after")
    def _unique(self) -> Self:
        seen: set[str] = set()
        for item in self.items:
            if item.id in seen:
                raise ValueError(f"the id {item.id!r} stands for two items; ids must be unique")
            seen.add(item.id)
        return self


class ScoredItem(Wire):
    """What one answer came to."""

    id: str
    status: Status
    value: float | None
    """A number if and only if the status is scored."""
    reward: float | None
    """What a trainer may use: the value, or the sum with the scores declared for a candidate's faults; null is masked
    and never 0."""
    fault: Fault | None
    """Whose doing it is that there is no value: the candidate's or ours."""
    reason: str | None
    """Why there is no value."""
    parts: tuple[RewardPart, ...] = ()
    """What each reward contributed."""
    verdicts: tuple[Judgement, ...] | None = None
    """Each source's verdict with evidence, version, attempt and latency, where `explain` asked for them."""


class ScoreAnswer(Wire):
    """One answer per item, in the order of the request."""

    items: tuple[ScoredItem, ...]


class SourceFacts(Wire):
    """One source below a reward."""

    name: str
    version: str
    """Of the distribution that it came from."""
    fingerprint: str
    """Changes with anything that can change a verdict."""
    scope: Literal["rollout", "group"]
    timeout_s: float
    healthy: bool
    """False while more of its last 50 verdicts failed than the server allows; its verdicts are then masked."""
    counts: dict[str, float]
    """Verdicts since the start: scored, abstained, failed, of them cached; and kills."""


class RewardFacts(Wire):
    """One reward that may be asked by its name."""

    name: str
    weight: float
    channel: str
    value_range: tuple[float, float]
    sources: tuple[SourceFacts, ...]


class SourcesAnswer(Wire):
    """Everything that this server judges with."""

    rewards: tuple[RewardFacts, ...]


class Health(Wire):
    """Whether requests are taken."""

    status: Literal["ok", "draining"]
    held: int
    """Items under way."""
    queue: int
    """Most items that may be."""


class FieldProblem(Wire):
    """One thing that is wrong with a body."""

    field: str
    """Where, for example `items[0].task.prompt`."""
    message: str


class Problem(Wire):
    """Why a request was refused."""

    detail: str
    """One sentence: where, what is wrong, what to do."""
    errors: tuple[FieldProblem, ...] = ()
