"""The three-valued verdict: *scored*, *abstained* or *failed*, and only a score is ever a number.

A plugin's author returns `Verdict.score(...)` or `Verdict.abstain(...)` and simply raises when broken; the core alone
writes *failed*. Every verdict without a score says whose doing that is: the *candidate*'s (no answer, an unreadable
one, an exponent tower) or *ours* (a bad gold, a missing tool, a judge that is down). Ours is masked; the candidate's
gets the score that the `rewards` entry declares for it.
"""

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from assay.contracts._contract import Contract, Text, WholeJson
from assay.contracts.rollout import Span

Status = Literal["scored", "abstained", "failed"]
Fault = Literal["candidate", "ours"]


class Evidence(Contract):
    """One piece of what a verdict rests on."""

    kind: Text = "note"
    """A short name: `answer`, `test`, `judge`, `note`, ..."""
    summary: Text
    """One line for a person."""
    data: WholeJson = None
    """The thing itself: a parsed answer, a test log, a judge's text."""


class StepScore(Contract):
    """The score of one step of a response."""

    span: Span
    """Characters of the last turn's text that the score speaks of."""
    value: float


class Verdict(Contract):
    """What one reward source says of one candidate."""

    status: Status
    value: float | None = None
    """A finite number if and only if the status is *scored*."""
    steps: tuple[StepScore, ...] = ()
    """Scores of single steps, in order, where the source gives them."""
    credit: bool = False
    """Whether the steps are rewards of their own, which an optimizer adds to the value; else they only explain it."""
    evidence: tuple[Evidence, ...] = ()
    reason: Text | None = None
    """One line, if and only if not scored."""
    fault: Fault | None = None
    """Whose doing it is, if and only if not scored."""
    confidence: float | None = Field(default=None, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _three_valued(self) -> Self:
        scored = self.status == "scored"
        if scored != (self.value is not None):
            raise ValueError(f"a verdict has a value if and only if it is scored; this one is {self.status}")
        if scored == (self.reason is not None) or scored == (self.fault is not None):
            raise ValueError(f"a verdict has a reason and a fault if and only if not scored; this is {self.status}")
        return self

    @classmethod
    def score(
        cls,
        value: float,
        *,
        evidence: str | Evidence | tuple[Evidence, ...] = (),
        steps: tuple[StepScore, ...] = (),
        credit: bool = False,
        confidence: float | None = None,
    ) -> Self:
        """A scored verdict; `value` must be finite (a pydantic `ValidationError` is raised otherwise)."""
        return cls(
            status="scored",
            value=value,
            evidence=_as_evidence(evidence),
            steps=steps,
            credit=credit,
            confidence=confidence,
        )

    @classmethod
    def abstain(
        cls, reason: str, *, fault: Fault = "candidate", evidence: str | Evidence | tuple[Evidence, ...] = ()
    ) -> Self:
        """A verdict without a number: `reason` in one line, `fault` says whose doing it is."""
        return cls(status="abstained", reason=reason, fault=fault, evidence=_as_evidence(evidence))


class Judgement(Contract):
    """A verdict with the provenance that the core adds: enough to explain it and to compute it again."""

    rollout_id: str
    task_id: str
    source: str
    """Name of the component, or of the local file's function."""
    version: str
    """Version of the distribution that the source came from."""
    options_hash: str
    input_hash: str
    fingerprint: str = ""
    """Digest of everything that can change a verdict of the source (distribution, version, name, options, the file or
    the weights behind it); empty where it was not kept."""
    verdict: Verdict
    output: Text = ""
    """What the verifier printed or logged while judging, shortened."""
    attempt: int = Field(default=1, ge=1)
    started_at: datetime
    latency_s: float = Field(ge=0.0)
    cached: bool = False

    @property
    def status(self) -> Status:
        """The verdict's status."""
        return self.verdict.status

    @property
    def value(self) -> float | None:
        """The verdict's value: a number if and only if scored."""
        return self.verdict.value

    @property
    def reason(self) -> str | None:
        """Why there is no score, or None."""
        return self.verdict.reason


def _as_evidence(evidence: str | Evidence | tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    if isinstance(evidence, str):
        return (Evidence(summary=evidence),)
    if isinstance(evidence, Evidence):
        return (evidence,)
    return evidence
