"""`assay compare` on made run folders: paired differences, flips, pass@k and its crossover, fitted curves."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli import main
from assay.compare import PassAt, compare, crossover
from assay.contracts import Evidence, Judgement, Message, Reward, Rollout, RunInfo, Task, Turn, Verdict
from assay.errors import ConfigError
from assay.reports.compute_curve import ComputeCurve, fit_compute_curve
from assay.reports.diversity import CollapseWatch, answer_of, diversity
from assay.reports.statistics import Interval
from assay.store import RunStore

CONFIG = 'kind = "score"\nname = "made"\nseed = {seed}\ndata = {{ path = "a.jsonl" }}\nrewards = [{{ use = "math" }}]\n'


def make_run(
    folder: Path,
    rewards: Mapping[str, Sequence[float | None]],
    *,
    seed: int = 1,
    held_out: bool = False,
    steps: Sequence[Mapping[str, float]] = (),
) -> Path:
    """A run folder with these rewards by task."""
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG.format(seed=seed), encoding="utf-8")
    info = RunInfo(
        id=folder.name, name="made", kind="rlvr", folder=str(folder), seed=seed, plugins={"assay-x": str(seed)}
    )
    lines: list[str] = []
    with RunStore.create(folder, info) as store:
        for name, values in rewards.items():
            task = Task(id=name, messages=(Message(role="user", content=name),), reference="1")
            for sample, value in enumerate(values):
                turn = Turn(role="assistant", text=f"{name} {sample} of {seed}")
                rollout = Rollout(id=f"{name}-{sample}", task_id=name, group_id=name, turns=(turn,))
                reason = "masked here" if value is None else None
                reward = Reward(rollout_id=rollout.id, value=value, reason=reason)
                if not held_out:
                    store.add_rollout(rollout, step=1, task=task)
                    store.add_reward(reward, step=1, group_id=name)
                kept = {"task": task, "rollout": rollout}
                body = {key: entry.model_dump(mode="json") for key, entry in kept.items()}
                lines.append(json.dumps(body | {"rewards": {"accuracy": reward.model_dump(mode="json")}}))
    if held_out:
        (folder / "answers").mkdir()
        (folder / "answers" / "000004.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps), encoding="utf-8")
    return folder


def test_pairs_flips_and_settings(tmp_path: Path):
    first = make_run(tmp_path / "base-1", {"a": [0, 0], "b": [1, 1], "c": [1, None], "only": [1]}, seed=1)
    second = make_run(tmp_path / "trained-2", {"a": [1, 1], "b": [1, 1], "c": [0, 0], "e": [1], "f": [0]}, seed=2)
    found = compare(first, second)
    assert (found.pairs, found.unpaired) == (3, (1, 2))
    assert found.means == pytest.approx((2 / 3, 2 / 3))
    assert found.difference is not None
    assert found.difference.value == pytest.approx(0.0)
    assert [(flip.task, flip.first, flip.second) for flip in found.gained] == [("a", "a 0 of 1", "a 0 of 2")]
    assert [flip.task for flip in found.lost] == ["c"]
    assert found.settings == {"seed": [1, 2]}
    assert found.plugins == {"assay-x": ["1", "2"]}


def test_by_sample_a_masked_answer_is_no_pair(tmp_path: Path):
    first = make_run(tmp_path / "base-1", {"c": [1, None]})
    second = make_run(tmp_path / "base-2", {"c": [0, 1]})
    found = compare(first, second, by="sample")
    assert (found.pairs, found.unpaired) == (1, (0, 1))


def test_held_out_answers_are_preferred(tmp_path: Path):
    first = make_run(tmp_path / "base-1", {"a": [1]}, held_out=True)
    second = make_run(tmp_path / "base-2", {"a": [0]}, held_out=True)
    found = compare(first, second)
    assert found.answers == "held-out answers after steps 4 and 4"
    assert len(found.lost) == 1


def test_pass_at_k_shows_where_the_base_catches_up(tmp_path: Path):
    # The base solves each task once in eight, the trained run solves half of them always and the others never.
    base = make_run(tmp_path / "base-1", {f"t{n}": [1, *[0] * 7] for n in range(4)})
    trained = make_run(tmp_path / "base-2", {f"t{n}": [n % 2] * 8 for n in range(4)})
    found = compare(base, trained, pass_at=(1, 2, 4, 8))
    assert [row.first.value for row in found.pass_at] == pytest.approx([0.125, 0.25, 0.5, 1.0])
    assert [row.second.value for row in found.pass_at] == pytest.approx([0.5] * 4)
    assert found.crossover == 4
    with pytest.raises(ConfigError, match="--pass-at 9: no task has 9 scored answers in both runs; the most is 8"):
        compare(base, trained, pass_at=(9,))


def test_no_crossover_without_a_lead():
    def row(k: int, first: float, second: float) -> PassAt:
        return PassAt(k, 5, Interval(first, first, first), Interval(second, second, second))

    assert crossover([row(1, 0.5, 0.4), row(8, 0.9, 0.8)]) is None
    assert crossover([row(1, 0.2, 0.4), row(8, 0.3, 0.8)]) is None


def test_runs_without_a_common_task_are_refused(tmp_path: Path):
    first, second = make_run(tmp_path / "base-1", {"a": [1]}), make_run(tmp_path / "base-2", {"b": [1]})
    with pytest.raises(ConfigError, match="no task has a reward in both runs"):
        compare(first, second)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    steps = [{"step": n, "rollouts": 8, "length": 10.0, "reward": 0.5} for n in range(9)]
    make_run(tmp_path / "runs" / "base-1111", {"a": [0, 1], "b": [1, 1]}, steps=steps)
    make_run(tmp_path / "runs" / "base-2222", {"a": [1, 1], "b": [1, 0]}, seed=2)
    assert main(["compare", "1111", "2222", "--pass-at", "1,2", "--fit"]) == 0
    printed = capsys.readouterr().out
    for sentence in (
        "2 paired by task",
        "the first does not catch up",
        "no curve: fewer than 8",
        "setting seed: 1 -> 2",
    ):
        assert sentence in printed
    assert main(["compare", "1111", "2222", "--json", "--fit"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["pairs"] == 2
    assert facts["curves"][0]["ceiling"] == pytest.approx(0.5)
    assert main(["compare", "1111", "2222", "--pass-at", "one"]) == 2
    assert "--pass-at one: not a list of whole numbers" in capsys.readouterr().err


@settings(max_examples=25, deadline=None)
@given(
    ceiling=st.floats(0.4, 0.95),
    start=st.floats(0.0, 0.3),
    midpoint=st.floats(2e4, 3e5),
    steepness=st.floats(0.8, 4.0),
)
def test_a_sigmoid_is_found_again(ceiling: float, start: float, midpoint: float, steepness: float):
    truth = ComputeCurve(start, ceiling, midpoint, steepness, 0.0, 60, 1.0)
    points = [(1.0, start), *((10 ** (3 + n / 20), truth.at(10 ** (3 + n / 20))) for n in range(60))]
    found = fit_compute_curve(points)
    assert found is not None
    assert found.ceiling == pytest.approx(ceiling, abs=0.03)
    assert math.log(found.midpoint / midpoint) == pytest.approx(0.0, abs=0.3)
    assert found.residual < 0.02


def test_too_few_points_give_no_curve():
    assert fit_compute_curve([(float(n + 1), 0.1 * n) for n in range(7)]) is None


def rollout(name: str, text: str) -> Rollout:
    return Rollout(id=name, task_id="t", group_id="g", turns=(Turn(role="assistant", text=text),))


def test_distinct_texts_answers_and_reflection_words():
    groups = [
        [rollout("1", "Wait, 4"), rollout("2", " Wait, 4 ")],
        [rollout("3", "5 waits"), rollout("4", "However 5")],
    ]
    found = diversity(groups, {"1": "4", "2": "4", "3": "5"})
    assert found == {
        "distinct_texts": pytest.approx(0.75),
        "distinct_answers": 0.5,
        "reflection_words": pytest.approx(0.75),
    }
    assert diversity([], {}) == {}


def test_the_answer_is_read_from_evidence():
    def judged(evidence: Evidence) -> Judgement:
        return Judgement.model_validate(
            {
                "rollout_id": "r",
                "task_id": "t",
                "source": "s",
                "version": "1",
                "options_hash": "o",
                "input_hash": "i",
                "verdict": Verdict.score(1.0, evidence=evidence),
                "started_at": "2026-01-01T00:00:00Z",
                "latency_s": 0.0,
            }
        )

    assert answer_of(judged(Evidence(kind="answer", summary="x", data={"answer": " 4  apples"}))) == "4 apples"
    assert answer_of(judged(Evidence(kind="answer", summary="x", data={"text": "B"}))) == "B"
    assert answer_of(judged(Evidence(kind="answer", summary="x", data="C"))) == "C"
    assert answer_of(judged(Evidence(kind="note", summary="x", data="C"))) is None


def test_a_collapse_is_said_once():
    watch = CollapseWatch(settle=2, share=0.5)
    said = [watch.step(value) for value in (1.0, 1.0, None, 0.6, 0.3, 0.2, 0.1, 0.9, 0.9, 0.1, 0.1)]
    assert [index for index, sentence in enumerate(said) if sentence] == [4]
    assert "45% of a group's texts are distinct, 100% at the start" in (said[4] or "")
