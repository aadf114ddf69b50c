"""`assay train` with kind prm: every objective and format to a folder that is a reward source by its name alone."""

import asyncio
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.cli import main
from assay.component import BuildContext
from assay.config.load import parse_config
from assay.config.reward_models import save_threshold
from assay.contracts import Candidate, Message, Rollout, Task, Turn, Verdict
from assay.errors import ConfigError
from assay.fit import fit
from assay.result import Run
from assay_prms.loading import RewardModelOptions, build_reward_model
from assay_prms.spec import read_spec

Write = Callable[[str, Sequence[Mapping[str, Any]]], Path]
SUMS = [(a, b) for a in range(4) for b in range(4)]
STEPS: list[dict[str, Any]] = [
    {"problem": f"{a}+{b}=", "steps": [f"{a}+{b}={a + b + wrong}", f"so {a + b + wrong}"], "labels": [not wrong, True]}
    for a, b in SUMS
    for wrong in (0, 1)
]
OUTCOMES = [
    {"prompt": f"{a}+{b}=", "response": f"{a}+{b}={a + b + wrong}\n\nso {a + b + wrong}", "label": not wrong}
    for a, b in SUMS
    for wrong in (0, 1)
]
PAIRS = [{"prompt": f"{a}+{b}=", "chosen": f"so {a + b}", "rejected": f"so {a + b + 1}"} for a, b in SUMS]
WORDS = {"question": "Right?", "yes": "Y", "no": "N"}
CRITIQUES = [{**row, "critique": f"Let me see. Right?{'Y' if row['label'] else 'N'}"} for row in OUTCOMES]
TRAINING = {"learning_rate": 3e-3, "batch_size": 16, "epochs": 2}
OBJECTIVES: dict[str, tuple[dict[str, Any], Any]] = {
    "bradley_terry": ({"centring": 0.01}, PAIRS),
    "outcome": ({"at": "steps"}, OUTCOMES),
    "step": ({"hidden": 16, "outputs": 2}, STEPS),
    "multi_domain": ({}, [{**row, "domain": "ab"[k % 2]} for k, row in enumerate(STEPS)]),
    "pqm": ({}, STEPS),
    "implicit_ce": ({"beta": 0.5}, OUTCOMES),
    "implicit_dpo": ({"beta": 0.5}, PAIRS),
    "generative": ({**WORDS, "imitation": 0.1}, OUTCOMES),
    "generative_critique": (
        {**WORDS, "instruction": "Check:", "critiques": 2, "critique_tokens": 24, "critique_temperature": 0.3},
        CRITIQUES,
    ),
}


def trained(folder: Path, base: Path, file: Path, objective: Mapping[str, Any], **more: Any) -> Run:
    """A run of kind prm."""
    table: dict[str, Any] = {
        "kind": "prm", "seed": 1, "runs_dir": str(folder / "runs"), "model": {"base": str(base)},
        "data": {"path": str(file), "holdout": 0.25}, "objective": dict(objective), "training": TRAINING, **more,
    }  # fmt: skip
    parsed: Any = parse_config(json.loads(json.dumps(table)), where="c.toml")
    run = fit(parsed, base_dir=folder)
    assert run is not None
    return Run(run)


def judged(source: Any, texts: Sequence[str]) -> list[Verdict]:
    """Verdicts on responses to one sum."""
    task = Task(id="t", messages=(Message(role="user", content="1+2="),))
    batch = [
        Candidate(task=task, rollout=Rollout(id=str(k), task_id="t", group_id="g", turns=(Turn(text=text),)))
        for k, text in enumerate(texts)
    ]

    async def judge() -> Any:
        return await source.judge(batch)

    return list(asyncio.run(judge()))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_learns_and_its_folder_is_a_source(name: str, tiny: Path, tmp_path: Path, write: Write) -> None:
    options, rows = OBJECTIVES[name]
    training = {**TRAINING, "epochs": 4, "batch_size": 32}
    run = trained(tmp_path, tiny, write("rows.jsonl", rows), {"use": name, **options}, training=training)
    losses = [line["loss"] for line in run.metrics]
    assert losses[-1] < losses[0]
    assert math.isfinite(run.evaluations[-1]["held_out"]["loss"])
    described = json.loads((run.policy / "reward_model.json").read_text("utf-8"))
    assert described["use"] == "reward-model"
    source = build_reward_model(RewardModelOptions(path=str(run.policy)), BuildContext())
    texts = ["1+2=3\n\nso 3", "1+2=4\n\nso 4"]
    verdicts = judged(source, texts)
    if name == "generative_critique":  # two short critiques of a model that learned for seconds may say nothing
        assert all(v.status == "scored" or "came to a verdict" in (v.reason or "") for v in verdicts)
        return
    assert [verdict.status for verdict in verdicts] == ["scored", "scored"]
    assert verdicts[0].value != verdicts[1].value
    assert len(verdicts[0].steps) == (1 if read_spec(run.policy, convention=None, changes={}).at == "end" else 2)


def test_the_model_in_memory_and_in_its_folder_say_the_same(tiny: Path, tmp_path: Path, write: Write) -> None:
    run = trained(
        tmp_path, tiny, write("rows.jsonl", STEPS), {"use": "step", "marker": "#", "aggregation": "product"},
        evaluate={"best_of": [2], "aggregate": ["min", "product"]}, splitter={"by": "line"},
    )  # fmt: skip
    spec = read_spec(run.policy, convention=None, changes={})
    assert (spec.marker, spec.aggregation, spec.splitter.by) == ("#", "product", "line")
    loaded = judged(run.reward_source(), ["1+2=3\nso 3"])
    again = judged(build_reward_model(RewardModelOptions(path=str(run.policy)), BuildContext()), ["1+2=3\nso 3"])
    assert loaded[0].value == again[0].value
    assert loaded[0].value == pytest.approx(loaded[0].steps[0].value * loaded[0].steps[1].value)


@pytest.mark.parametrize(("name", "rows"), [("step", STEPS), ("implicit_ce", OUTCOMES)])
def test_a_folder_that_was_moved_ranks_by_its_name_alone(
    name: str, rows: Any, tiny: Path, tmp_path: Path, write: Write,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One response to each problem: best of one is what it is, and larger n are not made up."""
    run = trained(tmp_path, tiny, write("rows.jsonl", rows), {"use": name}, steps=1)
    (tmp_path / "elsewhere").mkdir()
    shutil.move(run.policy, tmp_path / "elsewhere" / "judge")
    monkeypatch.chdir(tmp_path / "elsewhere")
    pool = write("pool.jsonl", OUTCOMES[::2])
    assert main(["rerank", str(pool), "--by", "judge", "--n", "1,4", "--json"]) == 0
    (figures,) = json.loads(capsys.readouterr().out)["scorers"].values()
    argmax = figures["value"]["strategies"]["argmax"]
    assert (argmax["1"]["value"], argmax["1"]["problems"]) == (1.0, len(SUMS))
    assert argmax["4"] == {"value": None, "low": None, "high": None, "problems": 0}


def first_error_rows() -> list[dict[str, Any]]:
    """ProcessBench's form."""
    return [
        {"problem": row["problem"], "steps": row["steps"], "label": -1 if row["labels"][0] else 0,
         "final_answer_correct": row["labels"][0]}
        for row in STEPS
    ]  # fmt: skip


def shepherd_rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row in STEPS:
        pieces = [f"Step {k}: {step} " for k, step in enumerate(row["steps"], 1)]

        def marked_by(marks: list[str], row: Mapping[str, Any] = row, pieces: list[str] = pieces) -> str:
            return f"{row['problem']} " + "\n".join(piece + mark for piece, mark in zip(pieces, marks, strict=True))

        given, marked = marked_by(["ки", "ки"]), marked_by(["+" if label else "-" for label in row["labels"]])
        found.append({"input": given, "label": marked, "task": "sums"})
    return found


def prm800k_rows() -> list[dict[str, Any]]:
    return [
        {"labeler": "x", "question": {"problem": row["problem"]}, "label": {"finish_reason": "solution", "steps": [
            {"completions": [{"text": step, "rating": 1 if label else -1}], "chosen_completion": 0,
             "human_completion": None}
            for step, label in zip(row["steps"], row["labels"], strict=True)
        ]}}
        for row in STEPS
    ]  # fmt: skip


def trl_rows() -> list[dict[str, Any]]:
    return [{"prompt": row["problem"], "completions": row["steps"], "labels": row["labels"]} for row in STEPS]


FORMATS = {
    "trl": trl_rows, "math_shepherd": shepherd_rows, "prm800k": prm800k_rows, "processbench": first_error_rows,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_trains_the_same_labels(name: str, tiny: Path, tmp_path: Path, write: Write) -> None:
    data = write("rows.jsonl", FORMATS[name]())
    run = trained(tmp_path, tiny, data, {"use": "step"}, steps=1)
    facts = json.loads((run.folder / "data.json").read_text("utf-8"))
    # Each right solution has two right steps; each wrong one a wrong step, and what follows is unknown.
    assert facts["labels"] == {"true": 32, "of": 48, "steps": True}
    assert (facts["trained_problems"], facts["held_out_problems"], facts["left_out"]) == (12, 4, {})


def test_class_balance_and_majority_stand_beside_the_accuracy(
    tiny: Path, tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row for k, row in enumerate(STEPS) if k % 2 == 0 or k < 8]
    config = tmp_path / "c.toml"
    config.write_text(
        f'kind = "prm"\nsteps = 2\n[model]\nbase = "{tiny}"\n[data]\npath = "{write("rows.jsonl", rows)}"\n'
        'holdout = 0.3\n[objective]\nuse = "step"\n',
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert main(["train", "c.toml"]) == 0
    shown = capsys.readouterr().out
    assert "20 examples, 16 problems, 89% steps right" in shown
    assert "majority class" in shown
    assert "step_accuracy" in shown


def test_problems_are_never_in_both_halves(tiny: Path, tmp_path: Path, write: Write) -> None:
    from assay.config.fit import ExampleData
    from assay.training.encoder import TextEncoder
    from assay.training.examples import read_examples
    from assay.training.model import load_policy
    from assay_prms import objective

    data = ExampleData(path=str(write("rows.jsonl", STEPS * 2)), holdout=0.5)
    encoder = TextEncoder(load_policy(str(tiny)).tokenizer)
    halves = read_examples(data, objective("step"), encoder, seed=0, base_dir=tmp_path, runs_dir=tmp_path)
    apart = [{example.sequences[0][0] for example in half} for half in (halves.trained, halves.held_out)]
    assert not apart[0] & apart[1]
    assert (len(apart[0]), len(apart[1])) == (8, 8)


def test_an_adapter_and_its_head_become_a_whole_reward_model(tiny: Path, tmp_path: Path, write: Write) -> None:
    run = trained(
        tmp_path, tiny, write("rows.jsonl", STEPS), {"use": "step"},
        training={**TRAINING, "lora": {"rank": 4}}, evaluate={"best_of": []},
    )  # fmt: skip
    assert run.policy.name == "model"
    (verdict,) = judged(build_reward_model(RewardModelOptions(path=str(run.policy)), BuildContext()), ["so 3"])
    assert verdict.status == "scored"


def test_it_is_measured_on_first_errors_while_it_trains_and_keeps_the_threshold(
    tiny: Path, tmp_path: Path, write: Write
) -> None:
    measured = write("measured.jsonl", first_error_rows())
    run = trained(
        tmp_path, tiny, write("rows.jsonl", STEPS), {"use": "step"},
        evaluate={"every_steps": 1, "first_error": str(measured)},
    )  # fmt: skip
    lines = run.evaluations
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert all("threshold" in line["first_error"] for line in lines)
    spec = read_spec(run.policy, convention=None, changes={})
    assert spec.threshold == lines[-1]["first_error"]["threshold"]


def test_implicit_dpo_names_no_first_error_before_its_threshold_is_fitted(
    tiny: Path, tmp_path: Path, write: Write
) -> None:
    """Its shares have no zero that means anything: at 0 every other step would be called wrong."""
    run = trained(tmp_path, tiny, write("rows.jsonl", PAIRS), {"use": "implicit_dpo", "beta": 0.5})
    assert read_spec(run.policy, convention=None, changes={}).threshold is None

    def told() -> tuple[Verdict, Any]:
        (verdict,) = judged(build_reward_model(RewardModelOptions(path=str(run.policy)), BuildContext()), ["a\n\nso 3"])
        return verdict, verdict.evidence[0].data

    verdict, data = told()
    assert min(step.value for step in verdict.steps) < max(step.value for step in verdict.steps)
    assert (data["threshold"], data["first_below_threshold"]) == (None, None)
    lowest = min(range(2), key=lambda index: verdict.steps[index].value)
    save_threshold(run.policy, sum(step.value for step in verdict.steps) / 2)
    assert told()[1]["first_below_threshold"] == lowest


SOFT = [{"problem": "1+1=", "steps": ["a", "b"], "labels": [1.0, 0.7]}, *STEPS]
MISTAKES: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
    (SOFT, {"use": "pqm"}, "rows.jsonl:1: labels: step 2 has the soft label 0.7, and this objective ranks right above"),
    (
        [*STEPS, {"problem": "1+1=", "steps": ["a"], "labels": [True, False]}], {"use": "step"},
        "rows.jsonl:33: labels: more labels than steps; found 2 labels for 1 steps",
    ),
    (
        [*STEPS, {"problem": "1+1=", "steps": ["a", " "], "labels": [True, False]}], {"use": "pqm"},
        "rows.jsonl:33: step 2: it has a label and is blank, which is no step; leave both out",
    ),
    (
        [{"problem": "1+1=", "steps": ["a"], "labels": [None]}], {"use": "step"},
        "nothing to learn from in",
    ),
    (STEPS, {"use": "step", "marker": "<step>"}, "rows.jsonl:1: marker: '<step>' must be one token of this tokenizer"),
    (OUTCOMES, {"use": "generative"}, "rows.jsonl:1: yes: ' Yes' must be one token of this tokenizer, spaces included"),
    (STEPS, {"use": "step", "format": "math_shepherd"}, "rows.jsonl:1: column 'input': missing, which the format"),
    (OUTCOMES, {"use": "bradley_terry"}, "rows.jsonl:1: column 'chosen': missing; found 'prompt', 'response', 'label'"),
    ([{**OUTCOMES[0], "label": "yes"}], {"use": "outcome"}, "an outcome is true or false, 1, 0 or -1; found 'yes'"),
    ([{**PAIRS[0], "margin": "big"}], {"use": "bradley_terry"}, "column 'margin': a number is expected; found 'big'"),
    ([{**PAIRS[0], "margin": 10**400}], {"use": "bradley_terry"}, "column 'margin': a number is expected; found 1000"),
    ([{**OUTCOMES[0], "prompt": [{}]}], {"use": "generative", **WORDS}, "rows.jsonl:1: prompt: a message has a role"),
    ([{**CRITIQUES[0], "response": None}], {"use": "generative_critique", **WORDS}, "column 'response': a text is exp"),
    ([{**OUTCOMES[0], "prompt": ""}], {"use": "outcome"}, "rows.jsonl:1: the prompt is empty; give it a text"),
    ([{**PAIRS[0], "preference": 1.2}], {"use": "bradley_terry"}, "column 'preference': a chance from 0 to 1 or two"),
    (
        [{**OUTCOMES[0], "critique": "It is fine."}], {"use": "generative_critique", **WORDS},
        "rows.jsonl:1: critique: it does not end in 'Right?' and Y or N; found 'It is fine.'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "objective", "sentence"), MISTAKES, ids=[m[2][:40] for m in MISTAKES])
def test_a_bad_row_is_named_and_nothing_is_trained(
    rows: list[dict[str, Any]], objective: dict[str, Any], sentence: str, tiny: Path, tmp_path: Path, write: Write
) -> None:
    with pytest.raises(ConfigError) as error:
        trained(tmp_path, tiny, write("rows.jsonl", rows), objective)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_rows_without_a_labelled_step_are_counted(tiny: Path, tmp_path: Path, write: Write) -> None:
    rows = [*STEPS, {"problem": "9+9=", "steps": ["a", "b"], "labels": [None, None]}]
    run = trained(tmp_path, tiny, write("rows.jsonl", rows), {"use": "step"}, steps=1)
    facts = json.loads((run.folder / "data.json").read_text("utf-8"))
    assert facts["left_out"] == {"nothing to learn from": 1}


def test_a_moved_reference_and_another_tokenizer_are_one_sentence(tiny: Path, tmp_path: Path, write: Write) -> None:
    run = trained(tmp_path, tiny, write("rows.jsonl", OUTCOMES), {"use": "implicit_ce"}, steps=1)
    file = run.policy / "reward_model.json"
    described = json.loads(file.read_text("utf-8"))
    described["model"]["reference"] = str(tmp_path / "gone")
    file.write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"reference: .*name where it is now: reference = "):
        build_reward_model(RewardModelOptions(path=str(run.policy)), BuildContext())
    here = build_reward_model(RewardModelOptions(path=str(run.policy), reference=str(tiny)), BuildContext())
    assert judged(here, ["so 3"])[0].status == "scored"
    described["model"] |= {"reference": str(tiny), "tokenizer": "0" * 16}
    file.write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(ConfigError, match="its tokenizer is not the one that it was trained with"):
        build_reward_model(RewardModelOptions(path=str(run.policy)), BuildContext())
    file.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"reward_model.json: cannot be read"):
        build_reward_model(RewardModelOptions(path=str(run.policy)), BuildContext())
