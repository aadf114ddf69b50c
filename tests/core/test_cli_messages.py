"""What commands say of small mistakes: one sentence, nothing hidden in it, and nothing left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import assay
from assay.cli import main
from assay.errors import ConfigError

ROW = '{"prompt": "1+1?", "response": "\\\\boxed{2}", "reference": "2"}\n'
PICKY = """
from assay.component import Component, Options
from assay.contracts import Limits, Verdict


class Picky:
    limits = Limits()

    def check_task(self, task):
        return None if task.reference == "2" else f"{task.reference!r} is not 2"

    async def judge(self, batch):
        return [Verdict.score(1.0) for _ in batch]

    async def aclose(self):
        pass


picky = Component("picky", Options, lambda options, context: Picky())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text(ROW, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('rewards = "math"', "rewards: expected a list; found 'math'; write [{ use = \"math\" }]"),
        ('rewards = ["math"]', "rewards[0]: expected a table; found 'math'; write { use = \"math\" }"),
        ('rewards = { use = "math" }', "rewards: expected a list; found {'use': 'math'}"),
        ('rewards = [{ cascade = "math" }]', "rewards[0].cascade: expected a list; found 'math'"),
    ],
)
def test_a_text_where_a_table_is_wanted(folder: Path, capsys: pytest.CaptureFixture[str], line: str, sentence: str):
    (folder / "score.toml").write_text(f'kind = "score"\n{line}\ndata = {{ path = "data.jsonl" }}\n', "utf-8")
    assert main(["score", "--config", "score.toml"]) == 2
    assert capsys.readouterr().err == f"assay: score.toml: {sentence}\n"


@pytest.mark.parametrize("given", ["math:abc", "math:nan", "math:", "reward.py:f:abc"])
def test_a_weight_that_is_no_number(capsys: pytest.CaptureFixture[str], given: str):
    assert main(["score", "data.jsonl", "-r", given]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"assay: -r {given}: ")
    assert "is no weight; write -r NAME:WEIGHT with a number" in error


def test_one_text_for_a_list_of_rewards():
    with pytest.raises(ConfigError, match=r"rewards is one text; write rewards=\['math'\]"):
        assay.score("data.jsonl", rewards="math")


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "\x1b[31m.jsonl", "-r", "math"],
        ["score", "\x1b[31m.jsonl", "-r", "math"],
        ["score", "data.jsonl", "-r", "\x1b[31m\u202e.py:f"],
        ["score", "data.jsonl", "-r", "\x9b31mmath"],
        ["check", "\x1b[31m"],
        ["show", "\x1b[31m"],
    ],
)
def test_names_with_control_characters_are_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.rstrip("\n")
    for character in "\x1b\x9b\u202e":
        assert character not in printed.out + printed.err


def test_data_with_control_characters_is_shown_and_not_obeyed(folder: Path, capsys: pytest.CaptureFixture[str]):
    rows = [{"id": "\x1b[31m", "reference": "\x1b]0;title\x07", "response": "2"}, {"id": "b", "reference": "2"}]
    (folder / "hostile.jsonl").write_text("".join(json.dumps({"response": "2"} | row) + "\n" for row in rows), "utf-8")
    assert main(["audit", "hostile.jsonl", "-r", "math"]) == 3
    printed = capsys.readouterr().out
    assert "\u241b[31m" in printed
    assert "\x1b" not in printed
    assert "\x07" not in printed


def test_a_file_of_any_name_names_its_run(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "my data (1).jsonl").write_text(ROW, "utf-8")
    assert main(["score", "my data (1).jsonl", "-r", "math"]) == 0
    assert "run my-data-1--" in capsys.readouterr().out
    assert (folder / "my data (1).scored.jsonl").is_file()


def test_the_next_command_looks_at_what_there_is(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["score", "data.jsonl", "-r", "math"]) == 0
    capsys.readouterr()
    assert main(["show", "latest"]) == 0
    assert "--status scored" in capsys.readouterr().out
    (folder / "data.jsonl").write_text(ROW.replace("boxed{2}", "boxed{"), "utf-8")
    assert main(["score", "data.jsonl", "-r", "math"]) == 0
    assert main(["show", "latest"]) == 0
    assert "--status abstained" in capsys.readouterr().out


def test_a_source_in_a_worker_names_the_golds_that_it_cannot_read(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "picky.py").write_text(PICKY, "utf-8")
    (folder / "data.jsonl").write_text(ROW + ROW.replace('"2"', '"3"') + ROW.replace('"2"', '"3"'), "utf-8")
    assert main(["score", "data.jsonl", "-r", "picky.py:picky"]) == 2
    error = capsys.readouterr().err
    assert "data.jsonl: 1 of 2 different golds cannot be read; 2: picky: '3' is not 2. Mend or leave out" in error
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {"data.jsonl", "picky.py"}


def test_a_bad_schema_is_named_before_anything_is_judged(folder: Path, capsys: pytest.CaptureFixture[str]):
    row = {"prompt": "?", "response": "{}", "schema": {"type": "objekt"}}
    (folder / "data.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    assert main(["score", "data.jsonl", "-r", "json-schema"]) == 2
    assert "1: json-schema: the schema is invalid at $.type" in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_a_source_that_cannot_be_built_leaves_nothing_behind(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["score", "data.jsonl", "-r", "none.py:f"]) == 2
    assert "reward source 'python' cannot be built: none.py:f: no such file" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == {"data.jsonl"}


def test_a_dash_is_standard_input(folder: Path):
    def run(*arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "assay", *arguments]
        return subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, check=False)

    done = run("score", "-", "-r", "math", given=ROW)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["reward"] for line in (folder / "stdin.scored.jsonl").read_text("utf-8").splitlines()] == [
        1
    ]
    again = run("score", "latest", "-r", "math")
    assert "tasks are taken as they were stored: stdin: its answers came on standard input" in again.stderr
    assert "1.000 over 1 -> 1.000 over 1" in again.stdout
    assert run("audit", "-", "-r", "math", given=ROW).returncode == 0
    assert (folder / "stdin.audit.html").is_file()
    wrong = run("score", "-", "-r", "math", given="{}\n[]\n")
    assert wrong.returncode == 2
    assert "/dev/stdin:1" in wrong.stderr
    pool = "".join(
        json.dumps({"prompt": "?", "response": "r", "answer": n, "correct": n == 2, "s": n}) + "\n" for n in (1, 2)
    )
    ranked = run("rerank", "--json", "-", "--scores", "s", "--correct", "correct", "--n", "2", given=pool)
    assert ranked.returncode == 0, ranked.stderr
    steps = json.dumps({"problem": "?", "steps": ["a"], "label": 0})
    assert "/dev/stdin has labelled steps" in run("rerank", "-", given=steps).stderr
    blank = run("label", "-", "-r", "math", "--model", "m", given='{"problem": "?", "answer": "2", "response": " "}')
    assert "/dev/stdin:1: the response has no step" in blank.stderr


def test_a_dash_is_standard_input_only_where_data_is_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "data.jsonl").write_text(ROW, "utf-8")
    assert main(["score", "data.jsonl", "-r", "math", "--prompt=-"]) == 2
    assert "data.jsonl:1: column '-' is missing" in capsys.readouterr().err
    assert main(["show", "-"]) == 2
    assert "/dev/stdin" not in capsys.readouterr().err


def test_an_option_that_does_not_exist_is_none_wherever_it_stands(folder: Path, capsys: pytest.CaptureFixture[str]):
    for arguments in (["--wrkers", "3", "data.jsonl"], ["data.jsonl", "--wrkers=3"], ["--wrkers"]):
        assert main(["score", *arguments]) == 2
        assert "assay score: Unknown option: --wrkers. Did you mean --workers?" in capsys.readouterr().err
