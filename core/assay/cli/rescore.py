"""The half of `assay score` that judges a stored run again and lists what changed."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay import runs
from assay.cli.output import emit, note, say, table
from assay.config.load import dump_config, load_config
from assay.config.run import ScoreConfig, ScoreData
from assay.contracts import Judgement, RunInfo, RunOutcome, Task
from assay.errors import ConfigError
from assay.preflight import check_rewards, make_context
from assay.registry import Registry
from assay.rescoring import Again, Counts, judge_again, todays_tasks, with_rewards
from assay.rows import is_data
from assay.store import RunStore

LISTED = 20
"""Changes that are listed as text; all of them are in the new run, and with `--json`."""


def find_stored(name: str | None, runs_dir: Path, *, required: bool) -> Path | None:
    """The run folder that `name` means, or None for a file; raises `ConfigError` where a run is required."""
    if name is None or is_data(name):
        if required:
            raise ConfigError(f"--changed-only: {name} is a file; it takes a run: folder, name, short id, or latest")
        return None
    if required:
        return runs.find_run(name, runs_dir)
    with contextlib.suppress(ConfigError):
        return runs.find_run(name, runs_dir)
    return None


def rescore(
    folder: Path,
    override: ScoreConfig | None,
    *,
    changed_only: bool,
    judging: Mapping[str, Any],
    fail_above: float | None,
    json_: bool,
) -> int:
    """Judge the run in `folder` again, into a run of its own, and print what changed; the exit code.

    `override` has other rewards than the run's, `judging` what is otherwise in its table of that name.
    """
    with RunStore.open(folder, read_only=True) as stored:
        began = with_rewards(load_config(folder / runs.CONFIG), folder)
        chosen = began if override is None else override
        base_dir = Path(chosen.base_dir or began.base_dir or Path.cwd())
        registry = Registry.load(allow=chosen.plugins.allow)
        for problem in registry.problems:
            note(f"! {problem}")
        context = make_context(registry, base_dir=base_dir, seed=chosen.seed)
        check_rewards(registry, chosen.rewards, where=chosen.name)
        tasks: dict[str, Task] = {}
        try:
            tasks = todays_tasks(began, registry, context)
        except ConfigError as error:
            note(f"tasks are taken as they were stored: {error}")
        settings = ScoreConfig(
            kind="score",
            name=f"{began.name.removesuffix('-again')}-again",
            base_dir=str(base_dir.absolute()),
            seed=chosen.seed,
            runs_dir=chosen.runs_dir,
            plugins=chosen.plugins,
            data=ScoreData(path=str(folder.absolute())),
            rewards=chosen.rewards,
            judging=chosen.judging.model_copy(update=dict(judging)),
        )
        target = runs.new_run_folder(folder.absolute().parent, settings.name)
        info = RunInfo(
            id=target.name,
            name=settings.name,
            kind="score",
            folder=str(target),
            seed=settings.seed,
            plugins=registry.versions(),
        )
        listed: list[list[str]] = []
        means = _Means()

        with RunStore.create(target, info) as store:
            runs.write_config(target, dump_config(settings))

            def keep(again: Again) -> None:
                _store(store, again)
                means.add(again)
                if json_:
                    for line in _lines(again):
                        emit(line)
                elif len(listed) < LISTED:
                    listed.extend(_rows(again))

            counts = asyncio.run(
                judge_again(
                    stored,
                    settings.rewards,
                    keep,
                    registry=registry,
                    context=context,
                    judging=settings.judging,
                    tasks=tasks,
                    changed_only=changed_only,
                )
            )
        (target / runs.OUTCOME).write_text(RunOutcome(status="done", steps=0).model_dump_json(), encoding="utf-8")
    if json_:
        emit({"run": target.name, "of": folder.name, **vars(counts), "reward": means.facts()})
    else:
        _print(counts, listed[:LISTED], means, target)
    return _exit_code(means, fail_above)


class _Means:
    """Rewards before and after, and how many verdicts failed."""

    def __init__(self) -> None:
        self.old: list[float] = []
        self.new: list[float] = []
        self.verdicts = 0
        self.failed = 0

    def add(self, again: Again) -> None:
        if again.entry.reward is not None and again.entry.reward.value is not None:
            self.old.append(again.entry.reward.value)
        if again.reward.value is not None:
            self.new.append(again.reward.value)
        self.verdicts += len(again.judgements)
        self.failed += sum(judgement.status == "failed" for judgement in again.judgements)

    def facts(self) -> dict[str, Any]:
        old, new = self.old, self.new
        return {
            "old": sum(old) / len(old) if old else None,
            "old_of": len(old),
            "new": sum(new) / len(new) if new else None,
            "new_of": len(new),
        }


def _store(store: RunStore, again: Again) -> None:
    rollout = again.entry.rollout
    store.add_rollout(rollout, step=again.entry.step, task=again.task)
    for judgement in again.judgements:
        store.add_judgement(judgement)
    store.add_reward(again.reward, step=again.entry.step, group_id=rollout.group_id)


def _lines(again: Again) -> list[dict[str, Any]]:
    rollout, old_reward = again.entry.rollout, again.entry.reward
    return [
        {
            "rollout": rollout.id,
            "task": again.task.id,
            "step": again.entry.step,
            "source": change.new.source,
            "why": change.why,
            "old": None if change.old is None else _facts(change.old),
            "new": _facts(change.new),
            "reward": {"old": None if old_reward is None else old_reward.value, "new": again.reward.value},
        }
        for change in again.changes
    ]


def _facts(judgement: Judgement) -> dict[str, Any]:
    return {
        "status": judgement.status,
        "value": judgement.value,
        "reason": judgement.reason,
        "version": judgement.version,
        "options_hash": judgement.options_hash,
        "input_hash": judgement.input_hash,
        "fingerprint": judgement.fingerprint,
    }


def _rows(again: Again) -> list[list[str]]:
    return [
        [again.entry.rollout.id, again.task.id, change.new.source, _brief(change.old), _brief(change.new), change.why]
        for change in again.changes
    ]


def _brief(judgement: Judgement | None) -> str:
    if judgement is None:
        return "-"
    return f"{judgement.status} {judgement.value:g}" if judgement.value is not None else judgement.status


def _print(counts: Counts, rows: Sequence[Sequence[str]], means: _Means, target: Path) -> None:
    if rows:
        table(["rollout", "task", "source", "old", "new", "why"], rows)
    if counts.changed > len(rows):
        say(f"... and {counts.changed - len(rows):,} more; all of them with --json")
    by_source = ", ".join(f"{name} {number:,}" for name, number in counts.by_source.items())
    say(
        f"{counts.rollouts:,} rollouts: {counts.judged:,} verdicts judged again, {counts.kept:,} kept, "
        f"{counts.changed:,} changed{f' ({by_source})' if by_source else ''}"
    )
    facts = means.facts()
    old, new = ("none" if facts[key] is None else f"{facts[key]:.3f}" for key in ("old", "new"))
    say(f"reward {old} over {facts['old_of']:,} -> {new} over {facts['new_of']:,}")
    say(f"the run itself is as it was; today's verdicts are run {target.name}.  Next: assay show {target.name}")


def _exit_code(means: _Means, fail_above: float | None) -> int:
    if fail_above is not None and means.verdicts and means.failed / means.verdicts > fail_above:
        note(
            f"assay score: {means.failed} of {means.verdicts} verdicts failed, more than the limit of {fail_above:.1%}"
        )
        return 3
    return 0
