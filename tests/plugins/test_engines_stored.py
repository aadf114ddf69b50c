"""The engine `stored` and the tasks `stored`: what a run has drawn feeds another, log-probs and versions included."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from assay.api import train
from assay.component import BuildContext
from assay.config.load import parse_config
from assay.contracts import Rollout, RolloutRequest, Sampling, Task, Turn, WeightSpan
from assay.errors import AssayError, ConfigError, EngineError
from assay.result import Run
from assay.store import RunStore
from assay.testing.fakes import make_rollout, make_task
from assay.testing.scripted import ScriptedEngine
from assay_engines.stored import StoredEngine, StoredOptions, build_stored

pytestmark = pytest.mark.long


def pairs() -> list[tuple[Task, Rollout]]:
    """Two tasks; the first with two groups of two, the second with one and with one that a kill cut short."""
    groups = {"t0": ["g0", "g2"], "t1": ["g1", "g3"]}
    found: list[tuple[Task, Rollout]] = []
    for task_id, names in groups.items():
        for name in names:
            for sample in range(1 if name == "g3" else 2):
                rollout = make_rollout(f"{name}{sample}", f"{name}-{sample}", task_id=task_id, group_id=name)
                span = WeightSpan(version=int(name[1:]), first=0, last=1)
                found.append((make_task(task_id), rollout.model_copy(update={"weight_versions": (span,)})))
    return found


def ask(engine: StoredEngine, *requests: RolloutRequest) -> list[Rollout]:
    async def collect() -> list[Rollout]:
        return [rollout async for rollout in engine.generate(requests)]

    return asyncio.run(collect())


def request(task_id: str, turn: int = 0, sample: int = 0, prompt: str = "?") -> RolloutRequest:
    return RolloutRequest(
        id=f"new-{task_id}-{turn}-{sample}",
        task=make_task(task_id, prompt=prompt),
        group_id="new",
        sampling=Sampling(),
        turn=turn,
        sample=sample,
    )


def test_a_turn_of_a_task_is_answered_by_the_same_stored_group_whenever_it_is_asked():
    engine = StoredEngine("run", pairs(), None)
    wanted = [("t0", 0, 1, "g01"), ("t0", 1, 0, "g20"), ("t1", 0, 0, "g10"), ("t1", 1, 0, "g10"), ("t0", 2, 0, "g00")]
    for order in (wanted, wanted[::-1]):
        found = ask(engine, *(request(*item[:3]) for item in order))
        assert [rollout.text for rollout in found] == [item[3] for item in order]
        assert all((rollout.group_id, rollout.id[:3]) == ("new", "new") for rollout in found)
    (rollout,) = ask(engine, request("t0", 1))
    assert rollout.weight_versions[0].version == 2


def test_what_the_run_does_not_have_is_drawn_by_the_other_engine_or_told():
    other = ScriptedEngine(lambda request, version: f"drawn for {request.task.id}")
    engine = StoredEngine("run", pairs(), other)
    assert [rollout.text for rollout in ask(engine, request("t1"), request("t9"))] == ["g10", "drawn for t9"]
    engine = StoredEngine("run", pairs(), None)
    for wrong, complaint in (
        (request("t9"), "run run has no rollouts of 1 tasks that are asked for; first 't9'"),
        (request("t0", 0, 2), "the groups of run run have 2 responses, more are asked for; set engine.group_size"),
        (request("t0", prompt="other"), "task 't0' asks something else than in run run"),
        (request("t0").model_copy(update={"prompt_ids": (1, 2)}), "is to go on from token ids, and run run is over"),
    ):
        with pytest.raises(EngineError, match=complaint):
            ask(engine, wrong)
    with pytest.raises(ConfigError, match="run run has no rollouts"):
        StoredEngine("run", [], None)
    with pytest.raises(ConfigError, match="stored runs cannot be read here"):
        build_stored(StoredOptions(path="run"), BuildContext())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, questions, and held-out questions."""
    from assay.training.quick_start import quick_start_model

    folder = tmp_path_factory.mktemp("stored")
    quick_start_model(folder / "model")
    sums = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(4)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, sums[:6])), encoding="utf-8")
    (folder / "held_out.jsonl").write_text("\n".join(map(json.dumps, sums[6:9])), encoding="utf-8")
    return folder


def run(folder: Path, name: str, *, resume: Run | None = None, **tables: Any) -> Run:
    columns = {"prompt": "question", "reference": "answer"}
    tree = {
        "kind": "rlvr",
        "name": name,
        "steps": 2,
        "seed": 3,
        "runs_dir": str(folder / "runs"),
        "policy": {"model": "model"},
        "tasks": {"use": "jsonl", "path": "train.jsonl", "columns": columns},
        "engine": {"use": "transformers", "template": "plain", "group_size": 4, "max_new_tokens": 12},
        "rewards": [{"use": "math"}],
        "optimizer": {"use": "off_policy_grpo", "learning_rate": 1e-3},
        "loop": {"groups_per_step": 3},
        "checkpoint": {"every_steps": 1},
        **tables,
    }
    return train(parse_config(tree), base_dir=folder, resume=resume)


def weights(found: Run) -> dict[str, Tensor]:
    newest = max(path for path in (found.folder / "checkpoints").iterdir() if path.name.isdigit())
    return load_file(newest / "model.safetensors")


def drawn(found: Run) -> Sequence[tuple[object, ...]]:
    with RunStore.open(found.folder, read_only=True) as store:
        rollouts = [entry.rollout for entry in store.rollouts()]
    return sorted(
        (r.task_id, r.turns[0].token_ids, r.turns[0].logprobs, r.weight_versions[0].version) for r in rollouts
    )


@pytest.fixture(scope="module")
def first(folder: Path) -> Run:
    """A run whose rollouts the others use."""
    return run(folder, "drawn")


def test_off_policy_grpo_learns_from_the_rollouts_of_another_run(folder: Path, first: Run):
    path = str(first.folder.relative_to(folder))
    columns = {"prompt": "question", "reference": "answer"}
    replay: dict[str, Any] = {
        "engine": {
            "use": "stored",
            "path": path,
            "otherwise": {"use": "transformers", "template": "plain"},
            "group_size": 4,
            "max_new_tokens": 12,
        },
        "tasks": {"use": "stored", "path": path},
        "evaluate": {"tasks": {"use": "jsonl", "path": "held_out.jsonl", "columns": columns}},
    }
    second = run(folder, "replayed", **replay)
    assert drawn(second) == drawn(first)
    assert {version for *_, version in drawn(second)} == {0, 1}  # and none of them was held to be stale
    evaluated = [json.loads(line) for line in (second.folder / "evaluations.jsonl").read_text("utf-8").splitlines()]
    assert [(line["step"], line["answers"]) for line in evaluated] == [(0, 3), (2, 3)]
    steps = [json.loads(line) for line in (second.folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert sum(line["kept_groups"] for line in steps) > 0
    assert all(line["stale_groups"] == 0 for line in steps)
    start, end = load_file(folder / "model" / "model.safetensors"), weights(second)
    assert any(not start[name].equal(end[name]) for name in end if name in start)

    # The same again in two halves: a resumed run is answered by the same stored groups.
    halves = run(folder, "halves", **replay, steps=1)
    run(folder, "halves", **replay, resume=halves)
    assert drawn(halves) == drawn(second)
    assert all(weights(halves)[name].equal(value) for name, value in weights(second).items())


def copied(first: Run, name: str, change: Callable[[Turn], Turn]) -> str:
    """The path of a copy of a run whose turns are changed."""
    target = first.folder.parent / name
    target.mkdir(parents=True)
    (target / "config.toml").write_text((first.folder / "config.toml").read_text("utf-8"), encoding="utf-8")
    with RunStore.open(first.folder, read_only=True) as old:
        entries = list(old.rollouts())
        with RunStore.create(target, old.info) as store:
            for entry in entries:
                rollout = entry.rollout.model_copy(update={"turns": (change(entry.rollout.turns[0]),)})
                store.add_rollout(rollout, step=entry.step, task=entry.task)
    return str(target)


def test_the_ratio_is_against_the_log_probs_of_the_policy_that_made_the_tokens(folder: Path, first: Run):
    def unlikelier(by: float) -> Callable[[Turn], Turn]:
        return lambda turn: turn.model_copy(update={"logprobs": tuple(value - by for value in turn.logprobs or ())})

    ratios: list[float] = []
    for name, by in (("as-made", 0.0), ("unlikelier", 0.5)):
        path = copied(first, f"{name}-0000", unlikelier(by))
        found = run(folder, name, steps=1, engine={"use": "stored", "path": path, "group_size": 4},
                    tasks={"use": "stored", "path": path})  # fmt: skip
        line = json.loads((found.folder / "metrics.jsonl").read_text("utf-8").splitlines()[0])
        ratios.append(line["ratio_p50"])
    # The first step's policy is the one that made the rollouts of version 0.
    assert ratios[0] == pytest.approx(1.0, abs=1e-3)
    assert ratios[1] == pytest.approx(math.exp(0.5), rel=1e-3)


def test_a_run_of_another_tokenizer_is_refused(folder: Path, first: Run):
    def shifted(turn: Turn) -> Turn:
        return turn.model_copy(update={"token_ids": tuple(token + 1 for token in turn.token_ids or ())})

    path = copied(first, "strange-0000", shifted)
    with pytest.raises(AssayError, match="was drawn with another tokenizer"):
        run(folder, "refused", engine={"use": "stored", "path": path, "group_size": 4})
