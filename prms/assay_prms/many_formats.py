"""Formats that hold several solutions per row: labelled paths with alternatives, and trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from assay.errors import ConfigError
from assay_prms.fields import FormatOptions, Row, list_of, text_of
from assay_prms.rows import StepLabel, StepRow, make_row


def read_prm800k(row: Row, options: FormatOptions) -> list[StepRow]:
    """The labelled path, and each alternative of a step as a row that shares the prefix; cut after the first bad step.

    The path follows the chosen completion, or the human one, which has no rating. It ends where none was chosen: its
    last step's completions are then alternatives only.
    """
    question, label = cast("Mapping[str, Any]", row["question"]), cast("Mapping[str, Any]", row["label"])
    problem = question.get("problem")
    prefix: list[str] = []
    ratings: list[float | None] = []
    found: list[StepRow] = []
    more = {"origin": "human", "provenance": {"labeler": row.get("labeler"), "finish": label.get("finish_reason")}}
    for number, step in enumerate(cast("list[Mapping[str, Any]]", label.get("steps") or []), 1):
        offers = cast("list[Mapping[str, Any]]", step.get("completions") or [])
        chosen, human = step.get("chosen_completion"), cast("Mapping[str, Any] | None", step.get("human_completion"))
        for index, offer in enumerate(offers):
            if options.alternatives and index != chosen:
                rated = [*ratings, _rating(offer.get("rating"), options, number)]
                if rated[-1] is not None:
                    found.append(make_row(problem, [*prefix, offer["text"]], [*ratings, rated[-1]], **more))
        if chosen is not None:
            follow = offers[int(chosen)]
        elif human is not None:
            follow = human
        else:
            break
        prefix.append(follow["text"])
        # A human's own completion carries no rating: it was written to be right, but nobody rated it.
        ratings.append(_rating(follow.get("rating"), options, number))
        if ratings[-1] == 0.0:
            break
    if prefix and any(value is not None for value in ratings):
        found.insert(0, make_row(problem, prefix, ratings, **more))
    return found


def _rating(value: Any, options: FormatOptions, number: int) -> float | None:
    if value is None:
        return None
    if value not in (-1, 0, 1):
        raise ConfigError(f"step {number}: the rating is {value!r}; -1, 0, 1 or null is expected")
    if value == 0:
        return {"good": 1.0, "bad": 0.0, "null": None}[options.neutral]
    return 1.0 if value == 1 else 0.0


def read_math_aps(row: Row, options: FormatOptions) -> list[StepRow]:
    """Monte-Carlo values of prefixes (flat) or of a tree whose root is the problem; values are soft labels."""
    problem, body = text_of(row, "question"), row["reasoning_steps"]
    if isinstance(body, Mapping):
        return _aps_paths(problem, cast("Mapping[str, Any]", body), options)
    found: list[StepRow] = []
    for entry in cast("list[Mapping[str, Any]]", body):
        prefix = text_of(entry, "solution_prefix")
        rest = prefix.removeprefix(problem).strip()
        if not prefix.startswith(problem):
            raise ConfigError("solution_prefix: it does not begin with the question")
        if rest:  # the bare problem has no step to label
            label = _label_of_value(entry.get("mc_value"))
            found.append(make_row(problem, [rest], [label], origin="monte_carlo"))
    return found


def _aps_paths(problem: str, root: Mapping[str, Any], options: FormatOptions) -> list[StepRow]:
    found: list[StepRow] = []
    stack: list[tuple[Mapping[str, Any], tuple[str, ...], tuple[StepLabel, ...]]] = [(root, (), ())]
    while stack:
        node, steps, labels = stack.pop()
        children = cast("list[Mapping[str, Any]]", node.get("children") or [])
        if not children and steps:
            found.append(make_row(problem, steps, labels, origin="monte_carlo"))
        for child in reversed(children if options.alternatives else children[:1]):
            label = _label_of_value(child.get("mc_value"))
            stack.append((child, (*steps, text_of(child, "text")), (*labels, label)))
    return found


def _label_of_value(value: Any) -> StepLabel:
    if value is None:
        return StepLabel()
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"mc_value: {value!r} is no share from 0 to 1")
    return StepLabel(label=float(value))


def read_versaprm(row: Row, options: FormatOptions) -> list[StepRow]:
    """Solutions, and augmented steps that replace one; zero means one thing in the first and another in the second."""
    problem, found = text_of(row, "question"), list[StepRow]()
    more = {"domain": row.get("domain"), "provenance": {"source": row.get("source")}}
    for chain in cast("list[Mapping[str, Any]]", list_of(row, "chain_of_thoughts")):
        steps = cast("list[Any]", chain.get("steps") or [])
        labels = [_signed(x, options.zero_in_solution == "good", k) for k, x in enumerate(chain.get("labels") or [], 1)]
        row_ = make_row(problem, steps, labels, **more)
        found.append(row_)
        for extra in cast("list[Mapping[str, Any]]", chain.get("augs") or []) if options.alternatives else []:
            at = int(extra["aug_idx"])
            if not 0 <= at <= len(steps):
                raise ConfigError(f"augs: aug_idx {at} is outside the {len(steps)} steps")
            kind = _signed(extra["aug_type"], options.zero_in_augmentation == "good", at + 1)
            found.append(make_row(problem, [*steps[:at], extra["aug_step"]], [*labels[:at], kind], **more))
    return found


def _signed(value: Any, zero_is_good: bool, number: int) -> float:
    if value not in (-1, 0, 1):
        raise ConfigError(f"step {number}: the label is {value!r}; -1, 0 or 1 is expected")
    return float(value == 1 or (value == 0 and zero_is_good))
