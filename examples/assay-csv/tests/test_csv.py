"""What the source reads, and the sentence for what it cannot read."""

from pathlib import Path

import pytest

from assay import BuildContext, ConfigError, TaskSource
from assay.registry import Registry


def source(registry: Registry, folder: Path, text: str | bytes, **options: str) -> TaskSource:
    (folder / "tasks.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    component = registry.component("task_source", "csv")
    return component.build(component.config(path="tasks.csv", **options), BuildContext(base_dir=folder))


def test_rows_become_tasks_in_order(assay_registry: Registry, tmp_path: Path) -> None:
    text = '\ufeffquestion,answer\r\n"1 + 1,\nthe sum?",2\r\n2 + 2?,4\r\n'
    tasks = list(source(assay_registry, tmp_path, text).tasks())
    assert [(task.id, task.prompt, task.reference) for task in tasks] == [
        ("3", "1 + 1,\nthe sum?", "2"),
        ("4", "2 + 2?", "4"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question,answr\n?,1\n", "tasks.csv:1: column 'answer' is missing; the header has question, answr"),
        ("question,answer\n?,1\n?\n", "tasks.csv:3: column 'answer' is empty"),
        (b"question,answer\n\xff,1\n", "tasks.csv: cannot be read: 'utf-8' codec"),
        ('question,answer\n"?,1\n', "tasks.csv: cannot be read: unexpected end of data"),
        ("", "tasks.csv:1: column 'question' is missing; the header has nothing"),
    ],
)
def test_a_mistake_is_one_sentence(assay_registry: Registry, tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        source(assay_registry, tmp_path, text).tasks()
    assert said in str(error.value)
