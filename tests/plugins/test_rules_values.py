"""Numbers, JSON, tool calls, citations and predictions: what counts as equal, and how near is how near."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.registry import component_from
from assay.testing import judge_text
from assay_rules.json_text import NotJsonError, read_json, unfenced
from assay_rules.length import length_value, overlong_value
from assay_rules.numeric import NotANumberError, read_number
from assay_rules.prediction import edit_distance, similarity, token_f1
from assay_rules.repetition import repeated_share
from assay_rules.tools import Call, compare_calls, read_calls

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(-1e6, 1e6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(
    st.builds(Call, st.sampled_from(["a", "b"]), st.dictionaries(st.sampled_from("xyz"), JSON, max_size=3)), max_size=4
)


@given(st.integers(-(10**12), 10**12), st.integers(1, 999))
def test_numbers_are_read_exactly_in_many_forms(whole: int, below: int) -> None:
    assert read_number(str(whole)) == whole
    assert read_number(f"{whole:,}") == whole
    assert read_number(f"{whole}/{below}") == Fraction(whole, below)
    assert read_number(f"{whole}%") == Fraction(whole, 100)
    assert read_number(f"{whole}.{below:03d}", units=("kg",)) == Fraction(f"{whole}.{below:03d}")
    assert read_number(f"{whole}.{below:03d} kg.", units=("kg",)) == Fraction(f"{whole}.{below:03d}")
    text = f"{whole:,}.{below:03d}".translate(str.maketrans(",.", ".,"))
    assert read_number(text, decimal_comma=True) == Fraction(f"{whole}.{below:03d}")
    assert read_number(str(whole).replace("-", "\u2212")) == whole


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_number"),
        ("forty", "no_number"),
        ("1/0", "no_number"),
        ("2 3/0", "no_number"),
        ("1,23", "several_numbers"),
        ("1 or 2", "several_numbers"),
        ("10\u00b3", "no_number"),
        ("1e999999999", "number_too_large"),
        ("9" * 1001, "number_too_large"),
    ],
)
def test_what_is_no_number_says_why(text: str, reason: str) -> None:
    with pytest.raises(NotANumberError, match=f"^{reason}$"):
        read_number(text)


@given(JSON)
def test_json_is_read_back_also_from_a_fence(value: Any) -> None:
    text = json.dumps(value)
    assert read_json(text) == value
    assert read_json(unfenced(f"```json\n{text}\n```")) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1,]",
        "{'a': 1}",
        "NaN",
        "[Infinity]",
        "1 2",
        '{"a": 1, "a": 2}',
        "1e999",
        "[" * 100_000,
        "9" * 5000,
        "\ufeff1",
    ],
)
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(NotJsonError):
        read_json(text)


@given(CALLS, st.randoms(use_true_random=False))
def test_calls_equal_themselves_in_any_spelling_and_nothing_else(calls: list[Call], random: Any) -> None:
    plain = [{"name": call.name, "arguments": call.arguments} for call in calls]
    nested = {
        "tool_calls": [
            {"type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
            for call in calls
        ]
    }
    for text in (
        json.dumps(plain),
        json.dumps(nested),
        "".join(f"<tool_call>{json.dumps(c)}</tool_call>" for c in plain),
    ):
        assert compare_calls(calls, read_calls(text)) is None
    shuffled = list(calls)
    random.shuffle(shuffled)
    assert compare_calls(calls, shuffled, order="any") is None
    assert compare_calls(calls, [*calls, Call("a", {})], order="any") is not None
    assert compare_calls([*calls, Call("a", {})], calls) is not None


@pytest.mark.parametrize(
    ("gold", "made", "equal"), [(3, 3.0, True), (1, True, False), (0, False, False), ("3", 3, False)]
)
def test_numbers_are_compared_by_value_and_nothing_is_coerced(gold: Any, made: Any, equal: bool) -> None:
    assert (compare_calls([Call("f", {"x": [gold]})], [Call("f", {"x": [made]})]) is None) == equal


def slow_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


@given(st.text(alphabet="abc\u00e9", max_size=30), st.text(alphabet="abc\u00e9", max_size=30))
def test_the_edit_distance_equals_the_textbooks(a: str, b: str) -> None:
    assert edit_distance(a, b) == slow_distance(a, b) == edit_distance(b, a)
    assert 0.0 <= similarity(a, b) <= 1.0
    assert (similarity(a, b) == 1.0) == (a == b)


@given(
    st.lists(st.sampled_from(["red", "green", "blue"]), max_size=6),
    st.lists(st.sampled_from(["red", "blue"]), max_size=6),
)
def test_token_f1_is_symmetric_and_one_only_for_equal_words(ours: list[str], theirs: list[str]) -> None:
    f1 = token_f1(" ".join(ours), " ".join(theirs))
    assert f1 == token_f1(" ".join(theirs), " ".join(ours))
    assert (f1 == 1.0) == (sorted(ours) == sorted(theirs))


def test_token_f1_by_hand() -> None:
    # "cat sat on mat" against "cat sat": 2 shared words, precision 2/4, recall 2/2, so 2 * .5 * 1 / 1.5.
    assert token_f1("The cat sat on a mat.", "a cat sat") == pytest.approx(2 / 3)


@given(st.integers(1, 400), st.integers(1, 200), st.floats(0.1, 3))
def test_length_falls_and_stays_in_its_range(number: int, maximum: int, slack: float) -> None:
    for shape in ("ramp", "step", "linear"):
        here, longer = (length_value(n, maximum, shape, slack) for n in (number, number + 1))
        assert 0.0 <= longer <= here <= 1.0
    assert -1.0 <= overlong_value(number + 1, 200, 100) <= overlong_value(number, 200, 100) <= 0.0


@given(st.lists(st.sampled_from("abcdef"), min_size=8, max_size=40))
def test_saying_it_twice_is_never_less_repetitive(words: list[str]) -> None:
    once = repeated_share(" ".join(words), 4)
    assert 0.0 <= once < 1.0
    assert repeated_share(" ".join(words * 2), 4) >= once


KEYWORDS = ("$schema", "$id", "$ref", "type", "properties", "items", "pattern", "anyOf", "required", "enum", "not", "a")
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["object", "string", "#", "#/a", "http://x/y", "["]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=10,
)


@given(SCHEMAS, st.sampled_from(["{}", '[1, "a"]', "1.5", '{"a": 1}']))
def test_no_schema_makes_the_verifier_raise(schema: Any, text: str) -> None:
    component = component_from("assay_rules", "reward_source", "json-schema")
    verdict = judge_text(component, text, facts={"schema": schema})
    assert verdict.status == "scored" or (verdict.reason, verdict.fault) == ("schema_invalid", "ours")


@pytest.mark.parametrize(
    ("step", "text", "score"),
    [
        (0.1, "0.3", 1.0),
        (0.1, "0.30000000000000004", 0.0),
        (0.01, "19.99", 1.0),
        (0.01, "19.999", 0.0),
        (0.1, "7", 1.0),
        (3, "9.0", 1.0),
        (3, "10", 0.0),
        (1e-300, "1e300", 1.0),
        (0.5, str(10**400), 1.0),
    ],
)
def test_multiples_are_decided_as_the_numbers_are_written(step: float, text: str, score: float) -> None:
    component = component_from("assay_rules", "reward_source", "json-schema")
    verdict = judge_text(component, text, facts={"schema": {"multipleOf": step}})
    assert (verdict.status, verdict.value) == ("scored", score)
