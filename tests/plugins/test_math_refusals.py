r"""Answers that only look like the gold: each refusal beside the fair answer that it must not touch."""

import pytest
from pydantic import JsonValue

from assay.contracts import Message, Task
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


@pytest.mark.parametrize(
    "said",
    [
        "negative 8", "minus 8", "double 8", "half of 8", "nearly 8", "almost 8", "a multiple of 8",
        "the square root of 8", "anything except 8", "8 squared", "8 cubed", "8 factorial", "8 times 2",
        "8 plus 2", "8 minus 2", "8 divided by 2", "8 over 3", "8 more than 2", "8 if x>0 and 9 otherwise",
        "8 when n is even, 9 when n is odd",
    ],
)  # fmt: skip
def test_words_that_change_a_number_are_no_filler(said: str) -> None:
    assert value("8", f"The answer is {said}.") in (0.0, None)


@pytest.mark.parametrize("inside", ["\\text{up to }8", "8\\text{ squared}", "\\text{wrong: }8"])
def test_words_in_a_box_that_change_a_number_are_no_label(inside: str) -> None:
    assert value("8", f"\\boxed{{{inside}}}") == 0.0


@pytest.mark.parametrize(
    ("gold", "response"),
    [
        ("-8", "The answer is negative 8."),
        ("-8", "The answer is minus 8."),
        ("8", "The answer is simply 8."),
        ("8", "The answer is 8 apples."),
        ("8", "The answer is a total of 8 apples."),
        ("8", "The answer is equal to 8."),
        ("8", "The answer is 8 times."),
        ("8", "The answer is 8 hours on yoga in 4 weeks."),
        ("8", "\\boxed{\\text{Answer: }8}"),
        ("8", "\\boxed{8\\text{ apples}}"),
    ],
)
def test_labels_and_units_stay_fair(gold: str, response: str) -> None:
    assert value(gold, response) == 1.0


@pytest.mark.parametrize(
    ("gold", "response", "expected"),
    [
        ("9", "The answer is 9 (alternatively 8).", 0.0),
        ("4", "The answer is 4. Or 5.", 0.0),
        ("4", "The answer is 4 (or perhaps 5).", 0.0),
        ("4", "The answer is 4 (possibly 5)", 0.0),
        ("4", "\\boxed{4} (or 5)", 0.0),
        ("4", "$\\boxed{4}$, or $5$.", 0.0),
        ("4", "\\boxed{4}, but it may be 5", 0.0),
        ("1/2", "\\boxed{\\frac{1}{2}} (or 0.5)", 1.0),
        ("1/3", "\\boxed{\\frac{1}{3}} (or 0.33)", 1.0),
        ("90", "\\boxed{90} (or 1.5 hours)", 1.0),
        ("4", "The answer is 4. There are 5 others.", 1.0),
    ],
)
def test_an_alternative_behind_the_answer_counts(gold: str, response: str, expected: float) -> None:
    assert value(gold, response) == expected


@pytest.mark.parametrize("tags", [("<Think>", "</THINK>"), ("< think >", "</ think >"), ("<think>", "< /think>")])
def test_think_tags_in_any_case_and_spacing(tags: tuple[str, str]) -> None:
    begin, end = tags
    assert value("4", f"{begin}\\boxed{{5}}{end} \\boxed{{4}}") == 1.0
    assert value("4", f"{begin}\\boxed{{4}}") is None


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("Option B is correct.", 1.0),
        ("So option B is the right answer.", 1.0),
        ("Option A is correct.", 0.0),
        ("Option B is not correct.", None),
    ],
)
def test_an_option_that_is_called_correct_is_chosen(response: str, expected: float | None) -> None:
    task = Task(
        id="t",
        messages=(Message(role="user", content="Which one?"),),
        reference="B",
        facts={"options": ["A", "B", "C"]},
    )
    gold = read_gold("B", task=task)
    assert isinstance(gold, Gold)
    assert verify(gold, response).value == expected


def test_one_to_the_power_of_a_tower_is_one() -> None:
    assert value("1", "\\boxed{1^{2^{3^{4^{5}}}}}") == 1.0
    assert value("2", "\\boxed{1^{2^{3^{4^{5}}}}}") == 0.0
