"""One run of training from examples: batches in an order that the seed decides, measures, checkpoints, a report.

Guaranteed: the batch of a step depends on data, config and seed alone; a checkpoint holds the trainer's whole state and
is written after everything else of its step; so a run that was killed and resumed ends as one that was not.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay import runs
from assay.config.fit import AnyFit, PrmConfig
from assay.config.load import dump_config
from assay.contracts import RunInfo, RunOutcome, UpdateReport
from assay.errors import AssayError, ConfigError
from assay.events import Emit
from assay.fit.measures import best_of_held_out, first_errors
from assay.fit.plan import FitPlan, plan_fit
from assay.fit.team import Whole, follow, gather, make_trainer, measure, restore, update, whole_models
from assay.interrupt import StopOnInterrupt
from assay.observers import Observers, Trackers
from assay.preflight import check_unchanged
from assay.protocols import RewardObjective
from assay.reports.fit import write_fit_report
from assay.steps import SplitterOptions
from assay.store import RunStore
from assay.training.meeting import dismiss, meet

if TYPE_CHECKING:
    from assay.training.checkpoint import Checkpoints
    from assay.training.examples import ExampleSet
    from assay.training.model import PolicyModel
    from assay.training.ranks import Ranks
    from assay.training.trainer import Trainer

MAY_CHANGE = frozenset({"steps", "minutes", "checkpoint", "trackers", "runs_dir", "base_dir", "evaluate"})
"""Keys that a resumed run may have otherwise than when it began."""


def fit(
    config: AnyFit,
    *,
    base_dir: Path | None = None,
    resume: Path | None = None,
    dry_run: bool = False,
    emit: Emit = lambda event: None,
) -> Path | None:
    """The folder of the finished run (None after a dry run); see `afit`."""
    return asyncio.run(afit(config, base_dir=base_dir, resume=resume, dry_run=dry_run, emit=emit))


async def afit(
    config: AnyFit,
    *,
    base_dir: Path | None = None,
    resume: Path | None = None,
    dry_run: bool = False,
    emit: Emit = lambda event: None,
) -> Path | None:
    """Train as `config` says and return the run's folder.

    Models, parts and all data are read and checked before the first update. `resume` continues a run in its own folder
    from its last checkpoint.

    Raises:
        AssayError: with one sentence; what was finished is kept in the run folder.
    """
    async with AsyncExitStack() as stack:
        stored = None
        ranks = meet(config.trained.device)
        if ranks is not None:
            stack.callback(ranks.close)
        first = ranks is None or ranks.rank == 0
        paths = Path(config.base_dir) if config.base_dir else base_dir or Path.cwd()
        config = config.model_copy(update={"base_dir": str(paths.absolute())})
        if resume is not None and first:  # before anything slow: a run that is in use elsewhere is refused at once
            stored = RunStore.open(resume)
            stack.callback(stored.close)
            check_unchanged(config, resume, may_change=MAY_CHANGE)
        plan = plan_fit(config, base_dir=paths, where=config.name)
        if ranks is not None:
            if not first:
                if not dry_run:
                    await asyncio.to_thread(follow, plan, ranks)
                return None
            stack.callback(dismiss, ranks)
        for note in plan.notes:
            emit({"event": "note", "text": note})
        facts = data_facts(plan)
        emit({"event": "data", **facts})
        if resume is not None:
            _check_data(resume, facts)
        if dry_run:
            return None
        folder = resume or runs.new_run_folder(Path(config.runs_dir), config.name)
        info = RunInfo(
            id=folder.name,
            name=config.name,
            kind=config.kind,
            folder=str(folder),
            seed=config.seed,
            plugins=plan.registry.versions(),
        )
        if stored is None:
            stored = RunStore.create(folder, info)
            stack.callback(stored.close)
            (folder / runs.DATA).write_text(json.dumps(facts, indent=1), encoding="utf-8")
            runs.write_config(folder, dump_config(config))
        session = _Session.open(plan, info, folder, emit, resumed=resume is not None, ranks=ranks)
        await session.run()
    return folder


def data_facts(plan: FitPlan) -> dict[str, Any]:
    """What the data is, as plain JSON: counts, halves, the spread of labels, and a hash of every example."""
    examples = plan.examples
    facts = _set_facts(examples)
    if plan.stream is not None:
        facts["stream"] = _set_facts(plan.stream)
    return facts


def _set_facts(examples: ExampleSet) -> dict[str, Any]:
    from assay.training.examples import labels_of

    everything = [*examples.trained, *examples.held_out]
    facts: dict[str, Any] = {
        "rows": examples.rows,
        "examples": len(everything),
        "problems": sum(examples.problems),
        "trained_problems": examples.problems[0],
        "held_out_problems": examples.problems[1],
        "trained": len(examples.trained),
        "held_out": len(examples.held_out),
        "left_out": dict(examples.left_out),
        "digest": examples.digest,
    }
    labels = labels_of(everything)
    if labels is not None:
        facts["labels"] = {"true": labels.true, "of": labels.of, "steps": labels.steps}
        steps = [len(example.facts["labels"]) for example in everything if example.facts.get("labels")]
        if steps:
            facts["steps_per_response"] = sum(steps) / len(steps)
    held = labels_of(examples.held_out)
    if held is not None:
        facts["majority"] = held.majority
    return facts


def _check_data(folder: Path, facts: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where the data is not that which the run began with."""
    file = folder / runs.DATA
    began: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    for place, now, then in (
        ("data", facts, began),
        ("stream", facts.get("stream", {}), began.get("stream", {})),
    ):
        if now.get("digest") != then.get("digest"):
            raise ConfigError(
                f"--resume: {folder} was begun with another {place}; it had {then.get('examples')} examples and there "
                f"are {now.get('examples')}, or their texts differ. Restore the file, or start a new run"
            )


@dataclass
class _Session:
    """One run while it goes on."""

    plan: FitPlan
    info: RunInfo
    folder: Path
    emit: Emit
    trainer: Trainer
    checkpoints: Checkpoints
    observers: Observers
    trackers: Trackers
    whole: Whole | None
    """Copies for a reward model's measures where the models themselves are divided."""
    step: int = 0
    stop_requested: bool = False
    threshold: float | None = None
    """Where steps begin to be good, as the last first-error measure fitted it."""

    @classmethod
    def open(
        cls, plan: FitPlan, info: RunInfo, folder: Path, emit: Emit, *, resumed: bool, ranks: Ranks | None
    ) -> _Session:
        """Build the trainer, and put the last checkpoint into it where the run goes on."""
        from assay.training.checkpoint import Checkpoints
        from assay.training.ranks import Ranks

        config = plan.config
        plan.context.run = info
        asked = isinstance(config, PrmConfig) and (config.evaluate.first_error is not None or config.evaluate.best_of)
        whole = whole_models(plan) if ranks is not None and asked else None
        trainer = make_trainer(plan, ranks or Ranks())
        checkpoints = Checkpoints(folder / runs.CHECKPOINTS, keep=config.checkpoint.keep)
        step = 0
        if resumed:
            if (found := checkpoints.latest()) is not None:
                for sentence in found.skipped:
                    emit({"event": "alert", "text": sentence})
                with trainer.ranks.leading({"do": "load", "folder": str(found.path.absolute())}):
                    restore(plan, trainer, found.path)
                step = found.step
            for file in (runs.METRICS, runs.EVALUATIONS):
                runs.keep_steps(folder / file, step)
            emit({"event": "resumed", "step": step})
        observers = Observers(plan.registry.observers().hook, emit)
        trackers = Trackers.open(config.trackers, registry=plan.registry, context=plan.context, emit=emit)
        return cls(plan, info, folder, emit, trainer, checkpoints, observers, trackers, whole, step)

    async def run(self) -> None:
        """Measure, train, measure; leaves an outcome and a report also when something goes wrong."""
        plan, config = self.plan, self.plan.config
        launch = {"event": "launch", "run": self.info.id, "folder": str(self.folder), "kind": config.kind}
        facts = {"policy": config.trained.model, "objective": config.objective.use, "steps": plan.total_steps}
        counts = {"examples": len(plan.examples.trained), "held_out": len(plan.examples.held_out)}
        self.emit(launch | facts | counts)
        self.observers.run_started(self.info)
        outcome = RunOutcome(status="failed", steps=self.step)
        try:
            with StopOnInterrupt(self, self.emit):
                await self._train()
            done = self.step >= plan.total_steps
            outcome = RunOutcome(status="done" if done else "stopped", steps=self.step)
            await asyncio.to_thread(self._write_model)
        except (AssayError, KeyboardInterrupt, asyncio.CancelledError) as error:
            word = "failed" if isinstance(error, AssayError) else "interrupted"
            outcome = RunOutcome(status=word, steps=self.step, message=str(error))
            raise
        finally:
            self._finish(outcome)

    async def _train(self) -> None:
        plan, config = self.plan, self.plan.config
        started = time.monotonic()
        if self.step == 0 and not list(runs.read_lines(self.folder / runs.EVALUATIONS)):
            await self._measure()
        while self.step < plan.total_steps and not self.stop_requested:
            line = await asyncio.to_thread(self._update)
            runs.append_line(self.folder / runs.METRICS, line)
            numbers = {key: float(value) for key, value in line.items() if isinstance(value, int | float)}
            self.observers.updated(UpdateReport(step=self.step, version=self.step, metrics=numbers))
            self.trackers.log(self.step, numbers)
            self.emit({"event": "step", "kind": config.kind, "steps": plan.total_steps, **line})
            if config.minutes is not None and time.monotonic() - started > config.minutes * 60:
                self.stop_requested = True
            last = self.step >= plan.total_steps or self.stop_requested
            every, per_epoch = config.measured.every_steps, plan.steps_per_epoch
            if last or (self.step % every == 0 if every else self.step % per_epoch == 0):
                await self._measure()
            if last or self.step % config.checkpoint.every_steps == 0:
                await asyncio.to_thread(self._save)

    def _update(self) -> dict[str, Any]:
        """One optimizer step and its line."""
        with self.trainer.ranks.leading({"do": "update", "step": self.step}):
            report = update(self.plan, self.trainer, self.step)
        epoch = self.step // self.plan.steps_per_epoch + 1
        self.step += 1
        return {"step": self.step, "epoch": epoch, "epochs": self.plan.config.training.epochs, **report.metrics}

    async def _measure(self) -> None:
        """Loss and metrics of the held-out half, and what a reward model is worth; one line."""
        plan, config = self.plan, self.plan.config
        examples = plan.examples
        line: dict[str, Any] = {"step": self.step, "kind": config.kind, "held_out": None}
        if examples.held_out:
            found = await asyncio.to_thread(self._measure_examples)
            line["held_out"] = {**found, "examples": len(examples.held_out)}
            from assay.training.examples import labels_of

            if (labels := labels_of(examples.held_out)) is not None:
                line["labels"] = {"true": labels.true, "of": labels.of, "steps": labels.steps}
                line["majority"] = labels.majority
        if isinstance(config, PrmConfig) and isinstance(plan.objective, RewardObjective):
            line |= await self._measure_source(plan.objective, config)
        runs.append_line(self.folder / runs.EVALUATIONS, line)
        self.emit({"event": "evaluation", "epochs": config.training.epochs, **line})

    def _measure_examples(self) -> Mapping[str, float]:
        with self.trainer.ranks.leading({"do": "measure"}):
            return measure(self.plan, self.trainer)

    async def _measure_source(self, objective: RewardObjective, config: PrmConfig) -> dict[str, Any]:
        settings = config.evaluate
        found: dict[str, Any] = {}
        if settings.first_error is None and not settings.best_of:
            return found
        models = await asyncio.to_thread(self._whole_models)
        source = objective.source(models.policy, models.reference)
        try:
            if self.plan.first_errors:
                between = SplitterOptions.model_validate(config.objective_options.get("splitter") or {}).between
                rows = self.plan.first_errors
                found["first_error"] = await first_errors(source, rows, seed=config.seed, between=between)
                self.threshold = found["first_error"]["threshold"]
            if settings.best_of:
                held = self.plan.examples.held_rows
                found["best_of"] = await best_of_held_out(
                    source, held, settings.best_of, settings.aggregate, seed=config.seed
                )
        finally:
            await source.aclose()
        return found

    def _whole_models(self) -> Whole:
        """The models of now, none of them divided."""
        if self.whole is None:
            return Whole(self.plan.policy, self._reference())
        with self.trainer.ranks.leading({"do": "gather"}):
            gather(self.trainer, self.whole)
        return self.whole

    def _reference(self) -> PolicyModel | None:
        """The reference for a reward source: the trainer's own, which is the policy's start where none is named."""
        return self.trainer.reference if self.plan.objective.needs.logp_ref else None

    def _save(self) -> None:
        from assay.training.checkpoint import save_trainer

        def write(folder: Path) -> None:
            with self.trainer.ranks.leading({"do": "save"}):
                save_trainer(self.trainer, folder)
            if isinstance(self.plan.objective, RewardObjective) and self.plan.config.training.lora is None:
                self._describe(self.plan.objective, folder)

        self.checkpoints.save(self.step, write)

    def _write_model(self) -> None:
        """The whole model where checkpoints hold an adapter only."""
        from assay.training.weights import save_policy

        if self.plan.config.training.lora is None:
            return
        folder = self.folder / runs.MODEL
        folder.mkdir(exist_ok=True)
        with self.trainer.ranks.leading({"do": "write"}):
            save_policy(self.plan.policy, folder, self.trainer.ranks)
        if isinstance(self.plan.objective, RewardObjective):
            self._describe(self.plan.objective, folder)

    def _describe(self, objective: RewardObjective, folder: Path) -> None:
        from assay.training.checkpoint import save_reward_model

        save_reward_model(objective, self.plan.policy, self._reference(), folder, threshold=self.threshold)

    def _finish(self, outcome: RunOutcome) -> None:
        """Leave the outcome and the report, whatever happened."""
        (self.folder / runs.OUTCOME).write_text(outcome.model_dump_json(indent=1), encoding="utf-8")
        self.trackers.close()
        self.observers.run_finished(self.info, outcome)
        report = write_fit_report(self.folder, self.info)
        self.emit({"event": "done", "run": self.info.id, "report": str(report), **outcome.model_dump()})
