"""The Python surface: score a file, load a config, train; a coroutine with an `a` in front stands beside each."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.component import BuildContext
from assay.config.load import load_config
from assay.config.rewards import JudgingConfig
from assay.config.run import AnyConfig, RlvrConfig, ScoreConfig, ScoreData
from assay.contracts import Judgement
from assay.errors import ConfigError
from assay.preflight import make_context
from assay.registry import Registry
from assay.result import Run
from assay.scoring import Scored, check_answers, read_answers, reward_entries, score_items

__all__ = ["Run", "ascore", "atrain", "load_config", "open_run", "score", "train"]


def score(
    data: str | Path,
    *,
    rewards: Sequence[str | Mapping[str, Any]],
    workers: int = 2,
    timeout_s: float | None = None,
) -> list[Judgement]:
    """Every judgement of a file's answers, in the order of its rows and of `rewards`.

    `rewards` are names as after `-r` (`"math"`, `"length:0.1"`, `"my_reward.py:score"`) or tables as in a config.
    Raises `ConfigError` in one sentence for a bad file, an unknown source or a wrong option.
    """
    return asyncio.run(ascore(data, rewards=rewards, workers=workers, timeout_s=timeout_s))


async def ascore(
    data: str | Path,
    *,
    rewards: Sequence[str | Mapping[str, Any]],
    workers: int = 2,
    timeout_s: float | None = None,
) -> list[Judgement]:
    """As `score`, inside a running event loop."""
    entries = reward_entries(rewards)
    registry = Registry.load()
    context: BuildContext = make_context(registry, base_dir=Path.cwd(), seed=0)
    answers = read_answers(ScoreData(path=str(data)))
    check_answers(registry, entries, answers, context, where="rewards")
    judgements: list[Judgement] = []

    def keep(scored: Scored) -> None:
        judgements.extend(scored.judgements)

    judging = JudgingConfig(workers=workers, timeout_s=timeout_s)
    await score_items(
        answers.items, entries, keep, registry=registry, context=context, judging=judging, where=str(data)
    )
    return judgements


def train(config: AnyConfig, *, base_dir: str | Path = ".", resume: "Run | None" = None) -> Run:
    """The finished run of a config; see `assay.run.atrain` (rlvr) and `assay.fit.afit` (sft, preference, prm)."""
    return asyncio.run(atrain(config, base_dir=base_dir, resume=resume))


async def atrain(config: AnyConfig, *, base_dir: str | Path = ".", resume: "Run | None" = None) -> Run:
    """As `train`, inside a running event loop."""
    if isinstance(config, ScoreConfig):
        raise ConfigError(f"train: kind {config.kind!r} is not trained; use one of rlvr, sft, preference, prm")
    where = resume.folder if resume else None
    if isinstance(config, RlvrConfig):
        from assay.run import atrain as run_training  # the pipeline is not needed to score

        folder = await run_training(config, base_dir=Path(base_dir), resume=where)
    else:
        from assay.fit import afit

        folder = await afit(config, base_dir=Path(base_dir), resume=where)
    assert folder is not None
    return Run(folder)


def open_run(name: str | Path, *, runs_dir: str | Path = "runs") -> Run:
    """A stored run by folder, name, short id, or `latest`."""
    from assay.runs import find_run

    return Run(find_run(str(name), Path(runs_dir)))
