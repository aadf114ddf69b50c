"""`assay score`: verdicts for a file of answers, or again for a stored run."""

import asyncio
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self

from cyclopts import Parameter
from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from assay import runs
from assay.cli.data_file import DataFile
from assay.cli.output import emit, note, say, table, target_file
from assay.cli.rescore import find_stored, rescore
from assay.component import BuildContext
from assay.config.load import dump_config, load_config, parse_config
from assay.config.run import ScoreConfig
from assay.contracts import RunInfo, RunOutcome
from assay.errors import ConfigError
from assay.preflight import make_context
from assay.registry import Registry
from assay.reports.statistics import quantile, tally
from assay.rows import OnBadRow, stem
from assay.scoring import Answers, Scored, check_answers, parse_reward, read_answers, score_items
from assay.store import RunStore


def score(
    data: DataFile | None = None,
    /,
    *,
    reward: Annotated[tuple[str, ...], Parameter(name=["-r", "--reward"], consume_multiple=False)] = (),
    config: Path | None = None,
    out: Path | None = None,
    prompt: str | None = None,
    response: str | None = None,
    reference: str | None = None,
    on_bad_row: Literal["stop", "skip"] = "stop",
    workers: int | None = None,
    timeout_s: float | None = None,
    fail_above: float | None = None,
    changed_only: bool = False,
    runs_dir: Path = Path("runs"),
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Judge the answers of a JSONL file, or a stored run again with today's sources and tasks.

    Args:
        data: The file, one JSON object per line (`-` is standard input); or a run: folder, name, short id, or `latest`.
        reward: A reward source: NAME[:WEIGHT], FILE.py:FUNCTION[:WEIGHT], or a reward model's FOLDER; may be repeated.
        config: A TOML config of kind "score" in place of the other arguments.
        out: Where the verdicts go; default DATA with `.scored.jsonl`.
        prompt: Column of the prompt.
        response: Column of the response.
        reference: Column of the reference.
        on_bad_row: What a bad row does: stop, or skip it.
        workers: Candidates that may be judged at once in worker processes; default 2, for a run what its config says.
        timeout_s: Wall time of one candidate.
        fail_above: Exit with 3 when a larger share of verdicts failed.
        changed_only: Of a run, judge again only what a changed source or a changed task makes necessary.
        runs_dir: Where a run is looked for, and where this one is kept unless a config says it.
        json_: One JSON object per row on stdout.
    """
    if fail_above is not None and not 0 <= fail_above <= 1:
        raise ConfigError(f"assay score: --fail-above {fail_above:g}: a share of the verdicts is 0 to 1")
    settings = None
    if config is not None or reward or data is None:
        settings = _settings(data, reward, config, out, prompt, response, reference, on_bad_row, workers, timeout_s)
    stored = find_stored(data if settings is None else settings.data.path, runs_dir, required=changed_only)
    if stored is not None:
        if given := [name for name, value in _columns(out, prompt, response, reference).items() if value is not None]:
            raise ConfigError(f"assay score: {', '.join(given)} is for files; {stored} is a run, and keeps its columns")
        return rescore(
            stored,
            settings,
            changed_only=changed_only,
            judging=_judging(workers, timeout_s),
            fail_above=fail_above,
            json_=json_,
        )
    settings = settings or _settings(
        data, reward, config, out, prompt, response, reference, on_bad_row, workers, timeout_s
    )
    started = time.monotonic()
    base_dir = Path(settings.base_dir or (config.parent if config is not None else Path.cwd()))
    registry = Registry.load(allow=settings.plugins.allow)
    for problem in registry.problems:
        note(f"! {problem}")
    context = make_context(registry, base_dir=base_dir, seed=settings.seed)
    answers = read_answers(settings.data)
    check_answers(registry, settings.rewards, answers, context, where=str(config) if config else "-r")
    for problem in answers.bad[:3]:
        note(f"skipped {problem}")
    note(_read_line(answers))
    output = _output(settings)
    complete = settings.model_copy(update={"base_dir": str(base_dir.absolute())})
    if config is None:
        complete = complete.model_copy(update={"runs_dir": str(runs_dir)})
    records = _Records(complete, output, registry.versions(), json_=json_)
    with records:
        asyncio.run(_judge(settings, answers, registry, context, records))
    results = records.results
    if not json_:
        _print(results, time.monotonic() - started)
        say(f"wrote {output} and run {records.run}.  Next: assay show {records.run}")
    failed = sum(j.status == "failed" for result in results for j in result.judgements)
    judged = sum(len(result.judgements) for result in results)
    if fail_above is not None and judged and failed / judged > fail_above:
        note(f"assay score: {failed} of {judged} verdicts failed, more than the limit of {fail_above:.1%}")
        return 3
    return 0


def _settings(
    data: str | None,
    reward: Sequence[str],
    config: Path | None,
    out: Path | None,
    prompt: str | None,
    response: str | None,
    reference: str | None,
    on_bad_row: OnBadRow,
    workers: int | None,
    timeout_s: float | None,
) -> ScoreConfig:
    if config is not None:
        if data is not None or reward:
            raise ConfigError("assay score: give either --config, or a data file with -r; found both")
        loaded = load_config(config)
        if not isinstance(loaded, ScoreConfig):
            raise ConfigError(f"{config}: kind is {loaded.kind!r}; `assay score` takes kind = 'score'")
        return loaded
    if data is None:
        raise ConfigError("assay score: no data file is named; write: assay score FILE.jsonl -r NAME")
    if not reward:
        raise ConfigError(f"assay score: no reward source is named; write: assay score {data} -r NAME")
    columns = {"path": data, "prompt": prompt, "response": response, "reference": reference, "on_bad_row": on_bad_row}
    tree: dict[str, Any] = {
        "kind": "score",
        "name": _run_name(data),
        "data": {key: value for key, value in columns.items() if value is not None},
        "rewards": [parse_reward(text) for text in reward],
        "judging": _judging(workers, timeout_s),
    }
    if out is not None:
        tree["output"] = {"path": str(out)}
    parsed = parse_config(tree, where="assay score")
    assert isinstance(parsed, ScoreConfig)
    return parsed


def _judging(workers: int | None, timeout_s: float | None) -> dict[str, Any]:
    """Keys of the `judging` table that were given as flags."""
    given = {"workers": workers, "timeout_s": timeout_s}
    return {key: value for key, value in given.items() if value is not None}


def _columns(out: Path | None, prompt: str | None, response: str | None, reference: str | None) -> dict[str, object]:
    return {"--out": out, "--prompt": prompt, "--response": response, "--reference": reference}


def _output(settings: ScoreConfig) -> Path:
    """Where the verdicts go; never the data itself."""
    output = Path(settings.output.path) if settings.output else Path(f"{stem(settings.data.path)}.scored.jsonl")
    return target_file(output, settings.data.path, flag="--out")


class _Records:
    """The run folder and the output file of one scoring, made by `open` once every source is ready."""

    def __init__(self, settings: ScoreConfig, output: Path, plugins: Mapping[str, str], *, json_: bool) -> None:
        self.results: list[Scored] = []
        self.run = ""
        self._settings, self._output, self._plugins, self.json = settings, output, plugins, json_
        self._adapter = TypeAdapter(dict[str, Any])
        self._stack = ExitStack()
        self._store: RunStore | None = None
        self._lines: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self) -> None:
        """Make the folder with its settings, and the empty output."""
        settings = self._settings
        folder = runs.new_run_folder(Path(settings.runs_dir), settings.name)
        self.run = folder.name
        info = RunInfo(
            id=folder.name,
            name=settings.name,
            kind="score",
            folder=str(folder),
            seed=settings.seed,
            plugins=dict(self._plugins),
        )
        self._store = self._stack.enter_context(RunStore.create(folder, info))
        runs.write_config(folder, dump_config(settings))
        self._lines = self._stack.enter_context(self._output.open("wb"))

    def keep(self, result: Scored) -> None:
        """Write down one result."""
        assert self._store is not None
        assert self._lines is not None
        self.results.append(result)
        self._store.add_rollout(result.item.rollout, step=0, task=result.item.task)
        for judgement in result.judgements:
            self._store.add_judgement(judgement)
        self._store.add_reward(result.reward, step=0, group_id=result.item.rollout.group_id)
        row = _row(result, self._settings.output.evidence if self._settings.output else True)
        self._lines.write(self._adapter.dump_json(row) + b"\n")
        if self.json:
            emit(row)

    def finish(self) -> None:
        """Say that the run is done."""
        folder = Path(self._settings.runs_dir) / self.run
        (folder / runs.OUTCOME).write_text(RunOutcome(status="done", steps=0).model_dump_json(), encoding="utf-8")


async def _judge(
    settings: ScoreConfig, answers: Answers, registry: Registry, context: BuildContext, records: _Records
) -> None:
    with RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=records.json or not sys.stderr.isatty(),
    ) as bar:
        progress = bar.add_task("judged", total=len(answers.items), counts="")

        def keep(result: Scored) -> None:
            records.keep(result)
            bar.update(progress, advance=1)

        await score_items(
            answers.items,
            settings.rewards,
            keep,
            registry=registry,
            context=context,
            judging=settings.judging,
            on_open=records.open,
            where=answers.path,
        )
    records.finish()


def _row(result: Scored, evidence: bool) -> dict[str, Any]:
    reward = result.reward
    row: dict[str, Any] = {"id": result.item.rollout.id, "line": result.item.line, "reward": reward.value}
    if reward.reason is not None:
        row["reason"] = reward.reason
    row["verdicts"] = [
        {
            "source": judgement.source,
            "version": judgement.version,
            **judgement.verdict.model_dump(mode="json", exclude_none=True, exclude=None if evidence else {"evidence"}),
            "latency_s": round(judgement.latency_s, 6),
            "cached": judgement.cached,
        }
        for judgement in result.judgements
    ]
    return row


def _read_line(answers: Answers) -> str:
    columns = ", ".join(f"{column} ({role})" if column != role else column for role, column in answers.columns.items())
    skipped = f"; {len(answers.bad):,} skipped" if answers.bad else ""
    return f"{answers.path}: {len(answers.items):,} rows, columns {columns}{skipped}"


def _print(results: Sequence[Scored], seconds: float) -> None:
    sources: dict[str, list[tuple[Any, int]]] = {}
    for result in results:
        for judgement in result.judgements:
            sources.setdefault(judgement.source, []).append((judgement, result.item.line))
    rows: list[list[str]] = []
    for name, entries in sources.items():
        counts = tally((judgement.status, judgement.value) for judgement, _ in entries)
        latencies = [1000 * judgement.latency_s for judgement, _ in entries]
        slowest, line = max(entries, key=lambda entry: entry[0].latency_s)
        why = "" if slowest.status == "scored" else f", {slowest.reason}"
        mean = "-" if counts.mean is None else f"{counts.mean:.3f}"
        rows.append(
            [
                name,
                mean,
                f"{counts.scored:,}",
                f"{counts.abstained:,}",
                f"{counts.failed:,}",
                f"{quantile(latencies, 0.5):.1f}",
                f"{quantile(latencies, 0.95):.1f}",
                f"row {line} ({slowest.latency_s:.2g} s{why[:60]})",
            ]
        )
    table(["source", "mean", "scored", "abstained", "failed", "p50 ms", "p95 ms", "slowest"], rows)
    values = [result.reward.value for result in results if result.reward.value is not None]
    masked = len(results) - len(values)
    mean = f"{sum(values) / len(values):.3f}" if values else "none"
    say(f"reward {mean} over {len(values):,} rows ({masked:,} masked); {len(results) / max(seconds, 1e-9):,.0f} rows/s")


def _run_name(data: str) -> str:
    """A name for the run of a data file: the file's own, with `-` for what a name may not have."""
    return re.sub(r"[^\w.+-]+", "-", Path(stem(data)).name).lstrip(".+-") or "score"
