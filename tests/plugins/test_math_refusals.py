r"""Answers that only look like the gold: each refusal beside the fair answer that it must not touch."""

import pytest

from assay_math.verify import Gold, read_gold, verify


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
