"""`assay label`: step labels of solutions, by continuing their prefixes with an engine and judging where that leads."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from assay import runs
from assay.cli.data_file import DataFile
from assay.cli.label_text import label_facts, label_lines
from assay.cli.output import emit, note, say, target_file
from assay.config.load import override
from assay.config.refs import checked
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.config.validation import validate
from assay.contracts import Sampling
from assay.errors import ConfigError
from assay.judging import open_panel
from assay.labels import (
    Columns,
    CompletionLog,
    Labeller,
    LabelReport,
    LabelSettings,
    Mode,
    Solution,
    labelled_row,
    outcome_rows,
    read_solutions,
    solutions_of_run,
    trl_row,
    write_rows,
)
from assay.preflight import check_golds, check_rewards, make_context
from assay.registry import Registry
from assay.rows import is_data, stem
from assay.scoring import reward_entries
from assay.steps import SplitterOptions

TOLD_S = 5.0
"""Seconds between two lines of progress where stderr is no terminal; a tenth of it where it is one."""


def label(
    data: DataFile,
    /,
    *,
    reward: Annotated[tuple[str, ...], Parameter(name=["-r", "--reward"], consume_multiple=False)] = (),
    model: str | None = None,
    engine: str = "transformers",
    option: Annotated[tuple[str, ...], Parameter(name="--option", consume_multiple=False)] = (),
    out: Path | None = None,
    form: Literal["assay", "trl"] = "assay",
    outcomes: Path | None = None,
    mode: Mode = "auto",
    samples: int = 16,
    split: Literal["blank_line", "line", "numbered", "sentence"] = "blank_line",
    max_new_tokens: int = 512,
    temperature: float = 1.0,
    solved_above: float = 0.0,
    solved_at_most: float = 1.0,
    audit: float = 0.05,
    prompt: str | None = None,
    response: str | None = None,
    reference: str | None = None,
    seed: int = 0,
    workers: int = 2,
    runs_dir: Path = Path("runs"),
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Label the steps of solutions by continuing their prefixes; the same command goes on where it was ended.

    Args:
        data: A JSONL file of solutions (a response, or its steps; `-` is standard input), or a run.
        reward: What says whether an answer is right: NAME or FILE.py:FUNCTION; may be repeated.
        model: The model that continues; the engine's option of that name.
        engine: The engine, by name.
        option: Another option of the engine, KEY=VALUE; may be repeated.
        out: The labelled solutions; default DATA with `.labelled.jsonl`. All completions are kept beside it.
        form: `assay` keeps the counts behind each label; `trl` is what TRL's stepwise trainer reads.
        outcomes: Also write every solution and completion with its outcome to this file.
        mode: `auto`; `hard_exact`, a step is good when any completion is right; `soft`, shares of all completions.
        samples: Most completions of one prefix.
        split: How a response is cut into steps.
        max_new_tokens: Longest completion.
        temperature: Sampling temperature.
        solved_above: Wrong solutions are labelled where the problem's share of right ones is above this.
        solved_at_most: And where that share is at most this.
        audit: Share of prefixes that is drawn again with all completions.
        prompt: Column of the problem.
        response: Column of the response.
        reference: Column of the reference.
        seed: Decides every completion.
        workers: Answers that may be judged at once in worker processes.
        runs_dir: Where a run is looked for.
        json_: JSON in place of text.
    """
    entries = reward_entries(reward, where="assay label: -r")
    registry = Registry.load()
    context = make_context(registry, base_dir=Path.cwd(), seed=seed)
    check_rewards(registry, entries, where="assay label: -r")
    options = _engine_options(model, option)
    checked(registry, "rollout_engine", engine, options, where="assay label: --engine")
    splitter = SplitterOptions(by=split)
    solutions = _solutions(data, splitter, Columns(prompt, response, reference), runs_dir)
    check_golds(registry, entries, [solution.task for solution in solutions], context, where=data)
    settings = LabelSettings(
        mode=mode,
        samples=_at_least_one(samples),
        sampling=validate(
            Sampling, {"temperature": temperature, "max_new_tokens": max_new_tokens}, where="assay label: sampling"
        ),
        seed=seed,
        audit_share=_share(audit),
        pass_rate=_range(solved_above, solved_at_most),
    )
    judging = validate(JudgingConfig, {"workers": workers}, where="assay label: judging")
    target = _target(data, out)
    completions = _beside(target, "completions")
    if outcomes is not None:
        target_file(outcomes, data, flag="--outcomes")
        if outcomes.absolute() in (target.absolute(), completions.absolute()):
            raise ConfigError(f"--outcomes {outcomes}: this command writes something else there; name another file")
    made_with = {
        "engine": engine,
        "options": options,
        "rewards": [entry.model_dump(mode="json") for entry in entries],
        "sampling": settings.sampling.model_dump(mode="json"),
        "seed": seed,
    }
    log = CompletionLog(completions, made_with)
    try:
        if log.kept:
            note(f"{log.path}: {log.kept:,} completions are there already and are used again")
        assert context.open_engine is not None
        report = asyncio.run(
            _label(solutions, entries, settings, log, registry, context, context.open_engine(engine, options), judging)
        )
    finally:
        log.close()
    sources = [entry.name for entry in entries]
    written = write_rows(target, _rows(report, settings, sources, form))
    if outcomes is not None:
        note(f"wrote {outcomes}: {write_rows(outcomes, outcome_rows(report)):,} responses with their outcome")
    facts = label_facts(report, target, written)
    if json_:
        emit(facts)
    else:
        for line in label_lines(data, solutions, report, settings):
            say(line)
        say(f"wrote {target}: {written:,} labelled solutions; completions are kept in {log.path}")
    return 0


async def _label(
    solutions: Sequence[Solution],
    entries: Sequence[RewardEntry],
    settings: LabelSettings,
    log: CompletionLog,
    registry: Registry,
    context: Any,
    engine: Any,
    judging: JudgingConfig,
) -> LabelReport:
    try:
        async with open_panel(entries, registry=registry, judging=judging, context=context) as panel:
            context.workers = panel.workers
            told = _Told()
            labeller = Labeller(
                engine, panel, log, settings, progress=lambda done, total: told.at(done, total, labeller)
            )
            return await labeller.label(solutions)
    finally:
        await engine.aclose()


class _Told:
    """The line of progress, now and then: what is done, and what it cost beside naive labelling."""

    def __init__(self) -> None:
        self._next = time.monotonic()
        self._live = sys.stderr.isatty()

    def at(self, done: int, total: int, labeller: Labeller) -> None:
        now = time.monotonic()
        if now < self._next and done < total:
            return
        self._next = now + TOLD_S * (0.1 if self._live else 1.0)
        line = f"{done:,}/{total:,} solutions  {labeller.cost()}"
        if self._live:
            sys.stderr.write(f"\r\x1b[K{line}" + ("\n" if done == total else ""))
            sys.stderr.flush()
        else:
            note(line)


def _engine_options(model: str | None, given: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {} if model is None else {"model": model}
    for item in given:
        key, found, value = item.partition("=")
        if not found or not key:
            raise ConfigError(f"--option {item}: no '='; write it as KEY=VALUE, for example --option max_rows=64")
        override(options, key, value)
    return options


def _solutions(data: str, splitter: SplitterOptions, columns: Columns, runs_dir: Path) -> list[Solution]:
    if is_data(data):
        return read_solutions(data, splitter=splitter, columns=columns)
    return solutions_of_run(runs.find_run(data, runs_dir), splitter=splitter)


def _target(data: str, out: Path | None) -> Path:
    target = out or Path(f"{stem(data) if is_data(data) else Path(data).name}.labelled.jsonl")
    return target_file(target, data, flag="--out")


def _beside(target: Path, what: str) -> Path:
    return target.with_name(f"{target.name.removesuffix('.jsonl')}.{what}.jsonl")


def _at_least_one(samples: int) -> int:
    if samples < 1:
        raise ConfigError(f"--samples {samples}: at least 1 completion of a prefix is needed")
    return samples


def _share(audit: float) -> float:
    if not 0 <= audit <= 1:
        raise ConfigError(f"--audit {audit:g}: a share from 0 to 1 is expected")
    return audit


def _range(above: float, at_most: float) -> tuple[float, float]:
    if not 0 <= above < at_most <= 1:
        raise ConfigError(
            f"--solved-above {above:g} --solved-at-most {at_most:g}: shares from 0 to 1 are expected, the first below "
            "the second"
        )
    return math.nextafter(above, 1.0), at_most


def _rows(report: LabelReport, settings: LabelSettings, sources: Sequence[str], form: str) -> Iterator[dict[str, Any]]:
    for found in report.labelled:
        row = trl_row(found) if form == "trl" else labelled_row(found, settings, sources)
        if row is not None:
            yield row
