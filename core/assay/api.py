"""The Python surface: score, load a config, train, rerank; a coroutine with an `a` in front stands beside each."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from assay.component import BuildContext
from assay.config.load import load_config
from assay.config.rewards import JudgingConfig
from assay.config.run import AnyConfig, RlvrConfig, ScoreConfig, ScoreData
from assay.config.validation import validate
from assay.contracts import Judgement
from assay.errors import ConfigError
from assay.preflight import make_context
from assay.protocols import RewardSource
from assay.registry import Registry
from assay.result import Run
from assay.scoring import Scored, check_answers, read_answers, reward_entries, score_items

if TYPE_CHECKING:
    from assay.reranking import Pool, Reranked

Aggregate = Literal["value", "min", "product", "last", "mean"]

__all__ = ["Run", "arerank", "ascore", "atrain", "load_config", "open_run", "rerank", "score", "train"]


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

    judging = validate(JudgingConfig, {"workers": workers, "timeout_s": timeout_s}, where="judging")
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


def rerank(
    data: "str | Path | Run",
    *,
    by: "str | Mapping[str, Any] | RewardSource",
    verdict: str | Mapping[str, Any] | None = None,
    n: int | Sequence[int] = (1, 4, 16),
    aggregate: Aggregate = "value",
    workers: int = 2,
    seed: int = 0,
) -> "Reranked":
    """What choosing one of n responses by a source is worth: its argmax and weighted votes beside majority and oracle.

    `data` is a file with several responses to each problem, or a run; `by` a source by name or table as in `score`, or
    a built one (`run.reward_source()`); `verdict` the source that says what is right, by default the file's own column.
    Raises `ConfigError` in one sentence for a bad file, an unknown source, or where nothing says what is right.
    """
    return asyncio.run(arerank(data, by=by, verdict=verdict, n=n, aggregate=aggregate, workers=workers, seed=seed))


async def arerank(
    data: "str | Path | Run",
    *,
    by: "str | Mapping[str, Any] | RewardSource",
    verdict: str | Mapping[str, Any] | None = None,
    n: int | Sequence[int] = (1, 4, 16),
    aggregate: Aggregate = "value",
    workers: int = 2,
    seed: int = 0,
) -> "Reranked":
    """As `rerank`, inside a running event loop."""
    from assay import reranking  # its statistics are not needed to score
    from assay.preflight import check_rewards

    registry = Registry.load()
    context = make_context(registry, base_dir=Path.cwd(), seed=seed)
    judging = validate(JudgingConfig, {"workers": workers}, where="judging")
    decides = None if verdict is None else reward_entries([verdict], where="rerank: verdict")[0]
    ranks = reward_entries([by], where="rerank: by")[0] if isinstance(by, str | Mapping) else None
    check_rewards(registry, [entry for entry in (decides, ranks) if entry is not None], where="rerank")
    pools = _pools(data)
    judged = await reranking.judge_pools(pools, decides, registry=registry, context=context, judging=judging)
    sizes = [n] if isinstance(n, int) else list(n)
    if ranks is None:
        scorer = reranking.source_scorer(cast("RewardSource", by))
        return await reranking.rerank(judged, {"by": scorer}, sizes=sizes, aggregates=(aggregate,), seed=seed)
    async with reranking.pooled_scorer(ranks, registry=registry, context=context, judging=judging) as scorer:
        return await reranking.rerank(judged, {ranks.name: scorer}, sizes=sizes, aggregates=(aggregate,), seed=seed)


def _pools(data: "str | Path | Run") -> "list[Pool]":
    from assay.reranking import pools_of_run, read_pools

    if not isinstance(data, Run) and Path(data).is_file():
        return read_pools(str(data))
    return pools_of_run((data if isinstance(data, Run) else open_run(data)).folder)


def open_run(name: str | Path, *, runs_dir: str | Path = "runs") -> Run:
    """A stored run by folder, name, short id, or `latest`."""
    from assay.runs import find_run

    return Run(find_run(str(name), Path(runs_dir)))
