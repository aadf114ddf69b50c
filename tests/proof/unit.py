"""One unit of the proof: a base model, or one reward model trained and measured; a finished one is never done again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import MODELS, Model
from world import BETWEEN, FULL, Sizes, World, of_all_domains

from assay import runs
from assay.config.fit import PrmConfig, SftConfig
from assay.config.load import parse_config
from assay.contracts import Candidate, Message, Rollout, StepScore, Task, Turn, Verdict
from assay.errors import ConfigError
from assay.fit import fit
from assay.protocols import RewardSource
from assay.reports.step_rows import AskSteps, ask_source, evaluate_steps, read_step_rows
from assay.result import Run, load_reward_model
from assay.training.tiny import make_tiny_model

SHAPE: dict[str, Any] = {"hidden_size": 64, "layers": 3, "head_size": 16, "initial_std": 0.125, "max_positions": 128}
"""The tiny model: 154 thousand parameters. With two heads for four and weights of a spread of 0.02 it copies the form
of a step in 1,000 updates, but learns hardly any of its facts (1.6 nats per result, where the policy has 0.25)."""
BATCH = 64
BASE_UPDATES = 600
BASE_RATE = 5e-3


@dataclass(frozen=True)
class Plan:
    """What a run of the proof does."""

    out: Path
    seeds: tuple[int, ...] = (1, 2, 3)
    updates: int = 2500
    models: tuple[str, ...] = tuple(MODELS)
    sizes: Sizes = FULL

    def world(self, model: Model, seed: int) -> World:
        """The data that a model is trained and measured on."""
        return of_all_domains(seed, self.sizes) if model.world == "domains" else World(seed, sizes=self.sizes)

    def result(self, name: str, seed: int) -> Path:
        """Where a unit leaves its figures."""
        return self.out / "units" / f"{name}-{seed}-{self.updates}" / "result.json"


def run_unit(plan: Plan, name: str, seed: int) -> None:
    """Train and measure one model unless its figures are there."""
    model, result = MODELS[name], plan.result(name, seed)
    if result.is_file():
        return
    world = plan.world(model, seed)
    data = plan.out / world.name
    world.write(data)
    base = _base(plan.out, world, data)
    folder, metrics = _train(plan, name, seed, base, data)
    trained = time.monotonic()
    found = asyncio.run(_measure(model, load_reward_model(folder), data))
    facts = {
        "model": name,
        "seed": seed,
        "updates": len(metrics),
        "tokens": sum(line["tokens"] for line in metrics),
        "train_s": sum(line["update_s"] for line in metrics),
        "measure_s": time.monotonic() - trained,
        **found,
    }
    scratch = result.with_suffix(".part")
    scratch.write_text(json.dumps(facts), encoding="utf-8")
    scratch.replace(result)


def _base(out: Path, world: World, data: Path) -> Path:
    """The policy that every reward model starts from: the tiny model after imitation of the solutions."""
    folder = out / f"base-{world.name}"
    start = folder / "start"
    if not (start / "config.json").is_file():
        make_tiny_model(start, seed=world.seed, **SHAPE)
    config = {
        "kind": "sft",
        "name": "base",
        "policy": {"model": str(start.absolute())},
        **_shared(folder, data / "outcomes.jsonl", BASE_UPDATES, BASE_RATE, world.seed),
    }
    return _fitted(folder, config)


def _train(plan: Plan, name: str, seed: int, base: Path, data: Path) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of the trained model, and the line of each update."""
    model, unit = MODELS[name], plan.result(name, seed).parent
    updates = max(1, round(plan.updates * model.share))
    config = {
        "kind": "prm",
        "name": name,
        "model": {"base": str(base)},
        "splitter": {"by": "line"},
        "objective": model.objective,
        **_shared(unit, data / f"{model.data}.jsonl", updates, model.learning_rate if model.share else 0.0, seed),
    }
    folder = _fitted(unit, config)
    return folder, Run(runs.run_folders(unit / "runs")[-1]).metrics


def _shared(folder: Path, data: Path, updates: int, rate: float, seed: int) -> dict[str, Any]:
    """The tables that every config has."""
    rows = sum(1 for _ in data.open(encoding="utf-8"))
    return {
        "seed": seed,
        "runs_dir": str((folder / "runs").absolute()),
        "data": {"path": str(data.absolute()), "holdout": 0.02},
        "training": {
            "batch_size": BATCH,
            "epochs": updates * BATCH // rows + 2,
            "learning_rate": rate,
            "schedule": "cosine",
            "final_lr_share": 0.1,
            "warmup_steps": 50,
            "micro_batch_tokens": 8192,
            "head_chunk_tokens": 4096,
        },
        "steps": updates,
        "checkpoint": {"every_steps": 500, "keep": 1},
        "evaluate": {"every_steps": 10**9},
    }


def _fitted(folder: Path, config: dict[str, Any]) -> Path:
    """The trained model's folder: of the finished run, of the one that goes on, or of a new one."""
    parsed = parse_config(config, where="proof")
    assert isinstance(parsed, SftConfig | PrmConfig)
    found = runs.run_folders(folder / "runs")
    if found and _is_done(found[-1]):
        return Run(found[-1]).policy.absolute()
    made = fit(parsed, base_dir=folder, resume=found[-1] if found else None)
    assert made is not None
    if not _is_done(made):  # a signal ended it at the end of a step; the same command goes on
        raise KeyboardInterrupt
    return Run(made).policy.absolute()


def _is_done(run: Path) -> bool:
    outcome = run / runs.OUTCOME
    return outcome.is_file() and json.loads(outcome.read_text(encoding="utf-8"))["status"] == "done"


# ---- measuring -------------------------------------------------------------------------------------------------------


async def _measure(model: Model, source: RewardSource, data: Path) -> dict[str, Any]:
    """First-error figures, and the scores of the pools."""
    try:
        pool = await _scored_pool(source, data / "pools.jsonl", model.pools)
        return {"first_error": await _first_error(model, source, data / "steps.jsonl"), "pool": pool}
    finally:
        await source.aclose()


async def _first_error(model: Model, source: RewardSource, file: Path) -> dict[str, Any] | None:
    """ProcessBench figures; a model that judges whole responses is asked for every prefix. None for slow writers."""
    if model.objective["use"] == "generative_critique":
        return None
    rows = read_step_rows(file)
    whole = {"outcome": model.objective.get("at", "end") == "end", "bradley_terry": True, "generative": True}
    by_prefix = whole.get(model.objective["use"], False)
    ask = _ask_prefixes(source) if by_prefix else ask_source(source)
    try:
        report = await evaluate_steps(rows, ask, between=BETWEEN)
    except ConfigError as error:
        return {"f1": None, "why": str(error)}
    return {**report.to_dict(), "by_prefix": by_prefix}


def _ask_prefixes(source: RewardSource) -> AskSteps:
    """Each step's score is that of the response cut behind it."""
    judge = _judge_all(source)

    async def ask(candidates: Sequence[Candidate]) -> list[Sequence[StepScore] | None]:
        spans = [_spans(candidate) for candidate in candidates]
        cuts = [
            _candidate(candidate.task.prompt, candidate.rollout.text[:end], f"{candidate.rollout.id}-{end}")
            for candidate, ends in zip(candidates, spans, strict=True)
            for _, end in ends
        ]
        values = iter([verdict.value for verdict in await judge(cuts)])
        found: list[Sequence[StepScore] | None] = []
        for ends in spans:
            scores = [(start, end, next(values)) for start, end in ends]
            known = [
                StepScore.model_validate({"span": {"start": start, "end": end}, "value": value})
                for start, end, value in scores
                if value is not None
            ]
            found.append(known if len(known) == len(scores) else None)
        return found

    return ask


def _spans(candidate: Candidate) -> list[tuple[int, int]]:
    pairs: Any = candidate.task.facts["step_spans"]
    return [(start, end) for start, end in pairs]


async def _scored_pool(source: RewardSource, file: Path, share: float) -> list[dict[str, Any]]:
    """The pools' solutions with the source's value and its step scores."""
    rows = [json.loads(line) for line in file.open(encoding="utf-8")]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    kept = set(problems[: round(share * len(problems))])
    rows = [row for row in rows if row["problem"] in kept]
    candidates = [_candidate(row["problem"], row["response"], str(index)) for index, row in enumerate(rows)]
    verdicts = await _judge_all(source)(candidates)
    return [
        {
            "problem": row["problem"],
            "correct": row["label"],
            "answer": row["answer"],
            "length": len(row["response"]),
            "value": verdict.value,
            "steps": [step.value for step in verdict.steps],
        }
        for row, verdict in zip(rows, verdicts, strict=True)
    ]


def _judge_all(source: RewardSource) -> Callable[[Sequence[Candidate]], Awaitable[list[Verdict]]]:
    async def judge(candidates: Sequence[Candidate]) -> list[Verdict]:
        size, found = source.limits.max_batch, list[Verdict]()
        for start in range(0, len(candidates), size):
            found.extend(await source.judge(candidates[start : start + size]))
        return found

    return judge


def _candidate(problem: str, response: str, name: str) -> Candidate:
    task = Task(id=name, messages=(Message(role="user", content=problem),))
    return Candidate(task=task, rollout=Rollout(id=name, task_id=name, group_id=name, turns=(Turn(text=response),)))
