"""Reading a judge's answers and adding several of them up."""

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast

from pydantic import Field, JsonValue

from assay.contracts import Evidence
from assay_judge.endpoint import ModelOptions, Reply
from assay_judge.framing import visible

Combine = Literal["mean", "median", "majority"]
T = TypeVar("T")


class VoteOptions(ModelOptions):
    """How often a judge is asked, and how its answers are added up."""

    votes: int = Field(default=1, ge=1, le=64)
    """Answers per question."""
    combine: Combine = "mean"
    """`majority` takes the commonest grade, the lower of two that are equally common."""
    min_share: float = Field(default=0.5, ge=0, lt=1)
    """More than this share of the answers must be readable, or the judge abstains (its own fault, so masked)."""
    max_characters: int = Field(default=40_000, ge=100)
    """Longer candidate texts lose their middle before they are shown to the judge."""


class Ballot(NamedTuple):
    """One readable answer: its grade and the words that came with it."""

    grade: float
    reason: str


class UnreadableError(ValueError):
    """A judge's answer is not what was asked for; its text says why in one line."""


def read_object(text: str, mark: str) -> dict[str, Any]:
    """The JSON object of a judge's answer, which must carry the mark under `key`.

    Text around it and one code fence are forgiven; of several objects the last with the mark counts.

    Raises:
        UnreadableError: there is no object with the mark.
    """
    decoder = json.JSONDecoder()
    found: dict[str, Any] | None = None
    at, tries = text.find("{"), 0
    while at >= 0 and tries < 200:
        tries += 1
        try:
            value, end = cast("tuple[object, int]", decoder.raw_decode(text, at))
        except (ValueError, RecursionError):
            end = at + 1
        else:
            fields = cast("dict[str, Any]", value)
            if isinstance(value, dict) and fields.get("key") == mark:
                found = fields
        at = text.find("{", end)
    if found is None:
        raise UnreadableError(f"no JSON object with the key {mark}: {text[:120]!r}")
    return found


def number_in(fields: dict[str, Any], name: str, low: float, high: float) -> float:
    """The number under `name`; raises `UnreadableError` where it is none or lies outside [low, high]."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UnreadableError(f"{name} is {value!r}; expected a number from {low:g} to {high:g}")
    return float(value)


def words_in(fields: dict[str, Any], name: str = "reason") -> str:
    """The text under `name`, shortened, with nothing invisible in it; empty where there is none."""
    value = fields.get(name)
    return visible(value[:1000]) if isinstance(value, str) else ""


def combined(grades: Sequence[float], how: Combine) -> float:
    """One grade of several."""
    if how == "mean":
        return statistics.fmean(grades)
    if how == "median":
        return statistics.median(grades)
    return min(statistics.multimode(grades))


def read_replies(replies: Sequence[Reply], read: Callable[[str], T]) -> tuple[list[T], list[str]]:
    """What could be read, and why the rest could not."""
    found: list[T] = []
    problems: list[str] = []
    for reply in replies:
        try:
            found.append(read(reply.text))
        except UnreadableError as error:
            problems.append(str(error))
    return found, problems


def usage(replies: Sequence[Reply], model: str, options: ModelOptions) -> Evidence:
    """What the answers took: tokens, seconds (the longest, since they are asked at once) and cost."""
    prompt, completion = sum(r.prompt_tokens for r in replies), sum(r.completion_tokens for r in replies)
    price = options.price
    cost = (prompt * price.prompt_per_million + completion * price.completion_per_million) / 1e6
    latency_s = max((reply.latency_s for reply in replies), default=0.0)
    data: dict[str, JsonValue] = {
        "model": model,
        "calls": len(replies),
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "latency_s": round(latency_s, 4),
        "cost": round(cost, 8),
    }
    summary = f"{model}: {len(replies)} calls, {prompt} + {completion} tokens, {latency_s:.2f} s, cost {cost:g}"
    return Evidence(kind="usage", summary=summary, data=data)
