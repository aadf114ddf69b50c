"""Objectives and explanations inside the loop: online and iterative DPO, SPIN, ExPO and its DPO form, imitation."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from assay import Run, train
from assay.cli import main
from assay.config.load import parse_config
from assay.config.training import OptimizerSettings
from assay.contracts import Reward, Rollout, RolloutRequest, Sampling, ScoredGroup, Turn
from assay.errors import ConfigError, EngineError
from assay.pipeline.explain import explained
from assay.protocols import Example
from assay.testing import learning
from assay.testing.fakes import make_group, make_task
from assay.training.batch import make_batch
from assay.training.model import load_policy
from assay.training.trainer import Trainer
from assay.training.weights import save_policy
from assay_optim import objective

pytestmark = pytest.mark.long

SHOWN = "{reference};{prompt}"
"""A prompt with its answer in front."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that is right in about a third of its answers, and that copies whatever digit it is shown."""
    folder = learning.supervised_start(tmp_path_factory.mktemp("start"))
    policy = load_policy(str(folder))
    encode = learning.encode(policy)
    shown = [
        Example((encode(SHOWN.format(reference=digit, prompt=task.prompt), str(digit)),))
        for task in learning.tasks()
        for digit in range(10)
    ]
    trainer = Trainer(policy, None, OptimizerSettings(learning_rate=1e-3, micro_batch_tokens=8192))
    for _ in range(40):
        if trainer.step_examples(shown, objective("sft")).metrics["nll"] < 0.1:
            break
    save_policy(policy, folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The start and its tasks."""
    (tmp_path / "model").symlink_to(start)
    rows = [{"prompt": task.prompt, "reference": task.reference} for task in learning.tasks()]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(steps: int, **more: Any) -> dict[str, Any]:
    """A config of the loop; most answers are wrong at the start, so KTO's few desirable ones weigh more."""
    return {
        "kind": "rlvr",
        "name": "online",
        "steps": steps,
        "seed": 2,
        "policy": {"model": "model"},
        "tasks": {"use": "jsonl", "path": "tasks.jsonl"},
        "engine": {"use": "transformers", "template": "plain", "group_size": 8, "max_new_tokens": 3},
        "rewards": [{"use": "math"}],
        "loop": {"groups_per_step": 16, "max_refill": 0},
        "optimizer": {"learning_rate": 3e-4, "micro_batch_tokens": 8192},
        **more,
    }


def gain(run: Run, start: Path) -> float:
    """How much likelier the right answers have become, without any shown."""
    return learning.success_rate(load_policy(str(run.policy))) - learning.success_rate(load_policy(str(start)))


EXPLANATIONS = {"template": SHOWN, "per_group": 2}
ONLINE: dict[str, dict[str, Any]] = {
    "online DPO": {"objective": {"use": "dpo"}},
    "iterative DPO": {"objective": {"use": "iterative_dpo", "iteration": 3}},
    "SPIN": {"objective": {"use": "spin", "iteration": 4}, "examples": {"chosen": "reference"}},
    "rejection sampling": {"objective": {"use": "sft"}, "examples": {"keep": 2}},
    "KTO": {"objective": {"use": "kto", "desirable_weight": 6.0}},
    "LarPO": {"objective": {"use": "larpo"}},
    "ExP-DPO": {
        "objective": {"use": "dpo", "nll": 1.0},
        "examples": {"chosen": "explanation"},
        "explanations": EXPLANATIONS,
    },
    "ExP-GRPO": {
        "optimizer": {"use": "expo", "learning_rate": 3e-4, "micro_batch_tokens": 8192},
        "explanations": EXPLANATIONS,
    },
}


QUICK = ("online DPO", "SPIN", "ExP-DPO")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ONLINE]
)
def test_it_learns_inside_the_loop(folder: Path, start: Path, name: str) -> None:
    run = train(parse_config(table(10, **ONLINE[name])), base_dir=folder)
    assert len(run.metrics) == 10
    assert gain(run, start) > 0.05, f"{name} gained {gain(run, start):.3f}"
    if "objective" in ONLINE[name]:
        assert all(line["examples"] > 0 for line in run.metrics if line["kept_groups"])


def test_explanations_teach_where_every_answer_is_wrong(folder: Path, start: Path) -> None:
    """Rewards that say nothing: GRPO stands still, and the explanations carry the policy on."""
    (folder / "never.py").write_text(
        "from assay import Verdict\n\ndef never(task, rollout):\n    return Verdict.score(0.0)\n", encoding="utf-8"
    )
    nothing = {"rewards": [{"use": "python", "path": "never.py:never"}]}
    optimizer = {"learning_rate": 1e-3, "micro_batch_tokens": 8192}
    still = train(parse_config(table(3, **nothing, optimizer={"use": "grpo", **optimizer})), base_dir=folder)
    assert gain(still, start) == 0.0
    expo = train(
        parse_config(table(3, **nothing, optimizer={"use": "expo", **optimizer}, explanations=EXPLANATIONS)),
        base_dir=folder,
    )
    assert gain(expo, start) > 0.02
    kept = sorted((expo.folder / "explanations").iterdir())
    assert [path.name for path in kept] == ["000001.jsonl", "000002.jsonl", "000003.jsonl"]
    line = json.loads(kept[0].read_text(encoding="utf-8").splitlines()[0])
    assert set(line) == {"task", "rollout", "text"}


def test_a_pretraining_stream_stands_beside_the_rewards(folder: Path, start: Path) -> None:
    lines = [{"text": f"the sum of {a} and {b} is {a + b}"} for a in range(5) for b in range(5)]
    (folder / "plain.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    stream = {"path": "plain.jsonl", "weight": 0.5, "objective": {"use": "sft", "text_column": "text"}}
    optimizer = {"use": "dr_grpo", "learning_rate": 3e-4, "micro_batch_tokens": 8192}
    run = train(parse_config(table(8, optimizer=optimizer, stream=stream)), base_dir=folder)
    assert run.metrics[-1]["stream_loss"] < run.metrics[0]["stream_loss"] - 0.5
    assert gain(run, start) > 0.02


def test_a_killed_online_run_goes_on_as_one_that_was_not(folder: Path) -> None:
    settings = table(6, **ONLINE["iterative DPO"], checkpoint={"every_steps": 2})
    whole = train(parse_config({**settings, "runs_dir": "whole"}), base_dir=folder)
    begun = train(parse_config({**settings, "runs_dir": "begun", "steps": 4}), base_dir=folder)
    resumed = train(parse_config({**settings, "runs_dir": "begun"}), base_dir=folder, resume=begun)
    assert [line["loss"] for line in resumed.metrics] == [line["loss"] for line in whole.metrics]
    assert (resumed.policy / "model.safetensors").read_bytes() == (whole.policy / "model.safetensors").read_bytes()


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"objective": {"use": "dpo"}, "optimizer": {"use": "grpo"}}, "one of them computes the loss"),
    ({"objective": {"use": "dpo"}, "optimizer": {"scale": "none"}}, "optimizer.scale: an objective has no such option"),
    (
        {"objective": {"use": "dpo"}, "optimizer": {"importance_correction": "token"}},
        "it weighs advantages, and an objective has none",
    ),
    ({"examples": {"keep": 2}}, "only an objective learns from examples"),
    ({"objective": {"use": "dpo"}, "examples": {"chosen": "explanation"}}, "belong together"),
    ({"objective": {"use": "dpo"}, "explanations": {}}, "belong together"),
    ({"explanations": {"template": "no places"}}, "the template has no {prompt}"),
    ({"objective": {"use": "dpo"}, "models": {"dpo": "model"}}, "models: an optimizer compares with them"),
]


@pytest.mark.parametrize(("more", "sentence"), CONTRADICTIONS, ids=[sentence for _, sentence in CONTRADICTIONS])
def test_contradictory_tables_are_one_sentence(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(table(1, **more))
    assert sentence in str(caught.value)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"objective": {"use": "dppo"}}, "Did you mean 'dpo'?"),
    (
        {"objective": {"use": "outcome"}, "optimizer": {}},
        "'outcome' trains a reward model and here the policy is trained",
    ),
    (
        {"objective": {"use": "dpo"}, "engine": {"group_size": 1}, "loop": {"min_scored": 1}},
        "'dpo' compares the responses of a group and needs at least 2; found 1",
    ),
    (
        {"objective": {"use": "kto"}, "examples": {"chosen": "reference"}},
        "'reference' is the winner of a pair, and 'kto' learns from responses",
    ),
    ({"optimizer": {"use": "expo"}}, "makes explanations likelier and none are drawn; add the table explanations"),
    ({"optimizer": {"use": "grpo"}, "explanations": {}}, 'learns from no explanations; use "expo"'),
    ({"stream": {"path": "tasks.jsonl"}}, "tasks.jsonl:1: column 'response': missing"),
    (
        {"stream": {"path": "tasks.jsonl", "objective": {"use": "outcome"}}},
        "stream.objective: 'outcome' trains a reward model or a head",
    ),
    (
        {"optimizer": {"use": "repo"}},
        "rewards: the optimizer 'repo' reads the channel 'cost' and no entry gives it; found reward; add an entry with",
    ),
    (
        {"optimizer": {"use": "dapo", "batch_rules": [{"use": "zero_variance", "channel": "metricc"}]}},
        "rewards: the optimizer 'dapo' reads the channel 'metricc' and no entry gives it; found reward",
    ),
    (
        {"optimizer": {"use": "scalerl", "importance_correction": "token"}},
        "optimizer.importance_correction: the ratio of 'scalerl' is against the sampler's log-probs",
    ),
    ({"optimizer": {"use": "rto"}}, 'compares with a frozen policy; add models = { dpo = "FOLDER" }'),
    ({"optimizer": {"use": "grpo"}, "models": {"dpo": "model"}}, "models.dpo: the optimizer 'grpo' knows no policy"),
    ({"optimizer": {"use": "rto"}, "models": {"dpo": "nowhere"}}, "'nowhere'"),
]


@pytest.mark.parametrize(("more", "sentence"), MISTAKES, ids=[sentence for _, sentence in MISTAKES])
def test_what_does_not_fit_is_one_sentence_before_the_first_token(
    folder: Path, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        train(parse_config(table(1, **more)), base_dir=folder)
    assert sentence in str(caught.value)
    assert not (folder / "runs").exists()


def test_a_frozen_policy_that_cuts_texts_otherwise_is_refused(folder: Path) -> None:
    shutil.copytree(folder / "model", folder / "other")
    file = folder / "other" / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    words["0"], words["1"] = words["1"], words["0"]
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = table(1, optimizer={"use": "rto"}, models={"dpo": "other"})
    with pytest.raises(ConfigError, match=r"models\.dpo: 'other' has another tokenizer than 'model'"):
        train(parse_config(settings), base_dir=folder)


def test_explanations_need_answers(folder: Path) -> None:
    (folder / "tasks.jsonl").write_text('{"prompt": "1+1="}\n', encoding="utf-8")
    settings = table(1, optimizer={"use": "expo"}, explanations={}, rewards=[{"use": "repetition"}])
    with pytest.raises(ConfigError, match="1 of 1 tasks have no reference"):
        train(parse_config(settings), base_dir=folder)


def test_rto_learns_from_a_model_that_a_file_of_pairs_made(folder: Path, start: Path) -> None:
    pairs = [
        {"prompt": task.prompt, "chosen": task.reference, "rejected": str((int(str(task.reference)) + step) % 10)}
        for task in learning.tasks()
        for step in (1, 3, 5)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    preferring = train(
        parse_config(
            {
                "kind": "preference",
                "policy": {"model": "model"},
                "objective": {"use": "dpo"},
                "data": {"path": "pairs.jsonl", "holdout": 0},
                "training": {"learning_rate": 5e-4, "batch_size": 48, "epochs": 10},
            }
        ),
        base_dir=folder,
    )
    optimizer = {"use": "rto", "learning_rate": 1e-3, "micro_batch_tokens": 8192}
    settings = table(10, optimizer=optimizer, models={"dpo": str(preferring.policy)})
    assert gain(train(parse_config(settings), base_dir=folder), start) > 0.1


# ---- The conditioned sampler by itself ------------------------------------------------------------------------------


class Told:
    """An engine that answers with the prompt that it is shown, and drops or cuts what it is told to."""

    def __init__(self, *, drop: int = 0, cut: int = 0) -> None:
        self.drop, self.cut = drop, cut
        self.requests: list[RolloutRequest] = []

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        self.requests = list(requests)
        for number, request in enumerate(requests[self.drop :]):
            yield Rollout(
                id=request.id, task_id=request.task.id, group_id=request.group_id, prompt_ids=(99, 99),
                turns=(Turn(text=request.task.prompt, token_ids=(7, 8), logprobs=(-1.0, -2.0)),),
                finish="length" if number < self.cut else "stop",
            )  # fmt: skip


def scored_group() -> ScoredGroup:
    """Two wrong answers to one question."""
    rollouts = [
        rollout.model_copy(update={"prompt_ids": (1, 2), "turns": (Turn(text="x", token_ids=(3,), logprobs=(-1.0,)),)})
        for rollout in make_group(["x", "x"])
    ]
    rewards = tuple(Reward(rollout_id=rollout.id, value=0.0) for rollout in rollouts)
    return ScoredGroup(task=make_task(prompt="1+1=", reference="2"), rollouts=tuple(rollouts), rewards=rewards)


def joined(engine: Any, per_group: int = 2) -> ScoredGroup:
    found = asyncio.run(
        explained(
            engine, [scored_group()], template="Q {prompt} A {reference}", per_group=per_group,
            sampling=Sampling(max_new_tokens=4), seed=1,
        )
    )  # fmt: skip
    return found[0]


def test_the_answer_is_shown_to_the_sampler_and_hidden_from_the_update() -> None:
    engine = Told()
    group = joined(engine)
    assert [request.task.prompt for request in engine.requests] == ["Q 1+1= A 2"] * 2
    assert len({request.sampling.seed for request in engine.requests}) == 2
    assert [rollout.prompt_ids for rollout in group.rollouts] == [(1, 2)] * 4, "the group's own prompt"
    assert group.task.prompt == "1+1="
    assert [reward.channels["nll"] for reward in group.rewards] == [0.0, 0.0, 1.0, 1.0]
    assert [rollout.group_id for rollout in group.rollouts] == ["g0"] * 4


def tokens_of(mask: Tensor) -> list[int]:
    """Tokens of each row."""
    return [int(row.sum()) for row in mask]


def test_an_explanation_changes_no_statistic_of_its_group() -> None:
    batch = make_batch([joined(Told())], max_tokens=4).batch
    assert tokens_of(batch.mask) == [1, 1, 2, 2]
    prepared = load_optimizer().prepare(batch)
    assert tokens_of(prepared.mask) == [1, 1, 0, 0], "no member of the group"
    assert prepared.denominators.rows == 2
    assert tokens_of(prepared.extra["nll_mask"]) == [0, 0, 2, 2]


def load_optimizer() -> Any:
    """ExP-GRPO without a reference."""
    from assay_optim import optimizer

    return optimizer("expo", regularisers=[{"use": "nll_term", "beta": 0.04}])


def test_cut_off_explanations_are_left_out_and_missing_ones_are_an_error() -> None:
    assert len(joined(Told(cut=1)).rollouts) == 3
    with pytest.raises(EngineError, match="the engine returned 1 of 2 explanations"):
        joined(Told(drop=1))


def test_the_command_line_runs_online_dpo(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "dpo.toml").write_text(
        'kind = "rlvr"\nsteps = 1\npolicy = { model = "model" }\ntasks = { use = "jsonl", path = "tasks.jsonl" }\n'
        'engine = { template = "plain", group_size = 4, max_new_tokens = 3 }\nrewards = [{ use = "math" }]\n'
        'objective = { use = "iterative_dpo", iteration = 16 }\noptimizer = { learning_rate = 1e-3 }\n'
        "loop = { groups_per_step = 4, max_refill = 0 }\n",
        encoding="utf-8",
    )
    assert main(["train", "dpo.toml", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-1]["status"] == "done"
