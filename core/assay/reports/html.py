"""`report.html`: one self-contained file about a run, readable without a script and without a network."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from assay import runs
from assay.contracts import Judgement, Reward, Rollout, Task
from assay.reports.charts import line_chart, stacked_chart
from assay.reports.metrics import interval_of, is_source
from assay.reports.page import template
from assay.reports.text import one_line, visible
from assay.store import RunStore

MAX_ROLLOUTS = 400
"""Rollouts in the page: those of the first and of the last steps; the others are a command away."""


def write_report(folder: Path, *, store: RunStore, target: Path | None = None) -> Path:
    """Write the page of the run in `folder` and return its path."""
    path = target or folder / runs.REPORT
    path.write_text(render(folder, store), encoding="utf-8")
    return path


def render(folder: Path, store: RunStore) -> str:
    """The page of a run as HTML."""
    steps = list(runs.read_lines(folder / runs.METRICS))
    evaluations = list(runs.read_lines(folder / runs.EVALUATIONS))
    rollouts = list(_rollouts(store, [line["step"] for line in steps]))
    second = [name for name in (evaluations[0] if evaluations else {}) if is_source(name, evaluations[0][name])]
    return template("report.html").render(
        run=store.info,
        steps=[_step_row(line) for line in steps],
        charts=_charts(steps),
        evaluations=[_evaluation_row(line, second) for line in evaluations],
        second=second,
        strategies=_strategies(evaluations),
        rollouts=rollouts,
        shown=len(rollouts),
        total=store.count_rollouts(),
    )


def _charts(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    xs = [float(line["step"]) for line in steps]
    band = [2 * line["reward_se"] if line.get("reward_se") is not None else None for line in steps]
    counts = {name: [float(line.get(name) or 0) for line in steps] for name in ("scored", "abstained", "failed")}
    times = {
        name: [float(line.get(f"{name}_s") or 0) for line in steps] for name in ("sample", "judge", "train", "publish")
    }
    drawn = {
        "reward": line_chart("reward per step", xs, [line.get("reward") for line in steps], band=band),
        "counts": stacked_chart("rollouts per step", xs, counts),
        "times": stacked_chart("seconds per step", xs, times),
    }
    return {name: Markup(svg) for name, svg in drawn.items()}  # noqa: S704 (our own SVG; every text in it is escaped)


def _step_row(line: Mapping[str, Any]) -> dict[str, str]:
    spread = f" +- {line['reward_se']:.3f}" if line.get("reward_se") is not None else ""
    mean = "no mean" if line.get("reward") is None else f"{line['reward']:.3f}{spread}"
    return {
        "step": str(line["step"]),
        "reward": f"{mean} ({line['scored']} scored, {line['abstained']} abstained, {line['failed']} failed)",
        "groups": f"{line['kept_groups']}/{line['groups']} kept, {line['equal_groups']} all equal",
        "length": _number(line.get("length"), ".1f"),
        "entropy": _number(line.get("entropy"), ".3f"),
        "grad_norm": _number(line.get("grad_norm"), ".3g"),
        "hidden": _number(line.get("judge_hidden"), ".0%"),
    }


def _evaluation_row(line: Mapping[str, Any], second: Sequence[str]) -> dict[str, Any]:
    facts = line["accuracy"]
    return {
        "step": line["step"],
        "answers": line["answers"],
        "accuracy": str(interval_of(facts) or "nothing scored"),
        "extracted": str(interval_of(facts, "extracted") or ""),
        "also": {name: str(interval_of(line[name]) or "") for name in second},
    }


def _strategies(evaluations: Sequence[Mapping[str, Any]]) -> str:
    nothing: dict[str, float] = {}
    found: dict[str, float] = next((line["strategies"] for line in evaluations if "strategies" in line), nothing)
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{name!r} {share:.1%}" for name, share in ordered[:4])


def _rollouts(store: RunStore, steps: Sequence[int]) -> Iterator[dict[str, Any]]:
    shown = 0
    ordered = [step for pair in zip(steps, reversed(steps), strict=True) for step in pair]
    chosen = list(dict.fromkeys(ordered))
    for step in chosen:
        for entry in store.rollouts(step=step):
            if shown == MAX_ROLLOUTS:
                return
            shown += 1
            yield _rollout(step, entry.task, entry.rollout, entry.reward, entry.judgements)


def _rollout(
    step: int, task: Task, rollout: Rollout, reward: Reward | None, judgements: Sequence[Judgement]
) -> dict[str, Any]:
    value = None if reward is None else reward.value
    return {
        "step": step,
        "id": rollout.id,
        "reward": "masked" if value is None else f"{value:g}",
        "line": one_line(rollout.text),
        "reference": one_line(json.dumps(task.reference, ensure_ascii=False), 200),
        "prompt": visible("\n\n".join(f"{message.role}: {message.content}" for message in task.messages)),
        "text": visible("\n".join(turn.text for turn in rollout.turns)),
        "cards": [
            {
                "source": judgement.source,
                "status": judgement.status,
                "value": "" if judgement.value is None else f"{judgement.value:g}",
                "reason": one_line(judgement.reason or "", 300),
                "version": judgement.version,
                "attempt": judgement.attempt,
                "latency": f"{1000 * judgement.latency_s:.1f} ms",
                "cached": judgement.cached,
                "evidence": [one_line(item.summary, 400) for item in judgement.verdict.evidence],
                "output": visible(judgement.output),
            }
            for judgement in judgements
        ],
    }


def _number(value: Any, spec: str) -> str:
    return "" if value is None else format(value, spec)
