"""Tasks from Parquet files and from the library `datasets`, each written by the library that people write them with."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# pyarrow and datasets are only partly annotated.
import datetime
import decimal
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.component import BuildContext
from assay.config.refs import build
from assay.contracts import Task
from assay.errors import ConfigError, PluginError
from assay.registry import Registry
from assay.rows import BadRowError, read_rows
from assay_tasks.files import ParquetOptions, build_parquet
from assay_tasks.hub import DatasetsOptions, build_datasets

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

ROWS = [
    {"question": "1+1?", "answer": "2", "level": ["easy"], "made": datetime.date(2026, 1, 2), "picture": b"\x89PNG"},
    {"question": "2+2?", "answer": "4", "level": ["hard", "sum"], "made": None, "picture": None},
]


def parquet(folder: Path, rows: list[dict[str, Any]], name: str = "tasks.parquet") -> str:
    pq.write_table(pa.Table.from_pylist(rows), folder / name)
    return name


def parquet_tasks(folder: Path, path: str, **options: Any) -> list[Task]:
    return build_parquet(ParquetOptions(path=path, **options), BuildContext(base_dir=folder)).tasks()


def hub_tasks(folder: Path, path: str, **options: Any) -> list[Task]:
    return build_datasets(DatasetsOptions(path=path, **options), BuildContext(base_dir=folder)).tasks()


def test_a_parquet_file_gives_the_same_tasks_as_the_same_rows_of_json(tmp_path: Path):
    name = parquet(tmp_path, ROWS)
    first, second = parquet_tasks(tmp_path, name, columns={"tags": "level", "facts": ["made"]})
    assert (first.prompt, first.reference, first.tags, first.facts) == ("1+1?", "2", ("easy",), {"made": "2026-01-02"})
    assert (second.tags, second.facts) == (("hard", "sum"), {"made": None})
    with pytest.raises(ConfigError, match=r"tasks.parquet:1: column 'picture' is missing; this row has question, ans"):
        parquet_tasks(tmp_path, name, columns={"facts": ["picture"]})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "?", "answer": float("nan")}, "tasks.parquet:2: column 'answer': nan is not a JSON number"),
        ({"question": "", "answer": 1.0}, "tasks.parquet:2: column 'question' is empty"),
        ({"question": None, "answer": 1.0}, "tasks.parquet:2: column 'question' must be text or a list of messages"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: dict[str, Any], said: str):
    name = parquet(tmp_path, [{"question": "1+1?", "answer": 2.0}, row])
    with pytest.raises(ConfigError) as error:
        parquet_tasks(tmp_path, name)
    assert str(error.value).startswith(said)


def test_what_json_lacks_is_named_with_row_and_column(tmp_path: Path):
    name = parquet(tmp_path, [{"question": "?", "price": decimal.Decimal("1.50")}])
    (row,) = read_rows(tmp_path / name)
    assert isinstance(row, BadRowError)
    assert "tasks.parquet:1: column 'price' holds a Decimal, which is not JSON; make it text or a number" in str(row)


@pytest.mark.parametrize("damage", ["text", "empty", "cut", "flipped"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, damage: str):
    whole = (tmp_path / parquet(tmp_path, [{"question": f"{n}?", "answer": n} for n in range(2000)])).read_bytes()
    path = tmp_path / "tasks.parquet"
    damaged = {"text": b"question,answer\n", "empty": b"", "cut": whole[:900], "flipped": whole[:-40] + b"x" * 40}
    path.write_bytes(damaged[damage])
    with pytest.raises(ConfigError, match=r"tasks\.parquet: not a Parquet file, or damaged"):
        parquet_tasks(tmp_path, "tasks.parquet")


def test_answers_in_parquet_are_scored(tmp_path: Path):
    import assay

    rows = [{"prompt": "?", "response": "4", "answer": "4"}, {"prompt": "?", "response": "5", "answer": "4"}]
    parquet(tmp_path, rows, "answers.parquet")
    found = assay.score(tmp_path / "answers.parquet", rewards=["exact"])
    assert [judgement.value for judgement in found] == [1.0, 0.0]


def test_a_saved_data_set_its_dictionary_and_its_files_give_the_same_tasks(tmp_path: Path):
    datasets: Any = pytest.importorskip("datasets")
    rows = [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}]
    whole = datasets.Dataset.from_list(rows)
    whole.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": whole, "test": whole.select([1])}).save_to_disk(tmp_path / "splits")
    (tmp_path / "files").mkdir()
    parquet(tmp_path / "files", rows, "train-00000-of-00001.parquet")
    (arrow,) = (tmp_path / "saved").glob("*.arrow")

    wanted = [("1+1?", "2"), ("2+2?", "4")]
    for path, options in (("saved", {}), ("splits", {"split": "train"}), (f"saved/{arrow.name}", {}), ("files", {})):
        assert [(task.prompt, task.reference) for task in hub_tasks(tmp_path, path, **options)] == wanted, path
    assert [task.prompt for task in hub_tasks(tmp_path, "splits", split="test")] == ["2+2?"]

    def wanted_row(row: dict[str, str]) -> bool:
        return row["answer"] == "4"

    shuffled = whole.shuffle(seed=3).filter(wanted_row)
    shuffled.save_to_disk(tmp_path / "filtered")
    assert [task.prompt for task in hub_tasks(tmp_path, "filtered")] == ["2+2?"]


def test_mistakes_in_a_data_set_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    datasets: Any = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    rows = [{"question": "1+1?", "answer": 2.0}, {"question": "2+2?", "answer": float("inf")}]
    whole = datasets.Dataset.from_list(rows)
    datasets.DatasetDict({"train": whole, "test": whole}).save_to_disk(tmp_path / "splits")
    (tmp_path / "empty").mkdir()
    for path, options, said in (
        ("splits", {}, "tasks.split: splits has several splits; choose one of: train, test."),
        ("splits", {"split": "tset"}, "no split 'tset'; choose one of: train, test. Did you mean 'test'?"),
        ("splits", {"split": "train"}, "splits[train]:2: column 'answer': inf is not a JSON number"),
        ("./nowhere", {}, "tasks.path: ./nowhere: there is no such file or folder"),
        ("empty", {}, "tasks.path: empty: cannot be loaded: "),
        ("nobody/nothing-at-all", {}, "tasks.path: nobody/nothing-at-all: cannot be loaded: "),
    ):
        with pytest.raises(ConfigError) as error:
            hub_tasks(tmp_path, path, **options)
        assert said in str(error.value)


@pytest.mark.parametrize(("name", "library"), [("parquet", "pyarrow"), ("datasets", "datasets")])
def test_a_missing_library_is_one_sentence_that_names_the_extra(
    name: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(PluginError, match=rf"task source '{name}' needs the package '{library}'.*assay\[data\]"):
        build(Registry.load(), "task_source", name, {"path": "t.parquet"}, BuildContext(), where="tasks")
    (tmp_path / "answers.parquet").write_bytes(b"PAR1")
    if library == "pyarrow":
        with pytest.raises(ConfigError, match=r"Parquet needs the package 'pyarrow'.*assay\[data\]"):
            list(read_rows(tmp_path / "answers.parquet"))


def test_the_rows_of_a_file_survive_the_trip(tmp_path: Path):
    rows = [{"a": 1, "b": [1.5, None], "c": {"d": "é"}, "e": True}]
    name = parquet(tmp_path, rows)
    (row,) = read_rows(tmp_path / name)
    assert not isinstance(row, BadRowError)
    assert json.loads(json.dumps(row.data)) == rows[0]
