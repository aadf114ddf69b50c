"""Every mistake that can be found before work is one sentence, exit code 2, and nothing is started."""

import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from assay.cli import main

pytest.importorskip("torch", reason="training needs torch")

CONFIG = """
kind = "rlvr"
steps = 2
policy = { model = "model" }
tasks = { use = "jsonl", path = "tasks.jsonl", columns = { prompt = "question", reference = "answer" } }
engine = { use = "transformers", group_size = 2, max_new_tokens = 4, template = "plain" }
rewards = [{ use = "math" }]
optimizer = { use = "grpo" }
loop = { groups_per_step = 2 }
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from assay.training.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("policy") / "model", hidden_size=32, layers=1)


@pytest.fixture
def folder(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").symlink_to(model)
    rows = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(6)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    (tmp_path / "rlvr.toml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is printed for a mistake; exit code 2, no traceback, no run folder."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert not Path("runs").exists()
    return printed.err


def test_a_config_in_order_passes_the_dry_run(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "rlvr.toml", "--dry-run"]) == 0
    assert "everything that can be checked before work is in order" in capsys.readouterr().out
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("setting", "sentences"),
    [
        ("tasks.columns.prompt=quest", ["tasks.jsonl:1", "column 'quest' is missing", "question"]),
        ("rewards.0.use=mth", ["rewards[0].use: no reward source named 'mth'", "Did you mean 'math'?"]),
        ("optimizer.use=grop", ["no optimizer named 'grop'", "Did you mean 'grpo'?"]),
        ("engine.use=transformer", ["no engine named 'transformer'", "Did you mean 'transformers'?"]),
        ("tasks.use=jsonlines", ["no task source named 'jsonlines'"]),
        ("engine.max_row=3", ["engine", "unknown key 'max_row'", "Did you mean 'max_rows'?"]),
        ("optimizer.trust_region={use='clipp'}", ["trust_region", "clipp"]),
        ("steps=many", ["steps: input should be a valid integer", "found 'many'"]),
        ("loop.groups_per_step=0", ["loop.groups_per_step: input should be greater than or equal to 1; found 0"]),
        ("policy.model=nowhere", ["nowhere"]),
        ("steps=1000000000", ["too little free disk"]),
        ("engine.group_size=1", ["loop.min_scored is 2 with engine.group_size = 1"]),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str, sentences: list[str]
):
    message = refused(capsys, "train", "rlvr.toml", "--set", setting)
    for sentence in sentences:
        assert sentence in message


def test_a_gold_that_cannot_be_read_is_named_by_its_row(folder: Path, capsys: pytest.CaptureFixture[str]):
    with (folder / "tasks.jsonl").open("a", encoding="utf-8") as file:
        file.write('\n{"question": "what?", "answer": "\\\\frac{1}{"}')
    message = refused(capsys, "train", "rlvr.toml")
    assert "cannot read 1 of 7 golds" in message


def test_a_schema_that_a_worker_cannot_use_is_named_before_anything_is_sampled(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    kinds = ["object", "array", "objekt"]
    rows = [{"question": f"{kind}?", "answer": {"type": kind}} for kind in kinds]
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    message = refused(capsys, "train", "rlvr.toml", "--set", 'rewards=[{use="json-schema"}]')
    assert "tasks: 1 of 3 different golds cannot be read" in message
    assert "json-schema: the schema is invalid at $.type" in message


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (b"{broken", "tasks.jsonl:7:2"),
        (b'{"question": "\xff"}', "tasks.jsonl:7:"),
        (b"[1, 2]", "tasks.jsonl:7"),
        (b'{"question": 3, "answer": "1"}', "tasks.jsonl:7"),
    ],
)
def test_a_bad_row_is_named_with_its_line(folder: Path, capsys: pytest.CaptureFixture[str], row: bytes, sentence: str):
    with (folder / "tasks.jsonl").open("ab") as file:
        file.write(b"\n" + row)
    assert sentence in refused(capsys, "train", "rlvr.toml")


def test_a_model_folder_without_a_tokenizer_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]):
    bare = folder / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((folder / "model" / name).read_bytes())
    message = refused(capsys, "train", "rlvr.toml", "--set", "policy.model=bare")
    assert "bare" in message
    assert "tokenizer" in message


def test_held_out_questions_that_are_trained_on_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]):
    held_out = '{use="jsonl", path="tasks.jsonl", columns={prompt="question", reference="answer"}}'
    message = refused(capsys, "train", "rlvr.toml", "--set", f"evaluate.tasks={held_out}")
    assert "6 of 6 held-out questions are also trained on" in message


def test_resuming_what_was_never_started_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert "has no run of 'rlvr'; start it without --resume" in refused(capsys, "train", "rlvr.toml", "--resume")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "nowhere.toml"], "nowhere.toml: no such file"),
        (["train", "rlvr.toml", "--set", "steps"], "--set steps: no '='"),
        (["score", "tasks.jsonl"], "no reward source is named"),
        (["score", "tasks.jsonl", "-r", "math"], "no column holds the response"),
        (["score", "nowhere.jsonl", "-r", "math"], "nowhere.jsonl: no such file"),
        (["score", "tasks.jsonl", "-r", "mth", "--response", "answer"], "Did you mean 'math'?"),
        (["score", "tasks.jsonl", "-r", "mine.py", "--response", "answer"], "which function of the file?"),
        (
            ["score", "tasks.jsonl", "-r", "math", "--fail-above", "2"],
            "--fail-above 2: a share of the verdicts is 0 to 1",
        ),
        (["score", "tasks.jsonl", "-r", "math", "--fail-above", "nan"], "--fail-above nan: a share of the verdicts"),
        (["show", "nothing"], "no run 'nothing' in runs; found none"),
        (["shwo"], "no command 'shwo'"),
        (["plugins", "--kind", "optimiser"], "Did you mean 'optimizer'?"),
        (["plugins", "grop"], "no component named 'grop'"),
        (["doctor", "--jsn"], "--jsn"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
):
    assert sentence in refused(capsys, *arguments)


def test_without_torch_the_demo_judges_scripted_answers_and_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    found = importlib.util.find_spec

    def without_torch(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "torch" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_torch)
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert 'python -m pip install "assay[train]"' in printed
    rows = [
        json.loads(line) for line in (tmp_path / "runs" / "demo-answers.scored.jsonl").read_text("utf-8").splitlines()
    ]
    assert {row["verdicts"][0]["status"] for row in rows} == {"scored", "abstained"}
    assert [row["reward"] for row in rows[:2]] == [1.0, 1.0]
    assert rows[3]["reward"] == 0.0


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("rewards.0={use='python', path='mine.py:missing'}", "missing"),
        ("rewards.0={use='math', when={tag='geometry'}}", "rewards[0].when: no task has the tag geometry"),
        ("policy.device=nowhere", "policy.device: 'nowhere' cannot be used here"),
        ("name='../elsewhere'", "name"),
    ],
)
def test_the_dry_run_builds_what_a_run_would_build(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str, sentence: str
):
    (folder / "mine.py").write_text("def there(task, rollout): ...\n", encoding="utf-8")
    assert sentence in refused(capsys, "train", "rlvr.toml", "--dry-run", "--set", setting)
    assert sentence in refused(capsys, "train", "rlvr.toml", "--set", setting)


def test_a_damaged_weights_file_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]):
    broken = folder / "broken"
    broken.mkdir()
    for path in (folder / "model").iterdir():
        (broken / path.name).write_bytes(path.read_bytes()[: 500 if path.name == "model.safetensors" else None])
    assert "broken" in refused(capsys, "train", "rlvr.toml", "--set", "policy.model=broken")


@pytest.mark.parametrize(
    ("out", "sentence"), [("data.jsonl", "that is the data file itself"), ("no/x.jsonl", "does not")]
)
def test_verdicts_never_overwrite_the_data(folder: Path, capsys: pytest.CaptureFixture[str], out: str, sentence: str):
    data = folder / "data.jsonl"
    data.write_text('{"problem": "1+1=", "completion": "2", "answer": "2"}\n', encoding="utf-8")
    assert sentence in refused(capsys, "score", "data.jsonl", "-r", "math", "--out", out)
    assert data.read_text(encoding="utf-8").startswith('{"problem"')
