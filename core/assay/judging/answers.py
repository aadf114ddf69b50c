"""Whether what a source returned is an answer: as many verdicts as candidates, in order, each within the contract."""

import math
from collections.abc import Sequence
from typing import Any

from assay.contracts import Limits, Verdict


class ContractError(Exception):
    """A source returned something that is not an answer; the text says what."""


def checked_batch(answer: object, expected: int) -> Sequence[object]:
    """The answer as a sequence of the expected length; raises `ContractError`."""
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Sequence):
        raise ContractError(f"returned {_named(answer)} instead of a sequence of verdicts")
    if len(answer) != expected:  # pyright: ignore[reportUnknownArgumentType] # of anything, still
        raise ContractError(f"returned {len(answer)} verdicts for {expected} candidates")  # pyright: ignore[reportUnknownArgumentType]
    return answer  # pyright: ignore[reportUnknownVariableType]


def checked_verdict(found: object) -> Verdict:
    """The verdict; raises `ContractError` for anything that a source may not return."""
    if not isinstance(found, Verdict):
        raise ContractError(f"returned {_named(found)} instead of a verdict")
    if found.status == "failed":
        raise ContractError("returned a verdict with status 'failed', which only assay writes; raise instead")
    for what, value in _numbers(found):
        # The contract says so too, but a verdict made by `model_construct` has not been checked by it.
        if not _finite(value):
            raise ContractError(f"its {what} {_shown(value)} is not a finite number")
    return found


def outside(verdict: Verdict, limits: Limits) -> str | None:
    """What is wrong with a scored verdict's numbers, or None: every value is in the declared range."""
    low, high = limits.value_range
    for what, value in _numbers(verdict):
        if not low <= value <= high:
            return f"its {what} {value!r} is outside the declared range [{low:g}, {high:g}]"
    return None


def _numbers(verdict: Verdict) -> list[tuple[str, Any]]:
    values: list[tuple[str, Any]] = [("value", verdict.value)] if verdict.status == "scored" else []
    return values + [("step value", step.value) for step in verdict.steps]


def _finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer beyond what a float holds
        return False


def _shown(value: Any) -> str:
    return "of more than 308 digits" if isinstance(value, int) else repr(value)[:80]


def _named(found: object) -> str:
    return "None" if found is None else f"a {type(found).__name__}"
