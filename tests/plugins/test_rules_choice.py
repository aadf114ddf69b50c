"""Multiple choice: the ways in which people and models state a choice, and those in which they state none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.registry import component_from
from assay.testing import judge_text

CITIES = {"A": "Lima", "B": "Quito", "C": "La Paz", "D": "Bogota"}
FORMULAS = {"A": "2x", "B": "x^2+C", "C": "15", "D": "15.5"}


def value(text: str, gold: str = "B", options: dict[str, str] | None = None) -> float | None:
    component = component_from("assay_rules", "reward_source", "choice")
    return judge_text(component, text, reference=gold, facts={"options": {**(options or CITIES)}}).value


@pytest.mark.parametrize(
    "text",
    [
        "Final Answer: (B)",
        "The correct option is B",
        "Option B is correct.",
        "B is correct",
        "The correct answer would be B",
        "So the answer must be **B) Quito**",
        "Answer:\n\n**B**",
        "**Answer**: B",
        "answer = B",
        "Answer is B",
        "Answer: B. That could not be clearer.",
        "My choice is: B",
        "I'd go with B",
        "The best answer is B: Quito",
        "The answer is B, not A.",
        "Answer: B (Quito)",
        "Answer: B - Quito",
        "Answer: \\(B\\)",
        "\\boxed{\\textbf{(B)}}",
        "\\boxed{A} is wrong. So \\boxed{B}",
        "The capital is Quito, so B.",
        "Therefore, B.",
        "I think it's B.",
        "B) Quito",
        "A) Lima\nB) Quito\nC) La Paz\nD) Bogota\n\nB",
        "A) Lima\nB) Quito\nC) La Paz\nD) Bogota\nAnswer: B",
        "The capital lies in the north.\nB) Quito",
        "Answer: B, because A and C are lower.",
        "Answer: B\nExplanation: A is too low, C is a seat of government.",
        "It cannot be A. It cannot be C or D. The answer is B.",
    ],
)
def test_a_stated_choice_is_read(text: str) -> None:
    assert value(text) == 1.0
    assert value(text, gold="D") == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "Answer: B and C are both right",
        "Answer: B. But it could be C.",
        "Answer: B. It might well be Lima.",
        "Answer: (A), (B)",
        "The answers are A and B",
        "Answer: A/B",
        "Answer: A&B",
        "\\boxed{B, C}",
        "\\boxed{A} and \\boxed{B}",
        "$\\boxed{A}$, $\\boxed{B}$",
        "Answer: B (La Paz)",
        "Answer: B \u2013 Lima",
        "Options: B) Quito A) Lima C) La Paz",
        "Answer: B) Quito C) La Paz D) Bogota",
        "Choose one of A, B, C, D",
        "The answer is Quito and Lima",
        "Answer: A B C D",
        "Answer: B\nAnswer: A",
        "I am not sure if it is B.",
        "Option B is not correct.",
        "Which is B?",
        "The answer is the second option.",
        "A) Lima\nC) La Paz\nB) Quito",
        "A) Lima\n\nB) Quito\n",
        "A\nB",
        "Lima\nQuito",
        "Answer: B\nC\nD",
        "Answer:\nB) Quito\nC) La Paz\nD) Bogota",
        "The answer is B (alternatively C).",
        "The answer is B, possibly C.",
        "The answer is B (perhaps C)",
        "The answer is B, maybe C",
        "The answer is B (or C).",
        "The answer is Quito. Alternatively Lima.",
    ],
)
def test_no_or_several_choices_are_never_accepted(text: str) -> None:
    assert value(text) != 1.0


def test_texts_of_options_are_compared_as_texts() -> None:
    assert value("\\boxed{x^2 + C}", "B", FORMULAS) == 1.0
    assert value("Answer: $x^2 + C$", "B", FORMULAS) == 1.0
    assert value("The answer is 15.", "C", FORMULAS) == 1.0
    assert value("The answer is 15.5", "D", FORMULAS) == 1.0
    assert value("The answer is 15.5", "C", FORMULAS) == 0.0


@given(st.permutations("ABCD"), st.sampled_from(["Answer: {}", "\\boxed{{{}}}", "The answer is ({}).", "{}"]))
def test_exactly_the_named_letter_is_chosen(letters: list[str], form: str) -> None:
    for letter in letters:
        assert value(form.format(letters[0]), gold=letter) == float(letter == letters[0])
    assert value(form.format(f"{letters[0]} or {letters[1]}"), gold=letters[0]) == 0.0
