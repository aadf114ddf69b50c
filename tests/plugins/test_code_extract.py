"""The program in an answer."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay_code.extract import extract


def test_the_specifications_cases(shared: Path) -> None:
    lines = (shared / "cases" / "other_cases.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, filter(None, lines)) if row["kind"] == "code_extraction"]
    assert len(rows) >= 8
    wrong = [row["id"] for row in rows if extract(row["response"], row["language"]) != row["expected_code"]]
    assert wrong == []


@pytest.mark.parametrize(
    ("response", "language", "expected"),
    [
        ("```cpp\nint main(){}\n```\n```python\nprint(1)\n```", "cpp", "int main(){}"),
        ("```python\nprint(1)\n```\n```bash\npython x.py\n```", "python", "print(1)"),
        ("```\nprint(1)\n```", "python", "print(1)"),
        ("```Python 3\nprint(1)\n```", "python", "print(1)"),
        ("~~~py\nprint('```')\n~~~", "python", "print('```')"),
        ("````python\n'''\n```\n'''\n````", "python", "'''\n```\n'''"),
        ("so:\n```python\nprint(1)\nprint(2", "python", "print(1)\nprint(2"),
        ("<think>never ends\n```python\nprint(1)\n```", "python", None),
        ("a</think>```python\nprint(2)\n```", "python", "print(2)"),
        ("a</think>\n```python\nprint(2)\n```", "python", "print(2)"),
        ("```js\nconsole.log(1)\n```", "javascript", "console.log(1)"),
        ("```text\nprint(1)\n```", "python", None),
        ("```python\n\n```", "python", None),
        ("", "python", None),
        ("The answer is 42.", "python", None),
        ("It returns x = 3 for you, I think", "python", None),
        ("x = int(input())\nprint(x)", "python", "x = int(input())\nprint(x)"),
        ("#include <cstdio>\nint main() {}", "cpp", "#include <cstdio>\nint main() {}"),
    ],
)
def test_fences_languages_and_reasoning(response: str, language: str, expected: str | None) -> None:
    assert extract(response, language) == expected


def test_a_continuation_may_start_indented() -> None:
    assert extract("    return n + 1\n", continues=True) == "    return n + 1"
    assert extract("    return n + 1\n") is None


@given(st.text(), st.sampled_from(["python", "cpp", "javascript", "rust"]))
def test_any_text_has_a_program_or_none(text: str, language: str) -> None:
    found = extract(text, language)
    assert found is None or found.strip()


@given(st.text(alphabet=st.characters(exclude_characters="`~<\r", exclude_categories=["Cs"]), min_size=1))
def test_the_last_fence_of_the_language_is_taken_whole(body: str) -> None:
    if body.strip():
        assert extract(f"```python\nfirst\n```\ntalk\n```py\n{body}\n```\n```text\nout\n```") == body
