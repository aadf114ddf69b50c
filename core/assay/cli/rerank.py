"""`assay rerank`: what a reward model's choice is worth beside majority vote and the oracle, or where errors begin."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from assay import runs
from assay.cli.data_file import DataFile
from assay.cli.output import emit, note, say, target_file
from assay.cli.rerank_text import best_of_text, first_error_text
from assay.component import BuildContext
from assay.config.reward_models import reward_model_folder, save_threshold
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.config.validation import validate
from assay.errors import ConfigError
from assay.judging import open_panel
from assay.preflight import check_rewards, make_context
from assay.registry import Registry
from assay.reports.best_of import AGGREGATES, Aggregate
from assay.reports.step_rows import StepReport, ask_panel, evaluate_steps, has_step_labels, step_rows
from assay.reranking import Pool, PoolColumns, Reranked, Scorer, judge_pools, pools_of_rows, pools_of_run, rerank
from assay.reranking.judged import column_scorer, pooled_scorer
from assay.rows import BadRowError, Row, is_data, read_rows
from assay.scoring import reward_entries
from assay.steps import SplitterOptions


def rerank_command(
    data: DataFile,
    /,
    *,
    reward: Annotated[tuple[str, ...], Parameter(name=["--by", "-r", "--reward"], consume_multiple=False)] = (),
    verdict: str | None = None,
    n: str = "1,2,4,8,16",
    aggregate: str = "value",
    scores: str | None = None,
    prompt: str | None = None,
    response: str | None = None,
    reference: str | None = None,
    correct: str | None = None,
    answer: str | None = None,
    threshold: float | None = None,
    save: Annotated[bool, Parameter(name="--save-threshold")] = False,
    between: Literal["blank_line", "line", "sentence"] = "blank_line",
    out: Path | None = None,
    seed: int = 0,
    workers: int = 2,
    runs_dir: Path = Path("runs"),
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Rank several responses to each problem by a reward model, or look for the first wrong step of labelled solutions.

    A file with labelled steps (ProcessBench, PRMBench, BIG-Bench Mistake, MR-GSM8K) gives first-error figures.

    Args:
        data: A file with several responses to each problem or with labelled steps (`-` is standard input), or a run.
        reward: What ranks: a source NAME, FILE.py:FUNCTION, or the folder of a reward model; may be repeated.
        verdict: The source that says what is right and whose answers vote; default the file's own columns.
        n: The n of best-of-n.
        aggregate: How step scores become one: value (the source's own), min, product, last, mean; with commas several.
        scores: A column of the file that ranks, beside or in place of --by.
        prompt: Column of the problem.
        response: Column of the response, or of the list of all.
        reference: Column of the reference.
        correct: Column that says whether a response is right.
        answer: Column of the answer by which votes are counted.
        threshold: Steps below it are taken for wrong; default fitted on the development half of the problems.
        save: Keep the fitted threshold beside the reward model.
        between: What stood between steps when the reward model was trained: blank_line, line or sentence.
        out: Also write the figures as JSON to this file.
        seed: Decides halves, resamples, and which subsets of large pools vote.
        workers: Responses that may be judged at once in worker processes.
        runs_dir: Where a run is looked for.
        json_: JSON in place of text.
    """
    sizes, aggregates = _numbers(n), _aggregates(aggregate)
    registry = Registry.load()
    context = make_context(registry, base_dir=Path.cwd(), seed=seed)
    entries: Sequence[RewardEntry] = reward_entries(reward, where="assay rerank") if reward else []
    decides = reward_entries([verdict], where="assay rerank --verdict")[0] if verdict is not None else None
    check_rewards(registry, [*entries, *([decides] if decides else [])], where="assay rerank")
    judging = validate(JudgingConfig, {"workers": workers}, where="assay rerank: judging")
    if threshold is not None and not math.isfinite(threshold):
        raise ConfigError(f"--threshold {threshold}: a finite number is expected")
    if out is not None:
        target_file(out, data, flag="--out")
    rows = _rows(data)
    keep = _kept_in(reward) if save else None
    if rows is not None and rows.labelled:
        apart = SplitterOptions(by=between).between
        found = asyncio.run(_first_errors(data, rows.all, entries, registry, context, judging, threshold, apart, seed))
        facts: dict[str, Any] = found.to_dict()
        lines = first_error_text(data, ", ".join(entry.name for entry in entries), found)
        if keep is not None:
            save_threshold(keep, found.whole.threshold.threshold)
            note(f"threshold {found.whole.threshold.threshold:.6g} kept in {keep}")
    else:
        for flag, given in (("--threshold", threshold is not None), ("--save-threshold", save)):
            if given:
                raise ConfigError(f"{flag}: {data} has no labelled steps, which a threshold is for; leave it out")
        columns = PoolColumns(prompt, response, reference, correct, answer, scores)
        pools = pools_of_run(runs.find_run(data, runs_dir)) if rows is None else pools_of_rows(rows.all, data, columns)
        reranked = asyncio.run(
            _best_of(pools, entries, decides, registry, context, judging, sizes, aggregates, seed, scores)
        )
        facts, lines = reranked.to_dict(), best_of_text(data, reranked)
    if out is not None:
        _write(out, facts)
    if json_:
        emit(facts)
    else:
        for line in lines:
            say(line)
    return 0


class _Rows(NamedTuple):
    """The rows of a data file, which may be a pipe and is read once."""

    all: Iterable[Row | BadRowError]
    labelled: bool
    """Whether the first has labelled steps."""


def _rows(data: str) -> _Rows | None:
    """None for the name of a run."""
    if not is_data(data):
        return None
    rows = read_rows(data)
    first = list(islice(rows, 1))
    return _Rows(chain(first, rows), any(isinstance(row, Row) and has_step_labels(row.data) for row in first))


async def _best_of(
    pools: Sequence[Pool],
    entries: Sequence[RewardEntry],
    verdict: RewardEntry | None,
    registry: Registry,
    context: BuildContext,
    judging: JudgingConfig,
    sizes: Sequence[int],
    aggregates: Sequence[Aggregate],
    seed: int,
    scores: str | None,
) -> Reranked:
    if not entries and scores is None:
        raise ConfigError(
            "assay rerank: nothing ranks the responses; name a source or a reward model's folder with --by, or a "
            "column with --scores"
        )
    judged = await judge_pools(pools, verdict, registry=registry, context=context, judging=judging)
    async with AsyncExitStack() as stack:
        scorers: dict[str, Scorer] = {} if scores is None else {f"column {scores}": column_scorer()}
        for entry in entries:
            opened = pooled_scorer(entry, registry=registry, context=context, judging=judging)
            name = entry.name if entry.name not in scorers else f"{entry.name} {len(scorers) + 1}"
            scorers[name] = await stack.enter_async_context(opened)
        return await rerank(judged, scorers, sizes=sizes, aggregates=aggregates, seed=seed)


async def _first_errors(
    data: str,
    rows: Iterable[Row | BadRowError],
    entries: Sequence[RewardEntry],
    registry: Registry,
    context: BuildContext,
    judging: JudgingConfig,
    threshold: float | None,
    between: str,
    seed: int,
) -> StepReport:
    if len(entries) != 1:
        raise ConfigError(
            f"assay rerank: {data} has labelled steps, which one source with step scores is tried on; found "
            f"{len(entries)}. Write --by SOURCE once"
        )
    read = step_rows(rows, data)
    async with open_panel(entries, registry=registry, judging=judging, context=context) as panel:
        context.workers = panel.workers
        return await evaluate_steps(read, ask_panel(panel), threshold=threshold, seed=seed, between=between)


def _kept_in(reward: Sequence[str]) -> Path:
    """The folder of the one reward model that is asked."""
    folder = reward_model_folder(Path(reward[0])) if len(reward) == 1 else None
    if folder is None:
        named = ", ".join(reward) or "nothing"
        raise ConfigError(f"--save-threshold: {named} is no folder of a reward model; give one with --by")
    return folder


def _write(out: Path, facts: dict[str, Any]) -> None:
    try:
        out.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from error


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ConfigError(f"--n {text}: not a list of whole numbers from 1; write for example --n 1,4,16")
    return found


def _aggregates(text: str) -> list[Aggregate]:
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in AGGREGATES:
            raise ConfigError(f"--aggregate {text}: no aggregation {name!r}; known: {', '.join(AGGREGATES)}")
    return [how for how in AGGREGATES if how in names]
