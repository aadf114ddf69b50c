"""Outputs and values against expected ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay_code.compare import Mode, OutputRule, ValueRule, same_output, same_value

WORDS = st.lists(st.text(alphabet="ab1.-\0\u00a0\u200b", min_size=1, max_size=4), max_size=6)


def test_the_specifications_cases(shared: Path) -> None:
    lines = (shared / "cases" / "other_cases.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, filter(None, lines)) if row["kind"] == "stdio_checker"]
    compared = [row for row in rows if row["checker"] != "special"]
    assert len(compared) >= 10
    for row in compared:
        rule = OutputRule(row["checker"], row.get("abs_tol", 1e-6), row.get("rel_tol", 1e-6))
        assert same_output(row["expected_output"], row["actual_output"], rule) is row["expected"], row["id"]


@pytest.mark.parametrize(
    ("expected", "actual", "mode", "same"),
    [
        ("1 2 3", "1 2", "tokens", False),
        ("1 2", "1 2 3", "tokens", False),
        ("", "\n \t\n", "tokens", True),
        ("1\u00a02", "1 2", "tokens", False),
        ("1\0", "1", "tokens", False),
        ("1\u200b", "1", "tokens", False),
        ("a b\n\n", "a b\n", "lines", True),
        ("a b\n", " a b\n", "lines", False),
        ("a\n\nb\n", "a\nb\n", "lines", False),
        ("1.0 x", "1.0000001 x", "float", True),
        ("1.0 x", "1.0 y", "float", False),
        ("nan", "nan", "float", False),
        ("1", "nan", "float", False),
        ("1e400", "1e400", "float", False),
        ("inf", "inf", "float", False),
        ("-Infinity", "-Infinity", "float", False),
        ("info", "info", "float", True),
        ("1", "\u0661", "float", False),
        ("1.5", "\uff11.5", "float", False),
        ("1", "1_0", "float", False),
        ("10", "1_0", "float", False),
        ("b\na\n", "a\nb\n", "unordered", True),
        ("a\na\nb\n", "a\nb\nb\n", "unordered", False),
        ("1.0", "1.00", "tokens", False),
    ],
)
def test_modes(expected: str, actual: str, mode: Mode, same: bool) -> None:
    assert same_output(expected, actual, OutputRule(mode)) is same


@given(WORDS, st.sampled_from([" ", "\n", "\t", " \r\n", "\f"]))
def test_tokens_do_not_depend_on_white_space(words: list[str], space: str) -> None:
    assert same_output(" ".join(words), space + space.join(words) + space, OutputRule())


@given(st.text(), st.text(), st.sampled_from(["tokens", "lines", "exact", "float", "unordered"]))
def test_every_mode_is_symmetric_and_never_raises(left: str, right: str, mode: Mode) -> None:
    assert same_output(left, right, OutputRule(mode)) is same_output(right, left, OutputRule(mode))


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 2e-6))
def test_float_mode_is_the_stated_inequality(value: float, shift: float) -> None:
    other = value + shift
    close = abs(float(repr(value)) - float(repr(other))) <= max(1e-6, 1e-6 * max(abs(value), abs(other)))
    assert same_output(repr(value), repr(other), OutputRule("float")) is close


@pytest.mark.parametrize(
    ("expected", "actual", "rule", "same"),
    [
        (4, 4.0, ValueRule(), True),
        (1, True, ValueRule(), False),
        (True, 1, ValueRule(), False),
        (1, True, ValueRule(python=True), True),
        ([1, 2], (1, 2), ValueRule(), False),
        ([1, 2], (1, 2), ValueRule(tuple_is_list=True), True),
        ([[1], 2], ((1,), 2), ValueRule(tuple_is_list=True), True),
        ([1.0, {"a": 2.0}], [1.0000001, {"a": 2.0}], ValueRule(float_tol=1e-6), True),
        ([1.0], [1.1], ValueRule(float_tol=1e-6), False),
        (1.0, float("nan"), ValueRule(float_tol=1e9), False),
        (1.0, float("inf"), ValueRule(float_tol=1e9), False),
        (10**400, 1.0, ValueRule(float_tol=1e-6), False),
        ([1, 2, 2], [2, 1, 2], ValueRule(unordered=True), True),
        ([1, 2, 2], [2, 1, 1], ValueRule(unordered=True), False),
        ([1, 2, 2], [2, 1], ValueRule(as_set=True), True),
        ({1, 2}, {2, 1}, ValueRule(), True),
        ({"a": 1}, {"a": 1, "b": 2}, ValueRule(), False),
        (None, None, ValueRule(), True),
        (None, 0, ValueRule(), False),
        ("4", 4, ValueRule(), False),
    ],
)
def test_values(expected: Any, actual: Any, rule: ValueRule, same: bool) -> None:
    assert same_value(expected, actual, rule) is same
