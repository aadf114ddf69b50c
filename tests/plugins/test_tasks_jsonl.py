import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from assay.component import BuildContext
from assay.contracts import Task
from assay.errors import ConfigError
from assay_tasks.files import JsonlOptions, build_jsonl
from assay_tasks.split import SplitOptions, normalized


def write(folder: Path, *rows: Any, name: str = "tasks.jsonl") -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return name


def tasks(folder: Path, path: str, **options: Any) -> list[Task]:
    source = build_jsonl(JsonlOptions.model_validate({"path": path, **options}), BuildContext(base_dir=folder))
    found = source.tasks()
    assert len(source) == len(found)
    return found


def failure(folder: Path, path: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        tasks(folder, path, **options)
    return str(caught.value)


def test_columns_are_mapped_and_found_by_their_usual_names(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"question": "1+1?", "answer": 2, "level": "easy", "kind": ["sum", "one"]},
        {"question": "2+2?", "answer": 4, "level": "hard", "kind": "sum"},
    )
    first, second = tasks(tmp_path, path, columns={"facts": ["level"], "tags": "kind"})
    assert (first.prompt, first.reference, first.facts, first.tags) == ("1+1?", 2, {"level": "easy"}, ("sum", "one"))
    assert second.tags == ("sum",)
    assert first.id.startswith("1-")
    assert first.id != second.id
    named = tasks(tmp_path, path, columns={"prompt": "answer", "reference": "question"} | {"prompt": "level"})
    assert [task.prompt for task in named] == ["easy", "hard"]
    assert named[0].reference == "1+1?"


def test_a_question_is_framed_by_system_examples_and_template(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "3+4", "reference": "7", "role": "Count."}, {"prompt": "1+1", "reference": "2"})
    (task,) = tasks(
        tmp_path,
        path,
        system="Add.",
        template="{prompt} =",
        examples=[{"prompt": "1+1", "answer": "2"}],
    )
    said = [(message.role, message.content) for message in task.messages]
    assert said == [("system", "Add."), ("user", "1+1 ="), ("assistant", "2"), ("user", "3+4 =")]
    path = write(tmp_path, {"prompt": "3+4", "role": "Count."})
    (task,) = tasks(tmp_path, path, system="Add.", columns={"system": "role"})
    assert task.messages[0].content == "Count."
    with pytest.raises(ValidationError, match=r"the template has no \{prompt\}"):
        JsonlOptions(path="x", template="{question}")


def test_conversations_are_taken_as_they_are(tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "?"},
    ]
    path = write(tmp_path, {"messages": talk})
    (task,) = tasks(tmp_path, path, system="Be kind.", template="{prompt}!")
    assert [message.content for message in task.messages] == ["Be kind.", "Hi", "Hello", "?"]
    path = write(tmp_path, {"messages": [{"role": "user", "content": [{"type": "image"}]}]})
    assert failure(tmp_path, path).startswith(
        "tasks.jsonl:1: column 'messages': message 0 is not {role, content} with text"
    )


BAD_ROWS: list[tuple[list[Any], dict[str, Any], str]] = [
    (
        [{"question": "a", "answer": 1}, {"question": "b", "answr": 1}],
        {},
        "tasks.jsonl:2: column 'answer' is missing",
    ),
    ([{"problems": "a"}], {}, "tasks.jsonl:1: no column holds the question: none of prompt, problem"),
    (
        [{"prompt": "a"}],
        {"columns": {"prompt": "promt"}},
        "column 'promt' is missing; this row has prompt. Did you mean",
    ),
    ([{"prompt": " "}], {}, "tasks.jsonl:1: column 'prompt' is empty"),
    ([{"prompt": 5}], {}, "tasks.jsonl:1: column 'prompt' must be text or a list of messages; found int"),
    ([{"prompt": []}], {}, "found an empty list"),
    (
        [{"prompt": "a", "id": 1}, {"prompt": "b", "id": 1}],
        {},
        "tasks.jsonl:2: column 'id': id '1' comes twice, first on line 1",
    ),
    ([{"prompt": "a", "id": None}], {}, "column 'id' must be a text or a whole number; found null"),
    (
        [{"prompt": "a", "kind": 3}],
        {"columns": {"tags": "kind"}},
        "column 'kind' must be a text or a list of texts",
    ),
    ([{"prompt": "a"}, "{'prompt': 'b'}"], {}, "tasks.jsonl:2:2: not JSON"),
    ([], {}, "tasks.jsonl: it has no rows"),
]


@pytest.mark.parametrize(("rows", "options", "sentence"), BAD_ROWS)
def test_a_bad_row_is_one_sentence_with_its_place(
    tmp_path: Path, rows: list[Any], options: dict[str, Any], sentence: str
) -> None:
    message = failure(tmp_path, write(tmp_path, *rows), **options)
    assert sentence in message
    assert str(tmp_path) not in message


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    assert failure(tmp_path, "none.jsonl").startswith("tasks.path: none.jsonl: there is no such file (looked at ")
    assert "is a folder" in failure(tmp_path, ".")


def test_gzip_start_limit_and_unique(tmp_path: Path) -> None:
    rows = [{"prompt": text} for text in ("a", "b", "A ", "c", "d")]
    with gzip.open(tmp_path / "tasks.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    assert [task.prompt for task in tasks(tmp_path, "tasks.jsonl.gz", unique=True)] == ["a", "b", "c", "d"]
    assert [task.prompt for task in tasks(tmp_path, "tasks.jsonl.gz", start=1, limit=2)] == ["b", "A "]


def test_the_halves_of_a_split_share_no_question(tmp_path: Path) -> None:
    path = write(tmp_path, *({"prompt": f"{place % 100}  Apples", "id": place} for place in range(200)))
    halves = {
        part: {normalized(task.prompt) for task in tasks(tmp_path, path, part=part, held_out=0.3)}
        for part in ("train", "held_out", "all")
    }
    assert not halves["train"] & halves["held_out"]
    assert halves["train"] | halves["held_out"] == halves["all"]
    assert 15 <= len(halves["held_out"]) <= 45


@given(st.text(), st.floats(0.01, 0.99), st.integers(0, 5))
def test_every_question_is_in_exactly_one_half(question: str, share: float, seed: int) -> None:
    def offered(part: str, text: str) -> bool:
        return SplitOptions.model_validate({"part": part, "held_out": share, "split_seed": seed}).offers(text)

    assert offered("train", question) != offered("held_out", question)
    assert offered("train", question) == offered("train", "  ".join(f" {question}\n".split(" ")))
