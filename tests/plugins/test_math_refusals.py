r"""Answers that only look like the gold: each refusal beside the fair answer that it must not touch."""

import pytest
from pydantic import JsonValue

from assay_math.verify import BadGold, Gold, read_gold, verify


def value(gold: str, response: str) -> float | None:
    """The verdict's value; `gold` must be readable."""
    known = read_gold(gold)
    assert isinstance(known, Gold), known
    return verify(known, response).value


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("51/2", "5 1/2", 0.0),
        ("34/5", "3 4/5", 0.0),
        ("5 1/2", "51/2", 0.0),
        ("5 1/2", "11/2", 1.0),
        ("1, 2", "1,2", 1.0),
        ("x + 1", "x+1", 1.0),
    ],
)
def test_a_space_inside_a_mixed_number_is_kept(gold: str, answer: str, expected: float) -> None:
    assert value(gold, f"\\boxed{{{answer}}}") == expected


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("6", "6+0\\cdot\\infty", None),
        ("0", "\\infty-\\infty", None),
        ("1", "\\infty/\\infty", None),
        ("6", "6\\cdot\\infty^0", None),
        ("6", "6+0\\cdot\\log 0", None),
        ("6", "6+\\ln(-1)-\\ln(-1)", None),
        ("5", "5+\\log 2-\\log 2", 1.0),
        ("\\infty", "+\\infty", 1.0),
        ("\\infty", "-\\infty", 0.0),
        ("(2,\\infty)", "(2,+\\infty)", 1.0),
    ],
)
def test_what_has_no_value_never_cancels(gold: str, answer: str, expected: float | None) -> None:
    assert value(gold, f"\\boxed{{{answer}}}") == expected


@pytest.mark.parametrize(
    "reference",
    [10**5000, [1, 10**5000], float("nan"), float("inf"), "1/0", "0^0"],
    ids=["long", "long in a list", "nan", "inf", "1/0", "0^0"],
)
def test_a_reference_without_a_value_is_a_bad_gold(reference: JsonValue) -> None:
    gold = read_gold(reference)
    assert isinstance(gold, BadGold)
    assert gold.reason == "gold_unparseable"
