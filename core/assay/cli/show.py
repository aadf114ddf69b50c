"""`assay show`: a run in words, or one reward explained down to its evidence."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from assay import runs
from assay.cli.output import emit, say, table
from assay.contracts import Judgement
from assay.reports.fit import evaluation_sentence
from assay.reports.metrics import interval_of
from assay.reports.statistics import Tally, tally
from assay.reports.text import one_line, visible
from assay.store import RunStore


def show(
    run: str,
    rollout: str | None = None,
    /,
    *,
    status: Literal["scored", "abstained", "failed"] | None = None,
    source: str | None = None,
    limit: int = 20,
    runs_dir: Path = Path("runs"),
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Show a run, list rollouts of one status, or explain one reward.

    Args:
        run: Folder, name, short id, or `latest`.
        rollout: Id of a rollout, or the beginning of one.
        status: List rollouts with a verdict of this status.
        source: List rollouts with a verdict of this source.
        limit: Most rollouts that are listed.
        runs_dir: Where run folders are looked for.
        json_: JSON instead of text.
    """
    folder = runs.find_run(run, runs_dir)
    with RunStore.open(folder, read_only=True) as store:
        if rollout is not None:
            return _explain(store, folder, rollout, json_)
        if status is not None or source is not None:
            return _list(store, status, source, limit, json_)
        return _summary(store, folder, json_)


def _summary(store: RunStore, folder: Path, json_: bool) -> int:
    steps = list(runs.read_lines(folder / runs.METRICS))
    evaluations = list(runs.read_lines(folder / runs.EVALUATIONS))
    outcome: dict[str, Any] = {"status": "running or killed"}
    if (folder / runs.OUTCOME).is_file():
        outcome = json.loads((folder / runs.OUTCOME).read_text(encoding="utf-8"))
    by_source = {
        name: tally((judgement.status, judgement.value) for judgement in judgements)
        for name, judgements in _by_source(store).items()
    }
    if json_:
        facts = {"run": store.info.id, "outcome": outcome, "rollouts": store.count_rollouts(), "steps": len(steps)}
        emit(facts | {"sources": {k: v._asdict() for k, v in by_source.items()}, "evaluations": evaluations})
        return 0
    say(f"run {store.info.id}: {store.info.kind}, {outcome['status']}, {len(steps)} steps, {folder}")
    if outcome.get("message"):
        say(f"  {outcome['message']}")
    for line in evaluations:
        if "accuracy" not in line:
            say(f"held out after step {line['step']}: {evaluation_sentence(line)}")
            continue
        facts = line["accuracy"]
        say(f"held out after step {line['step']}: accuracy {interval_of(facts)} over {facts.get('of', 0)} answers")
    if steps and "scored" not in steps[-1]:
        say(f"last step {steps[-1]['step']}: loss {steps[-1]['loss']:.4g}")
        say(f"report {folder / runs.REPORT}")
        return 0
    if steps:
        first, last = steps[0], steps[-1]
        for name, line in (("first", first), ("last", last)):
            mean = "none" if line.get("reward") is None else f"{line['reward']:.3f}"
            counts = f"{line['scored']} scored, {line['abstained']} abstained, {line['failed']} failed"
            say(f"{name} step {line['step']}: reward {mean} ({counts})")
    for name, counts in by_source.items():
        say(f"source {name}: {counts}")
    say(f"{store.count_rollouts():,} rollouts.  Next: {_next(store.info.id, by_source)}")
    return 0


def _next(run: str, by_source: Mapping[str, Tally]) -> str:
    """The command that looks closer: at what failed, else at what was abstained on, else at the scored."""
    for status in ("failed", "abstained"):
        if any(getattr(counts, status) for counts in by_source.values()):
            return f"assay show {run} --status {status}"
    return f"assay show {run} --status scored"


def _by_source(store: RunStore) -> dict[str, list[Judgement]]:
    found: dict[str, list[Judgement]] = {}
    for entry in store.rollouts():
        for judgement in entry.judgements:
            found.setdefault(judgement.source, []).append(judgement)
    return found


def _list(store: RunStore, status: str | None, source: str | None, limit: int, json_: bool) -> int:
    rows: list[list[str]] = []
    for entry in store.rollouts(status=status, source=source, limit=limit):
        reward = None if entry.reward is None else entry.reward.value
        if json_:
            emit({"rollout": entry.rollout.id, "step": entry.step, "reward": reward, "text": entry.rollout.text})
        for judgement in entry.judgements:
            if (status is None or judgement.status == status) and (source is None or judgement.source == source):
                why = judgement.reason or f"{judgement.value:g}"
                text = one_line(entry.rollout.text, 60)
                rows.append([entry.rollout.id, str(entry.step), judgement.source, judgement.status, why, text])
    if not json_:
        if rows:
            table(["rollout", "step", "source", "status", "value or reason", "text"], rows)
            say(f"Next: assay show {store.info.id} {rows[0][0]}")
        else:
            say("no such rollout")
    return 0


def _explain(store: RunStore, folder: Path, rollout: str, json_: bool) -> int:
    entry = store.rollout(rollout)
    if json_:
        emit(
            {
                "task": entry.task.model_dump(mode="json"),
                "rollout": entry.rollout.model_dump(mode="json"),
                "reward": None if entry.reward is None else entry.reward.model_dump(mode="json"),
                "judgements": [judgement.model_dump(mode="json") for judgement in entry.judgements],
            }
        )
        return 0
    value = None if entry.reward is None else entry.reward.value
    say(f"rollout {entry.rollout.id}  step {entry.step}  reward {'masked' if value is None else f'{value:g}'}")
    if entry.reward is not None and entry.reward.reason:
        say(f"  masked because: {entry.reward.reason}")
    for message in entry.task.messages:
        say(f"{message.role}: {visible(message.content)}")
    say(f"reference: {json.dumps(entry.task.reference, ensure_ascii=False)}")
    say(f"answer ({entry.rollout.finish}): {visible(entry.rollout.text)}")
    if entry.reward is not None:
        for part in entry.reward.parts:
            number = "-" if part.value is None else f"{part.value:g}"
            declared = ", declared for a candidate's fault" if part.declared else ""
            place = f"weight {part.weight:g} in {part.channel}{declared}"
            say(f"part {part.source}: {part.status}, value {number} x {place}")
    for judgement in entry.judgements:
        say(
            f"verdict of {judgement.source} {judgement.version}: {judgement.status} "
            f"{'' if judgement.value is None else f'{judgement.value:g}'} {judgement.reason or ''}".rstrip()
        )
        cached = ", cached" if judgement.cached else ""
        how = f"attempt {judgement.attempt}, {1000 * judgement.latency_s:.1f} ms{cached}"
        say(f"  {how}, options {judgement.options_hash[:12]}, input {judgement.input_hash[:12]}")
        for item in judgement.verdict.evidence:
            say(f"  {item.kind}: {visible(item.summary)}")
        if judgement.output:
            say(f"  printed: {visible(judgement.output)}")
    say(f"settings: {folder / runs.CONFIG}")
    return 0
