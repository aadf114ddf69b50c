"""Answers of every kind of rule, fair ones beside broken ones, with labels that follow from the stated conventions."""

import json
from typing import Any

import pytest

from assay import Verdict
from assay.registry import component_from
from assay.testing import judge_text

CITIES = {"A": "Oslo", "B": "Bergen", "C": "Trondheim", "D": "None of the above"}
NUMBERS = {"A": "12", "B": "15", "C": "18", "D": "21"}
WORDS = {"A": "a cat", "B": "a dog", "C": "I am not sure", "D": "Both A and B"}
CHOICES: list[tuple[dict[str, str], str, str, bool]] = [
    (CITIES, "C", "Answer: C", True),
    (CITIES, "C", "The answer is (C) Trondheim.", True),
    (CITIES, "C", "**C**", True),
    (CITIES, "C", "C.", True),
    (CITIES, "C", "\\boxed{\\text{Trondheim}}", True),
    (CITIES, "C", "\\boxed{(C)}", True),
    (CITIES, "C", "The correct option is C) Trondheim.", True),
    (CITIES, "C", "First I thought B. Answer: C", True),
    (CITIES, "C", "<think>It must be C.</think> Answer: B", False),
    (CITIES, "C", "<think>Answer: C", False),
    (CITIES, "C", "Answer: B or C", False),
    (CITIES, "C", "Answer: A, B, C", False),
    (CITIES, "C", "It could be A, B, C or D.", False),
    (CITIES, "C", "Answer: not C", False),
    (CITIES, "C", "Answer: C? No, answer: B", False),
    (CITIES, "C", "I refuse to answer.", False),
    (CITIES, "D", "None of the above", True),
    (CITIES, "A", "A city in the north. Answer: C", False),
    (CITIES, "A", "Answer: a city in the north, so C", False),
    (CITIES, "B", "\u0412", False),
    (CITIES, "C", "Bergen is west, so the answer is Trondheim.", True),
    (CITIES, "C", "The answer is Oslo.", False),
    (NUMBERS, "B", "Answer: 15", True),
    (NUMBERS, "B", "Answer: B) 15", True),
    (NUMBERS, "B", "Answer: 12", False),
    (NUMBERS, "B", "3 * 5 = 15, so \\boxed{B}", True),
    (NUMBERS, "B", "\\boxed{15}", True),
    (NUMBERS, "B", "\\boxed{B, C}", False),
    (WORDS, "B", "Answer: B", True),
    (WORDS, "A", "It is a dog. Answer: B", False),
    (WORDS, "A", "ANSWER: Don't know", False),
]
PERSON = {
    "type": "object",
    "required": ["city", "people"],
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "people": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"enum": ["old", "new"]}, "uniqueItems": True},
    },
    "additionalProperties": False,
}
SCHEMAS: list[tuple[str, bool]] = [
    ('{"city": "Oslo", "people": 709000}', True),
    ('```json\n{"city": "Oslo", "people": 709000}\n```', True),
    ('  {"people": 1, "city": "Bo", "tags": ["old"]}\n', True),
    ('{"city": "Oslo", "people": 709000.0}', True),
    ('{"city": "Oslo", "people": "709000"}', False),
    ('{"city": "Oslo", "people": 0}', False),
    ('{"city": "Oslo", "people": true}', False),
    ('{"city": "Oslo", "people": 1.5}', False),
    ('{"city": "O", "people": 1}', False),
    ('{"city": "Oslo"}', False),
    ('{"city": "Oslo", "people": 1, "x": null}', False),
    ('{"city": "Oslo", "people": 1, "tags": ["old", "old"]}', False),
    ('{"city": "Oslo", "people": 1, "tags": ["older"]}', False),
    ('{"city": "Oslo", "people": 1,}', False),
    ("{'city': 'Oslo', 'people': 1}", False),
    ('{"city": "Oslo", "people": NaN}', False),
    ('{"city": "Oslo", "people": 1} is the answer', False),
    ('Here it is:\n```json\n{"city": "Oslo", "people": 1}\n```', False),
    ('{"city": "Oslo", "people": 1}{"city": "Oslo", "people": 1}', False),
    ('{"city": "Oslo", "people": 1', False),
    ('[{"city": "Oslo", "people": 1}]', False),
    ('{"city": "Oslo", "people": -1, "people": 1}', False),
    ("null", False),
    ("", False),
]
Call = dict[str, Any]
MOVE: Call = {"name": "move", "arguments": {"from": "e2", "to": "e4"}}
WAIT: Call = {"name": "wait", "arguments": {"seconds": 3}}
SET: Call = {"name": "set", "arguments": {"path": ["a", {"b": [1, 2]}], "on": False}}
CALLS: list[tuple[list[Call], list[Call], str, bool]] = [
    ([MOVE], [{"name": "move", "arguments": {"to": "e4", "from": "e2"}}], "strict", True),
    ([MOVE], [{"name": "move", "arguments": {"to": "e5", "from": "e2"}}], "strict", False),
    ([MOVE], [{"name": "Move", "arguments": {"to": "e4", "from": "e2"}}], "strict", False),
    ([MOVE], [{"name": "move", "arguments": {"from": "e2"}}], "strict", False),
    ([MOVE], [{"name": "move", "arguments": {"from": "e2", "to": "e4", "promote": None}}], "strict", False),
    ([WAIT], [{"name": "wait", "arguments": {"seconds": 3.0}}], "strict", True),
    ([WAIT], [{"name": "wait", "arguments": {"seconds": 3.0000001}}], "strict", False),
    ([WAIT], [{"name": "wait", "arguments": {"seconds": "3"}}], "strict", False),
    ([WAIT], [{"name": "wait", "arguments": {"seconds": True}}], "strict", False),
    ([SET], [{"name": "set", "arguments": {"on": False, "path": ["a", {"b": [1.0, 2]}]}}], "strict", True),
    ([SET], [{"name": "set", "arguments": {"on": 0, "path": ["a", {"b": [1, 2]}]}}], "strict", False),
    ([SET], [{"name": "set", "arguments": {"on": False, "path": ["a", {"b": [2, 1]}]}}], "strict", False),
    ([MOVE, WAIT], [WAIT, MOVE], "strict", False),
    ([MOVE, WAIT], [WAIT, MOVE], "any", True),
    ([MOVE, WAIT], [MOVE], "any", False),
    ([MOVE, WAIT], [MOVE, MOVE], "any", False),
    ([MOVE, MOVE], [MOVE], "any", False),
    ([MOVE, MOVE], [MOVE, MOVE], "any", True),
    ([MOVE], [MOVE, MOVE], "any", False),
    ([MOVE], [], "any", False),
    ([], [], "strict", True),
]
INSTRUCTIONS: list[tuple[str, dict[str, Any], str, bool]] = [
    ("number_words", {"relation": "at least", "num_words": 4}, "It's one-two three.", True),
    ("number_words", {"relation": "less than", "num_words": 4}, "Just three words.", True),
    ("number_words", {"relation": "less than", "num_words": 3}, "Just three words.", False),
    ("forbidden_words", {"forbidden_words": ["art"]}, "Start the cart.", True),
    ("forbidden_words", {"forbidden_words": ["art"]}, "ART!", False),
    ("forbidden_words", {"forbidden_words": ["a.b"]}, "axb", True),
    ("forbidden_words", {"forbidden_words": ["a.b"]}, "see a.b here", False),
    ("forbidden_words", {"forbidden_words": ["new york"]}, "I love New York.", False),
    ("all_caps", {}, "THIS IS 1 TEST.", True),
    ("all_caps", {}, "THIS IS a TEST.", False),
    ("number_bullets", {"num_bullets": 3}, "- one\n- two\n* three", True),
    ("number_bullets", {"num_bullets": 2}, "-one\n- two\n- three", True),
    ("number_bullets", {"num_bullets": 2}, "1. one\n2. two", False),
    ("number_bullets", {"num_bullets": 1}, "* one\n***\n**bold** line", True),
    ("keyword_frequency", {"keyword": "sun", "relation": "at least", "frequency": 2}, "Sun. The sun!", True),
    ("keyword_frequency", {"keyword": "sun", "relation": "at least", "frequency": 2}, "Sunday sun", False),
    ("keyword_frequency", {"keyword": "c++", "relation": "at least", "frequency": 1}, "C++ it is", True),
    ("json_only", {}, '{"a": [1, 2]}', True),
    ("json_only", {}, '```json\n{"a": 1}\n```', True),
    ("json_only", {}, 'Sure: {"a": 1}', False),
    ("end_phrase", {"end_phrase": "That is all."}, "Well. That is all.", True),
    ("end_phrase", {"end_phrase": "That is all."}, "That is all. Bye", False),
]
FORMATS: list[tuple[str, bool]] = [
    ("<think>7 * 6</think>\n<answer>42</answer>", True),
    ("\n<think>\n7 * 6\n</think>\n\n<answer>\n42\n</answer>\n", True),
    ("<think>7 < 8 > 6</think><answer>42</answer>", True),
    ("<think>7 * 6</think><answer></answer>", False),
    ("<think> \n </think><answer>42</answer>", False),
    ("<think>7 * 6<answer>42</answer>", False),
    ("<think>7 * 6</think><answer>42", False),
    ("<answer>42</answer>", False),
    ("<think>7 * 6</think>42", False),
    ("<think>a<answer>41</answer></think><answer>42</answer>", False),
    ("<think>a</think><answer>42<think>b</think></answer>", False),
    ("<think>a</think><answer><answer>42</answer></answer>", False),
    ("<think>a</think>.<answer>42</answer>", False),
    ("Well, <think>a</think><answer>42</answer>", False),
    ("<think>a</think><answer>42</answer>\nDone", False),
    ("<THINK>a</THINK><answer>42</answer>", False),
    ("</think><think>a</think><answer>42</answer>", False),
]


def judged(name: str, text: str, reference: Any = None, **facts: Any) -> Verdict:
    """The verdict of one rule."""
    return judge_text(component_from("assay_rules", "reward_source", name), text, reference=reference, facts=facts)


def right(verdict: Verdict, expected: bool) -> None:
    """Fail unless an answer is accepted as expected; an abstention is the candidate's doing."""
    said = verdict.evidence[0].summary if verdict.evidence else verdict.reason
    assert (verdict.value == 1.0) == expected, said
    assert verdict.fault in (None, "candidate"), said


@pytest.mark.parametrize(("options", "gold", "response", "expected"), CHOICES)
def test_choice(options: dict[str, str], gold: str, response: str, expected: bool) -> None:
    right(judged("choice", response, gold, options=options), expected)


@pytest.mark.parametrize(("response", "expected"), SCHEMAS)
def test_json_schema(response: str, expected: bool) -> None:
    right(judged("json-schema", response, schema=PERSON), expected)


@pytest.mark.parametrize(("gold", "calls", "order", "expected"), CALLS)
def test_tool_call(gold: list[Call], calls: list[Call], order: str, expected: bool) -> None:
    right(judged("tool-call", json.dumps(calls), gold, order=order), expected)


@pytest.mark.parametrize(("instruction", "arguments", "response", "expected"), INSTRUCTIONS)
def test_instruction(instruction: str, arguments: dict[str, Any], response: str, expected: bool) -> None:
    right(judged("instructions", response, instructions=[{"id": instruction, "kwargs": arguments}]), expected)


@pytest.mark.parametrize(("response", "expected"), FORMATS)
def test_format(response: str, expected: bool) -> None:
    right(judged("format", response), expected)
