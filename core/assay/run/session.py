"""One run of reinforcement learning while it goes on: its parts, what it records, when it evaluates, how it ends."""

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay import runs
from assay.config.run import EvaluateConfig, RlvrConfig
from assay.contracts import RunInfo, RunOutcome, Sampling, ScoredGroup, UpdateReport
from assay.errors import AssayError
from assay.events import Emit
from assay.interrupt import StopOnInterrupt
from assay.judging import open_panel
from assay.observers import Observers, Trackers
from assay.pipeline import Decided, Loop, LoopSettings, StepReport, Tickets
from assay.pipeline.evaluate import Answer, evaluate
from assay.pipeline.explain import explained
from assay.pipeline.forced_stop import ForcedStop
from assay.pipeline.loop import Judge, LoopHooks
from assay.pipeline.strategies import as_rollouts, strategies
from assay.preflight import Plan
from assay.protocols import ReadsWeights, RolloutEngine, TaskSampler
from assay.remote.placing import open_engine
from assay.reports.diversity import CollapseWatch, answer_of
from assay.reports.metrics import evaluation_line, step_line
from assay.run.doors import Journal, Learner
from assay.run.team import Taught, make_learner
from assay.store import RunStore
from assay.together import first_cause

if TYPE_CHECKING:
    from assay.training.checkpoint import Checkpoints
    from assay.training.ranks import Ranks

SOURCES = "sources"
"""Folder of a checkpoint with the state of sources that learn."""


@dataclass
class Session:
    """One run while it goes on."""

    plan: Plan
    info: RunInfo
    folder: Path
    emit: Emit
    store: RunStore
    engine: RolloutEngine
    panel: Any
    judges: Mapping[str, Judge]
    learner: Learner
    checkpoints: "Checkpoints"
    loop: Loop
    decided: Decided
    observers: Observers
    trackers: Trackers
    answers: dict[str, str]
    """Extracted answers by rollout id, until the rollout's step is recorded."""
    collapse: CollapseWatch = field(default_factory=CollapseWatch)
    trained_groups: int = 0
    """Groups that any update of this process was made of."""

    @classmethod
    async def open(
        cls,
        plan: Plan,
        info: RunInfo,
        folder: Path,
        store: RunStore,
        stack: AsyncExitStack,
        emit: Emit,
        *,
        resumed: bool,
        taught: Taught,
    ) -> "Session":
        """Build every part; what is opened is closed by `stack`."""
        from assay.training.checkpoint import Checkpoints
        from assay.training.weights import Publisher

        config, registry, context = plan.config, plan.registry, plan.context
        context.run = info
        observers = Observers(registry.observers().hook, emit)

        answers: dict[str, str] = {}

        def observe(candidate: Any, judgement: Any) -> None:
            store.add_judgement(judgement)
            answer = answer_of(judgement)
            if answer is not None:
                answers.setdefault(judgement.rollout_id, answer)
            observers.judged(candidate, judgement)

        ranks = taught.ranks if taught.ranks.size > 1 else None
        panel = await stack.enter_async_context(
            open_panel(
                config.rewards,
                registry=registry,
                judging=config.judging,
                context=context,
                observe=observe,
                ranks=ranks,
            )
        )
        context.workers = panel.workers
        judges = await _open_judges(config, plan, ranks, stack)
        trainer, inner = make_learner(plan, taught)
        engine = open_engine(config, registry, context)
        stack.push_async_callback(engine.aclose)
        drawing = _with_forced_stop(engine, config, taught)
        # Where several processes divide the weights, the engine of this one reads them from a folder, too.
        shelf = folder / runs.WEIGHTS if ranks is not None else None
        publisher = Publisher(
            taught.policy,
            folder=engine.weights_folder if isinstance(engine, ReadsWeights) else shelf,
            ranks=taught.ranks,
        )
        learner = Learner(trainer, inner, publisher, config.seed if config.loop.shuffle_rewards else None)
        checkpoints = Checkpoints(folder / runs.CHECKPOINTS, keep=config.checkpoint.keep)
        decided, first_step = Decided(), 0
        if resumed and (found := checkpoints.latest()) is not None:
            for sentence in found.skipped:
                emit({"event": "alert", "text": sentence})
            progress: Any = learner.load(found.path)
            panel.load_state(found.path / SOURCES)
            first_step, decided = found.step, Decided(progress["next"], set(progress["beyond"]))
        journal = Journal(store)
        if resumed:
            journal.known = store.unfinished_groups(after_step=first_step)
            kept = sum(len(group) for group in journal.known.values())
            for file in (runs.METRICS, runs.EVALUATIONS):
                runs.keep_steps(folder / file, first_step)
            emit({"event": "resumed", "step": first_step, "kept_rollouts": kept})
        sampler = next((sidecar for sidecar in trainer.sidecars if isinstance(sidecar, TaskSampler)), None)
        tickets = Tickets(
            plan.tasks,
            seed=config.seed,
            next_number=decided.next,
            skip=decided.beyond,
            weights=None if sampler is None else sampler.weights,
        )
        loop = Loop(
            _loop_settings(config, replays=getattr(engine, "replays", False)),
            tickets=tickets,
            engine=drawing,
            judge=panel,
            learner=learner,
            journal=journal,
            first_step=first_step,
        )
        trackers = Trackers.open(config.trackers, registry=registry, context=context, emit=emit)
        session = cls(
            plan,
            info,
            folder,
            emit,
            store,
            drawing,
            panel,
            judges,
            learner,
            checkpoints,
            loop,
            decided,
            observers,
            trackers,
            answers,
        )
        loop.hooks = LoopHooks(
            before_update=None if config.explanations is None else session.before_update,
            after_step=session.after_step,
            after_publish=session.after_publish,
            waiting=lambda what: emit({"event": "waiting", "text": what}),
        )
        return session

    async def run(self) -> None:
        """Evaluate, train, evaluate; leaves an outcome and a report also when something goes wrong."""
        config = self.plan.config
        launch = {"event": "launch", "run": self.info.id, "folder": str(self.folder), "tasks": len(self.plan.tasks)}
        self.emit(launch | {"policy": config.policy.model, "steps": config.steps, "held_out": len(self.plan.held_out)})
        self.observers.run_started(self.info)
        outcome = RunOutcome(status="failed", steps=self.loop.step)
        try:
            with StopOnInterrupt(self.loop, self.emit):
                weights = await asyncio.to_thread(self.learner.weights, self.loop.step)
                await self.engine.push_weights(weights)  # first: what is evaluated is what is trained
                if config.evaluate is not None and self.loop.step == 0:
                    await self.evaluate(0)
                status: Literal["done", "stopped"] = await self.loop.run()
            outcome = RunOutcome(status=status, steps=self.loop.step)
        except BaseExceptionGroup as group:
            error = first_cause(group)
            outcome = RunOutcome(status="failed", steps=self.loop.step, message=str(error))
            raise error from error.__cause__
        except (AssayError, KeyboardInterrupt, asyncio.CancelledError) as error:
            interrupted = not isinstance(error, AssayError)
            status_word = "interrupted" if interrupted else "failed"
            outcome = RunOutcome(status=status_word, steps=self.loop.step, message=str(error))
            raise
        finally:
            self.finish(outcome)

    async def before_update(self, step: int, groups: Sequence[ScoredGroup]) -> Sequence[ScoredGroup]:
        """The groups with explanations beside them, which are kept in `explanations/`."""
        config = self.plan.config
        settings = config.explanations
        assert settings is not None
        joined = await explained(
            self.engine,
            groups,
            template=settings.template,
            per_group=settings.per_group,
            sampling=config.engine.sampling(seed=config.seed),
            seed=config.seed,
        )
        folder = self.folder / "explanations"
        folder.mkdir(exist_ok=True)
        lines = [
            json.dumps({"task": group.task.id, "rollout": rollout.id, "text": rollout.text}, ensure_ascii=False)
            for before, group in zip(groups, joined, strict=True)
            for rollout in group.rollouts[len(before.rollouts) :]
        ]
        (folder / f"{step:06d}.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return joined

    def after_step(self, report: StepReport) -> None:
        """Record one step: metrics, observers, trackers, a checkpoint where one is due."""
        for ticket, _, _ in report.batch.decisions:
            self.decided.add(ticket.number)
        line = step_line(report, self.panel.metrics(), self.answers)
        for _, group, _ in report.batch.decisions:
            for rollout in group.rollouts:
                self.answers.pop(rollout.id, None)
        self.trained_groups += line["kept_groups"]
        runs.append_line(self.folder / runs.METRICS, line)
        numbers = {key: float(value) for key, value in line.items() if isinstance(value, int | float)}
        self.observers.updated(UpdateReport(step=report.step, version=report.step, metrics=numbers))
        self.trackers.log(report.step, numbers)
        config = self.plan.config
        last = report.step == config.steps or self.loop.stop_requested
        if last or report.step % config.checkpoint.every_steps == 0:
            self.save(report.step)
        self.emit({"event": "step", "steps": config.steps, **line})
        if alert := self.collapse.step(line.get("distinct_texts")):
            self.emit({"event": "alert", "text": f"step {report.step}: {alert}"})

    def save(self, step: int) -> None:
        """Write a checkpoint; the log is flushed first, so that a checkpoint never knows more than the log."""
        self.store.flush()
        progress: dict[str, Any] = {"next": self.decided.next, "beyond": sorted(self.decided.beyond)}

        def write(folder: Path) -> None:
            self.learner.save(folder, progress)
            self.panel.save_state(folder / SOURCES)

        self.checkpoints.save(step, write)

    def after_publish(self, step: int) -> Awaitable[None] | None:
        """Evaluate where the config says so."""
        settings = self.plan.config.evaluate
        if settings is None:
            return None
        last = step == self.plan.config.steps or self.loop.stop_requested
        if last or (settings.every_steps and step % settings.every_steps == 0):
            return self.evaluate(step)
        return None

    async def evaluate(self, step: int) -> None:
        """Draw and judge held-out answers, and record them."""
        config = self.plan.config
        settings = config.evaluate
        assert settings is not None
        sampling = config.engine.sampling(seed=config.seed).model_copy(update={"temperature": settings.temperature})
        answers = await evaluate(
            self.engine,
            self.judges,
            self.plan.held_out,
            sampling=sampling,
            samples=settings.samples,
            seed=config.seed,
            prefix=f"e{step:06d}",
            on_progress=lambda: self.loop.watchdog.progress(self.loop.clock()),
        )
        line = evaluation_line(step, answers, pass_at=settings.pass_at)
        if step == 0:
            line["strategies"] = await self._strategies(settings)
        runs.append_line(self.folder / runs.EVALUATIONS, line)
        self._keep_answers(step, answers)
        self.emit({"event": "evaluation", **line})

    async def _strategies(self, settings: EvaluateConfig) -> dict[str, float]:
        """Accuracy of constant and copying answers under the same source."""
        tasks = self.plan.held_out
        judge = self.judges["accuracy"]
        accuracy: dict[str, float] = {}
        for name, answers in strategies(tasks):
            rollouts = as_rollouts(name, tasks, answers, template=settings.strategy_template)
            rewards = [await judge.judge(task, rollout) for task, rollout in zip(tasks, rollouts, strict=True)]
            accuracy[name] = sum((reward.value or 0.0) >= 0.5 for reward in rewards) / len(tasks)
        return accuracy

    def _keep_answers(self, step: int, answers: Sequence[Answer]) -> None:
        folder = self.folder / "answers"
        folder.mkdir(exist_ok=True)
        path = folder / f"{step:06d}.jsonl"
        lines = [
            json.dumps(
                {
                    "task": answer.task.model_dump(mode="json"),
                    "rollout": answer.rollout.model_dump(mode="json", exclude={"prompt_ids"}),
                    "rewards": {name: reward.model_dump(mode="json") for name, reward in answer.rewards.items()},
                },
                ensure_ascii=False,
            )
            for answer in answers
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def finish(self, outcome: RunOutcome) -> None:
        """Leave the outcome and the report, whatever happened."""
        from assay.reports.html import write_report

        self.store.flush()
        (self.folder / runs.OUTCOME).write_text(outcome.model_dump_json(indent=1), encoding="utf-8")
        self.trackers.close()
        self.observers.run_finished(self.info, outcome)
        report = write_report(self.folder, store=self.store)
        if outcome.status == "done" and self.loop.step and not self.trained_groups:
            self.emit({"event": "alert", "text": "no step had anything to learn from; see: assay show --status failed"})
        self.emit({"event": "done", "run": self.info.id, "report": str(report), **outcome.model_dump()})


async def _open_judges(
    config: RlvrConfig, plan: Plan, ranks: "Ranks | None", stack: AsyncExitStack
) -> dict[str, Judge]:
    """Panels of the evaluation: `accuracy`, and one per further source by its name."""
    if config.evaluate is None:
        return {}
    entries = {"accuracy": config.evaluate.by or config.rewards[0]}
    entries |= {entry.name: entry for entry in config.evaluate.also}
    panels: dict[str, Judge] = {}
    for name, entry in entries.items():
        single = entry.model_copy(update={"weight": 1.0, "channel": "reward"})
        panels[name] = await stack.enter_async_context(
            open_panel([single], registry=plan.registry, judging=config.judging, context=plan.context, ranks=ranks)
        )
    return panels


def _with_forced_stop(engine: RolloutEngine, config: RlvrConfig, taught: Taught) -> RolloutEngine:
    """The engine, which ends thoughts by force where the config asks for it."""
    chosen = config.engine
    if chosen.forced_stop is None:
        return engine
    tokenizer = taught.policy.tokenizer
    together = config.loop.max_staleness == 0
    return ForcedStop(engine, chosen.forced_stop, tokenizer, max_new_tokens=chosen.max_new_tokens, together=together)


def _loop_settings(config: RlvrConfig, *, replays: bool) -> LoopSettings:
    loop = config.loop
    sampling: Sampling = config.engine.sampling(seed=config.seed)
    return LoopSettings(
        steps=config.steps,
        groups_per_step=loop.groups_per_step,
        group_size=config.engine.group_size,
        sampling=sampling,
        seed=config.seed,
        max_staleness=loop.max_staleness,
        min_scored=loop.min_scored,
        max_refill=loop.max_refill,
        judge_concurrency=loop.judge_concurrency,
        stuck_after_s=loop.stuck_after_s,
        minutes=config.minutes,
        replays=replays,
    )
