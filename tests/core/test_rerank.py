"""`assay rerank` on pools and labelled steps whose figures are known, and its mistakes in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.cli import main
from assay.config.reward_models import reward_model_entry, reward_model_folder, save_threshold
from assay.errors import ConfigError
from assay.preflight import make_context
from assay.protocols import RewardSource
from assay.registry import Registry
from assay.reranking import PoolColumns, read_pools
from assay.scoring import parse_reward

SOURCES = '''
from assay import Rollout, Task, Verdict
from assay.contracts import Span, StepScore


def last_digit(task: Task, rollout: Rollout) -> Verdict:
    """A tenth of the last character; nothing of a text that ends in x."""
    if rollout.text.endswith("x"):
        return Verdict.abstain("no digit")
    return Verdict.score(int(rollout.text[-1]) / 10)


def bad_words(task: Task, rollout: Rollout) -> Verdict:
    """0.1 for each step that says bad, 0.9 for any other."""
    steps, at = [], 0
    for step in rollout.text.split("\\n\\n"):
        steps.append(StepScore(span=Span(start=at, end=at + len(step)), value=0.1 if "bad" in step else 0.9))
        at += len(step) + 2
    return Verdict.score(min(step.value for step in steps), steps=tuple(steps))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sources.py").write_text(SOURCES, encoding="utf-8")
    return tmp_path


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["rerank", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def value(found: dict[str, Any], scorer: str, row: str, n: int) -> float:
    return found["scorers"][scorer]["value"]["strategies"][row][str(n)]["value"]


def test_figures_by_hand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Of the pool 1, 2, 9 the 9 is right: pass@1 is 1/3, any of 2 is 2/3, and the source always sees it.
    path = write(
        folder / "pool.jsonl",
        *({"problem": "p", "response": f"a{d}", "pred": str(d), "correct": d == 9} for d in (1, 2, 9)),
        *({"problem": "q", "response": f"b{d}", "pred": str(d % 2), "correct": d % 2 == 1} for d in (8, 3, 5)),
    )
    found = facts(capsys, path, "--by", "sources.py:last_digit", "--n", "1,2,3")
    assert (found["problems"], found["responses"], found["verdict"]) == (2, 6, "the data")
    # p: argmax of 2 is right in 2 of 3 subsets; q: the 8 is best wherever it is, right only in the subset 3, 5.
    assert value(found, "last_digit", "argmax", 2) == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert value(found, "last_digit", "argmax", 3) == pytest.approx(0.5)
    assert value(found, "last_digit", "any of n", 2) == pytest.approx((2 / 3 + 1) / 2)
    # q by votes: two of three say 1. Majority of 3: p shares a tie of three (1/3), q is right.
    assert value(found, "last_digit", "majority", 3) == pytest.approx((1 / 3 + 1) / 2)
    # Weighted: p 0.9 against 0.1 and 0.2; q 0.3 + 0.5 against 0.8, a tie.
    assert value(found, "last_digit", "weighted vote", 3) == pytest.approx((1 + 0.5) / 2)


def test_majority_stands_beside_every_model_and_what_loses_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"problem": f"p{number}", "response": f"{digit}", "pred": str(digit == 9), "correct": digit != 9}
        for number in range(40)
        for digit in (9, 1, 1, 1)
    ]
    path = write(folder / "pool.jsonl", *rows)
    assert main(["rerank", path, "-r", "sources.py:last_digit", "--n", "1,4"]) == 0
    out = capsys.readouterr().out
    assert "majority" in out.splitlines()[3]
    assert "last_digit: weighted vote of 4 minus majority -1.000 [-1.000, -1.000]: it loses to majority" in out
    assert "! last_digit: over-optimised: the argmax of 4 is worth 0.750 [0.750, 0.750] less than that of 1" in out


def test_what_is_not_scored_or_read_is_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        folder / "pool.jsonl",
        {"problem": "p", "response": "1", "pred": "1", "correct": True},
        {"problem": "p", "response": "x", "pred": None, "correct": False},
        {"problem": "p", "response": "2", "pred": "2", "correct": None},
    )
    assert main(["rerank", path, "-r", "sources.py:last_digit", "--n", "1,3"]) == 0
    out = capsys.readouterr().out
    assert "! last_digit: 1 of 2 responses have no score and are never chosen" in out
    assert "1 responses without a verdict are left out (no verdict in the data)" in out
    assert "1 responses without a readable answer, which never vote" in out
    assert "problems with too few responses, left out of their column: n = 3: 1" in out


def test_python_ranks_by_name_and_by_a_built_source_alike(folder: Path) -> None:
    responses = ["The answer is 1/2", "The answer is 0.5", "The answer is 3", "no x"]
    path = write(folder / "pool.jsonl", {"question": "half of one?", "responses": responses, "answer": "0.50"})
    table = {"use": "python", "path": "sources.py:last_digit"}
    named = assay.rerank(path, by=table, verdict="math", n=4)
    assert repr(named) == "Reranked(1 problems, 4 responses, by last_digit)"
    context = make_context(Registry.load(), base_dir=folder, seed=0)
    component = Registry.load().component("reward_source", "python")
    built: RewardSource = component.build(component.config(path="sources.py:last_digit"), context)
    by_object = assay.rerank(path, by=built, verdict="math", n=[4])
    assert main(["rerank", path, "--by", "sources.py:last_digit", "--verdict", "math", "--n", "4"]) == 0
    (one,), (other,) = named.to_dict()["scorers"].values(), by_object.to_dict()["scorers"].values()
    assert one == other
    with pytest.raises(ConfigError, match="nothing says which responses are right"):
        assay.rerank(path, by=built)


def test_a_verdict_source_says_what_is_right_and_which_answers_are_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    responses = ["\\boxed{1/2}", "\\boxed{0.5}", "\\boxed{3}", "no answer"]
    row = {"question": "half of one?", "responses": responses, "answer": "0.50", "points": [1.0, 1.0, 1.5, 3.0]}
    path = write(folder / "pool.jsonl", row)
    found = facts(capsys, path, "--verdict", "math", "--scores", "points", "--n", "4")
    assert found["verdict"] == "math"
    # One half is written twice: by texts no answer leads, by the source 2 votes stand against 1.
    assert value(found, "column points", "majority", 4) == 1.0
    assert value(found, "column points", "weighted vote", 4) == 1.0
    assert value(found, "column points", "argmax", 4) == 0.0


def test_the_published_scores_of_a_file_of_lists(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(shared / "data/bon_math100/math_cot_100.jsonl")
    found = facts(capsys, path, "--scores", "orm_scores", "--n", "1,8")
    figures = found["scorers"]["column orm_scores"]["value"]
    assert figures["first"]["value"] == pytest.approx(0.910)
    assert value(found, "column orm_scores", "argmax", 8) == pytest.approx(0.94)
    assert value(found, "column orm_scores", "any of n", 8) == pytest.approx(0.96)
    assert figures["votes_weighed_by"] == "logistic"


STEPS = [
    {"problem": f"p{number}", "steps": ["good", word, "good"], "label": 1 if word == "bad" else -1}
    for number in range(40)
    for word in ("bad", "good")
]


def test_labelled_steps_give_first_errors_and_a_threshold_that_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(folder / "steps.jsonl", *STEPS)
    assert main(["rerank", path, "-r", "sources.py:bad_words", "--out", "figures.json"]) == 0
    out = capsys.readouterr().out
    assert "fitted on" in out
    kept = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    assert kept["f1"] == 1.0
    assert 0.1 < kept["threshold"] <= 0.9
    assert kept["threshold_fitted_on"] + kept["rows"] == len(STEPS)
    given = facts(capsys, path, "-r", "sources.py:bad_words", "--threshold", "0.05")
    # No step lies below 0.05: every right solution is kept and no error is found.
    assert (given["error_accuracy"][0], given["correct_accuracy"][0]) == (0.0, 1.0)
    assert (given["rows"], given["threshold_fitted_on"]) == (len(STEPS), 0)


def test_prm_scores_where_all_wrong_steps_are_known(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"question": f"q{n}", "modified_process": ["good", "bad", "bad", "good"], "error_steps": [2, 4]}
        for n in range(20)
    ]
    path = write(folder / "steps.jsonl", *rows)
    assert main(["rerank", path, "-r", "sources.py:bad_words", "--threshold", "0.5"]) == 0
    # Each class: one of two found and one falsely: F1 one half for both.
    assert "F1 50.0, F1 of wrong steps 50.0, PRM score 50.0, 80 steps" in capsys.readouterr().out


def reward_model(folder: Path, **model: Any) -> Path:
    folder.mkdir(parents=True)
    described = {"use": "reward-model", "options": {"credit": "min"}, "format": 1, "model": model}
    (folder / "reward_model.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


def test_a_folder_is_a_source_by_its_path(tmp_path: Path) -> None:
    model = reward_model(tmp_path / "model", threshold=None)
    entry = {"use": "reward-model", "credit": "min", "path": str(model)}
    assert reward_model_entry(model) == entry
    assert parse_reward(str(model)) == {**entry, "weight": 1.0, "label": "model"}
    assert parse_reward(f"{model}:0.5") == {**entry, "weight": 0.5, "label": "model"}
    run = tmp_path / "run"
    newest = reward_model(run / "checkpoints" / "00000020")
    reward_model(run / "checkpoints" / "00000010")
    assert reward_model_folder(run) is None
    (run / "config.toml").write_text("", encoding="utf-8")
    assert reward_model_folder(run) == newest
    whole = reward_model(run / "model")
    assert reward_model_folder(run) == whole
    save_threshold(model, 0.25)
    assert json.loads((model / "reward_model.json").read_text(encoding="utf-8"))["model"]["threshold"] == 0.25
    with pytest.raises(ConfigError, match="its model has no 'threshold'"):
        save_threshold(newest, 0.25)


@pytest.mark.parametrize(
    ("row", "arguments", "sentence"),
    [
        ({"problem": "p", "response": "1"}, ["-r", "sources.py:last_digit"], "nothing says which responses are right"),
        ({"problem": "p", "response": "1", "correct": True}, [], "nothing ranks the responses"),
        ({"response": "1", "correct": True}, ["--scores", "s"], "pool.jsonl:1: no column holds the problem"),
        ({"problem": "p", "correct": True}, ["--scores", "s"], "pool.jsonl:1: no column holds the response"),
        ({"problem": "p", "response": "1", "correct": "yes"}, ["--scores", "s"], "column 's' is missing"),
        ({"problem": "p", "response": "1", "correct": "yes", "s": 1}, ["--scores", "s"], "must be true, false or null"),
        (
            {"problem": "p", "response": "1", "correct": True, "s": "a"},
            ["--scores", "s"],
            "must be a finite number or null",
        ),
        (
            {"problem": "p", "response": "1", "correct": True, "s": 10**400},
            ["--scores", "s"],
            "must be a finite number",
        ),
        ({"problem": "p", "responses": ["1", "2"], "correct": [True], "s": [1, 2]}, ["--scores", "s"], "a list of 2"),
        ({"problem": "p", "response": 1, "correct": True, "s": 1}, ["--scores", "s"], "must hold text; found 1"),
        ({"problem": "p", "response": "1", "correct": True}, ["--scores", "s", "--n", "0"], "--n 0: not a list"),
        (
            {"problem": "p", "response": "1", "correct": True},
            ["--scores", "s", "--aggregate", "max"],
            "no aggregation 'max'",
        ),
        ({"problem": "p", "steps": ["a"], "label": 0}, [], "one source with step scores is tried on; found 0"),
        (
            {"problem": "p", "steps": ["a"], "label": 0},
            ["-r", "sources.py:bad_words", "--save-threshold", "--threshold", "0.5"],
            "is no folder of a reward model",
        ),
        (
            {"problem": "p", "steps": ["a1"], "label": 0},
            ["-r", "sources.py:last_digit"],
            "none of 1 rows got one score inside each of its steps",
        ),
        ({"problem": "p", "steps": ["a"], "label": 0}, ["-r", "sources.py:bad_words", "--threshold", "nan"], "finite"),
        (
            {"problem": "p", "response": "1", "correct": True, "s": 1},
            ["--scores", "s", "--threshold", "1"],
            "has no label",
        ),
        (
            {"problem": "p", "response": "1", "correct": True},
            ["--scores", "s", "--save-threshold"],
            "is no folder of a",
        ),
        (
            {"problem": "p", "response": "1", "correct": True},
            ["--scores", "s", "--workers", "0"],
            "judging.workers: input",
        ),
        (
            {"problem": "p", "response": "1", "correct": True},
            ["--scores", "s", "--out", "pool.jsonl"],
            "data file itself",
        ),
        (
            {"problem": "p", "response": "1", "correct": True},
            ["--scores", "s", "--out", "no/x"],
            "folder no does not exist",
        ),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], arguments: list[str], sentence: str
) -> None:
    data = Path(write(folder / "pool.jsonl", row))
    before = data.read_bytes()
    assert main(["rerank", str(data), *arguments]) == 2
    assert data.read_bytes() == before
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_columns_of_a_file_are_named(folder: Path) -> None:
    path = write(folder / "pool.jsonl", {"q": "p", "text": "a", "gold": 1, "ok": 0, "said": 3, "points": 2})
    columns = PoolColumns(prompt="q", response="text", reference="gold", correct="ok", answer="said", score="points")
    ((_, (found,)),) = read_pools(path, columns)
    assert (found.task.prompt, found.rollout.text, found.task.reference) == ("p", "a", 1)
    assert (found.correct, found.answer, found.score) == (False, "3", 2.0)
