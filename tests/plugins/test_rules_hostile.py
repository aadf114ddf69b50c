"""No rule raises, whatever the task and the response hold; what is wrong with the task is ours."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import assay_rules
from assay.component import BuildContext
from assay.registry import component_from
from assay.testing import judge_text

NAMES = sorted(path.stem for path in Path(assay_rules.__file__).parent.glob("cases/*.jsonl"))
KEYS = st.sampled_from(
    ("options", "schema", "order", "instructions", "instruction_id_list", "kwargs", "language", "sources")
)
INNER = st.sampled_from(("id", "kwargs", "name", "arguments", "function", "tool_calls", "A", "B", "number_words"))
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | INNER,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(INNER | st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
MARKS = '<think> </think> <answer> </answer> \\boxed{ } { [ ] " #### ``` A B 1 / 0 % e9 [1] *** ****** \u00bd \x00'
PIECES = st.sampled_from((*MARKS.split(" "), "answer is ", "```json\n", "\n", "<tool_call>", "</tool_call>"))
TEXTS = st.text(max_size=40) | st.lists(PIECES, max_size=12).map("".join)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(reference=JSON, facts=st.dictionaries(KEYS, JSON, max_size=4), text=TEXTS)
def test_no_task_and_no_text_makes_a_rule_raise(name: str, reference: Any, facts: dict[str, Any], text: str) -> None:
    component = component_from("assay_rules", "reward_source", name)
    options = {"pattern": "a+"} if name == "pattern" and not isinstance(reference, str) else {}
    verdict = judge_text(component, text, reference=reference, facts=facts, options=options)
    low, high = component.build(component.config(), BuildContext()).limits.value_range
    assert verdict.value is None or low <= verdict.value <= high
    assert verdict.evidence
    assert type(verdict).model_validate_json(verdict.model_dump_json()) == verdict
