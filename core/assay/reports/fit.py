"""`report.html` of a run that learns from examples: its data, what the held-out half says, the course of training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from assay import runs
from assay.contracts import RunInfo
from assay.reports.charts import line_chart
from assay.reports.page import template

NOT_DRAWN = frozenset({"step", "epoch", "epochs", "updates", "skipped_updates", "examples", "tokens", "update_s"})
"""Numbers of a step that say nothing as a curve."""


def write_fit_report(folder: Path, info: RunInfo) -> Path:
    """Write the page of the run in `folder` and return its path."""
    steps = list(runs.read_lines(folder / runs.METRICS))
    evaluations = list(runs.read_lines(folder / runs.EVALUATIONS))
    data: dict[str, Any] = json.loads((folder / runs.DATA).read_text(encoding="utf-8"))
    columns = held_out_columns(evaluations)
    path = folder / runs.REPORT
    page = template("fit.html").render(
        run=info,
        data=data_sentence(data),
        columns=columns,
        evaluations=[[str(line["step"]), *(_cell(line, name) for name in columns)] for line in evaluations],
        charts=_charts(steps),
        steps=len(steps),
    )
    path.write_text(page, encoding="utf-8")
    return path


def data_sentence(facts: Mapping[str, Any]) -> str:
    """The data in one line: `8,000 responses, 812 problems, 41 % correct; 720 problems train, 92 held out; ...`."""
    labels = facts.get("labels")
    parts = f"{facts['examples']:,} examples, {facts['problems']:,} problems"
    if labels is not None:
        what = "steps right" if labels["steps"] else "correct"
        parts += f", {labels['true'] / labels['of']:.0%} {what}"
    parts += f"; {facts['trained_problems']:,} problems train, {facts['held_out_problems']:,} held out"
    if "steps_per_response" in facts:
        parts += f"; {facts['steps_per_response']:.1f} steps per response"
    if facts["left_out"]:
        parts += "; left out " + ", ".join(f"{count:,} {reason}" for reason, count in facts["left_out"].items())
    if "stream" in facts:
        parts += f"; second stream {facts['stream']['examples']:,} examples"
    return parts


def evaluation_sentence(line: Mapping[str, Any]) -> str:
    """One held-out measure in words: every number with what it is to be compared with."""
    found: Mapping[str, Any] = line.get("held_out") or {}
    parts = [f"loss {found['loss']:.4g}"] if "loss" in found else []
    for name, value in found.items():
        if name in ("loss", "examples", "tokens"):
            continue
        beside = f" (majority class {line['majority']:.3f})" if _is_accuracy(name) and "majority" in line else ""
        parts.append(f"{name} {value:.3f}{beside}")
    if parts:
        parts.append(f"over {found['examples']:,} examples")
    if "first_error" in line:
        facts = line["first_error"]
        f1 = "not defined" if facts.get("f1") is None else f"{facts['f1']:.3f}"
        unscored = f", {facts['unscored']} unscored" if facts.get("unscored") else ""
        parts.append(f"first-error F1 {f1} (n {facts['rows']}{unscored})")
    for how, facts in line.get("best_of", {}).items():
        parts += _best_of(how, facts)
    return "  ".join(parts) or "nothing is held out"


def _best_of(how: str, facts: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for n, estimate in facts["strategies"]["argmax"].items():
        if estimate["value"] is None:
            found.append(f"best-of-{n} by {how}: no held-out problem has {n} responses")
            continue
        oracle = facts["strategies"]["any of n"][n]["value"]
        first = facts["first"]["value"]
        found.append(f"best-of-{n} by {how} {estimate['value']:.3f} (first sample {first:.3f}, oracle {oracle:.3f})")
    return found


def held_out_columns(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the held-out numbers, in the order in which they first appear."""
    names: list[str] = [str(name) for line in evaluations for name in line.get("held_out") or ()]
    names += ["majority"] if any("majority" in line for line in evaluations) else []
    names += ["first-error F1"] if any("first_error" in line for line in evaluations) else []
    names += [
        f"best-of-{n} by {how}"
        for line in evaluations
        for how, facts in line.get("best_of", {}).items()
        for n in facts["strategies"]["argmax"]
    ]
    return list(dict.fromkeys(names))


def _cell(line: Mapping[str, Any], name: str) -> str:
    nothing: dict[str, Any] = {}
    value: Any = line.get(name) if name == "majority" else (line.get("held_out") or nothing).get(name)
    if name == "first-error F1":
        value = line.get("first_error", nothing).get("f1")
    elif name.startswith("best-of-"):
        n, _, how = name.removeprefix("best-of-").partition(" by ")
        found: dict[str, Any] = line.get("best_of", nothing).get(how)
        value = found["strategies"]["argmax"][n]["value"] if found else None
    return "not defined" if value is None else f"{value:.4g}"


def _charts(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for line in steps for name in line if name not in NOT_DRAWN)
    xs = [float(line["step"]) for line in steps]
    numbers = {name: [line.get(name) for line in steps] for name in names}
    drawn = {
        name: line_chart(f"{name} per step", xs, values)
        for name, values in numbers.items()
        if all(value is None or isinstance(value, int | float) for value in values)
    }
    return {name: Markup(svg) for name, svg in drawn.items()}  # noqa: S704 (our own SVG; every text in it is escaped)


def _is_accuracy(name: str) -> bool:
    return "accuracy" in name or name in ("judged_right",)
