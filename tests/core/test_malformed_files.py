"""Files that nobody should write, each kind of damage in turn: one sentence with its place, and every good row kept."""

import json
from pathlib import Path

import pytest

from assay.cli import main
from assay.component import BuildContext
from assay.config.run import ScoreData
from assay.errors import ConfigError
from assay.registry import Registry
from assay.scoring import read_answers
from assay.testing.malformed import MalformedFile, malformed_files

KINDS = 35


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(file: MalformedFile) -> str:
    Path(file.name).write_bytes(file.data)
    return file.name


def place(file: MalformedFile) -> str:
    return file.name if file.line is None else f"{file.name}:{file.line}:"


def scored(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`assay score` on `count` files: exit code, and the one sentence that is printed."""
    for file in malformed_files(count):
        code = main(["score", written(file), "-r", "exact"])
        told = capsys.readouterr().err
        assert "Traceback" not in told, file.damage
        if file.line is None and file.good:
            assert code == 0, (file.damage, told)
            continue
        (sentence,) = told.splitlines()
        assert code == 2, file.damage
        assert place(file) in sentence, file.damage
        assert file.field is None or file.field in sentence.partition(file.name)[2], (file.damage, sentence)
        assert len(sentence) < 400, file.damage
        Path(file.name).unlink()


def test_scoring_a_malformed_file_is_one_sentence_with_its_place(capsys: pytest.CaptureFixture[str]):
    scored(KINDS, capsys)


@pytest.mark.slow
def test_scoring_five_hundred_malformed_files_in_one_process(capsys: pytest.CaptureFixture[str]):
    scored(500, capsys)


def test_every_good_row_is_kept_where_bad_ones_are_skipped():
    kinds: set[str] = set()
    for file in malformed_files(500, seed=1):
        kinds.add(file.damage)
        data = ScoreData(path=written(file), on_bad_row="skip")
        if not file.good:
            with pytest.raises(ConfigError, match="no row to judge"):
                read_answers(data)
            continue
        answers = read_answers(data)
        assert len(answers.items) == file.good, file.damage
        assert len({item.rollout.text for item in answers.items}) >= file.good - 1
        assert all(f"{file.name}:" in sentence for sentence in answers.bad)
        assert bool(answers.bad) == (file.line is not None), file.damage
        Path(file.name).unlink()
    assert len(kinds) == KINDS


@pytest.mark.parametrize("seed", [2, 3])
def test_a_task_source_refuses_the_whole_file_with_the_place(seed: int, here: Path):
    component = Registry.load().component("task_source", "jsonl")
    for file in malformed_files(2 * KINDS, seed=seed, required="prompt"):
        # Only the columns that the first row settles are read: an id or tags in a later row are nobody's.
        if file.field in ("id", "tags"):
            continue
        source = component.build(component.config(path=written(file)), BuildContext(base_dir=here))
        if file.line is None and file.good:
            assert len(source.tasks()) == len(source), file.damage
            continue
        with pytest.raises(ConfigError) as error:
            source.tasks()
        told = str(error.value)
        assert place(file) in told, file.damage
        assert "\n" not in told
        assert file.field is None or file.field in told, (file.damage, told)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"kind = \n", "not valid TOML: Invalid value (at line 1, column 8)"),
        (b'kind = "rlvr', "not valid TOML"),
        (b"\xff\xfe", "cannot be read"),
        (b"", "key 'kind' is missing"),
        (b'kind = "score"\nkind = "score"\n', "not valid TOML: Cannot overwrite a value (at line 2"),
        (b'kind = "score"\nrewards = []\n[data]\npath = "x.jsonl"\nn = nan\n', "unknown key 'n'"),
        (b'kind = "score"\nrewards = "math"\ndata = "x.jsonl"\n', "data"),
        (b"a = " + b"[" * 5000, "not valid TOML"),
        (b"seed = " + b"9" * 5000 + b"\n", "not valid TOML"),
    ],
)
def test_a_malformed_config_is_one_sentence_with_its_place(data: bytes, told: str, capsys: pytest.CaptureFixture[str]):
    Path("run.toml").write_bytes(data)
    assert main(["score", "--config", "run.toml"]) == 2
    (sentence, *others) = capsys.readouterr().err.splitlines()
    assert "run.toml: " in sentence
    assert told in "\n".join([sentence, *others])
    assert not [line for line in others if "Traceback" in line]


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("x.parquet", b"PAR1" + bytes(100), "x.parquet: not a Parquet file, or damaged"),
        ("x.parquet", b"", "x.parquet: not a Parquet file, or damaged"),
        ("x.parquet", json.dumps({"response": "x"}).encode(), "x.parquet: not a Parquet file, or damaged"),
    ],
)
def test_a_malformed_parquet_file_is_one_sentence(
    name: str, data: bytes, told: str, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    Path(name).write_bytes(data)
    assert main(["score", name, "-r", "exact"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert told in sentence
